"""The command group, and the one place where errors become sentences and exit statuses."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from llmgw import __version__
from llmgw.errors import LlmgwError

# Each command's module is only loaded when it is called: `llmgw --help` must not wait for asyncssh and textual.
_COMMANDS = {
    "chat": ("llmgw.cli.chat", "chat", "Talk to a model from the shell, streaming."),
    "ctl": ("llmgw.cli.ctl", "ctl", "Look at the cluster and steer it."),
    "demo": ("llmgw.cli.demo", "demo", "Everything on this machine: a real engine, a real model, one answer."),
    "doctor": ("llmgw.cli.doctor", "doctor", "Look this control plane over."),
    "key": ("llmgw.cli.key", "key", "API keys of the endpoint."),
    "model": ("llmgw.cli.model", "model", "The catalog of models."),
    "node": ("llmgw.cli.node", "node", "Machines that serve."),
    "server": ("llmgw.cli.server", "server", "The control plane itself."),
    "tui": ("llmgw.cli.tui", "tui", "The dashboard."),
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in sorted(_COMMANDS)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmgw")
@click.option("--debug", is_flag=True, help="Show tracebacks and a full log.")
def cli(debug: bool) -> None:
    """One OpenAI-compatible endpoint over every machine that answers on SSH."""


def main(args: list[str] | None = None) -> Any:
    """Runs the command line and exits: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 unreachable, 6 late."""
    _open_standard_streams()
    words = sys.argv[1:] if args is None else args
    debug = "--debug" in words
    try:
        words = [word for word in words if word != "--debug"]
        cli.main(args=words, prog_name="llmgw", standalone_mode=False, color=_colour())
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except LlmgwError as exc:
        if debug:
            raise
        _complain(exc)
        sys.exit(exc.exit_status)
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as exc:
        if debug:
            raise
        where = f"{exc.filename}: " if exc.filename else ""
        click.echo(f"Error: {where}{exc.strerror or exc}.", err=True)
        sys.exit(1)
    except Exception as exc:
        if debug:
            raise
        click.echo(f"Error: llmgw failed: {type(exc).__name__}: {exc}", err=True)
        click.echo("This is a bug; run the command again with --debug for its traceback.", err=True)
        sys.exit(1)
    sys.exit(0)


class _Closed(io.TextIOBase):
    """A stdout that was closed by the caller: a result that nobody gets is an error, silence is none."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "stdout is closed")


def _open_standard_streams() -> None:
    """A closed stdin, stdout or stderr would be taken by the next file or socket that is opened.

    Nothing that is read or shown makes them fail: a letter that a terminal has not is shown as `?`.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode, odd in (("stdin", "r", "surrogateescape"), ("stdout", "w", "replace"), ("stderr", "w", "replace")):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the interpreter started
            setattr(sys, name, _Closed() if name == "stdout" else open(os.devnull, mode))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=odd)


def _colour() -> bool | None:
    """None: in a terminal. `NO_COLOR` says never."""
    return False if "NO_COLOR" in os.environ else None


def _complain(exc: LlmgwError) -> None:
    from llmgw.admin.text import clean

    for line in exc.message.split("\n"):
        click.echo(f"{click.style('Error:', fg='red')} {clean(line)}", err=True, color=_colour())
    if exc.fix:
        click.echo(clean(exc.fix), err=True)
