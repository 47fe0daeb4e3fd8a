"""llmgw.yaml, and what it names: certificates, keys, folders."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from llmgw.config.files import LARGE, read_plain
from llmgw.config.load import MAX_FILE
from llmgw.config.settings import is_loopback
from llmgw.core.findings.rules import arg
from llmgw.errors import LlmgwError, Refused
from llmgw.host import processes
from llmgw.host.checks import Here, Said, Sentence, check, fit, info, legible, loose, mode, span
from llmgw.pki import certificate

SOON = 21 * 86400
_SECRETS = re.compile(r"://[^/\s:@]+:[^/\s@]+@|^\s*[\w-]*(?:password|token|secret)[\w-]*\s*:\s*\S", re.I | re.M)


@check("error", "Mend the line.")
def config_wrong(here: Here) -> Said:
    """The configuration cannot be read or holds something that cannot be meant; a start is refused."""
    if here.config_error is None:
        return None
    fix = here.config_error.fix or "See docs/configuration.md: it shows every option with its default."
    return [(line, fix) for line in here.config_error.message.split("\n")]


@check("error", "Give it to the owner of the home, and take the right to write from others: `chmod go-w`.")
def config_foreign(here: Here) -> Said:
    """Whoever may write the configuration decides which programs run on every node."""
    found = info(here.config)
    if found is None:
        return None
    if found.st_uid not in (0, here.uid):
        return f"{here.config} belongs to uid {found.st_uid}", f"sudo chown {here.uid} {arg(str(here.config))}"
    if loose(found, here.uid) and not here.sheltered:
        return f"others may write {here.config} (mode {mode(found)})", f"chmod go-w {arg(str(here.config))}"
    return None


@check("warning", "Take it from others with `chmod 600`.")
def config_shows_secrets(here: Here) -> Said:
    """A password or token in a file that others may read."""
    found = info(here.config)
    if found is None or here.sheltered or not found.st_mode & 0o044:
        return None
    said = (legible(here.config, MAX_FILE) or b"").decode(errors="replace")
    text = "\n".join(line.split("#")[0] for line in said.splitlines())
    match = _SECRETS.search(text)
    if match is None:
        return None
    line = text.count("\n", 0, match.start() + len(match[0]) - len(match[0].lstrip())) + 1
    message = f"{here.config}:{line} seems to hold a secret, and others may read the file (mode {mode(found)})"
    return message, f"chmod 600 {arg(str(here.config))}"


@check("note", "Start it again (`systemctl restart`, or Ctrl-C and `llmgw server run`); engines go on running.")
def config_newer(here: Here) -> Said:
    """The configuration is read at the start only: what was changed since is not in force."""
    found = info(here.config)
    begun = processes.started(here.server_pid) if here.server_pid else None
    if found is None or begun is None or found.st_mtime <= begun + 1:
        return None
    return f"{here.config} was changed {span(found.st_mtime - begun)} after the server started"


@check("error", "Set `admin_listen: 127.0.0.1:9091`, reached from elsewhere by `ssh -L 9091:127.0.0.1:9091 HOST`.")
def admin_listen_open(here: Here) -> Said:
    """The admin API has no TLS of its own: the token, which opens every node, travels readable to all on the way."""
    listen = here.effective.admin_listen
    if listen is None or is_loopback(listen):
        return None
    return f"admin_listen is {listen}: reachable from other machines, unencrypted"


@check("warning", "Set tls in llmgw.yaml, or listen on 127.0.0.1 behind a proxy that has it.")
def listen_plain(here: Here) -> Said:
    """API keys, prompts and answers travel readable to everybody on the way."""
    settings = here.effective
    if settings.tls is not None or is_loopback(settings.listen):
        return None
    return f"listen is {settings.listen} without tls: reachable from other machines, unencrypted"


@check("error", "Correct tls in llmgw.yaml.")
def tls_unusable(here: Here) -> Said:
    """The endpoint cannot be served with this certificate and key: a start is refused."""
    tls = here.effective.tls
    if tls is None:
        return None
    cert, key = (Path(name).expanduser() for name in (tls.cert, tls.key))
    for each in (cert, key, *([Path(tls.client_ca).expanduser()] if tls.client_ca else [])):
        try:
            read_plain(each, LARGE)
        except OSError as exc:
            return f"tls: {each} cannot be read: {exc.strerror}"
        except Refused as exc:
            return f"tls: {exc.message.rstrip('.')}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as exc:
        said = getattr(exc, "reason", None) or str(exc)
        if said == "KEY_VALUES_MISMATCH":
            return f"tls: the key {key} does not belong to the certificate {cert}"
        return f"tls: {cert} and {key} cannot be used: {said}"
    if tls.client_ca:
        try:
            context.load_verify_locations(Path(tls.client_ca).expanduser())
        except ssl.SSLError as exc:
            return f"tls: client_ca {tls.client_ca} holds no certificates: {exc.reason}"
    return None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is asked for its password")


@check("error", "Renew it.")
def tls_expired(here: Here) -> Said:
    """Clients refuse an endpoint whose certificate is not valid now."""
    found = _certificate(here)
    if found is None:
        return None
    if found.ends <= here.now:
        return f"the certificate of the endpoint expired {span(here.now - found.ends)} ago"
    if found.begins > here.now:
        return f"the certificate of the endpoint is valid only in {span(found.begins - here.now)}: is the clock right?"
    return None


@check("warning", "Renew it, then start the server again.")
def tls_expires(here: Here) -> Said:
    """In less than three weeks clients will refuse the endpoint."""
    found = _certificate(here)
    if found is None or not here.now < found.ends < here.now + SOON:
        return None
    return f"the certificate of the endpoint expires in {span(found.ends - here.now)}"


@check("error", "Take the key from others with `chmod 600`.")
def tls_key_open(here: Here) -> Said:
    """Whoever may read the key may pose as the endpoint."""
    tls = here.effective.tls
    found = info(Path(tls.key).expanduser()) if tls else None
    if tls is None or found is None or not found.st_mode & 0o007:
        return None
    return f"everybody may read the key {tls.key} (mode {mode(found)})", f"chmod 600 {arg(tls.key)}"


def _certificate(here: Here) -> certificate.Certificate | None:
    tls = here.effective.tls
    try:
        path = Path(tls.cert).expanduser() if tls else None
        return certificate.read(path) if path and fit(path, LARGE) else None
    except (OSError, LlmgwError):
        return None  # tls_unusable says so


@check("warning", "Correct ssh.identities in llmgw.yaml.")
def identities_missing(here: Here) -> Said:
    """Keys that first contact is to try and that are not there."""
    named = here.effective.ssh.identities
    return [
        f"ssh.identities names {name}, which does not exist" for name in named if not Path(name).expanduser().exists()
    ]


@check("warning", "Correct ssh.config in llmgw.yaml; null means none.")
def ssh_config_missing(here: Here) -> Said:
    """The OpenSSH configuration that was named is not there: aliases and jump hosts in it are not known."""
    named = here.effective.ssh.config
    wrong: list[Sentence] = []
    if named and named != "~/.ssh/config" and not Path(named).expanduser().exists():
        wrong.append(f"ssh.config names {named}, which does not exist")
    return wrong
