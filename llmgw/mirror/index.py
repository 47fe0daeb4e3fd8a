"""Finds a wheel in a Python package index, with the operator's own settings for it.

The simple API in JSON (PEP 691) with its older HTML form (PEP 503) as fallback. Read from: PIP_INDEX_URL,
UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_EXTRA_INDEX_URL, and pip's configuration files.
"""

from __future__ import annotations

import configparser
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

import aiohttp
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from llmgw.errors import LlmgwError, NotFound, Unreachable

DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True)
class Wheel:
    url: str
    file: str
    version: Version
    sha256: str | None
    size: int | None


def indexes() -> list[str]:
    """Index URLs, in the order they are asked. Those that are no web address are left out."""
    environ = os.environ
    main = environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    extra = environ.get("PIP_EXTRA_INDEX_URL", "")
    for config in _pip_configs():
        main = main or config.get("index-url")
        extra = extra or config.get("extra-index-url", "")
    found = [main or DEFAULT, *extra.split()]
    return [url.rstrip("/") for url in found if url.startswith(("https://", "http://"))]


def tls() -> ssl.SSLContext:
    """The system's trust, and the operator's own bundle where pip is told of one."""
    context = ssl.create_default_context()
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if (path := os.environ.get(name)) and Path(path).is_file():
            context.load_verify_locations(cafile=path)
            break
    return context


async def find(session: aiohttp.ClientSession, project: str, version: str | None, platforms: tuple[str, ...]) -> Wheel:
    """The newest wheel of `project` (of `version`, when given) that is pure or fits one of `platforms`, best first.

    Raises NotFound when no index has one, Unreachable when none answered.
    """
    troubles: list[str] = []
    seen: list[Wheel] = []
    for base in indexes():
        url = f"{base}/{canonicalize_name(project)}/"
        try:
            seen += [wheel for wheel in await _wheels(session, url) if _serves(wheel, platforms)]
        except (aiohttp.ClientError, TimeoutError, LlmgwError) as exc:
            troubles.append(str(exc) or type(exc).__name__)
    wanted = [wheel for wheel in seen if version is None or wheel.version == Version(version)]
    if wanted:
        return max(wanted, key=lambda wheel: (wheel.version, -_rank(wheel, platforms)))
    if troubles and not seen:
        raise Unreachable(
            f"No package index answered for {project}: {troubles[0]}.",
            fix="Check the network, or set PIP_INDEX_URL to an index this machine reaches.",
            code="index_unreachable",
        )
    known = ", ".join(str(known) for known in sorted({wheel.version for wheel in seen})[-3:]) or "none"
    raise NotFound(
        f"The package index has no wheel of {project}{'==' + version if version else ''} that fits.",
        fix=f"Versions that fit: {known}.",
    )


def _serves(wheel: Wheel, platforms: tuple[str, ...]) -> bool:
    return _rank(wheel, platforms) < 1_000_000


def _rank(wheel: Wheel, platforms: tuple[str, ...]) -> int:
    """How well the wheel's platform fits: 0 for a pure one, then the place in `platforms`."""
    tags = {tag.platform for tag in parse_wheel_filename(wheel.file)[3]}
    if "any" in tags:
        return 0
    return min((platforms.index(tag) + 1 for tag in tags if tag in platforms), default=1_000_000)


async def _wheels(session: aiohttp.ClientSession, url: str) -> list[Wheel]:
    async with session.get(url, headers={"accept": _ACCEPT}) as response:
        if response.status == 404:
            return []
        if response.status != 200:
            raise Unreachable(f"the package index answered {response.status}")
        try:
            if response.content_type == _JSON:
                body = await response.json(content_type=None)
                return list(_from_json(body, str(response.url)))
            return list(_from_html(await response.text(), str(response.url)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Unreachable("the package index answered with something that is no index") from None


def _from_json(body: dict[str, Any], base: str) -> Iterator[Wheel]:
    for file in body.get("files", ()):
        if not file.get("yanked"):
            sha = file.get("hashes", {}).get("sha256")
            yield from _wheel(file["filename"], urljoin(base, file["url"]), sha, file.get("size"))


def _from_html(text: str, base: str) -> Iterator[Wheel]:
    links: list[tuple[str, dict[str, str | None]]] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            if tag == "a" and (href := values.get("href")):
                links.append((href, values))

    Links().feed(text)
    for href, values in links:
        if "data-yanked" in values:
            continue
        url, fragment = urldefrag(urljoin(base, href))
        sha = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        yield from _wheel(url.rpartition("/")[2], url, sha[1] if sha else None, None)


def _wheel(file: str, url: str, sha256: str | None, size: int | None) -> Iterator[Wheel]:
    if not file.endswith(".whl") or "/" in file:
        return
    try:
        _, version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return
    if not version.is_prerelease:
        yield Wheel(url, file, version, sha256, size)


def _pip_configs() -> Iterator[dict[str, str]]:
    named = os.environ.get("PIP_CONFIG_FILE")
    places = [
        *([named] if named else []),
        os.path.join(os.environ.get("VIRTUAL_ENV", "/nonexistent"), "pip.conf"),
        "~/.config/pip/pip.conf",
        "~/.pip/pip.conf",
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
    ]
    for place in places:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(place).expanduser())
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        if parser.has_section("global"):
            yield dict(parser.items("global"))
