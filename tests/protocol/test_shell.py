"""Shell text: one constant that every login shell reads alike, and quoting that arrives (F67)."""

from __future__ import annotations

import ast
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.protocol.shell import _LOADER, BOOTSTRAP, INTERPRETERS, NO_PYTHON, quote

SHELLS = ["sh", "bash", "dash", "fish", "tcsh", "zsh", "ksh"]
words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=50)


def test_nothing_in_the_bootstrap_means_two_things() -> None:
    """Inside its single quotes: no quote, backslash, exclamation mark or newline."""
    before, inside, after = BOOTSTRAP.split("'")
    assert before == "exec /bin/sh -c "
    assert after == ""
    assert not set(inside) & set("'\\!\n")
    assert inside.isascii()
    assert len(BOOTSTRAP) < 2000


def test_the_loader_is_old_python_without_quoting() -> None:
    assert not set(_LOADER) & set("'\"`$\\\n")
    ast.parse(_LOADER, feature_version=(3, 6))


def test_newer_interpreters_come_first() -> None:
    minors = [int(name[8:]) for name in INTERPRETERS if name.startswith("python3.")]
    assert minors == sorted(minors, reverse=True)
    assert len(set(INTERPRETERS)) == len(INTERPRETERS)


@pytest.mark.parametrize("shell", SHELLS)
def test_without_python_every_shell_says_so(shell: str, tmp_path) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} on this machine")
    # A PATH with nothing in it; the absolute names of the ladder are taken out of the text.
    text = BOOTSTRAP
    for name in INTERPRETERS:
        if name.startswith("/"):
            text = text.replace(f" {name} ", " ").replace(f" {name};", ";")
    done = subprocess.run(
        [path, "-c", text],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert NO_PYTHON in done.stderr


@settings(max_examples=25, deadline=None)
@given(st.lists(words, min_size=1, max_size=5))
def test_quoted_arguments_arrive_through_a_real_shell(argv: list[str]) -> None:
    script = "import os,sys; sys.stdout.buffer.write(bytes([0]).join(os.fsencode(a) for a in sys.argv[1:]))"
    text = quote(["/usr/bin/env", "python3", "-I", "-S", "-c", script, *argv])
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True)
    assert done.stdout.split(b"\0") == [word.encode() for word in argv]
