"""The account we log in to: its shell, what it prints, its interpreters, its rights, how long its processes live."""

from __future__ import annotations

import re

from llmgw.core.findings.rules import Facts, Said, arg, listed, on_preflight, on_probe, quoted, rule, version
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

UNUSUAL = frozenset({"fish", "tcsh", "csh", "nu", "xonsh", "elvish", "pwsh", "ion", "osh", "oil"})
CLOSED = frozenset({"nologin", "false", "true", "rbash", "rksh", "rzsh", "git-shell", "rssh", "scponly", "lshell"})
WHEEL_PYTHON = (3, 10)
"""What the wheel of llama.cpp needs: it is cp310-abi3."""


def _shell(facts: Facts) -> str:
    if facts.preflight is not None and facts.preflight.shell is not None:
        return facts.preflight.shell.login or ""
    return (facts.probe.user.shell or "") if facts.probe else ""


@rule("login_other_user", "error", "Log in as the user that the message names.")
def login_other_user(facts: Facts) -> Said:
    """The login runs a message in place of every command: cloud images do so for root."""
    other = re.search(r"login as the user ['\"]?([\w.-]+)['\"]? rather", facts.outside.refusal, re.I)
    if other is None:
        return None
    message = f"the login runs no command and says: {quoted(facts.outside.refusal)}"
    return message, f"llmgw node add {other[1]}@HOST"


@rule("python_missing", "error", "Install python3, 3.6 or newer.")
def python_missing(facts: Facts) -> Said:
    """Everything done on a node is done by its own python3 of version 3.6 or newer; nothing else is needed there."""
    if "no python3" not in facts.outside.refusal:
        return None
    return "no python3 of version 3.6 or newer answers there", facts.install("python3") or "Install python3 there."


@rule("shell_closed", "error", "Give the user a shell, `sudo chsh -s /bin/sh USER`, or name another user.")
def shell_closed(facts: Facts) -> Said:
    """A login shell that runs no commands (nologin, false) or only some (rbash, git-shell) lets nothing be done."""
    refusal, shell = facts.outside.refusal, _shell(facts)
    if re.search(
        r"account is (currently )?not available|restricted|interactive .*shell is not|not allow.* shell", refusal
    ):
        return f"the login shell runs no command of ours: {quoted(refusal)}"
    if shell.rpartition("/")[2] in CLOSED:
        return (
            f"the login shell is {shell}: it runs no command, or only some",
            facts.root(f"chsh -s /bin/sh {arg(facts.user)}"),
        )
    return None


@rule(
    "login_refuses",
    "error",
    "Look at the login shell (`getent passwd USER`: false and nologin run nothing), its start-up files and "
    "ForceCommand in sshd_config.",
)
def login_refuses(facts: Facts) -> Said:
    """The login works and the first command does not run: a start-up file ends it, or another command is forced."""
    known = (login_other_user, python_missing, shell_closed)
    if not facts.outside.refusal or any(other(facts) for other in known):
        return None
    return f"the login runs no command of ours and says: {quoted(facts.outside.refusal)}"


@rule("shell_unusual", "note")
def shell_unusual(facts: Facts) -> Said:
    """A login shell that is no Bourne shell. The one command that is sent is written so that it too parses it."""
    shell = _shell(facts)
    if shell.rpartition("/")[2] not in UNUSUAL:
        return None
    return (
        f"the login shell is {shell}, no Bourne shell: llmgw works with it, lines to copy may have to be typed in sh",
        "",
    )


@rule(
    "login_noise",
    "note",
    "Print only where somebody reads: begin ~/.bashrc with `case $- in *i*) ;; *) return;; esac`.",
)
def login_noise(facts: Facts) -> Said:
    """Start-up files print although nobody reads. Answers are framed and found in it; scp and rsync break on it."""
    noise = facts.outside.noise
    if not noise.strip():
        return None
    return f"the login prints {len(noise.encode())} bytes of its own around every answer: {quoted(noise, 80)!r}"


@on_preflight(
    "python_too_old", "warning", "Install python3.10 or newer beside it, or name a llama-server with --engine."
)
def python_too_old(preflight: Preflight, facts: Facts) -> Said:
    """Scripts run from Python 3.6 on, but the wheel of llama.cpp (cp310-abi3) needs 3.10."""
    working = [one for one in preflight.pythons if one.version]
    if not working or any(version(one.version) >= WHEEL_PYTHON for one in working):
        return None
    best = max(working, key=lambda one: version(one.version))
    message = f"its newest python is {best.version} ({best.path}): the llama.cpp wheel needs 3.10"
    install = facts.install("python3.11")
    return (message, install) if install else message


@on_preflight("python_broken", "note", "Repair or remove it; the scripts go on to the next interpreter.")
def python_broken(preflight: Preflight, facts: Facts) -> Said:
    """An interpreter on the PATH that does not work: a shim without its version, a broken link, one that hangs."""
    broken = [one for one in preflight.pythons if one.fault]
    if not broken:
        return None
    said = [f"{one.path} ({quoted(one.fault or '', 120)})" for one in broken]
    if len(said) == 1:
        return f"one python on the path does not work: {said[0]}"
    more = f", and {len(said) - 2} more" if len(said) > 2 else ""
    return f"{len(said)} pythons on the path do not work: {', '.join(said[:2])}{more}"


@on_preflight("python_several", "note")
def python_several(preflight: Preflight, facts: Facts) -> Said:
    """Several interpreters work; the newest is taken, so a package put into another one is not seen."""
    working = [one for one in preflight.pythons if one.version]
    chosen = next((one for one in working if one.chosen), None)
    if chosen is None or len({one.version for one in working}) < 2:
        return None
    others = listed(f"{one.version} ({one.path})" for one in working if one is not chosen)
    return f"python {chosen.version} ({chosen.path}) is used; there are also {others}", ""


_BY_HAND = "What needs root is printed as a command: run it there yourself."


@on_preflight("sudo_none", "note", _BY_HAND)
def sudo_none(preflight: Preflight, facts: Facts) -> Said:
    """No root and no sudo: the common path needs neither, but packages and services are then another's work."""
    sudo = preflight.sudo
    return f"{facts.user} is not root and there is no sudo" if sudo and sudo.mode == "none" else None


@on_preflight("sudo_password", "note", "It is asked for once where it is needed, and not stored.")
def sudo_password(preflight: Preflight, facts: Facts) -> Said:
    """sudo wants a password; it is needed only for packages and services that llmgw is told to mend."""
    if preflight.sudo is None or preflight.sudo.mode != "password":
        return None
    in_none = f"; {facts.user} is in none of the groups that usually may" if not preflight.sudo.groups else ""
    return f"sudo wants a password from {facts.user}{in_none}"


@on_preflight("sudo_requires_tty", "note", "Nothing: it is given one. Or drop `Defaults requiretty` with visudo.")
def sudo_requires_tty(preflight: Preflight, facts: Facts) -> Said:
    """sudo runs on a terminal only (requiretty), so a script has to open one for it."""
    sudo = preflight.sudo
    return f"sudo wants a terminal from {facts.user}" if sudo and sudo.mode == "requiretty" else None


@on_preflight("sudo_refused", "note", _BY_HAND)
def sudo_refused(preflight: Preflight, facts: Facts) -> Said:
    """sudo is there and does not serve this user."""
    if preflight.sudo is None or preflight.sudo.mode != "refused":
        return None
    return f"sudo does not serve {facts.user}: {quoted(preflight.sudo.detail or 'no reason given')}"


@on_preflight("sudo_unknown", "note", "Try it by hand where you want to know: `sudo -n true`.")
def sudo_unknown(preflight: Preflight, facts: Facts) -> Said:
    """Whether sudo wants a password is not known: asking it would leave lines in its log and a mail to root.

    Measured with sudo 1.9.13 as Debian configures it: where a password is wanted `sudo -n -l` writes /run/sudo/ts/USER,
    a line to authpriv and, by `mail_badpass`, a mail; -k spares the first only.
    """
    if preflight.sudo is None or preflight.sudo.mode != "unknown":
        return None
    if preflight.sudo.groups:
        return f"sudo was not asked; {facts.user} is in {listed(preflight.sudo.groups)}, so it probably serves"
    return f"sudo was not asked; {facts.user} is in none of the groups that usually may"


@on_preflight("kills_processes", "error", "sudo loginctl enable-linger USER")
def kills_processes(preflight: Preflight, facts: Facts) -> Said:
    """logind ends every process of a user with the last session (KillUserProcesses=yes): engines die at each lost link.

    With lingering they are started in a scope of the user's own manager, which logind leaves alone: logind.conf(5).
    """
    logind = preflight.logind
    if logind is None or not logind.kill_user_processes or logind.linger or facts.user in logind.exclude:
        return None
    if logind.only and facts.user not in logind.only:
        return None
    if facts.probe is not None and facts.probe.user.uid == 0:
        return None
    message = f"logind has KillUserProcesses=yes and {facts.user} does not linger: engines would end with the session"
    return message, enable_linger(facts)


def enable_linger(facts: Facts) -> str:
    return facts.root(f"loginctl enable-linger {arg(facts.user)}")


@on_preflight("linger_without_manager", "warning", "sudo systemctl start user@UID")
def linger_without_manager(preflight: Preflight, facts: Facts) -> Said:
    """The user lingers, yet its own systemd does not run: engines cannot get the scope that outlives a session."""
    logind = preflight.logind
    if logind is None or not (logind.kill_user_processes and logind.linger):
        return None
    if logind.user_manager is not False and logind.systemd_run:
        return None
    uid = facts.probe.user.uid if facts.probe else "$(id -u)"
    if not logind.systemd_run:
        fix = (
            "Install systemd's tools (the package systemd), or set `KillUserProcesses=no` in /etc/systemd/logind.conf."
        )
        return "logind has KillUserProcesses=yes and there is no systemd-run to keep engines from it", fix
    return f"{facts.user} lingers but its own systemd does not run", facts.root(f"systemctl start user@{uid}")


@on_probe("loose_home", "warning", "chmod go-w ~")
def loose_home(probe: Probe, facts: Facts) -> Said:
    """sshd ignores the keys of a user whose home others may write (StrictModes): sshd(8)."""
    strict = facts.preflight.sshd.strict_modes if facts.preflight and facts.preflight.sshd else None
    if strict is False or not (probe.home_mode or 0) & 0o022:
        return None
    home = probe.user.home or "the home"
    return f"{home} is writable by others: sshd will ignore its authorized_keys", f"chmod go-w {arg(home)}"


@on_preflight("loose_keys", "warning", "chmod go-w ~/.ssh ~/.ssh/authorized_keys")
def loose_keys(preflight: Preflight, facts: Facts) -> Said:
    """sshd ignores an authorized_keys that others may write or that belongs to somebody else (StrictModes): sshd(8)."""
    if preflight.sshd is not None and preflight.sshd.strict_modes is False:
        return None
    loose = [one for one in preflight.keys[1:] if one.fault]
    if not loose:
        return None
    strange = [one.path for one in loose if "belongs" in (one.fault or "")]
    fix = facts.root(f"chown {arg(facts.user)} {' '.join(map(arg, strange))}") if strange else ""
    fix = fix or f"chmod go-w {' '.join(arg(one.path) for one in loose)}"
    return f"sshd will ignore the key of llmgw: {listed(f'{one.path} {one.fault}' for one in loose)}", fix


@on_preflight(
    "home_unwritable", "warning", "Make the home writable, or bring your own key and a root: --no-key --root /path."
)
def home_unwritable(preflight: Preflight, facts: Facts) -> Said:
    """The home cannot be written, so the key of the control plane finds no place in ~/.ssh."""
    home = facts.home
    if home is None or home.writable is None or (home.writable and not home.read_only):
        return None
    if home.place != home.path:
        return f"the home {home.path} is not there, and {facts.user} may not make it"
    why = "is mounted read-only" if home.read_only else f"cannot be written by {facts.user}"
    return f"the home {home.path} {why}: no key can be put there"


@on_preflight(
    "selinux_enforcing",
    "note",
    "Where an engine is denied: `ausearch -m avc -ts recent`, then `restorecon -R` on its path.",
)
def selinux_enforcing(preflight: Preflight, facts: Facts) -> Said:
    """SELinux enforces: below a home all is well, a root elsewhere needs labels that let its files run."""
    if preflight.selinux != "enforcing":
        return None
    return "SELinux is enforcing: programs may be denied where their files carry odd labels"
