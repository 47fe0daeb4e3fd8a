"""preflight.py: what the account may do, told truthfully, without a byte written and without waiting for what hangs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

from .conftest import Node, tree

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
NO_ROOT = ('if os.geteuid() == 0:\n        return answer("root")', "")
"""Makes the script of a test that runs as root look at sudo all the same."""
DEAD_SERVER = (
    "room = os.statvfs(there)",
    'room = os.statvfs(there if path == "/tmp" else __import__("time").sleep(3600))',
)
"""Whoever asks for the file system of another path than /tmp waits for an hour."""
FOUR_HOURS = "sleep 14400"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A tree in place of /etc, /run, /sys, /usr and /var."""
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


def put(base: Path, name: str, text: str = "") -> Path:
    path = base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def program(node: Node, name: str, body: str) -> Path:
    path = node.bin / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def preflight(node: Node, **args: Any) -> Any:
    found = node.call("preflight", **{"interpreters": ["python3.14"], **args})
    Preflight.model_validate(found)
    return found


def test_this_machine_is_told_truthfully(node: Node) -> None:
    found = preflight(node, ports=[41000, 41999])
    assert found["schema"] == 1
    assert found["hostname"] == os.uname().nodename
    assert found["shell"]["login"] == __import__("pwd").getpwuid(os.geteuid()).pw_shell
    assert [one["chosen"] for one in found["pythons"]] == [True]
    assert found["pythons"][0]["fault"] is None
    assert found["keys"][0] == {"path": str(node.home), "exists": True, "fault": None}
    assert [one["path"] for one in found["mounts"]][:3] == [str(node.root), str(node.home), "/tmp"]
    root = found["mounts"][0]
    assert (root["place"], root["writable"], root["noexec"]) == (str(node.home), True, False)
    assert root["free"] > 0
    assert 900 < found["ports"]["free"] <= found["ports"]["of"] == 1000
    assert found["tools"]["ldd"] == shutil.which("ldd")
    assert found["oom"]["overcommit"] == int(Path("/proc/sys/vm/overcommit_memory").read_text())
    assert found["outbound"] == {"dns": None, "hosts": [], "proxies": []}
    assert "sshd" in found["unknown"]


def test_it_is_small_and_costs_little(node: Node) -> None:
    preflight(node)
    began = time.monotonic()
    assert len(json.dumps(preflight(node))) < 16 << 10
    assert time.monotonic() - began < 2


def test_nothing_is_written_in_the_home(node: Node) -> None:
    (node.home / "there").write_text("x")
    before, times = tree(node.home), {path: path.stat().st_mtime_ns for path in node.home.rglob("*")}
    preflight(node, ports=[41000, 41999], outbound=["127.0.0.1:1"], libraries=["libc.so.6"])
    assert tree(node.home) == before
    assert {path: path.stat().st_mtime_ns for path in node.home.rglob("*")} == times


def written(node: Node, layers: Path, script: str) -> str:
    """What a script writes anywhere: an overlay lies over the whole root, and every write lands in its upper layer."""
    layers.mkdir()
    shell = program(
        node,
        "shell",
        f"""exec unshare --mount --propagation private /bin/sh -c '
        set -e
        mount -t tmpfs tmpfs {layers}
        mkdir {layers}/upper {layers}/work {layers}/root
        mount -t overlay overlay -o lowerdir=/,upperdir={layers}/upper,workdir={layers}/work {layers}/root
        for each in proc dev sys; do mount --rbind /$each {layers}/root/$each; done
        /usr/sbin/chroot {layers}/root /bin/sh "$@"
        cd {layers}/upper
        echo "written:" $(find . -mindepth 1) >&2' sh "$@" """,
    )
    node.call(script, shell=str(shell), ports=[41000, 41999], libraries=["libgomp.so.1"], outbound=["127.0.0.1:1"])
    assert node.last is not None
    assert "written:" in node.last.stderr
    return node.last.stderr.partition("written:")[2].strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts an overlay: root only")
def test_nothing_is_written_on_the_whole_machine(node: Node, tmp_path: Path) -> None:
    assert written(node, tmp_path / "1", "preflight") == ""
    assert written(node, tmp_path / "2", "probe") == ""
    node.change = ("def main(args):\n", "def main(args):\n    open('/var/a write', 'w').close()\n")
    assert written(node, tmp_path / "3", "preflight") == "./var ./var/a write"


# ---- the ladder ----


def test_every_kind_of_broken_interpreter_is_told(node: Node) -> None:
    program(node, "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    program(node, "python3.12", FOUR_HOURS)
    (node.bin / "python3.11").symlink_to("/nowhere/python3.11")
    (node.bin / "python3.10").write_bytes(b"\x7fELF of another machine")
    (node.bin / "python3.10").chmod(0o755)
    program(node, "python3.9", "echo 3.9.2")
    (node.bin / "python3.8").mkdir()
    names = [f"python3.{minor}" for minor in (14, 13, 12, 11, 10, 9, 8)]
    began = time.monotonic()
    found = preflight(node, interpreters=[*names, "/nowhere/python3"])["pythons"]
    assert time.monotonic() - began < 8
    said = {Path(one["path"]).name: (one["version"], one["fault"]) for one in found}
    assert said["python3.14"][1] is None
    assert said["python3.13"] == (None, "ended with 127: pyenv: python3.13: command not found")
    assert said["python3.12"] == (None, "did not answer in 2 s")
    assert said["python3.11"] == (None, "is a broken link")
    assert said["python3.10"][0] is None
    assert said["python3.10"][1].startswith(("cannot be started", "ended with"))
    assert said["python3.9"] == ("3.9.2", None)
    assert said["python3.8"][1].startswith("cannot be started")
    assert [one["chosen"] for one in found] == [True] + [False] * 6
    assert len(found) == 7


def test_ten_interpreters_that_hang_cost_seconds_and_not_the_rest(node: Node) -> None:
    for minor in range(4, 14):
        program(node, f"python3.{minor}", FOUR_HOURS)
    began = time.monotonic()
    found = preflight(node, interpreters=[f"python3.{minor}" for minor in range(4, 15)])
    assert time.monotonic() - began < 11
    assert found["shell"] is not None
    assert len(found["pythons"]) == 11


# ---- sudo: the words are those of sudo 1.9.13 ----


def sudo(node: Node, answer: str) -> None:
    """A sudo that notes being asked."""
    program(node, "sudo", f'echo "asked: $*" >> {node.home}/asked\n{answer}').chmod(0o4755)


def test_sudo_is_not_asked_unless_told_to(node: Node) -> None:
    sudo(node, "exit 0")
    node.change = NO_ROOT
    found = preflight(node)["sudo"]
    assert found["mode"] == "unknown"
    assert found["path"] == str(node.bin / "sudo")
    assert not (node.home / "asked").exists()


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        ("echo 'User anna may run the following commands on gpu01:\n    (ALL) NOPASSWD: ALL'", "free"),
        ("echo '    (ALL : ALL) ALL\n    (ALL) NOPASSWD: SETENV: ALL'", "free"),
        ("echo '    (ALL : ALL) ALL\n    (root) NOPASSWD: /usr/bin/systemctl'", "password"),
        ("echo 'sudo: a password is required' >&2; exit 1", "password"),
        ("echo 'sudo: sorry, you must have a tty to run sudo' >&2; exit 1", "requiretty"),
        ("echo 'Sorry, user anna may not run sudo on gpu01.' >&2; exit 1", "refused"),
        (FOUR_HOURS, "unknown"),
    ],
)
def test_what_sudo_says(node: Node, answer: str, mode: str) -> None:
    sudo(node, answer)
    node.change = NO_ROOT
    assert preflight(node, ask_sudo=True)["sudo"]["mode"] == mode
    assert (node.home / "asked").read_text() == "asked: -n -k -l\n"


def test_a_sudo_that_cannot_become_root_is_not_asked(node: Node) -> None:
    sudo(node, "exit 0")
    (node.bin / "sudo").chmod(0o755)
    node.change = NO_ROOT
    found = preflight(node, ask_sudo=True)["sudo"]
    assert (found["mode"], "setuid" in found["detail"]) == ("refused", True)
    assert not (node.home / "asked").exists()


# ---- logind ----

SHIPPED = "[Login]\n#NAutoVTs=6\n#KillUserProcesses={}\n#KillExcludeUsers=root\n"


@pytest.mark.parametrize(
    ("files", "kill"),
    [
        ({"etc/systemd/logind.conf": SHIPPED.format("no")}, False),
        ({"usr/lib/systemd/logind.conf": SHIPPED.format("yes")}, True),
        ({"etc/systemd/logind.conf": SHIPPED.format("no") + "KillUserProcesses=yes\n"}, True),
        (
            {
                "etc/systemd/logind.conf": SHIPPED.format("yes"),
                "etc/systemd/logind.conf.d/90-mine.conf": "[Login]\nKillUserProcesses=no\n",
            },
            False,
        ),
        (
            {
                "etc/systemd/logind.conf.d/50-a.conf": "[Login]\nKillUserProcesses = off\n",
                "usr/lib/systemd/logind.conf.d/60-b.conf": "[Login]\nKillUserProcesses=on\n",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/60-b.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/60-b.conf": "[Login]\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_what_becomes_of_processes_at_logout(node: Node, base: Path, files: dict[str, str], kill: bool | None) -> None:
    (base / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        put(base, name, text)
    found = preflight(node, _base=str(base))["logind"]
    assert (found["kill_user_processes"], found["exclude"]) == (kill, ["root"])


def test_lingering_and_the_user_manager(node: Node, base: Path) -> None:
    name = __import__("pwd").getpwuid(os.geteuid()).pw_name
    put(base, f"var/lib/systemd/linger/{name}")
    put(base, f"run/user/{os.geteuid()}/systemd/private")
    put(base, "etc/systemd/logind.conf", "[Login]\nKillExcludeUsers=root backup\nKillOnlyUsers=guest\n")
    found = preflight(node, _base=str(base))["logind"]
    assert (found["linger"], found["user_manager"], found["systemd"]) == (True, True, False)
    assert (found["exclude"], found["only"]) == (["root", "backup"], ["guest"])


# ---- sshd_config ----


def config(node: Node, base: Path, text: str) -> Any:
    """The facts of a server with this configuration, read by hand."""
    path = put(base, "etc/ssh/sshd_config", text)
    found = preflight(node, _base=str(base), _sshd=str(path))
    return found["sshd"] or found["unknown"]["sshd"]


def test_what_holds_where_nothing_is_said(node: Node, base: Path) -> None:
    found = config(node, base, "# nothing\n")
    assert found["source"].endswith("/etc/ssh/sshd_config")
    del found["source"]
    assert found == {
        "server": "openssh",
        "max_sessions": 10,
        "max_startups": "10:30:100",
        "allow_tcp_forwarding": "yes",
        "permit_open": [],
        "pubkey": True,
        "strict_modes": True,
        "authorized_keys_file": [".ssh/authorized_keys", ".ssh/authorized_keys2"],
        "force_command": None,
    }


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("MaxSessions 1\nMaxSessions 5\n", "max_sessions", 1),
        ("maxsessions=2 # two\n", "max_sessions", 2),
        ('MaxStartups "2:50:10"\n', "max_startups", "2:50:10"),
        ("AllowTcpForwarding no\n", "allow_tcp_forwarding", "no"),
        ("DisableForwarding yes\n", "allow_tcp_forwarding", "no"),
        ("PermitOpen 127.0.0.1:* localhost:80\n", "permit_open", ["127.0.0.1:*", "localhost:80"]),
        ("PubkeyAuthentication no\n", "pubkey", False),
        ("AuthorizedKeysFile /etc/keys/%u\n", "authorized_keys_file", ["/etc/keys/%u"]),
        ("Match User ME\nMaxSessions 3\n", "max_sessions", 3),
        ("MaxSessions 9\nMatch User ME\nMaxSessions 3\n", "max_sessions", 3),
        ("MaxSessions 9\nMatch User somebody\nMaxSessions 3\n", "max_sessions", 9),
        ("Match User *,!ME\nMaxSessions 3\n", "max_sessions", 10),
        ("Match User somebody\nMatch all\nMaxSessions 4\n", "max_sessions", 4),
        ("Match Address 10.0.0.0/8\nMaxSessions 3\n", "max_sessions", None),
        ("Match Address 10.0.0.0/8 User somebody\nMaxSessions 3\n", "max_sessions", 10),
        ("Match Address 10.0.0.0/8\nMaxSessions 3\n", "allow_tcp_forwarding", "yes"),
        ("Match Group GROUP\nForceCommand /usr/bin/gate\n", "force_command", "/usr/bin/gate"),
        ("Include /etc/ssh/sshd_config.d/*.conf\nMaxSessions 9\n", "max_sessions", 7),
        ("MaxSessions 9\nInclude sshd_config.d/*.conf\n", "max_sessions", 9),
        ("Match User somebody\nInclude sshd_config.d/*.conf\n", "max_sessions", 10),
        ("Include sshd_config.d/*.conf\nMaxStartups 3\n", "max_startups", "3"),
        ("Include /etc/ssh/nothing.d/*.conf\n", "max_sessions", 10),
        ("Include /etc/ssh/sshd_config\nMaxSessions 6\n", "max_sessions", 6),
    ],
)
def test_a_configuration_read_by_hand(node: Node, base: Path, text: str, key: str, value: Any) -> None:
    import grp
    import pwd

    put(base, "etc/ssh/sshd_config.d/10-site.conf", "MaxSessions 7\nMatch User somebody\nMaxStartups 1\n")
    text = text.replace("ME", pwd.getpwuid(os.geteuid()).pw_name)
    assert config(node, base, text.replace("GROUP", grp.getgrgid(os.getegid()).gr_name))[key] == value


def test_a_configuration_that_may_not_be_read_is_unknown(node: Node, base: Path) -> None:
    found = preflight(node, _base=str(base), _sshd=str(base / "nothing"))
    assert found["sshd"] is None
    assert "FileNotFoundError" in found["unknown"]["sshd"]


@pytest.mark.skipif(not SSHD or os.geteuid() != 0, reason="asks a real sshd: root and openssh-server only")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "MaxSessions 2\nAllowTcpForwarding local\nPermitOpen 127.0.0.1:*\n",
        "DisableForwarding yes\nAuthorizedKeysFile none\nStrictModes no\n",
        "MaxStartups 3\nMatch User root\nMaxSessions 1\nMatch User nobody\nMaxSessions 2\nForceCommand /bin/false\n",
        "Match all\nMaxSessions 4\nPubkeyAuthentication no\n",
    ],
)
def test_by_hand_it_is_what_sshd_itself_says(node: Node, base: Path, text: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / "key")], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    path = put(base, "sshd_config", f"HostKey {base}/key\nUsePAM no\n{text}")
    asked = preflight(node, _sshd=str(path))["sshd"]
    assert asked.pop("source") == "sshd -T"
    read = preflight(node, _sshd=str(path), _base=str(base))["sshd"]
    assert read.pop("source") == str(path)
    # A single number of MaxStartups is told in full by sshd.
    assert asked.pop("max_startups").split(":")[0] == read.pop("max_startups").split(":")[0]
    assert read == asked


# ---- file systems, ports, the way out ----


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: root only")
def test_mount_flags(node: Node, tmp_path: Path) -> None:
    small = tmp_path / "with space"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=50,noexec,ro", "tmpfs", str(small)], check=True)
    try:
        found = preflight(node, root=str(small / "a/b"))["mounts"][0]
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert (found["place"], found["fs"], found["shared"]) == (str(small), "tmpfs", False)
    assert (found["noexec"], found["read_only"]) == (True, True)
    assert found["free"] <= 2 << 20
    assert found["inodes_free"] < 50


def test_network_file_systems_are_shared(node: Node, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    lines = [f"1 0 0:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:2 / {node.home} rw - nfs4 server:/home rw\n"]
    put(proc, "self/mountinfo", "".join(lines))
    found = {one["path"]: (one["fs"], one["shared"]) for one in preflight(node, _proc=str(proc))["mounts"]}
    assert found[str(node.home)] == ("nfs4", True)
    assert found["/tmp"] == ("ext4", False)


def test_a_dead_file_server_costs_seconds_and_one_fact(node: Node) -> None:
    node.change = DEAD_SERVER
    began = time.monotonic()
    found = preflight(node)
    assert time.monotonic() - began < 6
    assert [one["path"] for one in found["mounts"] if one["path"] == "/tmp"] == ["/tmp"]
    assert found["unknown"][f"mounts.{node.home}"] == "no answer in 3 s"


def test_a_dead_file_server_keeps_only_its_own_facts_from_the_probe(node: Node) -> None:
    node.change = DEAD_SERVER
    began = time.monotonic()
    found = node.call("probe")
    assert time.monotonic() - began < 6
    assert (found["root"], found["disks"]) == ({"path": str(node.root)}, [])
    assert {found["unknown"][key] for key in ("root", "disks./", f"disks.{node.home}")} == {"no answer in 3 s"}
    assert found["memory"]["total"] > 0
    assert Probe.model_validate(found).root.free is None


@pytest.mark.parametrize("kind", ["nfs4", "fuse.rclone", "panfs", "orangefs", "virtiofs", "smb3", "fuse.ceph-fuse"])
def test_both_scripts_know_the_same_network_file_systems(node: Node, tmp_path: Path, kind: str) -> None:
    table = Path("/proc/self/mountinfo").read_text() + f"900 1 0:900 / {node.home} rw - {kind} server:/home rw\n"
    put(tmp_path, "proc/self/mountinfo", table)
    put(tmp_path, "proc/meminfo", "MemTotal: 1 kB\n")
    put(tmp_path, "proc/cpuinfo", "processor: 0\n")
    root = preflight(node, _proc=str(tmp_path / "proc"))["mounts"][0]
    probed = node.call("probe", _proc=str(tmp_path / "proc"))["root"]
    assert (root["fs"], root["shared"]) == (probed["fs"], probed["shared"]) == (kind, True)


def test_a_dead_name_service_costs_seconds_and_its_facts(node: Node) -> None:
    node.change = ("    return socket.getaddrinfo(name, None)[0][4][0]\n", "    time.sleep(3600)\n")
    began = time.monotonic()
    found = preflight(node)
    assert time.monotonic() - began < 5
    assert found["resolved"] is None
    assert found["unknown"]["resolved"] == "no answer in 3 s"


def test_ports(node: Node, tmp_path: Path) -> None:
    line = "   0: 0100007F:{:04X} 00000000:0000 {} 0:0\n"
    put(tmp_path, "proc/net/tcp", "head\n" + line.format(41001, "0A") + line.format(41002, "01"))
    put(tmp_path, "proc/net/tcp6", "head\n" + line.format(41003, "0A") + line.format(80, "0A"))
    found = preflight(node, _proc=str(tmp_path / "proc"), ports=[41000, 41009])["ports"]
    assert found == {"free": 8, "of": 10}


def test_the_way_out(node: Node) -> None:
    node.env["https_proxy"] = "http://user:secret@proxy:3128"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        here, there = f"127.0.0.1:{server.getsockname()[1]}", f"127.0.0.1:{shut.getsockname()[1]}"
        heard: list[bytes] = []

        def listen() -> None:
            peer, _ = server.accept()
            with peer:
                heard.append(peer.recv(1))

        thread = threading.Thread(target=listen)
        thread.start()
        found = preflight(node, outbound=[here, there, "nowhere.invalid:443", "nonsense"])
        thread.join(5)
    hosts = {one["host"]: one for one in found["outbound"]["hosts"]}
    assert hosts[here]["ok"] is True
    assert "refused" in hosts[there]["error"]
    assert [hosts[name]["ok"] for name in (there, "nowhere.invalid:443", "nonsense")] == [False] * 3
    assert all(hosts[name]["error"] for name in (there, "nowhere.invalid:443", "nonsense"))
    assert found["outbound"]["dns"] is False
    assert found["outbound"]["proxies"] == ["https_proxy"]
    assert "secret" not in json.dumps(found)
    assert heard == [b""]


# ---- the rest ----


def test_modes_that_make_sshd_ignore_keys(node: Node) -> None:
    (node.home / ".ssh").mkdir(mode=0o700)
    (node.home / ".ssh").chmod(0o775)
    (node.home / ".ssh/authorized_keys").write_text("")
    (node.home / ".ssh/authorized_keys").chmod(0o600)
    faults = [one["fault"] for one in preflight(node)["keys"]]
    assert faults == [None, "is writable by others (mode 0775)", None]


def test_libraries_are_asked_of_the_loader(node: Node) -> None:
    found = preflight(node, libraries=["libc.so.6", "libnowhere.so.9"])
    assert found["libraries"]["libnowhere.so.9"] is False
    assert found["libraries"]["libc.so.6"] is ("musl" not in os.confstr("CS_GNU_LIBC_VERSION"))  # type: ignore[operator]


def test_security_modules(node: Node, base: Path) -> None:
    assert preflight(node, _base=str(base))["selinux"] == "disabled"
    put(base, "sys/fs/selinux/enforce", "1")
    assert preflight(node, _base=str(base))["selinux"] == "enforcing"


@pytest.mark.parametrize("shell", ["/bin/dash", "/usr/bin/fish", "/usr/bin/tcsh", "/bin/bash"])
def test_every_login_shell_runs_it(node: Node, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell} on this machine")
    assert preflight(node, shell=shell)["schema"] == 1


def test_noise_and_an_empty_environment_change_nothing(node: Node) -> None:
    noisy = program(node, "noisy", f"echo Welcome; printf '\\033[31m'; exec env -i {shlex.quote('/bin/bash')} \"$@\"")
    node.use("/usr/bin/python3") if not os.environ.get("LLMGW_TEST_PYTHON") else None
    found = node.call("preflight", shell=str(noisy), interpreters=["python3"])
    assert found["hostname"] == os.uname().nodename
