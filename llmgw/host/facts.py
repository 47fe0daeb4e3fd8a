"""What is found out before anything is judged: each part on its own and with its own deadline, and nothing is written.

No lease is taken: who holds it is read out of /proc. The database is looked at without its log being touched. The
server is asked for two things that change nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from llmgw.config.home import Home
from llmgw.config.load import config_file, load_settings
from llmgw.errors import ConfigError
from llmgw.host import processes
from llmgw.host.checks import Answer, Here, Place, Server, aside, present
from llmgw.store.lease import Holder, recorded
from llmgw.store.look import Summary, summary

T = TypeVar("T")
LOCAL = 6.0
"""Seconds for what lies on this machine."""
SERVER = 5.0
"""Seconds for an answer of the control plane."""
OUTSIDE = 4.0
"""Seconds for an answer of something outside."""
ANSWERS = 3
LARGEST = 64 << 20
"""Bytes of a snapshot: a thousand nodes with their probes take some ten MB."""


def look(home: Home, environ: Mapping[str, str], places: Sequence[Place], tls: ssl.SSLContext | None) -> Here:
    begun = time.monotonic()

    def result(of: Future[T], seconds: float) -> T:
        """All of them were begun at the same time: none is waited for after the others again."""
        return of.result(max(0.0, begun + seconds - time.monotonic()))

    asked = aside(lambda: asyncio.run(_ask(home.socket)))
    summed = aside(lambda: _summary(home.database))
    fetched = aside(lambda: asyncio.run(_reach(places, tls)))
    locked = aside(lambda: _lock(home.lock))
    named = environ.get("LLMGW_CONFIG")
    configured = aside(lambda: load_settings(home, named))
    here = Here(home=home, uid=os.geteuid(), environ=environ, config=home.config, settings=None)
    # Whatever any of it raises, the report is to be made: what could not be found out is a finding.
    try:
        here.config = config_file(home, named)
        here.settings = result(configured, LOCAL)
    except ConfigError as exc:
        here.config_error = exc
    except Exception as exc:
        here.config_error = ConfigError(f"{here.config} cannot be read: {reason(exc)}.")
    try:
        here.server = result(asked, SERVER * 2)
    except Exception as exc:
        here.server_error = reason(exc)
    try:
        here.state = result(summed, LOCAL)
    except Exception as exc:
        here.state_error = exc
    try:
        here.held, here.held_by, here.recorded = result(locked, LOCAL)
    except Exception:
        here.held = None
    try:
        here.answers = result(fetched, OUTSIDE * 2)
    except Exception as exc:
        here.answers = tuple(Answer(place, reason(exc)) for place in places)
    here.now = time.time()
    return here


def reason(exc: BaseException) -> str:
    """An exception in a few words."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return " ".join(str(exc).split()) or type(exc).__name__


def _summary(path: Path) -> Summary | None:
    return summary(path) if present(path) else None


def _lock(path: Path) -> tuple[bool, int | None, Holder | None]:
    if not present(path):
        return False, None, None
    held, pid = processes.lock_holder(path)
    return held, pid, recorded(path)


async def _ask(path: Path) -> Server | None:
    """What answers on the socket; None where there is none. Its time is the quickest of a few: a slow loop is slow
    each time, a busy machine only now and then."""
    if not present(path):
        return None
    timeout = aiohttp.ClientTimeout(total=SERVER)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as http:
        best, whoami = SERVER, None
        for _ in range(ANSWERS):
            begun = time.monotonic()
            whoami = await _get(http, "whoami")
            best = min(best, time.monotonic() - begun)
        assert whoami is not None
        try:
            snapshot = await _get(http, "snapshot")
        except (aiohttp.ClientError, TimeoutError, ValueError):
            snapshot = None
        return Server(whoami, best, snapshot)


async def _get(http: aiohttp.ClientSession, what: str) -> dict[str, Any]:
    async with http.get(f"http://llmgw/api/v1/{what}") as answer:
        if answer.status != 200:
            raise ValueError(f"it answered {answer.status}")
        body = await answer.content.read(LARGEST)
        while not answer.content.at_eof() and len(body) < LARGEST:
            body += await answer.content.read(LARGEST - len(body))
        found = json.loads(body)
        if not isinstance(found, dict):
            raise ValueError("it answered with something else")
        return found


async def _reach(places: Sequence[Place], tls: ssl.SSLContext | None) -> tuple[Answer, ...]:
    if not places:
        return ()
    timeout = aiohttp.ClientTimeout(total=OUTSIDE)
    connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True) as http:
        return tuple(await asyncio.gather(*(_knock(http, place) for place in places)))


async def _knock(http: aiohttp.ClientSession, place: Place) -> Answer:
    """Any answer is one: an index may want a login for its front page, a hub may know no such page."""
    asked = time.time()
    try:
        async with http.head(place.url, allow_redirects=False) as answer:
            if answer.status >= 500 or answer.status == 407:
                return Answer(place, f"it answered {answer.status}")
            return Answer(place, date=_date(answer.headers.get("date")), asked=asked)
    except aiohttp.ClientConnectorCertificateError as exc:
        return Answer(place, reason(exc.certificate_error), untrusted=True)
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        return Answer(place, reason(exc))


def _date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None
