"""engine.py: never twice, never a stranger, and nothing that keeps the caller waiting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmgw import assets

from .conftest import SCRIPTS, Node, ScriptError, free_ports, tagged, tree

SLEEPS = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]
SHARD: dict[str, Any] = {"replica": "m-1", "rank": 0, "cluster": "k1"}


def start(node: Node, attempt: int = 1, argv: list[str] | None = None, **args: Any) -> Any:
    given = {**SHARD, "ports": [41700, 41799], "manifest": {"model": "m"}, "env": {"LLAMA_API_KEY": "s3cret"}, **args}
    return node.call("engine", action="start", attempt=attempt, argv=argv or SLEEPS, **given)


def stop(node: Node, attempt: int | None = None, grace: float = 5, **args: Any) -> Any:
    return node.call("engine", action="stop", attempt=attempt, grace=grace, **{**SHARD, "remove": False, **args})


def listing(node: Node, **args: Any) -> Any:
    found = node.call("engine", action="list", **args)
    home = str(node.home)
    found["strays"] = [each for each in found["strays"] if f"HOME={home}" in environ(each["pid"])]
    return found


def one(node: Node) -> Any:
    (item,) = listing(node)["replicas"]
    return item


def environ(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return []


def folder(node: Node) -> Path:
    return node.root / "hosts/n1/replicas/m-1.0"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait(what: Any, seconds: float = 5) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def edit_manifest(node: Node, **fields: Any) -> None:
    path = folder(node) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_start_answers_with_the_engine_and_its_port(node: Node) -> None:
    found = start(
        node, argv=[sys.executable, "-S", "-c", "import sys,time;print(sys.argv,flush=True);time.sleep(60)", "{port}"]
    )
    assert found["already"] is False
    assert 41700 <= found["port"] <= 41799
    assert Path(f"/proc/{found['pid']}/cwd").readlink() == folder(node)
    variables = dict(line.split("=", 1) for line in environ(found["pid"]) if "=" in line)
    assert variables["LLMGW_REPLICA"] == "m-1"
    assert (variables["LLMGW_RANK"], variables["LLMGW_ATTEMPT"], variables["LLMGW_CLUSTER"]) == ("0", "1", "k1")
    assert variables["LANG"] == "C.UTF-8"
    assert set(variables) - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        *("PATH", "HOME", "LANG", "LLAMA_API_KEY"),
        *("LLMGW_REPLICA", "LLMGW_RANK", "LLMGW_ATTEMPT", "LLMGW_CLUSTER"),
    }
    wait(lambda: str(found["port"]) in (folder(node) / "log.1").read_text())


def test_list_tells_all_that_adoption_needs(node: Node) -> None:
    started = start(node)
    item = one(node)
    assert item["alive"] is True
    assert [item[key] for key in ("pid", "start_ticks", "boot_id", "port", "attempt")] == [
        started[key] for key in ("pid", "start_ticks", "boot_id", "port", "attempt")
    ]
    assert item["manifest"]["model"] == "m"
    assert item["manifest"]["cluster"] == "k1"
    assert item["key_env"] == {"LLAMA_API_KEY": "s3cret"}
    assert item["rss"] > 1 << 20
    assert listing(node)["strays"] == []


def test_secrets_are_neither_in_argv_nor_readable_by_others(node: Node) -> None:
    start(node)
    for pid in tagged(node.home):
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in [node.root, *node.root.rglob("*")]:
        assert path.lstat().st_mode & 0o077 == 0, path


def test_asked_twice_it_answers_with_what_runs(node: Node) -> None:
    first, second = start(node), start(node)
    assert second["already"] is True
    assert {**second, "already": False} == first


def test_five_at_once_start_one(node: Node) -> None:
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda _: start(node), range(5)))
    assert len({each["pid"] for each in found}) == 1
    assert sorted(each["already"] for each in found) == [False, True, True, True, True]
    assert len(tagged(node.home)) == 2  # the engine and its waiter


def test_an_older_attempt_that_lives_refuses_and_a_newer_one_too(node: Node) -> None:
    start(node, 3)
    with pytest.raises(ScriptError) as caught:
        start(node, 4)
    assert caught.value.code == "older_attempt"
    with pytest.raises(ScriptError) as caught:
        start(node, 2)
    assert caught.value.code == "newer_attempt"
    assert one(node)["attempt"] == 3


def test_an_attempt_that_has_ended_is_not_launched_again(node: Node) -> None:
    start(node, 2)
    stop(node)
    for attempt, code in ((2, "attempt_ended"), (1, "newer_attempt")):
        with pytest.raises(ScriptError) as caught:
            start(node, attempt)
        assert caught.value.code == code
    assert start(node, 3)["already"] is False


def test_an_engine_that_cannot_start_says_why(node: Node) -> None:
    with pytest.raises(ScriptError) as caught:
        start(node, argv=["/nowhere/engine", "--flag"])
    assert caught.value.code == "ended_at_once"
    assert "/nowhere/engine" in caught.value.body["message"]
    assert caught.value.body["exit"]["status"] == 127
    assert tagged(node.home) == []


def test_a_crash_between_launch_and_record_is_adopted(node: Node) -> None:
    started = start(node)
    edit_manifest(node, pid=None, start_ticks=None, waiter=None)
    item = one(node)
    assert (item["alive"], item["pid"], item["start_ticks"]) == (True, started["pid"], started["start_ticks"])
    again = start(node)
    assert (again["already"], again["pid"]) == (True, started["pid"])
    assert json.loads((folder(node) / "manifest.json").read_text())["pid"] == started["pid"]


def test_a_crash_before_the_launch_is_launched_once(node: Node) -> None:
    start(node)
    stop(node)
    for name in ("exit.1", "pid.1"):
        (folder(node) / name).unlink()
    edit_manifest(node, pid=None, start_ticks=None, waiter=None)
    assert one(node)["alive"] is False
    assert start(node)["already"] is False


def test_a_lost_manifest_still_finds_the_engine(node: Node) -> None:
    started = start(node)
    (folder(node) / "manifest.json").write_text("{damaged")
    assert [each["pid"] for each in listing(node)["strays"]] == [started["pid"]]
    again = start(node)
    assert (again["already"], again["pid"]) == (True, started["pid"])


def test_stop_by_term_and_the_end_is_recorded(node: Node) -> None:
    started = start(node)
    found = stop(node)
    assert found == {"was": "running", "killed": False, "pids": [started["pid"]]}
    item = one(node)
    assert item["alive"] is False
    assert (item["exit"]["status"], item["exit"]["signal"]) == (None, signal.SIGTERM)
    assert item["oom"] is False
    assert item["log_tail"][0] == "up"
    assert stop(node)["was"] == "dead"
    assert tagged(node.home) == []


def test_one_that_ignores_term_is_killed_after_its_grace(node: Node) -> None:
    started = start(node, argv=STUBBORN)
    wait(lambda: (folder(node) / "log.1").read_text() == "up\n")
    began = time.monotonic()
    found = stop(node, grace=0.3)
    assert found["killed"] is True
    assert time.monotonic() - began < 4
    assert gone(started["pid"])
    assert one(node)["exit"]["signal"] == signal.SIGKILL


def test_workers_that_outlive_the_engine_are_found_and_killed(node: Node) -> None:
    worker = "import signal,time;signal.signal(15,signal.SIG_IGN);time.sleep(60)"
    program = (
        "import subprocess,sys,time;"
        f"p=subprocess.Popen([sys.executable,'-S','-c',{worker!r}],start_new_session=True);"
        "print(p.pid,flush=True);time.sleep(60)"
    )
    started = start(node, argv=[sys.executable, "-S", "-c", program])
    wait(lambda: (folder(node) / "log.1").read_text().endswith("\n"))
    worker_pid = int((folder(node) / "log.1").read_text())
    os.kill(started["pid"], signal.SIGKILL)
    wait(lambda: (folder(node) / "exit.1").exists())
    found = listing(node)
    assert found["replicas"][0]["alive"] is False
    assert [each["pid"] for each in found["strays"]] == [worker_pid]
    with pytest.raises(ScriptError) as caught:
        start(node, 2)
    assert caught.value.code == "older_attempt"
    assert stop(node, grace=0.2) == {"was": "running", "killed": True, "pids": [worker_pid]}
    assert gone(worker_pid)


def test_a_child_without_the_tag_goes_with_its_session(node: Node) -> None:
    program = (
        "import subprocess,sys,time;p=subprocess.Popen([sys.executable,'-S','-c','import time;time.sleep(60)'],env={});"
        "print(p.pid,flush=True);time.sleep(60)"
    )
    start(node, argv=[sys.executable, "-S", "-c", program])
    wait(lambda: (folder(node) / "log.1").read_text().endswith("\n"))
    child = int((folder(node) / "log.1").read_text())
    assert child in stop(node)["pids"]
    assert gone(child)


@pytest.mark.parametrize("what", ["pid reuse", "reboot", "another tag"])
def test_a_stranger_is_never_signalled(node: Node, what: str) -> None:
    started = start(node)
    stop(node)
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as stranger:
        wait(lambda: Path(f"/proc/{stranger.pid}/cmdline").read_bytes().startswith(sys.executable.encode()))
        ticks = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
        fields: dict[str, Any] = {"pid": stranger.pid, "start_ticks": started["start_ticks"]}
        if what == "reboot":
            fields = {"pid": stranger.pid, "start_ticks": ticks, "boot_id": "00000000-0000-0000-0000-000000000000"}
        if what == "another tag":
            fields = {"pid": stranger.pid, "start_ticks": ticks}
        edit_manifest(node, **fields)
        assert one(node)["alive"] is False
        assert stop(node, grace=0)["was"] == "dead"
        assert stranger.poll() is None
        stranger.kill()


def test_another_cluster_and_another_attempt_are_left_alone(node: Node) -> None:
    started = start(node, 2)
    assert stop(node, attempt=1, remove=True) == {"was": "absent", "killed": False, "pids": []}
    assert stop(node, cluster="k2")["pids"] == []
    assert not gone(started["pid"])
    assert folder(node).exists()


@pytest.mark.parametrize(
    ("program", "status", "by"), [("raise SystemExit(3)", 3, None), ("import os;os.kill(os.getpid(),9)", None, 9)]
)
def test_how_an_engine_ends_is_recorded(node: Node, program: str, status: int | None, by: int | None) -> None:
    start(
        node,
        argv=[sys.executable, "-S", "-c", f"import time; time.sleep(0.3); print('last words', flush=True); {program}"],
    )
    wait(lambda: (folder(node) / "exit.1").exists())
    item = one(node)
    assert (item["exit"]["status"], item["exit"]["signal"]) == (status, by)
    assert abs(item["exit"]["at"] - time.time()) < 30
    assert "last words" in item["log_tail"]


def test_term_to_the_whole_group_leaves_the_waiter_its_last_word(node: Node) -> None:
    started = start(node, argv=[sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"])
    os.killpg(os.getpgid(started["pid"]), signal.SIGTERM)
    wait(lambda: (folder(node) / "exit.1").exists())
    assert one(node)["exit"]["signal"] == signal.SIGTERM
    assert tagged(node.home) == []


def test_an_engine_has_default_signals_its_own_session_and_no_foreign_descriptors(node: Node) -> None:
    started = start(node, argv=["/bin/sleep", "60"])
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{started['pid']}/status").read_text().splitlines()
        if ":\t" in line
    )
    ignored = int(status["SigIgn"], 16)
    assert not ignored & (1 << 1 | 1 << 2 | 1 << 12 | 1 << 14)  # INT, QUIT, PIPE, TERM
    assert int(status["SigBlk"], 16) == 0
    for pid in tagged(node.home):
        files = {entry.name: os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        log = str(folder(node) / "log.1")
        assert {key: files[key] for key in "012"} == {"0": "/dev/null", "1": log, "2": log}
        assert all(not target.startswith(("pipe:", "socket:")) and "lock" not in target for target in files.values()), (
            files
        )
        assert os.getsid(pid) == os.getsid(started["pid"]) != os.getsid(0)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "500"


@pytest.mark.parametrize("shell", [path for name in ("dash", "bash", "busybox") if (path := shutil.which(name))])
def test_the_waiter_works_in_every_sh(shell: str, tmp_path: Path) -> None:
    source = (SCRIPTS / "engine_start.py").read_text()
    waiter = source.partition('WAITER = """')[2].partition('"""')[0]
    command = [shell, *(["sh"] if shell.endswith("busybox") else []), "-c", waiter, "w", "1", "m", "0", "k"]
    for engine, status in ((["/bin/sleep", "60"], "143\n"), (["/bin/sh", "-c", "exit 7"], "7\n")):
        with subprocess.Popen([*command, *engine], cwd=tmp_path, start_new_session=True) as process:
            if status == "143\n":
                wait(lambda: (tmp_path / "pid.1").exists())
                engine_pid, waiter_pid = (tmp_path / "pid.1").read_text().split()
                assert int(waiter_pid) == process.pid
                wait(lambda pid=engine_pid: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(5)
        assert (tmp_path / "exit.1").read_text() == status


def test_the_waiter_costs_less_than_a_megabyte_of_its_own(node: Node) -> None:
    started = start(node)
    (waiter,) = set(tagged(node.home)) - {started["pid"]}
    smaps = Path(f"/proc/{waiter}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("Private_"))
    assert private < 1024


def test_the_lock_dies_with_a_killed_script(node: Node) -> None:
    start(node)
    stop(node)
    code = "import fcntl,sys,time;f=open(sys.argv[1],'r+');fcntl.flock(f,2);print(1,flush=True);time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder(node) / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        call = node.begin("engine", action="start", attempt=2, argv=SLEEPS, **SHARD)
        time.sleep(0.5)
        assert call.process.poll() is None
        call.process.kill()
        call.process.communicate()
        holder.kill()
    assert start(node, 2)["already"] is False


def test_the_end_of_stdin_ends_the_script(node: Node) -> None:
    start(node, argv=STUBBORN)
    call = node.begin("engine", action="stop", attempt=None, grace=20, remove=False, **SHARD)
    wait(lambda: call.process.stdin is not None)
    time.sleep(0.3)
    assert call.process.poll() is None
    call.process.stdin.close()  # type: ignore[union-attr]
    assert call.process.wait(5) == 75
    assert call.process.stdout is not None
    call.process.stdout.close()
    assert stop(node, grace=0)["killed"] is True


def test_the_deadline_ends_the_script(node: Node) -> None:
    start(node, argv=STUBBORN)
    with pytest.raises(ScriptError) as caught:
        node.call("engine", action="stop", attempt=None, grace=20, remove=False, deadline=0.5, **SHARD)
    assert caught.value.code == "deadline"
    assert stop(node, grace=0)["killed"] is True


def test_the_channel_closes_at_once_after_a_start(node: Node) -> None:
    call = node.begin("engine", action="start", attempt=1, argv=SLEEPS, **SHARD)
    out = call.process.stdout
    assert out is not None
    began = time.monotonic()
    while os.read(out.fileno(), 65536):
        pass
    assert time.monotonic() - began < 5
    assert call.process.wait(5) == 0
    out.close()
    call.process.stdin.close()  # type: ignore[union-attr]
    assert one(node)["alive"] is True


def test_ports_that_are_taken_or_to_be_avoided_are_passed_over(node: Node) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        with pytest.raises(ScriptError) as caught:
            start(node, ports=[port, port])
        assert caught.value.code == "no_port"
    first = 41700 + (zlib.crc32(b"m-1.0") + 1) % 100
    assert start(node, port_avoid=[first, first + 1])["port"] not in (first, first + 1)


def test_two_replicas_never_share_a_port_even_before_they_bind_it(node: Node) -> None:
    first, last = free_ports(3)
    found = {start(node, replica=f"m-{number}", ports=[first, last])["port"] for number in range(3)}
    assert found == {first, first + 1, last}
    with pytest.raises(ScriptError) as caught:
        start(node, replica="m-4", ports=[first, last])
    assert caught.value.code == "no_port"


def test_logs_by_attempt(node: Node) -> None:
    many = "import time;[print('line',n) for n in range(300)];print('é\\x1b[31m',flush=True);time.sleep(60)"
    start(node, argv=[sys.executable, "-S", "-X", "utf8", "-c", many])
    wait(lambda: "31m" in (folder(node) / "log.1").read_text())
    stop(node)
    start(node, 2, argv=[sys.executable, "-S", "-c", "import time;print('second',flush=True);time.sleep(60)"])
    wait(lambda: (folder(node) / "log.2").read_text())
    assert node.call("engine", action="logs", attempt=None, lines=5, **SHARD) == {"attempt": 2, "lines": ["second"]}
    first = node.call("engine", action="logs", attempt=1, lines=3, **SHARD)["lines"]
    assert "é\x1b[31m" in first
    assert len(first) == 3
    assert node.call("engine", action="logs", replica="none", rank=0, lines=3) == {"attempt": None, "lines": []}


def test_old_logs_go(node: Node) -> None:
    for attempt in range(1, 6):
        start(node, attempt)
        stop(node, grace=1)
    assert sorted(path.name for path in folder(node).glob("log.*")) == ["log.3", "log.4", "log.5"]


def test_stop_with_remove_takes_the_directory(node: Node) -> None:
    start(node)
    assert stop(node, remove=True)["was"] == "running"
    assert not folder(node).exists()
    assert stop(node, remove=True)["was"] == "absent"
    assert listing(node)["replicas"] == []


def test_lower_terms_and_other_controllers_are_refused(node: Node) -> None:
    start(node, term=5)
    with pytest.raises(ScriptError) as caught:
        stop(node, term=4)
    assert caught.value.code == "superseded"
    with pytest.raises(ScriptError) as caught:
        stop(node, controller_id="c2", term=9)
    assert caught.value.code == "foreign_controller"
    assert caught.value.body["owner"] == {"controller_id": "c1", "term": 5}
    for stranger in ({"term": 4}, {"controller_id": "c2", "term": 9}):
        with pytest.raises(ScriptError) as caught:
            listing(node, **stranger)
        assert caught.value.code in ("superseded", "foreign_controller")
    assert listing(node, term=5)["replicas"][0]["alive"] is True
    assert stop(node, controller_id="c2", term=9, take_over=True)["was"] == "running"
    with pytest.raises(ScriptError) as caught:
        start(node, 2, term=5)
    assert caught.value.code == "foreign_controller"


def test_a_damaged_term_refuses_all_but_a_take_over(node: Node) -> None:
    start(node)
    (node.root / "hosts/n1/term").write_text("[")
    with pytest.raises(ScriptError) as caught:
        stop(node)
    assert caught.value.code == "foreign_controller"
    assert stop(node, take_over=True)["was"] == "running"


def test_unsafe_roots_are_refused_and_nothing_outside_is_touched(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(outside)
    for root in (loose, link, loose / "below"):
        with pytest.raises(ScriptError) as caught:
            start(node, root=str(root))
        assert caught.value.code == "unsafe_root"
        assert str(root.parent if root.name == "below" else root) in caught.value.body["message"]
    with pytest.raises(ScriptError) as caught:
        start(node, root="relative")
    assert caught.value.code == "bad_argument"
    assert list(outside.iterdir()) == []
    assert list(loose.iterdir()) == []


def test_a_link_planted_at_the_log_is_refused(node: Node, tmp_path: Path) -> None:
    start(node)
    stop(node)
    target = tmp_path / "precious"
    target.write_text("mine")
    (folder(node) / "log.2").symlink_to(target)
    with pytest.raises(ScriptError) as caught:
        start(node, 2)
    assert caught.value.code == "unsafe_root"
    assert target.read_text() == "mine"
    assert tagged(node.home) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "a\n", "x" * 300, None, 3])
def test_names_that_could_leave_are_refused(node: Node, name: Any) -> None:
    for field in ("replica", "node_id"):
        with pytest.raises(ScriptError) as caught:
            start(node, **{field: name})
        assert caught.value.code == "bad_argument"


def test_oom_is_read_from_the_kernel_log_or_not_known(node: Node) -> None:
    started = start(node)
    os.kill(started["pid"], signal.SIGKILL)
    wait(lambda: (folder(node) / "exit.1").exists())
    assert one(node)["oom"] in (False, None)


def test_no_private_helper_of_the_waiter_needs_a_path(node: Node) -> None:
    start(node, env={"PATH": "/nowhere"})
    stop(node)
    assert one(node)["exit"]["signal"] == signal.SIGTERM


def test_the_script_is_small_enough_to_send(node: Node) -> None:
    assert len(assets.remote_script("engine")) + len(assets.prelude()) < 64 << 10


def test_a_script_killed_at_any_moment_leaves_at_most_one_engine_that_the_next_one_finds(node: Node) -> None:
    """F02, F03: kill -9 of a start after ever more milliseconds; asked again, exactly one engine runs."""
    for attempt in range(1, 13):
        call = node.begin("engine", action="start", attempt=attempt, argv=SLEEPS, ports=[41700, 41799], **SHARD)
        time.sleep(0.02 + 0.006 * attempt)
        call.process.kill()
        call.process.communicate()
        found = start(node, attempt)
        assert [each["pid"] for each in listing(node)["replicas"]] == [found["pid"]]
        assert len(tagged(node.home)) == 2
        stop(node, grace=2)
        assert tagged(node.home) == []


def test_starts_lists_and_removals_side_by_side(node: Node) -> None:
    """Whoever wins, nothing crashes, no listing shows a start under way as dead, and never two engines run."""

    def busy(number: int) -> str:
        try:
            if number % 3 == 0:
                start(node, number + 1)
            elif number % 3 == 1:
                stop(node, grace=2, remove=True)
            else:
                assert len(listing(node)["replicas"]) <= 1
                assert len(tagged(node.home)) <= 3
        except ScriptError as exc:
            return exc.code if exc.code != "crash" else str(exc.body)
        return "done"

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(busy, range(30))) <= {"done", "older_attempt", "newer_attempt", "ended_at_once"}
    stop(node, grace=2, remove=True)
    assert tagged(node.home) == []


def test_a_scope_wraps_the_waiter_and_changes_nothing_else(node: Node, tmp_path: Path) -> None:
    """What `systemd-run --user --scope` does: work of its own, then it becomes the command, with the same pid."""
    wrapper = tmp_path / "systemd-run"
    wrapper.write_text('#!/bin/sh\nshift 2\nsleep 0.1\nexec "$@"\n')
    wrapper.chmod(0o755)
    node.change = ("wrapped = scope()", f'wrapped = ["{wrapper}", "--user", "--scope"]')
    started = start(node)
    node.change = None
    assert os.getsid(started["pid"]) == one(node)["manifest"]["waiter"]["pid"]
    assert "XDG_RUNTIME_DIR" in "".join(environ(started["pid"]))
    assert stop(node)["pids"] == [started["pid"]]
    assert one(node)["exit"]["signal"] == signal.SIGTERM


def test_what_is_started_outlives_its_session(node: Node) -> None:
    before = tree(node.home)
    begun = node.call("engine", action="outlive")
    assert node.call("engine", action="outlived", **begun) == {"alive": True}
    assert node.call("engine", action="outlived", **begun) == {"alive": False}  # it was ended
    assert tree(node.home) == before


def test_a_sleeper_that_was_killed_or_is_another_process_is_not_alive(node: Node) -> None:
    begun = node.call("engine", action="outlive")
    assert node.call("engine", action="outlived", **{**begun, "start_ticks": begun["start_ticks"] + 1}) == {
        "alive": False
    }
    os.kill(begun["pid"], signal.SIGKILL)
    assert node.call("engine", action="outlived", **begun) == {"alive": False}
