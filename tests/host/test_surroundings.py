"""The operator's SSH, the machine, this installation, and what lies outside."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw.cli import doctor as command
from llmgw.cli.main import cli
from llmgw.config.home import Home
from llmgw.errors import Refused
from llmgw.host import doctor, facts, machine, program, running
from llmgw.host.checks import CHECKS, Check, Here, Place, Server, span
from llmgw.host.doctor import examine
from tests.core.findings.fixes import wrong
from tests.host.conftest import Look, codes, said
from tests.host.test_files import certificate

ENV = {"HOME": "/nonexistent"}


# ---- SSH ----


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    return folder


def test_an_agent_without_keys_and_with_one(look: Look, tmp_path: Path):
    path = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(path):
            time.sleep(0.01)
        report = look(SSH_AUTH_SOCK=path)
        assert "has no keys" in said(report, "agent_empty")
        assert "login_by_password_only" not in codes(report)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
        subprocess.run(["ssh-add", "-q", tmp_path / "key"], env={**os.environ, "SSH_AUTH_SOCK": path}, check=True)
        assert not codes(look(SSH_AUTH_SOCK=path)) & {"agent_empty", "agent_dead"}
    finally:
        agent.terminate()
        agent.wait()


def test_an_agent_that_is_gone_or_says_nothing(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = str(tmp_path / "agent")
    assert "No such file" in said(look(SSH_AUTH_SOCK=path), "agent_dead")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(path)
        assert "refused" in said(look(SSH_AUTH_SOCK=path), "agent_dead")
        deaf.listen()
        assert "timed out" in said(look(SSH_AUTH_SOCK=path), "agent_dead")


def test_a_configuration_that_cannot_be_read(home: Home, look: Look, ssh: Path):
    config = ssh / "config"
    home.config.write_text(f"listen: 127.0.0.1:0\nadmin_listen: null\nssh: {{config: {config}}}\n")
    config.write_text("Host a\n  Port many\n")
    assert "cannot be used" in said(look(), "ssh_config_broken")
    config.write_text("Host a\n  Port 2222\n")
    config.chmod(0o666)
    report = look()
    assert "ssh_config_broken" not in codes(report)
    assert "mode 0666" in said(report, "ssh_config_open")


@pytest.mark.parametrize(
    "include",
    [None, "Include CONFIG", "include more/*", 'Include "~/.ssh/more/*.conf" other', "Host x\n  Include=more/b.conf"],
)
def test_a_configuration_that_runs_commands_runs_none(
    home: Home, look: Look, ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str | None
):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = ssh / "config"
    (ssh / "more").mkdir()
    runs = config if include is None else ssh / "more/b.conf"
    home.config.write_text(f"listen: 127.0.0.1:0\nadmin_listen: null\nssh: {{config: {config}}}\n")
    config.write_text(f"{(include or '').replace('CONFIG', str(runs))}\n")
    runs.write_text(f'Match "exec" "touch {tmp_path}/ran"\n  Port 2222\n')
    report = look()
    assert any("Match exec" in one.message for one in report.problems if one.code == "not_checked")
    assert not (tmp_path / "ran").exists()


def test_modes_of_the_operators_keys(look: Look, ssh: Path):
    ssh.chmod(0o777)
    (ssh / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (ssh / "id_ed25519").chmod(0o644)
    (ssh / "notes").write_text("nothing")
    report = look()
    assert "mode 0777" in said(report, "ssh_folder_open")
    assert "id_ed25519 (mode 0644)" in said(report, "ssh_key_open")
    assert "login_by_password_only" not in codes(report)


def test_damaged_known_hosts(look: Look, ssh: Path):
    (ssh / "known_hosts").write_text("@marker host ssh-ed25519 AAAA\n")
    assert "known_hosts" in said(look(), "ssh_known_hosts_broken")


# ---- the machine ----


def test_few_files(home: Home, look: Look, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert "256 files may be open at most; 1024 clients and 1 node take 1030" in said(look(), "files_few")


def test_a_directory_for_temporary_files(look: Look, disk, tmp_path: Path):  # type: ignore[no-untyped-def]
    assert "is no directory" in said(look(TMPDIR="/none"), "tmp_unusable")
    if os.geteuid() == 0:
        assert "KiB are free" in said(look(TMPDIR=str(disk("size=1m"))), "tmp_unusable")


def test_the_clock_is_judged_by_the_kernel(home: Home, monkeypatch: pytest.MonkeyPatch):
    told = subprocess.run(["timedatectl", "show", "-p", "NTPSynchronized"], capture_output=True, text=True)
    here = Here(home=home, uid=0, environ=ENV, config=home.config, settings=None)
    found = machine.clock_unsynchronised(here)
    if told.returncode == 0 and "=" in told.stdout:
        assert (found is None) == ("yes" in told.stdout)
    assert found is None or "synchronised" in str(found)


def test_a_clock_that_was_never_set(home: Home):
    here = Here(home=home, uid=0, environ=ENV, config=home.config, settings=None, now=1000.0)
    assert "before 2025" in str(machine.clock_wrong(here))


# ---- this installation ----


def test_this_installation_is_sound(look: Look):
    assert not {each.code for each in CHECKS if each.subject == "program" and each.severity == "error"} & codes(look())


def test_libraries_of_other_versions(look: Look, monkeypatch: pytest.MonkeyPatch):
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "uvloop":
            raise importlib.metadata.PackageNotFoundError(name)
        return "99.0" if name == "asyncssh" else real(name)

    monkeypatch.setattr(program.importlib.metadata, "version", version)
    report = look()
    assert "not installed: uvloop" in said(report, "package_missing")
    assert "asyncssh is 99.0, it has to be <3,>=2.24" in said(report, "package_unfit")


def test_scripts_that_are_missing(look: Look, monkeypatch: pytest.MonkeyPatch):
    def folder(name: str) -> Path:
        raise FileNotFoundError(f"{name}/ is missing from this installation of llmgw; install it again")

    program.assets.remote_script.cache_clear()
    monkeypatch.setattr(program.assets, "folder", folder)
    try:
        assert "remote_scripts/ is missing" in said(look(), "files_missing")
    finally:
        program.assets.remote_script.cache_clear()


def test_another_llmgw_in_the_path(look: Look, tmp_path: Path):
    other = tmp_path / "bin" / "llmgw"
    other.parent.mkdir()
    shutil.copy("/bin/true", other)
    assert f"PATH leads to {other}" in said(look(PATH=f"{tmp_path}/bin:/usr/bin"), "another_in_path")


# ---- outside ----


class Outside(BaseHTTPRequestHandler):
    date = 0.0
    status = 200

    def do_HEAD(self) -> None:
        self.send_response_only(self.status)
        self.send_header("date", formatdate(time.time() + self.date, usegmt=True))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def outside() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Outside)
    Outside.date, Outside.status = 0.0, 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def asked(home: Home, *places: Place, tls: ssl.SSLContext | None = None):  # type: ignore[no-untyped-def]
    return examine(home, ENV, places, tls)


def test_a_place_that_answers_and_one_that_does_not(home: Home, outside: HTTPServer):
    good = Place("the package index", f"http://me:word@127.0.0.1:{outside.server_port}/simple/")
    bad = Place("the model hub", "http://hub.invalid/")
    report = asked(home, good, bad)
    assert "the model hub (http://hub.invalid)" in said(report, "place_unreachable")
    assert not codes(report) & {"cut_off", "clock_wrong"}
    Outside.status = 503
    report = asked(home, good, bad)
    text = said(report, "cut_off")
    assert "the package index and the model hub (it answered 503)" in text
    assert "place_unreachable" not in codes(report)
    assert "word" not in text


def test_a_clock_that_is_two_hours_off(home: Home, outside: HTTPServer):
    place = Place("the package index", f"http://127.0.0.1:{outside.server_port}/")
    Outside.date = 7200.0
    assert "behind that of the package index" in said(asked(home, place), "clock_wrong")
    Outside.date = -7200.0
    assert "ahead of that of the package index" in said(asked(home, place), "clock_wrong")


def test_a_certificate_that_is_not_trusted(home: Home, outside: HTTPServer, tmp_path: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path / "tls", 9))
    outside.socket = context.wrap_socket(outside.socket, server_side=True)
    place = Place("the model hub", f"https://127.0.0.1:{outside.server_port}/")
    assert "is not trusted" in said(asked(home, place), "certificate_untrusted")


def test_a_place_that_never_answers(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "OUTSIDE", 0.3)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        begun = time.monotonic()
        report = asked(home, Place("the index", f"http://127.0.0.1:{deaf.getsockname()[1]}/"))
    assert "no answer in time" in said(report, "cut_off")
    assert time.monotonic() - begun < 5


# ---- what the server says ----


def here_with(home: Home, **snapshot: object) -> Here:
    server = Server({"version": "0"}, 0.3, snapshot)
    return Here(home=home, uid=0, environ=ENV, config=home.config, settings=None, server=server)


def test_what_the_server_says_of_its_nodes(home: Home):
    problem = {"code": "gpu_missing", "severity": "error"}
    here = here_with(
        home,
        nodes=[
            {"id": "a", "link": "down", "link_error": "Connection refused"},
            {"id": "b", "link": "down", "quarantined": "its key changed"},
            {"id": "c", "link": "up", "problems": [problem]},
        ],
        replicas=[{"id": "r1", "state": "failed", "reason": "out of memory"}, {"id": "r2", "state": "ready"}],
        status=[{"model": "m", "state": "unplaceable", "wanted": 1, "reason": "a: too small"}],
    )
    assert running.nodes_down(here) == "1 of 3 nodes are down: a; a: Connection refused"
    assert running.nodes_quarantined(here) == "1 node quarantined: b"
    assert running.nodes_with_errors(here) == "1 node cannot serve: c (gpu_missing)"
    assert running.replicas_failed(here) == "1 of 2 replicas failed: r1; out of memory"
    assert running.models_unserved(here) == "no node takes m: a: too small"
    assert "took 300 ms" in str(running.server_slow(here))
    assert "the server is llmgw 0" in str(running.server_other_version(here))


@pytest.mark.parametrize("snapshot", [{}, {"nodes": None}, {"nodes": [1, "x"]}, {"nodes": {}, "replicas": "?"}])
def test_a_server_of_another_time_says_other_things(home: Home, snapshot: dict[str, object]):
    here = here_with(home, **snapshot)
    assert running.nodes_down(here) is None
    assert running.replicas_failed(here) is None


def test_units(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    monkeypatch.setattr(running, "UNITS", (str(tmp_path / "etc"),))
    monkeypatch.setattr(running, "SYSTEMD", tmp_path)
    here = Here(home=home, uid=0, environ={"HOME": str(tmp_path)}, config=home.config, settings=None)
    assert "next boot" in str(running.unit_missing(here))
    unit = folder / "llmgw.service"
    unit.write_text("[Service]\nExecStart=/none/llmgw server run\n[Install]\nWantedBy=default.target\n")
    assert running.unit_missing(here) is None
    assert "/none/llmgw, which does not exist" in str(running.unit_broken(here))
    assert "systemctl --user enable llmgw" in str(running.unit_disabled(here))
    (folder / "default.target.wants").mkdir()
    (folder / "default.target.wants" / "llmgw.service").symlink_to(unit)
    assert running.unit_disabled(here) == []


# ---- the report itself ----


def test_a_check_that_hangs_or_fails_costs_itself_only(home: Home, look: Look, monkeypatch: pytest.MonkeyPatch):
    stop = threading.Event()

    def hangs(here: Here) -> str:
        stop.wait()
        return "never"

    def fails(here: Here) -> str:
        raise KeyError("x")

    more = [Check("hangs", "error", "", "", hangs), Check("fails", "error", "", "", fails)]
    monkeypatch.setattr(doctor, "CHECKS", [*CHECKS, *more])
    monkeypatch.setattr(doctor, "LIMIT", 1.5)
    report = look()
    stop.set()
    found = [one.message for one in report.problems if one.code == "not_checked"]
    assert "not checked: hangs (no answer within 1.5 s)" in found
    assert {one.severity for one in report.problems if one.code == "not_checked"} == {"warning"}
    assert "not checked: fails (KeyError: 'x')" in found
    assert "server_down" in codes(report)


def test_what_the_environment_names_costs_itself_only(home: Home, monkeypatch: pytest.MonkeyPatch):
    """pip's configuration and a bundle of certificates are read for the report: they may be anything."""
    stop = threading.Event()
    monkeypatch.setenv("LLMGW_HOME", str(home.path))
    monkeypatch.setattr(command, "READ", 0.2)
    monkeypatch.setattr(command.index, "tls", lambda: stop.wait() and None)

    def fails() -> list[str]:
        raise MemoryError

    monkeypatch.setattr(command.index, "indexes", fails)
    done = CliRunner().invoke(cli, ["doctor"])
    stop.set()
    assert done.exit_code == 0, done.output
    assert "it can serve" in done.output


def test_a_broken_home_is_a_report_for_programs_too(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMGW_HOME", str(home.path))
    home.config.write_text("probe_interval: 9999-99-99\n")
    done = CliRunner().invoke(cli, ["doctor", "--offline", "--json"])
    assert isinstance(done.exception, Refused)
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert [one["code"] for one in found["findings"] if one["severity"] == "error"] == ["config_wrong"]


def test_every_check_says_why_and_has_a_name_of_its_own():
    names = [each.code for each in CHECKS]
    assert len(names) == len(set(names)) >= 25
    for each in CHECKS:
        assert each.means.endswith("."), each.code
        assert each.fix, each.code
        assert wrong(each.fix) is None, f"{each.code}: {each.fix}"


def test_a_host_of_an_included_file_is_asked_for(
    home: Home, look: Look, ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    home.config.write_text(f"listen: 127.0.0.1:0\nadmin_listen: null\nssh: {{config: {ssh / 'config'}}}\n")
    (ssh / "config").write_text("Include config.d/*\nHost a\n")
    (ssh / "config.d").mkdir()
    (ssh / "config.d/one").write_text("Host b\n  Port none\n")
    assert "Host b" not in said(look(), "ssh_config_broken")
    assert "port" in said(look(), "ssh_config_broken").lower()


def test_the_worst_comes_first(home: Home, look: Look):
    home.path.chmod(0o755)
    order = [one.severity for one in look().problems]
    assert order == sorted(order, key=["error", "warning", "note"].index)


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 s"), (59.9, "59 s"), (4711, "1 h 18 min"), (90000, "1 d 1 h")])
def test_spans(seconds: float, words: str):
    assert span(seconds) == words


def test_fixes_name_commands_that_exist():
    import click

    from llmgw.cli.main import cli

    context = click.Context(cli)
    for each in CHECKS:
        for words in re.findall(r"llmgw ((?:[a-z]+ )*[a-z]+)", each.fix):
            command: click.Command = cli
            for word in words.split():
                if not isinstance(command, click.Group) or word == "llmgw":
                    break
                found = command.get_command(context, word)
                assert found is not None, f"{each.code}: llmgw {words}"
                command = found
