"""The surroundings that nodes have in the wild, each as a machine that has it and what is to come of it.

A node serves, or `node add --check` names what is wrong and what mends it. docs/nodes.md is made from this list; each
entry is tried on a real SSH server by test_surroundings.py, or by the test that it names.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.machines import DROPBEAR, Machine, run

FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), "libfaketime")


def nothing(machine: Machine) -> None:
    """An ordinary machine."""


@dataclass(frozen=True)
class Surrounding:
    group: str
    what: str
    """What it is, as the docs say it."""
    happens: str
    """What comes of it, one sentence."""
    make: Callable[[Machine], None] = nothing
    """Before the machine boots."""
    after: Callable[[Machine], None] = nothing
    """At its console, when it is up."""
    serves: bool = True
    code: str | None = None
    """The finding, or the error of `node add`, that names it."""
    status: int = 0
    """Exit status of `node add` where it does not serve."""
    severity: str | None = None
    """Of the finding; None where the error is that of `node add`."""
    words: tuple[str, ...] = ()
    """Given to `node add` and `node add --check`."""
    do: str = ""
    """What to do; where it is empty, what the finding says."""
    needs: str | None = None
    """A file of this machine without which it cannot be tried."""
    relay: bool = False
    """Traffic goes over a relay on the node."""
    test: str | None = None
    """Where it is tried, when not by test_surroundings.py: `test_links.py::test_…`."""

    @property
    def title(self) -> str:
        return self.what[0].upper() + self.what[1:] if " " in self.what else f"`{self.what}`"

    @property
    def name(self) -> str:
        """Fit for a hostname."""
        return re.sub(r"[^a-z0-9]+", "-", self.what.lower()).strip("-")[:40].strip("-")


GROUPS = {
    "shell": "Login shells",
    "login": "What a login does",
    "python": "Python",
    "disk": "Disks and homes",
    "sshd": "SSH servers",
    "way": "The way to it",
    "system": "The system",
}

# How machines are made so.


def user(shell: str = "/bin/bash", **files: str) -> Callable[[Machine], None]:
    """A user without root, with files in the home: `_bashrc="…"` is ~/.bashrc."""

    def make(machine: Machine) -> None:
        machine.account(shell)
        for name, text in files.items():
            path = Path(machine.home, name.replace("_", ".", 1))
            machine.write(str(path), text, mine=True)

    return make


def sshd(*lines: str, shell: str = "/bin/bash") -> Callable[[Machine], None]:
    """A user without root, and an sshd_config of just these lines."""

    def make(machine: Machine) -> None:
        machine.account(shell)
        machine.write("/etc/ssh/sshd_config", "\n".join((*lines, "")))

    return make


def console(command: str) -> Callable[[Machine], None]:
    """Something done by root at the console. `$HOME` is the home of whoever logs in."""
    return lambda machine: (machine.shell(f"HOME={machine.home}; {command}"), None)[1]


def mounted(folder: str, command: str) -> Callable[[Machine], None]:
    """The same, where `folder` becomes a file system of its own."""

    def after(machine: Machine) -> None:
        place = folder.replace("$HOME", machine.home)
        machine.shell(f"HOME={machine.home}; {command}")
        machine.mounted.append(place)

    return after


def busybox(machine: Machine) -> None:
    machine.account("/usr/local/bin/ash")
    for link in ("usr/local/bin/ash", "usr/bin/sh"):
        path = machine.upper / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/usr/bin/busybox")


def dropbear(machine: Machine) -> None:
    machine.account()
    machine.server = DROPBEAR
    keys = machine.upper / "etc/ssh"
    run("dropbearkey", "-t", "ed25519", "-f", str(keys / "dropbear_key"))


PYTHON36 = """\
#!/bin/sh
# Says that it is 3.6, and is what is there.
for last; do :; done
exec {real} -B -I -S -c "import sys;sys.version_info=(3,6,8,'final',0);sys.version='3.6.8 (default)';$last"
"""


def python36_beside(machine: Machine) -> None:
    machine.account()
    for name in ("python3.6", "python3"):
        machine.write(f"/usr/local/bin/{name}", PYTHON36.format(real="/usr/bin/python3.11"), mode=0o755)


def python36_alone(machine: Machine) -> None:
    machine.account()
    machine.write("/usr/local/bin/python3.6", PYTHON36.format(real="/opt/real-python"), mode=0o755)


def python_shim(machine: Machine) -> None:
    machine.account()
    shim = "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n"
    for name in ("python3", "python3.12"):
        machine.write(f"/usr/local/bin/{name}", shim, mode=0o755)


def kills_processes(machine: Machine) -> None:
    """Stands in for logind's KillUserProcesses=yes, since no systemd runs here: PAM ends what the user left running."""
    machine.account()
    machine.server = machine.server.replace("UsePAM=no", "UsePAM=yes")
    pam = "auth required pam_permit.so\naccount required pam_permit.so\n"
    pam += "session optional pam_exec.so quiet /usr/local/sbin/logout\n"
    machine.write("/etc/pam.d/sshd", pam)
    script = (
        "#!/bin/sh\n[ $PAM_TYPE = close_session ] || exit 0\n"
        "for pid in $(pgrep -u $PAM_USER); do [ $(cat /proc/$pid/comm) = sshd ] || kill -9 $pid; done\n"
    )
    machine.write("/usr/local/sbin/logout", script, mode=0o755)


def shared_home(machine: Machine) -> None:
    """One folder of the fleet is the home of every machine made so."""
    folder = machine.folder.parent / "shared-home"
    machine.account()
    home = machine.upper / "home/op"
    if not folder.exists():
        run("cp", "-a", str(home), str(folder))
    machine.binds["/home/op"] = str(folder)
    machine.mounted.append("/home/op")


def cloud_root(machine: Machine) -> None:
    says = 'Please login as the user \\"debian\\" rather than the user \\"root\\".'
    line = f"no-port-forwarding,command=\"echo '{says}';echo;sleep 1;exit 142\" {machine.operator_key}"
    machine.write("/root/.ssh/authorized_keys", line + "\n", mode=0o600)


def password_only(machine: Machine) -> None:
    """The operator's key does not get in."""
    machine.account(key="", password=run("openssl", "passwd", "-6", PASSWORD).strip())


def keys_elsewhere(machine: Machine) -> None:
    sshd("AuthorizedKeysFile /etc/ssh/keys/%u")(machine)
    machine.write("/etc/ssh/keys/op", machine.operator_key + "\n")


def banner(machine: Machine) -> None:
    sshd("Banner /etc/ssh/banner")(machine)
    machine.write("/etc/ssh/banner", "Authorised use only.\n" * 40)


def motd(machine: Machine) -> None:
    user(_bashrc="cat /etc/motd\n")(machine)
    machine.write("/etc/motd", "\n  * Documentation: https://help.example.com\n\n0 updates can be applied.\n")


PASSWORD = "correct horse"
SMALL_HOME = (
    "cp -a $HOME /tmp/home; mount -t tmpfs -o size=2m,mode=700,uid=1200,gid=1200 tmpfs $HOME; "
    "cp -a /tmp/home/. $HOME; rm -r /tmp/home; "
)
INSIDE = '(for i in 1 2 3 4 5 6 7 8; do echo "noise $i"; sleep 0.05; done) &\n'
AFTER = "(sleep 0.5; echo 'goodbye from .bashrc') &\n"
FULL = "cat /dev/zero > {0}/filler 2>/dev/null || true"

SHELLS = [
    Surrounding("shell", "bash", "It serves.", user()),
    Surrounding("shell", "dash", "It serves.", user("/bin/dash")),
    Surrounding("shell", "busybox sh", "It serves, also where /bin/sh is busybox.", busybox, needs="/usr/bin/busybox"),
    Surrounding("shell", "zsh", "It serves.", user("/usr/bin/zsh"), needs="/usr/bin/zsh"),
    Surrounding("shell", "ksh", "It serves.", user("/usr/bin/ksh"), needs="/usr/bin/ksh"),
    Surrounding(
        "shell",
        "fish",
        "It serves; the shell is noted.",
        user("/usr/bin/fish"),
        console("su op -c true"),  # fish makes its own folders at a user's first login
        code="shell_unusual",
        severity="note",
        needs="/usr/bin/fish",
    ),
    Surrounding(
        "shell",
        "tcsh",
        "It serves; the shell is noted.",
        user("/usr/bin/tcsh"),
        code="shell_unusual",
        severity="note",
        needs="/usr/bin/tcsh",
    ),
]

NOISE = [
    Surrounding(
        "login",
        "a start-up file that prints before the answer",
        "It serves: answers are framed and found in what a login prints.",
        user(_bashrc="echo 'Welcome to the cluster!'; printf '\\033]0;title\\007'; cat /etc/passwd\n"),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that prints inside the answer",
        "It serves.",
        user(_bashrc=INSIDE),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that prints after the answer",
        "It serves.",
        user(_bashrc=AFTER),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "noise in tcsh",
        "It serves.",
        user("/usr/bin/tcsh", _tcshrc="echo Hello from tcsh\n"),
        code="login_noise",
        severity="note",
        needs="/usr/bin/tcsh",
    ),
    Surrounding("login", "a banner", "It serves; a banner is no part of an answer.", banner),
    Surrounding(
        "login",
        "a message of the day that a start-up file prints",
        "It serves.",
        motd,
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that ends the login",
        "It is refused: nothing can be run there.",
        user(_bashrc="echo 'No automation on this host, please.'; exit 1\n"),
        serves=False,
        code="login_refuses",
        severity="error",
        status=4,
    ),
    Surrounding(
        "login",
        "nologin as shell",
        "It is refused, with what the shell says.",
        user("/usr/sbin/nologin"),
        serves=False,
        code="shell_closed",
        severity="error",
        status=4,
    ),
    Surrounding(
        "login",
        "a cloud image's root",
        "It is refused, with the user to log in as.",
        cloud_root,
        serves=False,
        code="login_other_user",
        severity="error",
        status=4,
    ),
    Surrounding("login", "root", "It serves."),
    Surrounding(
        "login",
        "password only and nobody there to type it",
        "`node add` in a terminal asks for it, once; elsewhere the login is refused.",
        password_only,
        serves=False,
        code="login_refused",
        status=4,
        do="Run `llmgw node add` in a terminal: it asks once, then leaves the control plane's own key there.",
    ),
]

PYTHON = [
    Surrounding(
        "python",
        "no python3",
        "It is refused: the node's own python3 does all the work.",
        user(),
        console("rm -f /usr/bin/python3*"),
        serves=False,
        code="python_missing",
        severity="error",
        status=4,
    ),
    Surrounding(
        "python",
        "python 3.6 beside 3.11",
        "It serves with the newer one. (A shim that reports 3.6 stands in.)",
        python36_beside,
        code="python_several",
        severity="note",
    ),
    Surrounding(
        "python",
        "python 3.6 alone",
        "It serves; the wheel of llama.cpp would not run. (A shim that reports 3.6 stands in.)",
        python36_alone,
        console("mv /usr/bin/python3.11 /opt/real-python; rm -f /usr/bin/python3"),
        code="python_too_old",
        severity="warning",
    ),
    Surrounding(
        "python",
        "python3 is a shim that does not work",
        "It serves: only an interpreter that answers counts.",
        python_shim,
        code="python_broken",
        severity="note",
    ),
]

DISKS = [
    Surrounding(
        "disk",
        "tmp is noexec",
        "It serves: /tmp is not used.",
        user(),
        console("mount -o remount,noexec /tmp"),
        code="tmp_noexec",
        severity="note",
    ),
    Surrounding(
        "disk",
        "tmp is full",
        "It serves: /tmp is not used; engines may want it.",
        user(),
        console("mount -o remount,size=1m /tmp; " + FULL.format("/tmp")),
        code="tmp_full",
        severity="warning",
    ),
    Surrounding(
        "disk",
        "the home is read-only",
        "It is refused: neither key nor engines find a place.",
        user(),
        console("mount --bind $HOME $HOME; mount -o remount,bind,ro $HOME"),
        serves=False,
        code="unwritable_root",
        severity="error",
        status=4,
        do="Make it writable, or bring your own key and a root elsewhere: `--no-key --root /DIR`.",
    ),
    Surrounding(
        "disk",
        "a read-only home with the root elsewhere",
        "It serves with your key.",
        user(),
        console(
            "mkdir -p /srv/llmgw; chown 1200:1200 /srv/llmgw; chmod 700 /srv/llmgw; "
            "mount --bind $HOME $HOME; mount -o remount,bind,ro $HOME"
        ),
        words=("--no-key", "--root", "/srv/llmgw"),
        code="home_unwritable",
        severity="warning",
    ),
    Surrounding(
        "disk",
        "the home is full",
        "It is refused before anything is written.",
        user(),
        mounted("$HOME", SMALL_HOME + FULL.format("$HOME")),
        serves=False,
        code="home_full",
        severity="warning",
        status=1,
    ),
    Surrounding(
        "disk",
        "the home is noexec",
        "It is refused: no engine can be started there.",
        user(),
        console("mount --bind $HOME $HOME; mount -o remount,bind,noexec $HOME"),
        serves=False,
        code="noexec_root",
        severity="error",
        status=4,
    ),
    Surrounding("disk", "a home shared by two nodes", "Both serve; each keeps a folder of its own in it.", shared_home),
    Surrounding("disk", "the second node of a shared home", "Both serve.", shared_home),
    Surrounding(
        "disk",
        "a root on a full disk",
        "It becomes a node without the engine; the event says how much is missing.",
        do="Free space, or name a --root on a larger disk.",
        test="test_bad_hosts.py::test_a_full_disk_on_the_node_is_told_by_install",
    ),
]

SERVERS = [
    *(
        Surrounding(
            "sshd",
            f"MaxSessions {most}",
            "It serves: what the server grants is learnt.",
            sshd(f"MaxSessions {most}"),
            code="max_sessions_small" if most < 3 else None,
            severity="note" if most < 3 else None,
        )
        for most in (1, 2, 10)
    ),
    Surrounding(
        "sshd",
        "MaxStartups 2",
        "It serves: a dropped handshake is tried again.",
        sshd("MaxStartups 2"),
        code="max_startups_small",
        severity="note",
    ),
    Surrounding(
        "sshd",
        "AllowTcpForwarding no",
        "It serves: traffic goes over a relay on the node.",
        sshd("AllowTcpForwarding no"),
        code="forwarding_forbidden",
        severity="warning",
        relay=True,
    ),
    Surrounding(
        "sshd",
        "AllowTcpForwarding no and MaxSessions 1",
        "It serves: the relay gets a connection of its own.",
        sshd("AllowTcpForwarding no", "MaxSessions 1"),
        code="forwarding_forbidden",
        severity="warning",
        relay=True,
    ),
    Surrounding("sshd", "no SFTP", "It serves: SFTP is not used.", sshd("# no Subsystem")),
    Surrounding(
        "sshd",
        "ForceCommand that runs what was asked",
        "It serves.",
        sshd('ForceCommand /bin/sh -c "$SSH_ORIGINAL_COMMAND"'),
        code="forced_command",
        severity="warning",
    ),
    Surrounding(
        "sshd",
        "keys are read from elsewhere",
        "It is refused: a key in the home would open nothing.",
        keys_elsewhere,
        serves=False,
        code="keys_elsewhere",
        severity="error",
        status=4,
    ),
    Surrounding(
        "sshd", "dropbear", "It serves.", dropbear, code="dropbear", severity="note", needs="/usr/sbin/dropbear"
    ),
    Surrounding(
        "sshd",
        "KillUserProcesses yes",
        "`node add` tries it and is refused: engines would die at each lost link. (PAM stands in for logind.)",
        kills_processes,
        serves=False,
        code="processes_killed",
        status=1,
        do="sudo loginctl enable-linger USER",
    ),
]

SYSTEM = [
    Surrounding(
        "system",
        "the clock is two hours ahead",
        "It serves: no clocks are compared.",
        sshd(f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=+2h"),
        code="clock_wrong",
        severity="warning",
        needs=FAKETIME,
    ),
    Surrounding(
        "system",
        "the clock is two hours behind",
        "It serves.",
        sshd(f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=-2h"),
        code="clock_wrong",
        severity="warning",
        needs=FAKETIME,
    ),
]

SURROUNDINGS = [*SHELLS, *NOISE, *PYTHON, *DISKS, *SERVERS, *SYSTEM]
