"""Fetches one file over HTTPS: resumed where it was cut, hashed as it comes, ended when it stands still."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp

from llmgw.errors import DiskFull, LlmgwError, Refused, Unreachable

STALL = 60.0
"""Seconds without a byte after which a transfer is broken off and taken up again."""
TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds between tries, doubled each time."""
HEADROOM = 64 << 20


def session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=20, sock_read=STALL)
    return aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(ssl=tls), trust_env=True, auto_decompress=False
    )


async def fetch(
    http: aiohttp.ClientSession,
    url: str,
    part: Path,
    *,
    sha256: str | None,
    size: int | None,
    headers: tuple[tuple[str, str], ...] = (),
    progress: Callable[[int, int | None], None],
) -> tuple[str, int]:
    """Brings `url` to `part` and returns (sha256, bytes).

    Raises Unreachable when it cannot be had, Refused for a wrong digest (the file is removed), DiskFull.
    """
    trouble = ""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE))
        try:
            await _transfer(http, url, part, size, headers, progress)
            break
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as exc:
            trouble = str(exc) or type(exc).__name__
        except OSError as exc:
            if exc.errno not in (28, 122):
                raise
            part.unlink(missing_ok=True)
            raise DiskFull(f"No space left for {part.name} in {part.parent}.", fix="Free some space there.") from None
    else:
        raise Unreachable(
            f"{_shown(url)} could not be fetched: {trouble}.",
            fix="Check the network; what has arrived is kept and the next try goes on from there.",
            code="fetch",
        )
    found = await asyncio.to_thread(_digest, part)
    total = part.stat().st_size
    if sha256 is not None and found != sha256:
        part.unlink()
        _validator(part).unlink(missing_ok=True)
        raise Refused(
            f"{_shown(url)} has sha256 {found[:16]}…, {sha256[:16]}… was expected; it was thrown away.",
            fix="Fetch it again; when it happens again, the source has changed or is not to be trusted.",
            code="digest",
        )
    _validator(part).unlink(missing_ok=True)
    return found, total


async def _transfer(
    http: aiohttp.ClientSession,
    url: str,
    part: Path,
    size: int | None,
    headers: tuple[tuple[str, str], ...],
    progress: Callable[[int, int | None], None],
) -> None:
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:
        progress(size, size)
        return
    asked = dict(headers)
    validator = _read_validator(part) if have else None
    if have and validator:
        asked["range"] = f"bytes={have}-"
        asked["if-range"] = validator
    async with http.get(url, headers=asked) as response:
        if response.status not in (200, 206):
            raise _answer(url, response.status)
        if url.startswith("https://") and response.url.scheme != "https":
            raise Refused(f"{_shown(url)} redirects to an unencrypted address.", code="insecure_redirect")
        if response.status == 200:
            have = 0
        total = have + response.content_length if response.content_length is not None else size
        _check_room(part, (total or 0) - have)
        _write_validator(part, response)
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            async for chunk in response.content.iter_chunked(1 << 18):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
        if total is not None and have != total:
            raise ConnectionError(f"it ended after {have} of {total} bytes")


def _answer(url: str, status: int) -> Exception:
    text = f"{_shown(url)} answered {status}."
    if status in (401, 403):
        return Refused(
            text, fix="It wants a login: set HF_TOKEN for the model hub, or use another source.", code="login"
        )
    if status == 404:
        return LlmgwError(text, fix="Check the name in `source:`.", code="not_there")
    return ConnectionError(text)


def _check_room(part: Path, need: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if need + HEADROOM > free:
        raise DiskFull(
            f"{part.parent} has {free >> 20} MB free, {part.name} needs {(need + HEADROOM) >> 20} MB.",
            fix="Free some space there, or set mirror.dir in llmgw.yaml to a larger disk.",
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _validator(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _read_validator(part: Path) -> str | None:
    try:
        return str(json.loads(_validator(part).read_text()))
    except (OSError, ValueError):
        return None


def _write_validator(part: Path, response: aiohttp.ClientResponse) -> None:
    etag = response.headers.get("etag", "")
    # A weak validator says nothing about single bytes (RFC 9110, 8.8.1).
    found = etag if etag and not etag.startswith("W/") else response.headers.get("last-modified")
    if found:
        _validator(part).write_text(json.dumps(found))
    else:
        _validator(part).unlink(missing_ok=True)


def _shown(url: str) -> str:
    """Without a query, which may hold a signature."""
    return url.partition("?")[0]


def remove_quietly(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
