"""Every complaint about a file names the file, the line and the key, and says what was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.home import Home
from llmgw.config.load import load, load_settings, parse
from llmgw.config.settings import Settings, is_loopback, parse_listen, parse_size
from llmgw.errors import ConfigError
from llmgw.model.catalog import Model, parse_duration


def complaint(text: str, cls: type = Settings) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, cls, "x.yaml")
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_an_empty_file_is_the_defaults() -> None:
    for text in ("", "\n", "# nothing\n", "---\n", "{}"):
        assert parse(text, Settings, "x") == Settings()


def test_a_whole_file() -> None:
    found = parse(
        """
listen: 0.0.0.0:80
admin_listen: null
probe_interval: 1h30m
engine_ports: 50000-50010
engines:
  llamacpp: [/opt/llama-server, "pypi:xllamacpp==1.0"]
ssh: {user: ops, identities: [~/.ssh/id_ed25519], connect_timeout: 500ms, new_hosts: refuse}
gateway:
  max_body: 1GiB
  queue: 0
""",
        Settings,
        "x",
    )
    assert (found.listen, found.admin_listen, found.probe_interval) == ("0.0.0.0:80", None, 5400.0)
    assert found.engine_ports == (50000, 50010)
    assert found.engines.wanted()["llamacpp"] == ("/opt/llama-server", "pypi:xllamacpp==1.0")
    assert (found.ssh.connect_timeout, found.ssh.new_hosts) == (0.5, "refuse")
    assert (found.gateway.max_body, found.gateway.queue) == (1 << 30, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lisen: x", "x.yaml:1: lisen: unknown key. Did you mean 'listen'?"),
        ("listen: 127.0.0.1:1\nsomething: x", "x.yaml:2: something: unknown key."),
        ("ssh:\n  user: a\n  keepaliv: 3s", "x.yaml:3: ssh.keepaliv: unknown key. Did you mean 'keepalive'?"),
        ("tls:\n  cert: a", "x.yaml:1: tls.key: is missing."),
        (
            "\n\nprobe_interval: soon",
            "x.yaml:3: probe_interval: 'soon' is not a duration: write 30s, 10m, 1h30m or a number of seconds.",
        ),
        ("probe_interval: -5", "x.yaml:1: probe_interval: Input should be greater than or equal to 0 (found -5)."),
        ("probe_interval: [1]", "x.yaml:1: probe_interval: Input should be a valid number (found [1])."),
        (
            "listen: 8080",
            "x.yaml:1: listen: '8080' is not an address to listen on: write HOST:PORT, for example 127.0.0.1:8080.",
        ),
        (
            "engine_ports: 41000",
            "x.yaml:1: engine_ports: Input should be a valid tuple (found 41000).",
        ),
        (
            "engine_ports: low-high",
            "x.yaml:1: engine_ports: 'low-high' is not a range of ports: write 41000-41999.",
        ),
        ("engine_ports: 42000-41000", "x.yaml: engine_ports: 42000-41000 is not a range within 1024-65535."),
        ("engine_ports: 80-90", "x.yaml: engine_ports: 80-90 is not a range within 1024-65535."),
        (
            "gateway:\n  max_body: much",
            "x.yaml:2: gateway.max_body: 'much' is not a size: write 512KiB, 32MiB, 1GiB or a number of bytes.",
        ),
        ("ssh: {new_hosts: maybe}", "x.yaml:1: ssh.new_hosts: Input should be 'pin' or 'refuse' (found 'maybe')."),
        ("ssh: {handshakes: 0}", "x.yaml:1: ssh.handshakes: Input should be greater than or equal to 1 (found 0)."),
        ("- a\n- b", "x.yaml: expected keys and values, found list."),
        ("just words", "x.yaml: expected keys and values, found str."),
        ("a: [1, 2", "x.yaml:1: not YAML: expected ',' or ']', but got '<stream end>'."),
        ("a:\n\tb: 1", "x.yaml:2: not YAML: found character '\\t' that cannot start any token."),
        ("a: !!python/object/apply:os.system [id]", "x.yaml:1: not YAML: could not determine a constructor"),
    ],
)
def test_complaints(text: str, said: str) -> None:
    assert complaint(text).startswith(said), complaint(text)


def test_every_complaint_of_a_file_is_made_at_once() -> None:
    lines = complaint("lisen: x\nprobe_interval: soon\nssh:\n  handshakes: many\n").splitlines()
    assert sorted(line.split(":")[1] for line in lines) == ["1", "2", "4"]


def test_what_was_written_is_shown_but_not_a_whole_page_of_it() -> None:
    assert len(complaint("ssh: {new_hosts: " + "x" * 5000 + "}")) < 400


@given(st.text(max_size=200))
def test_whatever_a_file_holds_is_settings_or_one_clear_error(text: str) -> None:
    try:
        parse(text, Settings, "x.yaml")
    except ConfigError as exc:
        said = str(exc)
    else:
        said = "x.yaml"
    assert said.startswith("x.yaml")


KEYS = st.sampled_from(["listen", "ssh", "gateway", "engines", "tls", "engine_ports", "probe_interval", "mirror", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_wrong_types_anywhere_are_complaints_never_a_crash(tree: dict[str, object]) -> None:
    import yaml

    try:
        parse(yaml.safe_dump(tree), Settings, "x.yaml")
    except ConfigError as exc:
        said = str(exc)
    else:
        said = "x.yaml"
    assert said.startswith("x.yaml")


# Files


def test_no_file_is_the_defaults_and_a_named_one_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    home = Home(tmp_path)
    assert load_settings(home) == Settings()
    home.config.write_text("listen: 127.0.0.1:1\n")
    assert load_settings(home).listen == "127.0.0.1:1"
    other = tmp_path / "other.yaml"
    other.write_text("listen: 127.0.0.1:2\n")
    monkeypatch.setenv("LLMGW_CONFIG", str(other))
    assert load_settings(home).listen == "127.0.0.1:2"
    assert load_settings(home, str(home.config)).listen == "127.0.0.1:1"
    with pytest.raises(ConfigError, match=r"missing\.yaml does not exist"):
        load_settings(home, str(tmp_path / "missing.yaml"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: it is no plain file but a directory"):
        load(tmp_path, Settings)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r"cannot be read: it is no plain file but a FIFO"):
        load(tmp_path / "fifo", Settings)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"listen: \xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(binary, Settings)
    huge = tmp_path / "h.yaml"
    huge.write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(huge, Settings)


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "h.yaml"
    huge.touch()
    os.truncate(huge, 60 << 30)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(huge, Settings)


def test_a_link_to_nowhere_is_not_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk that holds the configuration may not be mounted yet."""
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    home = Home(tmp_path)
    home.config.symlink_to("/nowhere/llmgw.yaml")
    with pytest.raises(ConfigError, match="a link that leads nowhere"):
        load_settings(home)
    assert load_settings(Home(tmp_path / "none")) == Settings()
    (tmp_path / "circle").symlink_to("circle")
    assert load_settings(Home(tmp_path / "circle")) == Settings(), "the home itself is complained about"


def test_names_of_unknown_users(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no home directory of that user"):
        load_settings(Home(tmp_path), "~nosuchuser/x.yaml")
    for option in ("mirror: {dir: X}", "ssh: {config: X}", "ssh: {identities: [X]}", "tls: {cert: X, key: b}"):
        assert complaint(option.replace("X", "~nosuchuser/x")).startswith("x.yaml:1: ")


def test_a_key_that_stands_twice_is_a_complaint() -> None:
    assert "x.yaml:2: listen: stands here for the second time" in complaint("listen: a:1\nlisten: b:2\n")
    assert "x.yaml:3: queue: stands here for the second time" in complaint("gateway:\n  queue: 1\n  queue: 2\n")


def test_a_bomb_of_aliases_and_a_deep_tree_are_complaints() -> None:
    """F51."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert complaint(bomb).startswith("x.yaml")
    assert complaint("[" * 5000).startswith("x.yaml")


# Small languages


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("2d", 172800), (" 30s ", 30), (7, 7), (0.5, 0.5)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10", "10 m", "-5s", "5s later", "1e3s", "s", "٣s" + "x"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("32MiB", 32 << 20), ("1 GiB", 1 << 30), ("512KiB", 512 << 10), ("7B", 7), ("9", 9), (5, 5)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "32MB", "much", "-1", "1.5GiB", "GiB", "32mib"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "where", "loopback"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080), True),
        ("127.0.0.2:0", ("127.0.0.2", 0), True),
        (":8080", ("0.0.0.0", 8080), False),
        ("[::1]:8080", ("::1", 8080), True),
        ("[::]:65535", ("::", 65535), False),
        ("localhost:1", ("localhost", 1), True),
        ("gpu01:1", ("gpu01", 1), False),
    ],
)
def test_addresses_to_listen_on(text: str, where: tuple[str, int], loopback: bool) -> None:
    assert parse_listen(text) == where
    assert is_loopback(text) is loopback


@pytest.mark.parametrize("text", ["", "8080", "127.0.0.1", "127.0.0.1:", "a:65536", "a:-1", "a:http", "a: 80"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address to listen on"):
        parse_listen(text)


# Catalog entries

ENTRY = 'name: m\nsource: "sim:"\nprofiles:\n  - {name: p, engine: sim}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.replace("name: m", "name: Model!"), "x.yaml:1: name: 'Model!' is not a name: lower-case letters"),
        (ENTRY + "aliases: [ok, 'no spaces']\n", "x.yaml:5: aliases: 'no spaces' is not an alias: letters, digits"),
        (ENTRY + "aliases: ['../x']\n", "x.yaml:5: aliases: '../x' is not an alias"),
        (ENTRY + "scaling: {min: 3, max: 2}\n", "x.yaml:5: scaling: max (2) is below min (3)."),
        (ENTRY + "  - {name: p, engine: sim}\n", "x.yaml: two profiles have the same name."),
        ('name: m\nsource: "sim:"\nprofiles: []\n', "x.yaml:3: profiles: Tuple should have at least 1 item"),
        ('name: m\nsource: "sim:"\n', "x.yaml: profiles: is missing."),
        ("name: m\nprofiles:\n  - {name: p, engine: sim}\n", "x.yaml: source: is missing."),
        (ENTRY + "task: sing\n", "x.yaml:5: task: Input should be 'chat', 'completion', 'embed', 'rerank' or 'audio'"),
        (ENTRY.replace("engine: sim", "engin: sim"), "x.yaml:4: profiles.0.engine: is missing."),
        (ENTRY + "context_length: 0\n", "x.yaml:5: context_length: Input should be greater than or equal to 1"),
        (ENTRY + "lost_after: never\n", "x.yaml:5: lost_after: 'never' is not a duration"),
        (ENTRY + "scaling: {mni: 1}\n", "x.yaml:5: scaling.mni: unknown key. Did you mean 'min'?"),
    ],
)
def test_an_entry_that_cannot_work(text: str, said: str) -> None:
    assert complaint(text, Model).startswith(said), complaint(text, Model)


@pytest.mark.parametrize(
    "name", ["", "-x", ".x", "a b", "A", "ä", "a/b", "..", "a;b", "$(a)", "`a`", "a'b", 'a"b', "a\nb", "a\0b", "x" * 64]
)
def test_names_that_no_shell_or_file_system_may_see_are_refused(name: str) -> None:
    """F67."""
    with pytest.raises(ValueError, match="is not a name"):
        Model.model_validate({"name": name, "source": "sim:", "profiles": [{"name": "p", "engine": "sim"}]})


def test_numbers_in_args_are_words() -> None:
    found = parse(ENTRY.replace("engine: sim", "engine: sim, args: [--ctx-size, 2048]"), Model, "x")
    assert found.profiles[0].args == ("--ctx-size", "2048")
