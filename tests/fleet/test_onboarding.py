"""`node add` as it is done: twice at once, while sshd restarts, with a password, with a key that has changed."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.machines import Fleet, Machine, run
from tests.fleet.middlebox import Middlebox
from tests.fleet.plane import Plane, sim
from tests.fleet.surroundings import PASSWORD, password_only
from tests.fleet.test_links import ask

NewMachine = Callable[..., Machine]


@pytest.fixture
def new_machine(fleet: Fleet) -> Iterator[NewMachine]:
    """A machine for one test: `new_machine(name, make)`."""
    made: list[Machine] = []

    def new(name: str, make: Callable[[Machine], None] | None = None) -> Machine:
        machine = fleet.add(name, boot=False)
        made.append(machine)
        if make is not None:
            make(machine)
        machine.boot()
        return machine

    yield new
    for machine in made:
        fleet.remove(machine)


def ends(*commands: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each; begun at the same moment."""
    said = [command.communicate(timeout=120) for command in commands]
    return [(command.returncode, *words) for command, words in zip(commands, said, strict=True)]


def our_lines(machine: Machine) -> int:
    return machine.shell(f"cat {machine.home}/.ssh/authorized_keys").count(" llmgw:")


def test_the_same_node_added_twice_at_the_same_moment(plane: Plane, machines: list[Machine], fleet: Fleet):
    """Both end well; the second says whose add it is waiting for."""
    alpha = machines[0]
    plane.start()
    words = ("node", "add", alpha.target, "-i", str(fleet.key))
    commands = [plane.begin(*words), plane.begin(*words)]
    found = ends(*commands)
    assert [status for status, _, _ in found] == [0, 0], found
    assert [out.strip() for _, out, _ in found] == ["alpha", "alpha"]
    said = " ".join(err for _, _, err in found)
    assert "is being added already" in said
    assert any(f"pid {command.pid} of root" in said for command in commands)
    assert our_lines(alpha) == 1
    assert plane.node("alpha")["state"] == "ready"


def test_the_same_node_added_under_two_names_at_the_same_moment(plane: Plane, machines: list[Machine], fleet: Fleet):
    alpha = machines[0]
    plane.start()
    words = ("node", "add", alpha.target, "-i", str(fleet.key), "--name")
    found = ends(plane.begin(*words, "one"), plane.begin(*words, "two"))
    assert sorted(status for status, _, _ in found) == [0, 4], found
    winner = next(out.strip() for status, out, _ in found if status == 0)
    loser = next(err for status, _, err in found if status == 4)
    assert f"same machine as {winner}" in loser
    assert [node["id"] for node in plane.admin("/snapshot")["nodes"]] == [winner]
    assert our_lines(alpha) == 1


def test_the_same_node_added_twice_without_a_server(plane: Plane, machines: list[Machine], fleet: Fleet):
    """One takes the lease and does the work. The other joins it where it has got that far, else says who holds it."""
    alpha = machines[0]
    words = ("node", "add", alpha.target, "-i", str(fleet.key))
    commands = [plane.begin(*words), plane.begin(*words)]
    found = ends(*commands)
    assert sorted(status for status, _, _ in found) in ([0, 0], [0, 4]), found
    said = " ".join(err for _, _, err in found)
    assert any(str(command.pid) in said for command in commands)
    assert our_lines(alpha) == 1


SLOW = """#!/bin/sh
# Every other script is quick; the one that writes the line says so and takes its time to tell.
/usr/bin/python3 "$@"
status=$?
grep -q ' llmgw:' "$HOME/.ssh/authorized_keys" 2>/dev/null && [ ! -e /tmp/slowed ] && : >/tmp/slowed && sleep 5
exit $status
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_add_that_is_ended_takes_its_key_away(
    plane: Plane, machines: list[Machine], fleet: Fleet, number: signal.Signals
):
    """Whatever ends it, once the key is there and before it is a node."""
    alpha = machines[0]
    plane.start()
    before = alpha.shell(f"cat {alpha.home}/.ssh/authorized_keys")
    adding = plane.begin("node", "add", alpha.target, "-i", str(fleet.key), "--json")
    assert adding.stdout is not None
    for line in adding.stdout:
        if json.loads(line)["step"] == "key":
            adding.send_signal(number)
            break
    rest, said = adding.communicate(timeout=60)
    steps = [json.loads(line) for line in rest.splitlines()]
    if not any(step["step"] == "join" for step in steps):  # else it was too late, and it is a node
        assert adding.returncode == 128 + number, said
        assert alpha.shell(f"cat {alpha.home}/.ssh/authorized_keys") == before
        assert "taken away again" in steps[-1]["message"]


def test_an_add_that_is_ended_while_the_key_is_written_takes_it_away(
    plane: Plane, fleet: Fleet, new_machine: NewMachine
):
    """Nobody knows yet whether the line is there: it is looked for, and taken away."""
    slow = new_machine("slow", lambda machine: machine.write("/usr/local/bin/python3.14", SLOW))
    slow.shell("chmod 755 /usr/local/bin/python3.14")
    plane.start()
    adding = plane.begin("node", "add", slow.target, "-i", str(fleet.key), "--json")
    plane.until(lambda: our_lines(slow) == 1, "the line is there")
    adding.send_signal(signal.SIGINT)
    _, said = adding.communicate(timeout=60)
    assert adding.returncode == 130, said
    assert our_lines(slow) == 0


def test_four_adds_at_once_past_maxstartups_2(plane: Plane, fleet: Fleet, new_machine: NewMachine):
    """sshd drops what comes above two unfinished logins; a dropped one is tried again."""
    narrow = new_machine("narrow", lambda machine: machine.sshd_options.append("MaxStartups=2"))
    plane.start()
    words = ("node", "add", narrow.target, "-i", str(fleet.key), "--ssh-wait", "60")
    found = ends(*(plane.begin(*words) for _ in range(4)))
    assert [status for status, _, _ in found] == [0, 0, 0, 0], found
    assert our_lines(narrow) == 1


def test_sshd_that_comes_up_late_is_waited_for(plane: Plane, machines: list[Machine], fleet: Fleet):
    beta = machines[1]
    plane.start()
    beta.power_off()
    adding = plane.begin("node", "add", beta.target, "-i", str(fleet.key), "--ssh-wait", "60")
    time.sleep(3)
    beta.boot(new_boot_id=True)
    ((status, out, err),) = ends(adding)
    assert status == 0, err
    assert out.strip() == "beta"
    assert err.count("Waiting for it") == 1


def test_sshd_that_restarts_during_the_add_is_waited_for(plane: Plane, machines: list[Machine], fleet: Fleet):
    """Nothing listens any more from the moment at which our key is on the node."""
    alpha = machines[0]
    box = Middlebox(alpha)

    def restart() -> None:
        for _ in range(400):
            if our_lines(alpha):
                break
            time.sleep(0.02)
        box.shut()
        time.sleep(3)
        box.open()

    plane.start()
    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        done = plane.llmgw("node", "add", box.target, "-i", str(fleet.key), check=False)
        restarting.join()
        assert done.returncode == 0, done.stderr
        assert "Waiting for it" in done.stderr
    finally:
        box.close()


def test_the_wait_for_sshd_has_an_end(plane: Plane, machines: list[Machine], fleet: Fleet):
    plane.start()
    began = time.monotonic()
    done = plane.llmgw(
        "node", "add", f"{machines[0].target}:2222", "-i", str(fleet.key), "--ssh-wait", "4", check=False
    )
    assert done.returncode == 5
    assert "nothing listens at port 2222" in done.stderr
    assert 2 < time.monotonic() - began < 10


def test_without_a_key_of_ours(plane: Plane, machines: list[Machine], fleet: Fleet, tmp_path: Path):
    alpha = machines[0]
    before = alpha.tree()["root/.ssh/authorized_keys"]
    plane.start()
    plane.llmgw("node", "add", alpha.target, "-i", str(fleet.key), "--no-key")
    assert alpha.tree()["root/.ssh/authorized_keys"] == before
    plane.add_model(tmp_path, sim("echo"))
    assert ask(plane, plane.key())
    shown = plane.llmgw("node", "show", "alpha").stdout
    assert str(fleet.key) in shown
    assert "node add" in shown


def test_a_password_is_asked_for_once_and_never_again(
    plane: Plane, fleet: Fleet, new_machine: NewMachine, tmp_path: Path
):
    machine = new_machine("typed", password_only)
    plane.start()
    status, shown = plane.typed(
        "node", "add", machine.target, answers=[("Trust it", "y"), ("[Pp]assword", PASSWORD)], limit=60
    )
    assert status == 0, shown
    assert PASSWORD not in shown
    assert "SHA256:" in shown
    assert "+--[ED25519 256]--+" in shown  # the picture of the host key
    assert our_lines(machine) == 1
    plane.add_model(tmp_path, sim("echo"))
    assert ask(plane, plane.key())
    stored = b"".join(path.read_bytes() for path in plane.home.rglob("*") if path.is_file())
    assert PASSWORD.encode() not in stored


def test_a_wrong_password_is_refused(plane: Plane, fleet: Fleet, new_machine: NewMachine):
    machine = new_machine("mistyped", password_only)
    before = machine.tree()
    plane.start()
    answers = [("Trust it", "y"), *(("[Pp]assword", f"wrong {number}") for number in range(3))]
    status, shown = plane.typed("node", "add", machine.target, answers=answers, limit=60)
    assert status == 4, shown
    assert "refused the login" in shown
    assert "wrong 0" not in shown
    assert machine.tree() == before


def test_an_authority_in_known_hosts_vouches(
    make_plane: Callable[..., Plane], fleet: Fleet, new_machine: NewMachine, tmp_path: Path
):
    """A host certificate of the operator's own authority: nobody is asked, though unknown keys are refused here."""
    authority = tmp_path / "authority"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(authority))

    def certified(machine: Machine) -> None:
        key = machine.upper / "etc/ssh/ssh_host_ed25519_key.pub"
        run("ssh-keygen", "-q", "-s", str(authority), "-I", "vouched", "-h", "-n", machine.address, str(key))
        machine.sshd_options.append("HostCertificate=/etc/ssh/ssh_host_ed25519_key-cert.pub")

    vouched, plain = new_machine("vouched", certified), new_machine("plain")
    plane = make_plane({"sim": ["builtin"]}, ssh={"new_hosts": "refuse"})
    ssh = Path(plane.environ["HOME"]) / ".ssh"
    ssh.mkdir(mode=0o700)
    public = authority.with_suffix(".pub").read_text()
    (ssh / "known_hosts").write_text(f"@cert-authority 10.231.77.* {public}")
    plane.start()
    plane.llmgw("node", "add", vouched.target, "-i", str(fleet.key))
    before = plain.tree()
    done = plane.llmgw("node", "add", plain.target, "-i", str(fleet.key), check=False)
    assert done.returncode == 4
    assert "--fingerprint" in done.stderr
    assert plain.tree() == before


def rekey(machine: Machine) -> tuple[str, str]:
    """Gives the running machine another host key and ends its connections. Both fingerprints, the old one first."""
    old, file = fingerprint(machine), "/etc/ssh/ssh_host_ed25519_key"
    machine.shell(f"rm {file} {file}.pub; ssh-keygen -q -t ed25519 -N '' -f {file}; kill -HUP 1")
    machine.await_sshd()
    machine.shell(f"kill -9 {' '.join(map(str, machine.processes('sshd: root')))}")
    return old, fingerprint(machine)


def test_a_changed_host_key_is_trusted_again_on_the_operators_word(
    make_plane: Callable[..., Plane], fleet: Fleet, new_machine: NewMachine, tmp_path: Path
):
    """Quarantined with both values and the command; after that command it serves again, with the same engine."""
    machine = new_machine("rekeyed")
    plane = make_plane({"sim": ["builtin"]}, ssh={"keepalive": 1})
    plane.start()
    plane.llmgw("node", "add", machine.target, "-i", str(fleet.key))
    plane.add_model(tmp_path, sim("echo"))
    key, engines = plane.key(), machine.engines()
    assert ask(plane, key)
    old, new = rekey(machine)
    why = plane.until(lambda: plane.node("rekeyed")["quarantined"], "it is quarantined", limit=30)
    assert old in why
    assert new in why
    assert f"llmgw node add {machine.target} --trust-key {new}" in why
    assert machine.engines() == engines
    words = ("node", "add", machine.target, "-i", str(fleet.key))
    assert plane.llmgw(*words, "--trust-key", old, check=False).returncode == 4
    assert plane.llmgw(*words, check=False).returncode == 4
    plane.llmgw(*words, "--trust-key", new)
    plane.until(lambda: plane.ready("echo"), "its replica is adopted", limit=30)
    assert ask(plane, key)
    assert machine.engines() == engines
    assert plane.node("rekeyed")["quarantined"] is None


def test_the_pin_of_a_quarantined_node_is_kept(make_plane: Callable[..., Plane], fleet: Fleet, new_machine: NewMachine):
    """Added again without --trust-key the changed key is refused as a changed one, not shown as that of a new host."""
    machine = new_machine("repinned")
    plane = make_plane({}, ssh={"keepalive": 1})
    plane.start()
    plane.llmgw("node", "add", machine.target, "-i", str(fleet.key))
    old, new = rekey(machine)
    plane.until(lambda: plane.node("repinned")["quarantined"], "it is quarantined", limit=30)
    time.sleep(1)  # the connection is given up in the turn after
    done = plane.llmgw("node", "add", machine.target, "-i", str(fleet.key), check=False)
    assert done.returncode == 4
    assert "not known yet" not in done.stderr
    assert old in done.stderr
    assert f"--trust-key {new}" in done.stderr


def fingerprint(machine: Machine) -> str:
    return machine.shell("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]


def test_a_cloned_machine_id_is_a_finding(plane: Plane, machines: list[Machine], fleet: Fleet, new_machine: NewMachine):
    image = (machines[0].upper / "etc/machine-id").read_text()
    clone = new_machine("clone", lambda machine: machine.write("/etc/machine-id", image))
    plane.start()
    plane.llmgw("node", "add", machines[0].target, "-i", str(fleet.key))
    done = plane.llmgw("node", "add", clone.target, "-i", str(fleet.key))
    assert done.stdout.strip() == "clone"
    assert "same machine id as alpha" in done.stderr
    (checked,) = json.loads(plane.llmgw("node", "check", "clone", "--json").stdout)
    finding = next(one for one in checked["findings"] if one["code"] == "machine_id_cloned")
    assert "systemd-machine-id-setup" in finding["fix"]
