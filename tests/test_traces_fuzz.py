"""Whatever the bytes: a reader gives a workload that keeps the rules, or an InputError in one line."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.scenario import Scenario, TraceWorkload, load_scenario, parse_scenario
from simserve.workload import build_workload
from tests.scenario_builders import SMALL

fuzz = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
HEADERS = st.sampled_from(
    ["TIMESTAMP,ContextTokens,GeneratedTokens", "arrival_s,num_prompt_tokens,num_output_tokens", "arrival_s,,", '"a'],
)
NUMBERS = ["0", "1", "7", "1.5", "-1", "", "nan", "inf", "1e3", "1e400", "9" * 30, "2147483648", '"', "x", "٣", "\x00"]
CELLS = st.sampled_from([*NUMBERS, "2023-11-16 18:17:03.9799600", "2024-05-10 00:00:00+00:00", "0001-01-01 00:00:00"])
ROWS = st.lists(st.lists(CELLS, min_size=1, max_size=4).map(",".join), max_size=5)
JSON_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]))
JSON_KEYS = st.sampled_from(
    ["arrival_s", "num_prompt_tokens", "num_output_tokens", "priority", "max_output_tokens", "x", "prefix_hashes"]
)
IDS = st.lists(st.integers(0, 3), max_size=4) | st.lists(st.integers(-(2**65), 2**65) | JSON_VALUES, max_size=4)
TIMES, LENGTHS = st.integers(0, 10**19) | JSON_VALUES, st.integers(0, 1600) | JSON_VALUES
MOONCAKE = {"timestamp": TIMES, "input_length": LENGTHS, "output_length": LENGTHS, "hash_ids": IDS}
LLMSERVINGSIM = {"arrival_time_ns": TIMES, "input_toks": LENGTHS, "output_toks": LENGTHS, "input_tok_ids": IDS}
CONTENT_ROWS = st.one_of(
    st.fixed_dictionaries({}, optional=MOONCAKE),
    st.fixed_dictionaries(MOONCAKE, optional={"chat_id": JSON_VALUES}),
    st.fixed_dictionaries({}, optional=LLMSERVINGSIM),
    st.fixed_dictionaries(LLMSERVINGSIM, optional={"sub_requests": JSON_VALUES}),
)


def check(folder: Path, content: bytes, **options: Any) -> None:
    """Either a table by the rules, or one printable line."""
    (folder / "t").write_bytes(content)
    try:
        table = build_workload(TraceWorkload(trace="t", **options), 0, folder).table
    except InputError as error:
        assert str(error).isprintable()
        return
    assert len(table) >= 1
    assert table.arrival_ns[0] == 0
    assert (table.arrival_ns[1:] >= table.arrival_ns[:-1]).all()
    assert table.num_prompt_tokens.min() >= 1
    assert table.num_output_tokens.min() >= 1
    assert (table.max_output_tokens >= table.num_output_tokens).all()
    if table.content is not None:
        assert len(table.content) == len(table)
        known = [table.content[i].num_tokens for i in range(len(table))]
        assert (known <= table.num_prompt_tokens + table.num_output_tokens).all()
        assert all(min(table.content[i].ids, default=0) >= 0 for i in range(len(table)))


@fuzz
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    """Random bytes, and random text."""
    check(tmp_path, content)


@fuzz
@given(HEADERS, ROWS, st.sampled_from(["\n", "\r\n", "\r"]))
def test_tables_with_odd_cells(tmp_path: Path, header: str, rows: list[str], end: str) -> None:
    """The right header over cells of every kind, in rows of every length."""
    check(tmp_path, end.join([header, *rows]).encode())


@fuzz
@given(st.lists(st.dictionaries(JSON_KEYS, JSON_VALUES), min_size=1, max_size=4))
def test_json_of_any_type(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    """Objects whose values have any JSON type, keys missing at will."""
    import json

    check(tmp_path, "\n".join(json.dumps(row) for row in rows).encode())


@fuzz
@given(
    st.lists(CONTENT_ROWS, min_size=1, max_size=4),
    st.sampled_from(["auto", "mooncake", "bailian", "llmservingsim"]),
    st.sampled_from([None, 2]),
)
def test_traces_with_content(
    tmp_path: Path, rows: list[dict[str, object]], format_name: str, concurrency: int | None
) -> None:
    """Rows of the formats that say what prompts hold, complete, with gaps, or with values of any type."""
    import json

    text = "\n".join(json.dumps(row) for row in rows)
    check(tmp_path, text.encode(), format=format_name, concurrency=concurrency)


@fuzz
@given(st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_damaged_files(tmp_path: Path, position: int, byte: int, cut: bool) -> None:
    """A good gzip and a good parquet with one byte changed, or cut off anywhere."""
    rows = "arrival_s,num_prompt_tokens,num_output_tokens\n" + "".join(f"{i},{i + 1},{i + 2}\n" for i in range(40))
    import pandas as pd

    pd.DataFrame({"arrival_s": [0, 1], "num_prompt_tokens": 2, "num_output_tokens": 3}).to_parquet(tmp_path / "p")
    for content in (gzip.compress(rows.encode()), (tmp_path / "p").read_bytes()):
        i = position % len(content)
        check(tmp_path, content[:i] if cut else content[:i] + bytes([byte]) + content[i + 1 :])


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["paged", "static", "8GiB"]),
)
KEYS = st.sampled_from(
    [*SMALL, *SMALL["engine"], *SMALL["workload"], *SMALL["engine"]["kv_cache"], "variants", "trace"]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(".".join)


@fuzz
@given(st.one_of(st.binary(max_size=120), st.text(max_size=120).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_as_a_scenario(tmp_path: Path, content: bytes) -> None:
    """Random bytes and random YAML-ish text: a Scenario or one line."""
    (tmp_path / "s.yaml").write_bytes(content)
    try:
        load_scenario(tmp_path / "s.yaml")
    except InputError as error:
        assert str(error).isprintable()


@fuzz
@given(PATHS, TREES, TREES)
def test_any_value_anywhere(path: str, value: object, variant: object) -> None:
    """A valid scenario with any tree put at any key, in itself and in a variant."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True).replace("\n...\n", "").strip()
    try:
        scenario = parse_scenario(SMALL, "s", Path(), [f"{path}={text}", f"variants.v={yaml.safe_dump(variant)}"])
    except InputError as error:
        assert str(error).isprintable()
        return
    assert isinstance(scenario, Scenario)
    assert all(isinstance(v, Scenario) for v in scenario.resolve_variants().values())


@pytest.mark.parametrize(
    "text", ["a: !!binary x", "!!set {a}", "!!omap [a: 1]", "- - -", "'", "%", "&a", "!", "=", "<<: 1"]
)
def test_corners_of_yaml(tmp_path: Path, text: str) -> None:
    """Tags, merge keys and directives that no scenario needs."""
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml")
    assert str(caught.value).isprintable()
