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
    def fit(self) -> bool:
        """Whether a look alone finds nothing that keeps it from serving."""
        return self.serves or self.severity == "warning" or self.code in FOUND_BY_TRYING

    @property
    def name(self) -> str:
        """Fit for a hostname."""
        return re.sub(r"[^a-z0-9]+", "-", self.what.lower()).strip("-")[:40].strip("-")


FOUND_BY_TRYING = ("processes_killed",)

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
    Surrounding("shell", "`bash`", "It is what most machines have.", user()),
    Surrounding("shell", "`dash`", "Everything sent is plain sh.", user("/bin/dash")),
    Surrounding(
        "shell", "`busybox sh`, also as /bin/sh", "Everything sent is plain sh.", busybox, needs="/usr/bin/busybox"
    ),
    Surrounding("shell", "`zsh`", "Everything sent is plain sh.", user("/usr/bin/zsh"), needs="/usr/bin/zsh"),
    Surrounding("shell", "`ksh`", "Everything sent is plain sh.", user("/usr/bin/ksh"), needs="/usr/bin/ksh"),
    Surrounding(
        "shell",
        "`fish`",
        "The one command line that it has to read is written so that it can.",
        user("/usr/bin/fish"),
        console("su op -c true"),  # fish makes its own folders at a user's first login
        code="shell_unusual",
        severity="note",
        needs="/usr/bin/fish",
    ),
    Surrounding(
        "shell",
        "`tcsh`",
        "The one command line that it has to read is written so that it can.",
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
        "Answers are framed, and found in whatever a login prints.",
        user(_bashrc="echo 'Welcome to the cluster!'; printf '\\033]0;title\\007'; cat /etc/passwd\n"),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that prints while the answer comes",
        "Answers are framed, and found in whatever a login prints.",
        user(_bashrc=INSIDE),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that prints after the answer",
        "What comes after the last frame is not waited for.",
        user(_bashrc=AFTER),
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "noise of `tcsh`",
        "As that of any other shell.",
        user("/usr/bin/tcsh", _tcshrc="echo Hello from tcsh\n"),
        code="login_noise",
        severity="note",
        needs="/usr/bin/tcsh",
    ),
    Surrounding("login", "a banner before the login", "It is no part of an answer.", banner),
    Surrounding(
        "login",
        "a message of the day",
        "It is found around the answer and left out.",
        motd,
        code="login_noise",
        severity="note",
    ),
    Surrounding(
        "login",
        "a start-up file that ends the login",
        "Nothing can be run there; what it says is quoted.",
        user(_bashrc="echo 'No automation on this host, please.'; exit 1\n"),
        serves=False,
        code="login_refuses",
        severity="error",
        status=4,
    ),
    Surrounding(
        "login",
        "`nologin` as login shell",
        "Nothing can be run there; what it says is quoted.",
        user("/usr/sbin/nologin"),
        serves=False,
        code="shell_closed",
        severity="error",
        status=4,
    ),
    Surrounding(
        "login",
        "the root of a cloud image",
        "It says as whom to log in, and so does llmgw.",
        cloud_root,
        serves=False,
        code="login_other_user",
        severity="error",
        status=4,
    ),
    Surrounding("login", "root", "No more is done with it than with any other user."),
    Surrounding(
        "login",
        "password only, and nobody there to type it",
        "A password is asked for in a terminal only.",
        password_only,
        serves=False,
        code="login_refused",
        status=4,
        do="Run it in a terminal: it asks once, and leaves the control plane's own key there.",
    ),
]

PYTHON = [
    Surrounding(
        "python",
        "no python3",
        "The node's own python3 does all the work there.",
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
        "The newest is taken. (A shim that says that it is 3.6 stands in.)",
        python36_beside,
        code="python_several",
        severity="note",
    ),
    Surrounding(
        "python",
        "python 3.6 alone",
        "The scripts run; the wheel of llama.cpp does not. (A shim that says that it is 3.6 stands in.)",
        python36_alone,
        console("mv /usr/bin/python3.11 /opt/real-python; rm -f /usr/bin/python3"),
        code="python_too_old",
        severity="warning",
    ),
    Surrounding(
        "python",
        "a `python3` that does not work",
        "Only an interpreter that answers counts; the next one is tried.",
        python_shim,
        code="python_broken",
        severity="note",
    ),
]

DISKS = [
    Surrounding(
        "disk",
        "`/tmp` noexec",
        "It is not used.",
        user(),
        console("mount -o remount,noexec /tmp"),
        code="tmp_noexec",
        severity="note",
    ),
    Surrounding(
        "disk",
        "`/tmp` full",
        "It is not used by llmgw; engines may want it.",
        user(),
        console("mount -o remount,size=1m /tmp; " + FULL.format("/tmp")),
        code="tmp_full",
        severity="warning",
    ),
    Surrounding(
        "disk",
        "`$HOME` read-only",
        "Neither engines nor our key find a place there.",
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
        "`$HOME` read-only, the root elsewhere",
        "With `--no-key` and `--root` nothing is written to it.",
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
        "`$HOME` full",
        "Our key does not fit; what was there stays as it was.",
        user(),
        mounted("$HOME", SMALL_HOME + FULL.format("$HOME")),
        serves=False,
        code="home_full",
        severity="warning",
        status=1,
    ),
    Surrounding(
        "disk",
        "`$HOME` noexec",
        "No engine could be started there.",
        user(),
        console("mount --bind $HOME $HOME; mount -o remount,bind,noexec $HOME"),
        serves=False,
        code="noexec_root",
        severity="error",
        status=4,
    ),
    Surrounding(
        "disk",
        "a home shared by two nodes",
        "Both serve: engines and weights are shared, each keeps a folder of its own for the rest.",
        shared_home,
    ),
    Surrounding("disk", "the second node of a shared home", "One line of our key serves both.", shared_home),
    Surrounding(
        "disk",
        "a root on a full disk",
        "It becomes a node, but no engine fits: the add says how much is missing, and it is tried again by itself.",
        serves=False,
        code="no_engine",
        status=1,
        do="Free space, or name a --root on a larger disk.",
        test="test_bad_hosts.py::test_a_full_disk_on_the_node_is_told_by_install",
    ),
]

SERVERS = [
    *(
        Surrounding(
            "sshd",
            f"`MaxSessions {most}`",
            "What the server grants is learnt; scripts wait for one another.",
            sshd(f"MaxSessions {most}"),
            code="max_sessions_small" if most < 3 else None,
            severity="note" if most < 3 else None,
        )
        for most in (1, 2, 10)
    ),
    Surrounding(
        "sshd",
        "`MaxStartups 2`",
        "Handshakes that are dropped are tried again.",
        sshd("MaxStartups 2"),
        code="max_startups_small",
        severity="note",
    ),
    Surrounding(
        "sshd",
        "`AllowTcpForwarding no`",
        "A relay on the node carries the traffic.",
        sshd("AllowTcpForwarding no"),
        code="forwarding_forbidden",
        severity="warning",
        relay=True,
    ),
    Surrounding(
        "sshd",
        "`AllowTcpForwarding no`, `MaxSessions 1`",
        "The relay has a connection of its own.",
        sshd("AllowTcpForwarding no", "MaxSessions 1"),
        code="forwarding_forbidden",
        severity="warning",
        relay=True,
    ),
    Surrounding("sshd", "no SFTP", "It is not used.", sshd("# no Subsystem")),
    Surrounding(
        "sshd",
        "a ForceCommand that runs what was asked",
        "It has to run it to the letter.",
        sshd('ForceCommand /bin/sh -c "$SSH_ORIGINAL_COMMAND"'),
        code="forced_command",
        severity="warning",
    ),
    Surrounding(
        "sshd",
        "keys that are read from elsewhere",
        "A key in the home would open nothing.",
        keys_elsewhere,
        serves=False,
        code="keys_elsewhere",
        severity="error",
        status=4,
    ),
    Surrounding(
        "sshd",
        "`dropbear`",
        "From 2022.82 on. Our key's line holds what it knows of restrictions; it cannot forbid remote listeners.",
        dropbear,
        code="dropbear",
        severity="note",
        needs="/usr/sbin/dropbear",
    ),
    Surrounding(
        "sshd",
        "`KillUserProcesses=yes`",
        "Every engine would end with its connection; `node add` tries it. (PAM stands in for logind.)",
        kills_processes,
        serves=False,
        code="processes_killed",
        status=1,
        do="sudo loginctl enable-linger USER",
    ),
]

WAYS = [
    Surrounding(
        "way",
        "a name that nobody knows",
        "The name service does not know it.",
        serves=False,
        code="unknown_host",
        status=5,
        do="Check the spelling.",
        test="test_bad_hosts.py::test_an_unknown_name",
    ),
    Surrounding(
        "way",
        "a closed port",
        "Nothing listens there.",
        serves=False,
        code="port_closed",
        status=5,
        do="Start sshd there, or give its port with the host.",
        test="test_bad_hosts.py::test_a_closed_port",
    ),
    Surrounding(
        "way",
        "an address without a route",
        "Nobody answers.",
        serves=False,
        code="no_route",
        status=5,
        do="Is the machine on, and does a firewall let us through?",
        test="test_bad_hosts.py::test_no_route",
    ),
    Surrounding(
        "way",
        "a key that is refused",
        "What was tried is named.",
        serves=False,
        code="login_refused",
        status=4,
        do="Put the key there, or name another one with `-i`.",
        test="test_bad_hosts.py::test_a_refused_login",
    ),
    Surrounding(
        "way",
        "another fingerprint than `--fingerprint` demands",
        "Both are told.",
        serves=False,
        code="host_key_changed",
        status=4,
        do="Compare it on the machine itself: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`",
        test="test_bad_hosts.py::test_a_wrong_fingerprint",
    ),
    Surrounding(
        "way",
        "an alias of the SSH configuration, with Include, Port, User, IdentityFile",
        "OpenSSH's configuration applies; `node show` says what comes from it.",
        test="test_ways.py::test_an_alias_with_all_that_goes_with_it",
    ),
    Surrounding(
        "way",
        "two jump hosts, one of them dying",
        "The node is out of reach meanwhile; then its engines are found again as they were.",
        test="test_ways.py::test_two_jump_hosts_one_of_them_dying",
    ),
    Surrounding(
        "way",
        "a jump host whose key nobody knows",
        "Nothing is sent through it.",
        serves=False,
        code="jump_host_key",
        status=4,
        do="Connect to it once with ssh, so that its key is in your known_hosts.",
        test="test_ways.py::test_a_jump_host_that_nobody_knows_is_named",
    ),
    Surrounding(
        "way",
        "IPv6, with and without a zone",
        "Written in brackets where a port follows.",
        test="test_ways.py::test_ipv6_with_and_without_a_zone",
    ),
    Surrounding(
        "way",
        "a firewall that forgets idle connections without a word",
        "None of ours is idle: each is kept alive.",
        test="test_middlebox.py::test_a_firewall_that_forgets_idle_connections_forgets_none_of_ours",
    ),
    Surrounding(
        "way",
        "half-open TCP",
        "It is found by the keepalive and opened again; engines go on.",
        test="test_middlebox.py::test_half_open_connections_are_found_and_opened_again",
    ),
    Surrounding(
        "way",
        "a server that hangs",
        "As half-open TCP.",
        test="test_middlebox.py::test_a_server_that_hangs_is_found_and_asked_anew",
    ),
    Surrounding(
        "way",
        "sshd that restarts during the add",
        "It is waited for: three minutes, or as long as `--ssh-wait` says.",
        test="test_onboarding.py::test_sshd_that_restarts_during_the_add_is_waited_for",
    ),
    Surrounding(
        "way",
        "a machine that is still booting",
        "With `--ssh-wait` it is waited for.",
        test="test_onboarding.py::test_sshd_that_comes_up_late_is_waited_for",
    ),
    Surrounding(
        "way",
        "several adds of one node at the same moment",
        "One does the work, the others say whose it is and wait for it.",
        test="test_onboarding.py::test_the_same_node_added_twice_at_the_same_moment",
    ),
    Surrounding(
        "way",
        "a changed host key",
        "Nothing is sent to it; the node is quarantined, with both keys and the command that trusts the new one.",
        serves=False,
        code="host_key_changed",
        status=4,
        do="If you know why: `llmgw node add HOST --trust-key SHA256:…`; it serves again with the same engines.",
        test="test_onboarding.py::test_a_changed_host_key_is_trusted_again_on_the_operators_word",
    ),
    Surrounding(
        "way",
        "a host certificate of your own authority",
        "`@cert-authority` in known_hosts vouches for it; nobody is asked.",
        test="test_onboarding.py::test_an_authority_in_known_hosts_vouches",
    ),
    Surrounding(
        "way",
        "a password",
        "It is asked for once in a terminal, then the control plane comes with its own key.",
        test="test_onboarding.py::test_a_password_is_asked_for_once_and_never_again",
    ),
    Surrounding(
        "way",
        "a key of your own and none of ours",
        "`--no-key` leaves nothing in authorized_keys.",
        test="test_onboarding.py::test_without_a_key_of_ours",
    ),
]

SYSTEM = [
    Surrounding(
        "system",
        "a clock two hours ahead",
        "No clocks are compared.",
        sshd(f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=+2h"),
        code="clock_wrong",
        severity="warning",
        needs=FAKETIME,
    ),
    Surrounding(
        "system",
        "a clock two hours behind",
        "No clocks are compared.",
        sshd(f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=-2h"),
        code="clock_wrong",
        severity="warning",
        needs=FAKETIME,
    ),
]

SYSTEM += [
    Surrounding(
        "system",
        "a machine id that another node has",
        "An image was cloned; the host key tells them apart.",
        code="machine_id_cloned",
        severity="warning",
        test="test_onboarding.py::test_a_cloned_machine_id_is_a_finding",
    ),
    Surrounding(
        "system",
        "the same machine under a second name",
        "One machine is one node: both names are told.",
        serves=False,
        code="same_machine",
        status=4,
        do="Remove it under its first name, then add it again.",
        test="test_bad_hosts.py::test_the_same_machine_under_two_names",
    ),
    Surrounding(
        "system",
        "another machine of the same hostname",
        "A node is called by its hostname.",
        serves=False,
        code="name_taken",
        status=4,
        do="Give this one another name with `--name`.",
        test="test_bad_hosts.py::test_two_machines_with_one_hostname",
    ),
]

SURROUNDINGS = [*SHELLS, *NOISE, *PYTHON, *DISKS, *SERVERS, *WAYS, *SYSTEM]
