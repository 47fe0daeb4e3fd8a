"""A transfer that is cut is taken up where it was; one that is wrong leaves nothing behind (F77)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw.errors import DiskFull, LlmgwError, Refused, Unreachable, UsageError
from llmgw.mirror import fetch
from llmgw.mirror.library import Library
from llmgw.model.weights import FetchState, Weights

from .conftest import Origin, sha256

DATA = os.urandom(300_000)


async def get(origin: Origin, part: Path, url: str, **fields: Any) -> tuple[str, int]:
    said: list[tuple[int, int | None]] = []
    async with fetch.session(False) as http:
        usual = {"sha256": None, "size": None, "progress": lambda done, total: said.append((done, total))}
        return await fetch.fetch(http, url, part, **{**usual, **fields})


async def test_a_file(origin: Origin, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert await get(origin, part, origin.put("/x", DATA)) == (sha256(DATA), len(DATA))
    assert part.read_bytes() == DATA
    assert list(tmp_path.iterdir()) == [part]


async def test_an_empty_file(origin: Origin, tmp_path: Path) -> None:
    assert await get(origin, tmp_path / "part", origin.put("/x", b"")) == (sha256(b""), 0)


async def test_it_goes_on_where_it_was_cut(origin: Origin, tmp_path: Path) -> None:
    url = origin.put("/x", DATA)
    origin.faults["/x"] = [("cut", 100_000), ("cut", 50_000)]
    assert await get(origin, tmp_path / "part", url) == (sha256(DATA), len(DATA))
    assert origin.asked == [
        ("/x", None, None),
        ("/x", "bytes=100000-", '"v1"'),
        ("/x", "bytes=150000-", '"v1"'),
    ]


async def test_what_an_earlier_process_brought_is_not_fetched_again(origin: Origin, tmp_path: Path) -> None:
    url = origin.put("/x", DATA)
    origin.faults["/x"] = [("cut", 10_000)] * fetch.TRIES
    with pytest.raises(Unreachable):
        await get(origin, tmp_path / "part", url)
    origin.faults["/x"] = []
    origin.asked.clear()
    kept = (tmp_path / "part").stat().st_size
    assert kept > 0
    assert await get(origin, tmp_path / "part", url) == (sha256(DATA), len(DATA))
    assert origin.asked == [("/x", f"bytes={kept}-", '"v1"')]


async def test_a_file_that_has_changed_meanwhile_is_fetched_anew(origin: Origin, tmp_path: Path) -> None:
    url = origin.put("/x", DATA)
    origin.faults["/x"] = [("cut", 10_000)] * fetch.TRIES
    with pytest.raises(Unreachable):
        await get(origin, tmp_path / "part", url)
    origin.faults.clear()
    newer = os.urandom(200_000)
    origin.put("/x", newer, etag='"v2"')
    assert await get(origin, tmp_path / "part", url) == (sha256(newer), len(newer))


@pytest.mark.parametrize("fields", [{"etag": None}, {"etag": 'W/"weak"'}, {"ranges": False}])
async def test_without_a_strong_validator_or_ranges_it_begins_anew(
    origin: Origin, tmp_path: Path, fields: dict[str, Any]
) -> None:
    url = origin.put("/x", DATA, **fields)
    origin.faults["/x"] = [("cut", 100_000)]
    assert await get(origin, tmp_path / "part", url) == (sha256(DATA), len(DATA))


async def test_a_part_that_is_longer_than_the_file_begins_anew(origin: Origin, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"x" * (len(DATA) + 1000))
    assert await get(origin, part, origin.put("/x", DATA)) == (sha256(DATA), len(DATA))


async def test_a_whole_part_is_not_asked_for_again(origin: Origin, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(DATA)
    found = await get(origin, part, origin.put("/x", DATA), size=len(DATA), sha256=sha256(DATA))
    assert found == (sha256(DATA), len(DATA))
    assert origin.asked == []


async def test_a_wrong_digest_is_refused_and_thrown_away(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        await get(origin, tmp_path / "part", origin.put("/x", DATA), sha256="0" * 64)
    assert caught.value.code == "digest"
    assert "it was thrown away" in caught.value.message
    assert "0000000000000000…" in caught.value.message
    assert list(tmp_path.iterdir()) == []


async def test_one_that_stands_still_is_broken_off_and_taken_up_again(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "STALL", 0.1)
    url = origin.put("/x", DATA)
    origin.faults["/x"] = [("hang", 100_000)]
    assert await get(origin, tmp_path / "part", url) == (sha256(DATA), len(DATA))
    assert origin.asked[1] == ("/x", "bytes=100000-", '"v1"')


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (404, LlmgwError, "answered 404. Check the name in `source:`."),
        (401, Refused, "answered 401. It wants a login: set HF_TOKEN"),
        (403, Refused, "answered 403. It wants a login"),
    ],
)
async def test_a_clear_no_is_not_asked_again(
    origin: Origin, tmp_path: Path, status: int, kind: type[Exception], said: str
) -> None:
    url = origin.put("/x", DATA)
    origin.statuses["/x"] = [status] * 9
    with pytest.raises(kind) as caught:
        await get(origin, tmp_path / "part", url + "?signature=secret")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(origin.asked) == 1


async def test_a_server_in_trouble_is_asked_again_and_then_given_up(origin: Origin, tmp_path: Path) -> None:
    url = origin.put("/x", DATA)
    origin.statuses["/x"] = [500, 503, 429]
    assert (await get(origin, tmp_path / "part", url))[1] == len(DATA)
    origin.statuses["/x"] = [500] * 9
    with pytest.raises(Unreachable, match=r"could not be fetched: .* answered 500") as caught:
        await get(origin, tmp_path / "other", url)
    assert caught.value.code == "fetch"
    assert len(origin.asked) == 4 + fetch.TRIES


async def test_nobody_listens(tmp_path: Path, origin: Origin) -> None:
    with pytest.raises(Unreachable, match="could not be fetched"):
        await get(origin, tmp_path / "part", "http://127.0.0.1:1/x")


async def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        free = 10 << 20

    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: Small)
    with pytest.raises(DiskFull, match=r"has 10 MB free, part needs 64 MB") as caught:
        await get(origin, tmp_path / "part", origin.put("/x", DATA))
    assert "mirror.dir" in caught.value.fix
    assert not (tmp_path / "part").exists()


async def test_a_disk_that_fills_up_meanwhile_leaves_no_part(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def seek(self, where: int) -> None: ...

        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    opened = Path.open

    def opening(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = opened(self, mode, *rest, **more)
        return Full(file) if self.name == "part" and "w" in mode else file

    monkeypatch.setattr(Path, "open", opening)
    with pytest.raises(DiskFull, match="No space left for part"):
        await get(origin, tmp_path / "part", origin.put("/x", DATA))
    assert not (tmp_path / "part").exists()


async def test_a_redirect_is_followed_but_never_to_an_unencrypted_address(origin: Origin, tmp_path: Path) -> None:
    url = origin.put("/x", DATA)
    origin.put("/from", url.encode())
    origin.statuses["/from"] = [302]
    assert (await get(origin, tmp_path / "part", origin.url + "/from"))[1] == len(DATA)


class Redirected:
    """A session whose answer came from somewhere else, as aiohttp shows it."""

    def __init__(self, http: aiohttp.ClientSession, real: str) -> None:
        self._http, self._real = http, real

    def get(self, url: str, **fields: Any) -> Any:
        return self._http.get(self._real, **fields)


async def test_https_that_ends_at_http_is_refused(origin: Origin, tmp_path: Path) -> None:
    async with fetch.session(False) as http:
        redirected: Any = Redirected(http, origin.put("/x", DATA))
        with pytest.raises(Refused, match="redirects to an unencrypted address"):
            await fetch.fetch(
                redirected, "https://h/x", tmp_path / "part", sha256=None, size=None, progress=lambda done, total: None
            )
    assert not (tmp_path / "part").exists()


# The library: one copy of each, fetched once


async def test_a_source_is_fetched_once_however_many_ask(origin: Origin, library: Library) -> None:
    source = origin.put("/m.gguf", DATA)
    found = await asyncio.gather(*(library.get(source) for _ in range(8)))
    assert len(origin.asked) == 1
    assert len({one.path for one in found}) == 1
    assert await library.get(source) == found[0]
    assert len(origin.asked) == 1
    assert found[0] == Weights(
        source=source,
        state=FetchState.PRESENT,
        file="m.gguf",
        sha256=sha256(DATA),
        size=len(DATA),
        done=len(DATA),
        path=str(library.path / "blobs" / sha256(DATA) / "m.gguf"),
    )
    assert library.known() == {source: found[0]}


async def test_a_waiter_that_gives_up_stops_nothing(origin: Origin, library: Library) -> None:
    source = origin.put("/m.gguf", DATA)
    waiting = asyncio.create_task(library.get(source))
    staying = asyncio.create_task(library.get(source))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await staying).state is FetchState.PRESENT
    assert waiting.cancelled() or waiting.cancelling()


async def test_what_is_here_survives_a_restart_and_a_lost_blob_does_not(origin: Origin, library: Library) -> None:
    source = origin.put("/m.gguf", DATA)
    before = await library.get(source)
    again = Library(library.path)
    assert again.look(source) == before
    assert await again.get(source) == before
    Path(before.path or "").write_bytes(b"short")
    assert Library(library.path).look(source).state is FetchState.ABSENT
    Path(before.path or "").unlink()
    assert (await again.get(source)).path == before.path
    assert len(origin.asked) == 2


async def test_a_damaged_record_is_fetched_again(origin: Origin, library: Library) -> None:
    source = origin.put("/m.gguf", DATA)
    await library.get(source)
    for record in (library.path / "sources").iterdir():
        record.write_text("{nonsense")
    assert Library(library.path).look(source).state is FetchState.ABSENT


async def test_progress_is_told(origin: Origin, tmp_path: Path) -> None:
    told: list[Weights] = []
    library = Library(tmp_path / "mirror", told.append)
    await library.get(origin.put("/m.gguf", DATA))
    assert told[0].state is FetchState.FETCHING
    assert told[-1].state is FetchState.PRESENT
    assert all((one.progress or 0) <= 1 for one in told)
    assert sorted(one.done for one in told) == [one.done for one in told]


async def test_a_failure_is_remembered_and_raised_to_each_who_waits(origin: Origin, library: Library) -> None:
    source = origin.url + "/missing.gguf"
    found = await asyncio.gather(*(library.get(source) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [LlmgwError] * 3
    known = library.look(source)
    assert known.state is FetchState.FAILED
    assert "answered 404" in (known.error or "")
    origin.put("/missing.gguf", DATA)
    assert (await library.get(source)).state is FetchState.PRESENT


async def test_a_pinned_digest_is_held(origin: Origin, library: Library) -> None:
    source = origin.put("/m.gguf", DATA)
    with pytest.raises(Refused, match="sha256"):
        await library.get(f"{source}#sha256={'0' * 64}")
    assert (await library.get(f"{source}#sha256={sha256(DATA)}")).sha256 == sha256(DATA)


async def test_what_needs_no_fetching(library: Library) -> None:
    on_node = await library.get("node:/models/x.gguf")
    assert (on_node.state, on_node.file, on_node.on_node, on_node.path, on_node.size) == (
        FetchState.PRESENT,
        "x.gguf",
        "/models/x.gguf",
        None,
        None,
    )
    nothing = await library.get("sim:")
    assert (nothing.state, nothing.file, nothing.size, nothing.path) == (FetchState.PRESENT, None, 0, None)
    assert not library.path.exists()


async def test_nonsense_is_refused_before_anything_is_made(library: Library) -> None:
    with pytest.raises(UsageError):
        await library.get("ftp://x")
    assert not library.path.exists()


async def test_a_mirror_that_cannot_be_written_says_where(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    library = Library(tmp_path / "file" / "mirror")
    with pytest.raises(LlmgwError, match="could not be written") as caught:
        await library.get(origin.put("/m.gguf", DATA))
    assert caught.value.code == "mirror"
