"""The variables that say where things are."""

from __future__ import annotations

import difflib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from llmgw.config.files import LARGE
from llmgw.config.home import find_home
from llmgw.core.findings.rules import listed
from llmgw.host.checks import Here, Said, Sentence, check, fit

KNOWN = ("LLMGW_HOME", "LLMGW_CONFIG", "LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_API_KEY")
CRASH = "LLMGW_CRASH_AT"
BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""The first of them that names a file counts, as for the mirror."""


@check("note", "Take away what is not meant.")
def environment_leads_elsewhere(here: Here) -> Said:
    """Commands in this shell talk to another control plane, or read another configuration, than without them."""
    plain = {name: value for name, value in here.environ.items() if not name.startswith("LLMGW_")}
    usual = find_home(plain, here.uid).path
    found = []
    if here.home.path != usual:
        found.append(f"LLMGW_HOME={here.home.path} (else {usual})")
    found += [f"{name}={here.environ[name]}" for name in ("LLMGW_CONFIG", "LLMGW_ADMIN_URL") if here.environ.get(name)]
    return f"this shell has {listed(found)}" if found else None


@check("warning", "Take it away, or correct its name.")
def environment_unknown(here: Here) -> Said:
    """A variable of ours that nothing reads: a slip of the pen, most often."""
    found: list[Sentence] = []
    for name in sorted(here.environ):
        if name.startswith("LLMGW_") and name not in KNOWN and name != CRASH:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
            fix = f"Did you mean {near[0]}? Else take it away." if near else f"unset {name}"
            found.append((f"{name} is set, and nothing reads it", fix))
    return found


@check("error", f"unset {CRASH}")
def crash_wished(here: Here) -> Said:
    """A variable of the tests: it kills the control plane at the named point of its work."""
    value = here.environ.get(CRASH)
    return f"{CRASH}={value}: a server started in this shell ends there on purpose" if value else None


@check("warning", "Set LLMGW_ADMIN_TOKEN to what admin.token of that control plane's home holds.")
def admin_url_without_token(here: Here) -> Said:
    """The admin API over TCP wants the token; without it every command is refused."""
    if not here.environ.get("LLMGW_ADMIN_URL") or here.environ.get("LLMGW_ADMIN_TOKEN"):
        return None
    return "LLMGW_ADMIN_URL is set, LLMGW_ADMIN_TOKEN is not"


@check("warning", "Use https://, or a tunnel: `ssh -L 9091:127.0.0.1:9091 HOST`.")
def admin_url_plain(here: Here) -> Said:
    """The token travels readable to everybody on the way, and it opens every node."""
    url = here.environ.get("LLMGW_ADMIN_URL", "")
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme != "http" or host in ("127.0.0.1", "localhost", "::1"):
        return None
    return f"LLMGW_ADMIN_URL is {url}: the admin token is sent to {host or url} unencrypted"


@check("warning", "Correct the path, or take the variable away.")
def trust_missing(here: Here) -> Said:
    """The bundle of certificates that fetches are told to trust is not there; the system's own is taken instead."""
    return [
        f"{name}={here.environ[name]} names no file"
        for name in BUNDLES
        if here.environ.get(name) and not Path(here.environ[name]).is_file()
    ]


@check("error", "Name a file of certificates in PEM form, or take the variable away.")
def trust_unreadable(here: Here) -> Said:
    """The bundle of certificates that fetches are told to trust holds none: nothing is fetched."""
    for name in BUNDLES:
        path = here.environ.get(name)
        if path and Path(path).is_file():
            if not fit(Path(path), LARGE):
                return f"{name}={path} is larger than any bundle of certificates"
            try:
                ssl.create_default_context().load_verify_locations(cafile=path)
            except OSError as exc:
                return f"{name}={path} cannot be used: {getattr(exc, 'reason', None) or exc.strerror or exc}"
            return None
    return None


@check("note", "Nothing, when it is meant so; NO_PROXY names what is reached without.")
def proxy_set(here: Here) -> Said:
    """Weights, archives and package indexes are fetched through the proxy of this shell; a service has its own."""
    names = [name for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy") if here.environ.get(name)]
    if not names:
        return None
    shown = here.environ[names[0]].rpartition("@")[2]
    return f"{names[0]} is {shown}: fetches go through it"


@check("warning", "umask 022")
def umask_open(here: Here) -> Said:
    """Files that commands make in this shell may be changed by everybody; the server itself uses 077."""
    status = Path("/proc/self/status").read_text()  # asked of the process it would have to be changed for a moment
    found = next((line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), None)
    return (
        f"the umask is {found}: what you make may be written by everybody" if found and not int(found, 8) & 2 else None
    )


@check("note", "Give it a user of its own; no part of it needs root on this machine.")
def as_root(here: Here) -> Said:
    """It works as root; a fault in it then is a fault with all of the machine in reach."""
    return "it runs as root" if here.uid == 0 else None
