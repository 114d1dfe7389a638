"""Our own traces: csv, jsonl and parquet hold the same requests; odd rows are counted, never silent."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.errors import TraceError
from simserve.workload import Trace, read_trace

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens"
TOKENS = st.integers(1, 2**31 - 1)
in_one_folder = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, text: str, name: str = "own.csv") -> Trace:
    (folder / name).write_text(text, encoding="utf-8")
    return read_trace(folder / name)


def rows_of(trace: Trace) -> list[tuple[int, ...]]:
    columns = (trace.arrival_ns, trace.num_prompt_tokens, trace.num_output_tokens, trace.priority)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@in_one_folder
@given(st.lists(st.tuples(st.integers(0, 10**15), TOKENS, TOKENS, st.integers(-5, 5)), min_size=1, max_size=20))
def test_every_form_holds_the_same_requests(tmp_path: Path, rows: list[tuple[int, ...]]) -> None:
    """Law: nanosecond times written as decimals come back exactly, from the earliest, in stable order, whichever of
    csv, jsonl and parquet carried them."""
    names = ["arrival_s", "num_prompt_tokens", "num_output_tokens", "priority"]
    times = [str(Decimal(row[0]) / 10**9) for row in rows]
    texts = [[time, *map(str, row[1:])] for time, row in zip(times, rows, strict=True)]
    csv_text = "\n".join(",".join(row) for row in [names, *texts])
    jsonl = "\n".join(
        f'{{"arrival_s": {r[0]}, "num_prompt_tokens": {r[1]}, "num_output_tokens": {r[2]}, "priority": {r[3]}}}'
        for r in texts
    )
    frame = pd.DataFrame({name: [row[i] for row in texts] for i, name in enumerate(names)})
    frame.astype(dict.fromkeys(names[1:], "int64")).to_parquet(tmp_path / "own.parquet")
    earliest = min(row[0] for row in rows)
    expected = sorted([(row[0] - earliest, *row[1:]) for row in rows], key=lambda row: row[0])
    for trace in (
        read(tmp_path, csv_text),
        read(tmp_path, jsonl, "own.jsonl"),
        read_trace(tmp_path / "own.parquet"),
    ):
        assert rows_of(trace) == expected


def test_seconds_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    """A float cannot hold 1,700,000,000.123456789, nor 90,000,000.123456789; the digits are read as digits, also from
    JSON."""
    stamps = ["1700000000.123456789", "1700000000.12345679", "1.700000001e9"]
    expected = [0, 1, 876_543_211]
    assert read(tmp_path, f"{HEADER}\n" + "".join(f"{s},1,1\n" for s in stamps)).arrival_ns.tolist() == expected
    months = [f"90000000.{digits}" for digits in ("123456789", "123456790")]
    assert read(tmp_path, f"{HEADER}\n" + "".join(f"{s},1,1\n" for s in months)).arrival_ns.tolist() == [0, 1]
    lines = (f'{{"arrival_s": {s}, "num_prompt_tokens": 1, "num_output_tokens": 1}}\n' for s in stamps)
    assert read(tmp_path, "".join(lines), "own.jsonl").arrival_ns.tolist() == expected


def test_float_columns_of_parquet_are_rounded_to_nanoseconds(tmp_path: Path) -> None:
    """A float64 of seconds gives the nearest nanosecond that it can, also a day into the trace."""
    times = np.array([0.1, 0.30000000000000004, 86_400.123456789])
    frame = pd.DataFrame({"arrival_s": times, "num_prompt_tokens": 1.0, "num_output_tokens": np.uint8(3)})
    frame.to_parquet(tmp_path / "own.parquet")
    assert read_trace(tmp_path / "own.parquet").arrival_ns.tolist() == [0, 200_000_000, 86_400_023_456_789]


def test_equal_times_keep_the_files_order(tmp_path: Path) -> None:
    """The sort is stable: a burst stays in the order in which it was recorded."""
    trace = read(tmp_path, f"{HEADER}\n2,1,1\n1,2,1\n1,3,1\n0,4,1\n1,5,1\n")
    assert trace.num_prompt_tokens.tolist() == [4, 2, 3, 5, 1]
    assert trace.notes == ("own.csv: 2 rows earlier than the row before: sorted by arrival",)


def test_bursts_of_a_long_trace_stay_in_order_too(tmp_path: Path) -> None:
    """Whole-second times put hundreds of rows on one instant; short arrays would be sorted stably by any algorithm."""
    rows = [(9 - i % 10, i + 1) for i in range(1000)]
    trace = read(tmp_path, "\n".join([HEADER, *(f"{second},{number},1" for second, number in rows)]))
    assert trace.num_prompt_tokens.tolist() == [number for _, number in sorted(rows, key=lambda row: row[0])]


def test_failed_and_repeated_rows_are_counted(tmp_path: Path) -> None:
    """No output: a failed request, left out. No prompt: left out. A repeated row: kept. Each is a note."""
    trace = read(tmp_path, f"{HEADER}\n0,5,0\n1,5,6\n1,5,6\n2,0,4\n3,7,8\n3,0,0\n")
    assert rows_of(trace) == [(0, 5, 6, 0), (0, 5, 6, 0), (2 * 10**9, 7, 8, 0)]
    assert trace.notes == (
        "own.csv: 2 rows without output tokens (failed requests) left out",
        "own.csv: 1 row without prompt tokens left out",
        "own.csv: 1 row repeating an earlier one kept",
    )


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    """Ignored, and said so; huge lists of no known meaning cost nothing."""
    row = {"arrival_s": 0.5, "num_prompt_tokens": 3, "num_output_tokens": 4, "who": "a", "tokens": [1, 2]}
    trace = read(tmp_path, json.dumps(row) + "\n", "own.jsonl")
    assert trace.notes == ("own.jsonl: columns not used: who, tokens",)


def test_sessions_are_numbered_in_the_files_order(tmp_path: Path) -> None:
    """Any name will do; requests without one stand alone; where nobody has one there are none."""
    lines = "0,1,1,z\n1,2,1,\n2,3,1,b\n3,4,1,z\n"
    trace = read(tmp_path, f"{HEADER},session_id\n{lines}")
    assert trace.session is not None
    assert trace.session.tolist() == [0, -1, 1, 0]
    assert read(tmp_path, f"{HEADER},session_id\n0,1,1,\n").session is None


def chains(trace: Trace) -> list[list[int]]:
    assert trace.content is not None
    return [list(trace.content[i].ids) for i in range(len(trace))]


def test_prefix_hashes_say_how_prompts_begin(tmp_path: Path) -> None:
    """One id per block of 16 tokens, as far as a prompt is known: a shared system prompt, and nothing of the rest. In
    csv the ids stand between spaces, commas or semicolons, or as a JSON list; an empty cell knows nothing."""
    rows = ["0,100,5,1 2 3", '1,100,5,"[1, 2]"', '2,100,5,"1,2,4"', "3,100,5,1;9", "4,100,5,", "5,10,5,1"]
    trace = read(tmp_path, f"{HEADER},prefix_hashes\n" + "\n".join(rows))
    assert chains(trace) == [[0, 1, 2], [0, 1], [0, 1, 3], [0, 4], [], [5]]
    assert trace.content is not None and trace.content[5].num_tokens == 10  # a short block, of prompts that end with it
    assert trace.content is not None
    assert trace.content.block_tokens == 16
    assert "own.csv: 1 row without prefix_hashes: nothing is known of their prompts" in trace.notes


def test_the_block_size_of_prefix_hashes_is_a_column(tmp_path: Path) -> None:
    """prefix_block_tokens says how many tokens an id stands for, once for the whole file; all three forms agree."""
    frame = pd.DataFrame({"arrival_s": [0, 1], "num_prompt_tokens": 300, "num_output_tokens": 1})
    frame["prefix_hashes"] = [[1, 2], [1, -3]]
    frame["prefix_block_tokens"] = 128
    frame.to_csv(tmp_path / "own.csv", index=False)
    frame.to_json(tmp_path / "own.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "own.parquet")
    for form in ("csv", "jsonl", "parquet"):
        trace = read_trace(tmp_path / f"own.{form}")
        assert trace.content is not None
        assert (chains(trace), trace.content.block_tokens) == ([[0, 1], [0, 2]], 128)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("1 2 x,16", "row 2: prefix_hashes: must be a list of whole numbers of at most 64 bits (got '1 2 x')"),
        ("1.5,16", "row 2: prefix_hashes: must be a list of whole numbers of at most 64 bits (got '1.5')"),
        ("1-2,16", "row 2: prefix_hashes: must be a list of whole numbers of at most 64 bits (got '1-2')"),
        ("1,32", "row 2: prefix_block_tokens: must be the same in every row, here 16 (got '32')"),
        ("1,0", "row 2: prefix_block_tokens: must be a whole number from 1 to 1,048,576 (got '0')"),
        ("1,", "row 2: prefix_block_tokens: must be a whole number from 1 to 1,048,576 (got an empty cell)"),
    ],
)
def test_bad_hashes_and_block_sizes_are_one_sentence(tmp_path: Path, cells: str, expected: str) -> None:
    """Row, rule and value."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, f"{HEADER},prefix_hashes,prefix_block_tokens\n0,100,5,1,16\n1,100,5,{cells}\n")
    assert str(caught.value) == f"own.csv: {expected}"


def test_optional_columns(tmp_path: Path) -> None:
    """Declared maxima and priorities are taken from the trace; an empty cell is no declaration and priority 0."""
    trace = read(tmp_path, f"{HEADER},max_output_tokens,priority\n0,1,2,16,-3\n1,1,2,,\n")
    assert trace.max_output_tokens.tolist() == [16, -1]
    assert trace.priority.tolist() == [-3, 0]


@pytest.mark.parametrize("length", ["374", "374.0", " 374 ", "3.74e2", "+374"])
def test_whole_numbers_may_be_written_as_others_write_them(tmp_path: Path, length: str) -> None:
    """Spreadsheets and data frames write whole numbers as floats."""
    assert read(tmp_path, f"{HEADER}\n0,{length},1\n").num_prompt_tokens.tolist() == [374]


@pytest.mark.parametrize("nulls", [pd.Series([3, None], dtype="Int64"), pd.Series([3.0, None])])
def test_null_declarations_in_parquet(tmp_path: Path, nulls: "pd.Series[Any]") -> None:
    """A null is no declaration, however the column stores it."""
    frame = pd.DataFrame({"arrival_s": [0, 1], "num_prompt_tokens": 1, "num_output_tokens": 1})
    frame.assign(max_output_tokens=nulls).to_parquet(tmp_path / "own.parquet")
    assert read_trace(tmp_path / "own.parquet").max_output_tokens.tolist() == [3, -1]


def test_a_million_rows_read_in_seconds(tmp_path: Path) -> None:
    """Vectorised: the clock bound is loose, for slow and busy machines."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    frame = pd.DataFrame({"arrival_s": rng.random(n).round(6), "num_prompt_tokens": 9, "num_output_tokens": 5})
    frame.to_parquet(tmp_path / "own.parquet")
    trace = read_trace(tmp_path / "own.parquet")
    assert len(trace) == n
    assert (np.diff(trace.arrival_ns) >= 0).all()
