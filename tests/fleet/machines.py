"""Real nodes on one machine: each a network namespace on a bridge with its own address, copy-on-write root, processes
and sshd. Root on Linux only. The overlay's upper layer is the exact record of everything that was ever written there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import textwrap
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

BRIDGE = "llmgwbr0"
NET = "10.231.77"
LOCK = Path("/run/llmgw-fleet.lock")

# sshd's own records of a login, and what the kernel or the harness puts there: not the work of whoever logs in.
SSHD_RECORDS = ("var/log", "run", "tmp", "proc", "sys", "dev", "etc/")


def run(*argv: str, check: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


SSHD = (
    "/usr/sbin/sshd -D -e -o UsePAM=no -o PrintMotd=no -o PrintLastLog=no -o PermitRootLogin=prohibit-password "
    "-o HostKey=/etc/ssh/ssh_host_ed25519_key -o PidFile=/run/sshd.pid -o LogLevel=ERROR"
)
DROPBEAR = "/usr/sbin/dropbear -F -E -p 22 -r /etc/ssh/dropbear_key"
UID = 1200
"""Of the user without root that a node may have beside it."""


@dataclass
class Machine:
    """One node. `upper` is the copy-on-write layer: what was written on it."""

    name: str
    address: str
    folder: Path
    init: subprocess.Popen[bytes] | None = None
    sshd_options: list[str] = field(default_factory=list)
    """Given to sshd on its command line, before the fleet's own: of two, sshd takes the first."""
    binds: dict[str, str] = field(default_factory=dict)
    """Files or trees of ours laid over paths of the node: `{"/usr/bin/nvidia-smi": "/…/fake"}`."""
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    server: str = SSHD
    """What is process 1 and listens at port 22."""
    user: str = "root"
    """Whom one logs in as."""
    operator_key: str = ""
    """The public key that gets in."""
    mounted: list[str] = field(default_factory=list)
    """Folders of the node that lie on file systems of their own: what is written there is not in `upper`."""

    @property
    def namespace(self) -> str:
        return f"llmgw-{self.name}"

    @property
    def link(self) -> str:
        return f"lg{self.address.rpartition('.')[2]}"

    @property
    def target(self) -> str:
        """What is typed after `node add`."""
        return f"{self.user}@{self.address}"

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else f"/home/{self.user}"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def prepare(self, authorized_key: str) -> None:
        self.operator_key = authorized_key
        for part in ("root", "upper", "work", "bind"):
            (self.folder / part).mkdir(parents=True)
        etc = self.upper / "etc"
        (etc / "ssh").mkdir(parents=True)
        (etc / "hostname").write_text(self.name + "\n")
        (etc / "machine-id").write_text(uuid.uuid4().hex + "\n")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "ssh/ssh_host_ed25519_key"))
        home = self.upper / "root"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        home.chmod(0o700)
        keys = home / ".ssh/authorized_keys"
        keys.write_text(authorized_key + "\n")
        keys.chmod(0o600)
        # A home of its own: whatever the machine under it holds there is not part of the node.
        os.setxattr(home, "trusted.overlay.opaque", b"y")
        self._network()

    def write(self, path: str, text: str, *, mode: int = 0o644, mine: bool = False) -> None:
        """Puts a file on the node's disk before it boots; `mine` gives it to the user."""
        file = self.upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        if mine and self.user != "root":
            os.chown(file, UID, UID)

    def account(
        self, shell: str = "/bin/bash", *, user: str = "op", password: str = "*", key: str | None = None
    ) -> None:
        """Makes a user without root the one that is logged in to. `password` as in shadow(5), `key` in place of the
        operator's.
        """
        self.user = user
        for name, line in (
            ("passwd", f"{user}:x:{UID}:{UID}::/home/{user}:{shell}"),
            ("group", f"{user}:x:{UID}:"),
            ("shadow", f"{user}:{password}:19000:0:99999:7:::"),
        ):
            there = Path("/etc", name)
            self.write(f"/etc/{name}", there.read_text() + line + "\n", mode=there.stat().st_mode & 0o777)
        home = self.upper / "home" / user
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        line = self.operator_key if key is None else key
        if line:
            self.write(f"/home/{user}/.ssh/authorized_keys", line + "\n", mode=0o600)
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID)

    def _network(self) -> None:
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        inside = ("ip", "-n", self.namespace)
        # An address keeps its hardware address: what the machine under us remembers of an earlier one stays right.
        run(*inside, "link", "set", "eth0", "address", f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}")
        run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    def boot(self, *, new_boot_id: bool = False, wait: bool = True) -> None:
        """Starts init and sshd; returns when sshd answers."""
        if new_boot_id:
            self.boot_id = str(uuid.uuid4())
        (self.folder / "bind/boot_id").write_text(self.boot_id + "\n")
        root = self.root
        program, _, rest = self.server.partition(" ")
        server = " ".join((program, *(f"-o {option}" for option in self.sshd_options), rest))
        binds = "\n".join(
            f'[ -e "{root}{target}" ] || {"mkdir -p" if Path(source).is_dir() else "touch"} "{root}{target}"; '
            f'mount --bind "{source}" "{root}{target}"'
            for target, source in self.binds.items()
        )
        script = textwrap.dedent(f"""
            set -e
            hostname {self.name}
            mount -t overlay overlay -o lowerdir=/,upperdir={self.upper},workdir={self.folder}/work {root}
            mount -t proc proc {root}/proc
            mount --bind {self.folder}/bind/boot_id {root}/proc/sys/kernel/random/boot_id
            mount --rbind /dev {root}/dev
            mount -t tmpfs tmpfs {root}/dev/shm
            mount -t tmpfs tmpfs {root}/tmp
            mount -t tmpfs tmpfs {root}/run
            mount -t sysfs sysfs {root}/sys
            mkdir -p {root}/run/sshd
            """)
        script += binds + textwrap.dedent(f"""
            cd {root}
            exec chroot {root} {server}
            """)
        clean = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        inner = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
        self.init = subprocess.Popen(
            ("ip", "netns", "exec", self.namespace, *inner, "sh", "-c", script),
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "boot.log").open("ab"),
        )
        if wait:
            self.await_sshd()

    def await_sshd(self) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                with socket.create_connection((self.address, 22), timeout=0.5) as probe:
                    if probe.recv(3) == b"SSH":
                        return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not answer: {(self.folder / 'boot.log').read_text()}")

    def cut(self) -> None:
        """The link is down: packets vanish without a word."""
        run("ip", "link", "set", self.link, "down")

    def heal(self) -> None:
        run("ip", "link", "set", self.link, "up")

    def power_off(self) -> None:
        """Every process of the node dies at once; its disk stays."""
        if self.init is not None:
            for pid in self.init_children():
                os.kill(pid, signal.SIGKILL)
            self.init.kill()
            self.init.wait()
            self.init = None

    def init_children(self) -> list[int]:
        """Process ids, as this machine sees them, of the node's pid 1."""
        assert self.init is not None
        found = run("pgrep", "-P", str(self.init.pid), check=False).split()
        return [int(pid) for pid in found]

    def processes(self, pattern: str) -> list[int]:
        """Pids, as the node sees them, of processes whose command line matches `pattern`, waiters left out."""
        return sorted(pid for pid, words in self._command_lines() if pattern in words and "llmgw-waiter" not in words)

    def _command_lines(self) -> list[tuple[int, str]]:
        each = "for p in /proc/[0-9]*; do echo; echo ${p#/proc/} $(tr '\\0' ' ' < $p/cmdline); done 2>/dev/null"
        rows = [line.partition(" ") for line in self.shell(each).splitlines()]
        return [(int(pid), words) for pid, _, words in rows if pid.isdigit()]

    def engines(self) -> list[int]:
        """Pids, as the node sees them, of living engines."""
        return sorted(self.processes("llama_wheel.py") + self.processes("sim_engine.py"))

    def shell(self, command: str) -> str:
        """Runs a command on the node as if at its console, not through sshd."""
        pid = self.init_children()[0]
        return run("nsenter", "-t", str(pid), "-m", "-p", "-u", "-n", "-r", "-w", "sh", "-c", command)

    def listeners(self) -> list[tuple[str, str]]:
        """(address, program) of everything that listens on TCP."""
        rows = []
        for line in run("ip", "netns", "exec", self.namespace, "ss", "-ltnpH").splitlines():
            words = line.split()
            program = words[5].split('"')[1] if len(words) > 5 and '"' in words[5] else "?"
            rows.append((words[3], program))
        return sorted(rows)

    def tree(self) -> dict[str, str]:
        """Everything ever written on the node and still there: path → kind, mode and digest. sshd's records aside."""
        found = {}
        for path in sorted(self.upper.rglob("*")):
            name = str(path.relative_to(self.upper))
            if name.startswith(SSHD_RECORDS) or name == "var":
                continue
            info = path.lstat()
            kind = f"{info.st_mode:o}"
            if path.is_file() and not path.is_symlink():
                kind += " " + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            found[name] = kind
        for folder in self.mounted:
            listed = self.shell(f"find {folder} -type d -printf '%p\\t%m\\n' -o -printf '%p\\t%y %m %s %T@\\n'")
            found |= dict(line.split("\t", 1) for line in listed.splitlines())
        return found

    def destroy(self) -> None:
        self.power_off()
        run("ip", "netns", "del", self.namespace, check=False)
        run("ip", "link", "del", self.link, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Fleet:
    """Machines on one bridge. `key` is the operator's private key that gets into all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "operator_key"
        self.machines: list[Machine] = []
        # One fleet at a time on this machine: the bridge and the addresses have names.
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        run("ip", "link", "del", BRIDGE, check=False)
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))

    def add(self, name: str, *, sshd_options: list[str] | None = None, boot: bool = True) -> Machine:
        taken = {machine.address for machine in self.machines}
        number = next(number for number in range(11, 255) if f"{NET}.{number}" not in taken)
        machine = Machine(name, f"{NET}.{number}", self.folder / name, sshd_options=sshd_options or [])
        run("ip", "netns", "del", machine.namespace, check=False)  # what a killed run left behind
        run("ip", "link", "del", machine.link, check=False)
        self.machines.append(machine)
        machine.prepare(self.public_key)
        if boot:
            machine.boot()
        return machine

    def remove(self, machine: Machine) -> None:
        machine.destroy()
        self.machines.remove(machine)

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def destroy(self) -> None:
        for machine in self.machines:
            machine.destroy()
        run("ip", "link", "del", BRIDGE, check=False)
        self._lock.close()
