"""The YAML reader accepts one document of plain data, and refuses bombs, doubles and junk fast and in one sentence."""

import time
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.scenario import load_scenario
from simserve.scenario.yaml_file import MAX_DEPTH, MAX_NODES, parse_yaml, read_yaml
from tests.scenario_builders import write

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
BAD = {
    LAUGHS: f"must stand for at most {MAX_NODES:,} values, aliases expanded",
    "a: &a [*a]": "line 1: alias 'a' stands inside itself",
    "a: " + "[" * 100: f"must nest at most {MAX_DEPTH} levels deep",
    "a: 1\nb: 2\na: 3\n": "line 3: is not valid YAML (key 'a' twice)",
    "x:\n  1: a\n": "line 2: is not valid YAML (keys must be text, but 1 is not; put it in quotes)",
    "on: 1\n": "line 1: is not valid YAML (keys must be text, but true is not; put it in quotes)",
    "? [a]\n: 1\n": "line 1: is not valid YAML (keys must be text, but a list is not; put it in quotes)",
    "a: [1, 2\nb: 3\n": "line 2: is not valid YAML (",
    "a: b: c\n": "line 1: is not valid YAML (mapping values are not allowed",
    "a: *b\n": "line 1: is not valid YAML (found undefined alias",
    "a: !!python/object/apply:os.system [true]\n": "line 1: is not valid YAML (could not determine a constructor",
    "a: 1\n---\nb: 2\n": "is not valid YAML (but found another document)",
    "a: 2024-13-45\n": "holds a value that cannot be read (month must be in 1..12)",
    "a: " + "9" * 5000 + "\n": "holds a value that cannot be read (",
    "\tx: 1": "line 1: is not valid YAML (",
}


@pytest.mark.parametrize(("text", "expected"), BAD.items(), ids=[expected[:50] for expected in BAD.values()])
def test_unacceptable_yaml_is_one_sentence(text: str, expected: str) -> None:
    """Each is refused before it can cost memory: the nine-fold aliases would stand for 3.9 billion values."""
    begin = time.perf_counter()
    with pytest.raises(ScenarioError) as caught:
        parse_yaml(text, "s.yaml")
    assert time.perf_counter() - begin < 2.0
    assert expected in str(caught.value)
    assert str(caught.value).startswith("s.yaml: ")
    assert "\n" not in str(caught.value)


def test_honest_aliases_and_merge_keys_work() -> None:
    """Anchors are for not repeating oneself; a merge key's defaults may be overridden."""
    data = parse_yaml("base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}\nagain: *b\n", "s.yaml")
    assert data == {"base": {"x": 1, "y": 2}, "other": {"x": 1, "y": 3}, "again": {"x": 1, "y": 2}}


def test_a_list_of_lengths_as_long_as_the_limit_is_read_in_seconds() -> None:
    """The limit on size leaves room for a list of 200,000 lengths, and reading it stays quick."""
    begin = time.perf_counter()
    assert parse_yaml("v: [" + ", ".join(["17"] * 200_000) + "]", "s.yaml") == {"v": [17] * 200_000}
    assert time.perf_counter() - begin < 20.0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe\x00junk", "small.yaml: must be UTF-8 text (byte 0 is not)"),
        (b"name: caf\xe9", "small.yaml: must be UTF-8 text (byte 9 is not)"),
        (b"#" * (3 * 2**20), "small.yaml: must be at most 2 MiB; put long lists of requests in a trace"),
        (b"name: a\x00b", "small.yaml: is not valid YAML ("),
    ],
)
def test_files_that_are_not_text_or_too_large_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    """Bytes that are no UTF-8, control characters and huge files."""
    with pytest.raises(ScenarioError) as caught:
        read_yaml(write(tmp_path, content))
    assert str(caught.value).startswith(expected)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    """Editors on Windows write a BOM and CRLF."""
    assert read_yaml(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")) == {"a": 1, "b": 2}


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\x00b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """No such file, a folder, an impossible name."""
    with pytest.raises(ScenarioError, match=r"cannot be (read \(|a file's name)") as caught:
        load_scenario(tmp_path / name)
    assert str(caught.value).isprintable()
