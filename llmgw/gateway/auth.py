"""Who asks: the API key, and the id that the request goes by. A key is never logged and never taken from a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from llmgw.gateway import problems
from llmgw.gateway.problems import Problem
from llmgw.model.holder import Published
from llmgw.model.key import ApiKey, digest
from llmgw.model.route import KeyTable

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_prefix = os.urandom(5).hex().encode()
_numbers = count(1)


@dataclass(slots=True)
class Visit:
    """One request's id and key. `key` is None where the endpoint is open and no known key was given."""

    request_id: bytes
    key: ApiKey | None = None
    problem: Problem | None = None

    @property
    def name(self) -> str:
        return self.key.name if self.key is not None else ""


def request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's own id if it is a sane one, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return b"req-%b%06x" % (_prefix, next(_numbers))


def visit(keys: Published[KeyTable], headers: Mapping[bytes, bytes]) -> Visit:
    """Who comes with these headers. The key is looked up by its SHA-256, so the time that takes tells nothing of it."""
    table = keys.value
    name = request_id(headers)
    scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
    secret = secret.strip()
    if scheme.lower() != b"bearer" or not secret:
        return Visit(name, None, None if table.open else problems.NO_KEY)
    key = table.keys.get(digest(secret.decode("utf-8", "surrogateescape")))
    if key is None and not table.open:
        return Visit(name, None, problems.BAD_KEY)
    return Visit(name, key)
