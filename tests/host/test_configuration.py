"""llmgw.yaml, the ports it names, and the variables of the shell."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.config.home import Home, find_home
from llmgw.host import ports, processes
from llmgw.host.doctor import examine
from tests.host.conftest import Look, codes, said


def test_a_wrong_key(home: Home, look: Look):
    home.config.write_text("listen: 127.0.0.1:0\nlisten_adress: x\n")
    report = look()
    assert "llmgw.yaml:2: listen_adress: unknown key" in said(report, "config_wrong")
    assert not report.ok


def test_every_complaint_is_a_finding(home: Home, look: Look):
    home.config.write_text("gateway:\n  queue: many\nprobe_interval: soon\n")
    found = [one.message for one in look().problems if one.code == "config_wrong"]
    assert len(found) == 2
    assert all("llmgw.yaml:" in one for one in found)


@pytest.mark.parametrize("content", [b"a: [\n", b"\xff\xfe", b"- a\n", b"x: 1\nx: 2\n", b"a: " * 500_000])
def test_a_file_that_is_no_configuration(home: Home, look: Look, content: bytes):
    home.config.write_bytes(content)
    assert "config_wrong" in codes(look(), "error")


def test_the_file_that_is_named_is_not_there(home: Home, look: Look, tmp_path: Path):
    report = look(LLMGW_CONFIG=str(tmp_path / "none.yaml"))
    assert "none.yaml does not exist" in said(report, "config_wrong")
    assert f"LLMGW_CONFIG={tmp_path}/none.yaml" in said(report, "environment_leads_elsewhere")


def test_others_may_write_it(home: Home, look: Look, tmp_path: Path):
    home.config.chmod(0o666)
    assert "config_foreign" not in codes(look())  # nobody gets into the home
    outside = tmp_path / "llmgw.yaml"
    outside.write_text("listen: 127.0.0.1:0\nadmin_listen: null\n")
    outside.chmod(0o666)
    assert "mode 0666" in said(look(LLMGW_CONFIG=str(outside)), "config_foreign")
    outside.chmod(0o664)  # the user's own group, as a umask of 002 makes it
    assert "config_foreign" not in codes(look(LLMGW_CONFIG=str(outside)))


def test_secrets_that_others_may_read(home: Home, look: Look, tmp_path: Path):
    outside = tmp_path / "llmgw.yaml"
    outside.write_text("# token: of nobody\nlisten: 127.0.0.1:0\nproxy: https://me:word@proxy:3128\n")
    outside.chmod(0o644)
    text = said(look(LLMGW_CONFIG=str(outside)), "config_shows_secrets")
    assert "llmgw.yaml:3" in text
    assert "word" not in text
    outside.chmod(0o600)
    assert "config_shows_secrets" not in codes(look(LLMGW_CONFIG=str(outside)))
    outside.write_text("# token: of nobody\nlisten: 127.0.0.1:0\n")
    outside.chmod(0o644)
    assert "config_shows_secrets" not in codes(look(LLMGW_CONFIG=str(outside)))


def test_listening_beyond_this_machine(home: Home, look: Look):
    home.config.write_text("listen: 0.0.0.0:0\nadmin_listen: 0.0.0.0:0\n")
    report = look()
    assert "without tls" in said(report, "listen_plain")
    assert "unencrypted" in said(report, "admin_listen_open")
    assert "no API key" in said(report, "no_keys")


def test_what_it_names_is_not_there(home: Home, look: Look):
    home.config.write_text("ssh: {identities: [/none/key], config: /none/config}\n")
    report = look()
    assert "/none/key" in said(report, "identities_missing")
    assert "/none/config" in said(report, "ssh_config_missing")


# ---- ports ----


@contextmanager
def listening(host: str, *, v6_too: bool = False) -> Iterator[tuple[int, int]]:
    """(pid, port) of another process that listens."""
    code = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)\n"
        "s.bind((sys.argv[1],0));s.listen();print(s.getsockname()[1],flush=True);sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        yield child.pid, int(child.stdout.readline())
    finally:
        child.communicate()


@pytest.mark.parametrize(("theirs", "ours"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "")])
def test_a_port_that_another_process_holds(home: Home, look: Look, theirs: str, ours: str):
    with listening(theirs) as (pid, port):
        home.config.write_text(f"listen: '{ours}:{port}'\nadmin_listen: null\n")
        text = said(look(), "port_in_use")
    assert f"port {port} is used by pid {pid} ({sys.executable}" in text
    assert f"on {theirs}" in text


def test_a_port_that_is_held_on_another_address(home: Home, look: Look):
    with listening("127.0.0.2") as (_, port):
        home.config.write_text(f"listen: 127.0.0.1:{port}\nadmin_listen: null\n")
        assert "port_in_use" not in codes(look())


def test_a_listener_on_every_ipv6_address_takes_ipv4_too(home: Home, look: Look):
    try:
        with listening("::") as (_, port):
            home.config.write_text(f"listen: 127.0.0.1:{port}\nadmin_listen: null\n")
            assert "on ::" in said(look(), "port_in_use")
    except ValueError:
        pytest.skip("no IPv6 here")


def test_a_port_that_only_talks_is_free(home: Home, look: Look):
    """The near end of a connection bears a port's number and is no listener."""
    with listening("127.0.0.1") as (_, port), socket.create_connection(("127.0.0.1", port)) as talking:
        own = talking.getsockname()[1]
        assert processes.listeners(own) == []
        assert [each.address for each in processes.listeners(port)] == ["127.0.0.1"]


def test_addresses_of_other_machines(home: Home, look: Look):
    home.config.write_text("listen: 192.0.2.1:8080\nadmin_listen: nobody.invalid:9091\n")
    found = {one.message for one in look().problems if one.code == "listen_unknown"}
    assert "listen: 192.0.2.1 is no address of this machine" in found
    assert any("nobody knows the name nobody.invalid" in one for one in found)


def test_one_port_for_both(home: Home, look: Look):
    home.config.write_text("listen: 0.0.0.0:45671\nadmin_listen: 127.0.0.1:45671\n")
    assert "port 45671" in said(look(), "ports_equal")


def test_a_port_of_root(home: Home, look: Look, monkeypatch: pytest.MonkeyPatch):
    home.config.write_text("listen: 127.0.0.1:443\nadmin_listen: null\n")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(ports, "_may_bind_low", lambda: False)
    assert "port 443 is root's here" in said(look(), "port_privileged")


# ---- the environment ----


def test_variables_that_lead_elsewhere(home: Home, look: Look):
    report = look(LLMGW_HOME=str(home.path), LLMGW_ADMIN_URL="http://10.0.0.1:9091", LLMGW_HOEM="x", LLMGW_FOO="y")
    assert f"LLMGW_HOME={home.path}" in said(report, "environment_leads_elsewhere")
    assert "LLMGW_ADMIN_TOKEN is not" in said(report, "admin_url_without_token")
    assert "sent to 10.0.0.1 unencrypted" in said(report, "admin_url_plain")
    unknown = {one.message: one.fix for one in report.problems if one.code == "environment_unknown"}
    assert unknown["LLMGW_HOEM is set, and nothing reads it"].startswith("Did you mean LLMGW_HOME?")
    assert unknown["LLMGW_FOO is set, and nothing reads it"] == "unset LLMGW_FOO"


def test_the_usual_home_is_no_finding(home: Home, tmp_path: Path):
    usual = find_home({}, os.geteuid())
    assert "environment_leads_elsewhere" not in codes(examine(usual, {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}))


def test_a_crash_that_is_wished(look: Look):
    assert "crash" in "".join(codes(look(LLMGW_CRASH_AT="launch.after"), "error"))


def test_proxies_without_their_password(look: Look):
    text = said(look(https_proxy="http://me:word@proxy.example:3128"), "proxy_set")
    assert "proxy.example:3128" in text
    assert "word" not in text


def test_trust_that_is_not_there(look: Look, tmp_path: Path):
    assert "names no file" in said(look(SSL_CERT_FILE="/none.pem"), "trust_missing")
    (tmp_path / "bad.pem").write_text("hello")
    assert "cannot be used" in said(look(PIP_CERT=str(tmp_path / "bad.pem")), "trust_unreadable")


def test_a_umask_that_lets_everybody_write(look: Look):
    before = os.umask(0)
    try:
        assert "the umask is 0000" in said(look(), "umask_open")
        assert os.umask(0) == 0
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "url", ["http://localhost", "http://127.0.0.1/", "http://[::1]:9091", "http://127.0.0.1:9091/x", "https://gw:9091"]
)
def test_a_token_that_stays_on_this_machine_may_travel_plainly(look: Look, url: str):
    assert "admin_url_plain" not in codes(look(LLMGW_ADMIN_URL=url, LLMGW_ADMIN_TOKEN="t"))


def test_a_host_without_a_port_is_named(look: Look):
    report = look(LLMGW_ADMIN_URL="http://gateway", LLMGW_ADMIN_TOKEN="t")
    assert "sent to gateway unencrypted" in said(report, "admin_url_plain")
