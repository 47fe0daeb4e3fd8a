"""What lies under a name may be anything: nothing but a plain file of a sensible size is ever opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from llmgw.config import files
from llmgw.config.files import expanded, plain, read_json, read_plain
from llmgw.errors import Refused, UsageError


def fifo(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (fifo, "a FIFO"),
        (directory, "a directory"),
        (listening, "a socket"),
        (link_to_nowhere, "a link that leads nowhere"),
        (link_to_a_fifo, "a FIFO"),
        (device, "a character device"),
    ],
)
def test_what_is_no_plain_file_is_named_and_not_opened(tmp_path: Path, make, what: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x"
    make(path)
    for read in (plain, read_plain, read_json):
        with pytest.raises(Refused, match=f"{path} cannot be read: it is no plain file but {what}") as caught:
            read(path)
        assert caught.value.code == "no_plain_file"


def test_a_link_that_leads_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("x")
    with pytest.raises(OSError, match="symbolic links"):
        read_plain(tmp_path / "x")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("hello")
    (tmp_path / "x").symlink_to("real")
    assert read_plain(tmp_path / "x") == b"hello"


def test_dev_null_is_an_empty_file_to_whoever_reads_and_no_file_to_whoever_owns(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/dev/null")
    assert read_plain(tmp_path / "x") == b""
    with pytest.raises(Refused):
        plain(tmp_path / "x")


def test_nothing_is_missing_by_its_own_error(tmp_path: Path) -> None:
    for read in (plain, read_plain, read_json):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "x")


def test_a_sparse_file_of_sixty_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, 60 << 30)
    with pytest.raises(Refused, match="is larger than 64 KiB") as caught:
        read_plain(path)
    assert caught.value.code == "too_large"
    assert plain(path).st_size == 60 << 30  # no limit was named


@pytest.mark.parametrize("swapped", [fifo, "grown"])
def test_what_is_put_in_its_place_between_the_look_and_the_opening(tmp_path: Path, monkeypatch, swapped) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x"
    path.write_text("hello")
    before = os.open

    def late(name, flags, *more):  # type: ignore[no-untyped-def]
        path.unlink()
        if swapped == "grown":
            path.write_bytes(b"x" * (files.SMALL + 1))
        else:
            swapped(path)
        return before(name, flags, *more)

    monkeypatch.setattr(files.os, "open", late)
    with pytest.raises(Refused):
        read_plain(path)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(files, "_judge", lambda *_: None)
    with pytest.raises(Refused, match="larger"):
        read_plain(path, 50)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": ' * 100_000, "\xff", "9" * 5000])
def test_json_that_says_nothing_is_one_kind_of_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError):
        read_json(path, 1 << 20)


def test_json_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"a": [1]}')
    assert read_json(path) == {"a": [1]}


def test_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expanded("~/x") == Path("/somewhere/x")
    assert expanded("x") == Path("x")
    with pytest.raises(UsageError, match="no home directory of that user"):
        expanded("~nosuchuser/x")
