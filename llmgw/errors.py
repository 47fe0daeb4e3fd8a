"""One exception tree. Every error is a sentence with a next step.

An error knows what failed (`message`), what to do about it (`fix`), a stable `code` for programs, the exit status
that the command line gives and the HTTP status that the two HTTP faces give (docs/errors.md lists them).
"""

from __future__ import annotations

from typing import Any


class LlmgwError(Exception):
    """Base of everything llmgw raises on purpose.

    `str(error)` is the whole sentence: what failed, why, what to do.
    """

    code = "error"
    exit_status = 1
    http_status = 500

    def __init__(self, message: str, *, fix: str = "", code: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.data = data
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        if not self.fix:
            return self.message
        stop = "" if self.message.endswith((".", "!", "?", ":")) else "."
        return f"{self.message}{stop} {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """The form that crosses the admin API and comes back through `from_dict`."""
        return {
            "code": self.code,
            "message": self.message,
            "fix": self.fix,
            "exit_status": self.exit_status,
        }


class UsageError(LlmgwError):
    """The caller asked for something that cannot be meant: wrong option, wrong type, a name that breaks the rule."""

    code = "usage"
    exit_status = 2
    http_status = 400


class ConfigError(UsageError):
    """llmgw.yaml or a catalog entry is wrong; the message names file, line and key."""

    code = "config"


class NotFound(LlmgwError):
    """No node, model, replica or key of that name; the message offers the nearest ones."""

    code = "not_found"
    exit_status = 3
    http_status = 404


class Refused(LlmgwError):
    """We, the node or its sshd said no: refused login, changed key, preflight finding, a lease that is held."""

    code = "refused"
    exit_status = 4
    http_status = 409


class Unreachable(LlmgwError):
    """No answer: unknown name, closed port, no route, no server."""

    code = "unreachable"
    exit_status = 5
    http_status = 502


class TimedOut(LlmgwError):
    """Something did not happen within its limit."""

    code = "timed_out"
    exit_status = 6
    http_status = 504


class DiskFull(LlmgwError):
    """A write failed for lack of space, here or on a node; the message names the path and what is needed."""

    code = "disk_full"
    exit_status = 1
    http_status = 507


class Unknown(LlmgwError):
    """It is not known whether something happened: a lost channel, a truncated reply, a deadline.

    Never a failure and never a success: whoever catches it must look before acting (rule 5 of docs/architecture.md).
    """

    code = "unknown"
    http_status = 502


class LinkLost(Unknown):
    """The SSH connection went away in the middle of something."""

    code = "link_lost"


class BadReply(Unknown):
    """A node's reply was truncated, oversized, undecodable or failed its digest. `data["stderr"]` holds the tail."""

    code = "bad_reply"


UNCERTAIN: tuple[type[LlmgwError], ...] = (Unknown, Unreachable, TimedOut)
"""What leaves open whether a remote call had its effect: catch this, then look."""


class NodeError(LlmgwError):
    """A script on a node said, in the node's own words, why it could not do what it was asked."""

    code = "node_error"
    http_status = 502


_EXITS: dict[int, type[LlmgwError]] = {2: UsageError, 3: NotFound, 4: Refused, 5: Unreachable, 6: TimedOut}


def from_dict(body: dict[str, Any]) -> LlmgwError:
    """The error that `as_dict` described on the other side of the admin API."""
    kind = _EXITS.get(int(body.get("exit_status", 1)), LlmgwError)
    return kind(str(body.get("message", "failed")), fix=str(body.get("fix", "")), code=str(body.get("code", kind.code)))
