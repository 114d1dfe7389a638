"""Each bad trace is one sentence that names the file, the row where there is one, the rule and the value."""

import gzip
import io
import os
from pathlib import Path

import pandas as pd
import pytest

from simserve.errors import InputError, TraceError
from simserve.scenario import TraceWorkload
from simserve.workload import build_workload, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OWN = "arrival_s,num_prompt_tokens,num_output_tokens\n"
GOOD = "2023-11-16 18:17:03.9799600,4808,10\n"
WHOLE = "must be a whole number from 0 to 2,147,483,647"
DATE = "must be a date with a time, such as 2023-11-16 18:17:03.9799600, from 1678 to 2262"
SECONDS = "must be a number of seconds, below 9,000,000,000 (milliseconds are not seconds)"

CASES = {
    # columns
    "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,1\n": (
        "lacks the column 'GeneratedTokens' of the azure format (found: TIMESTAMP, ContextTokens)"
    ),
    "TIMESTAMP,ContextTokens,GenratedTokens\n" + GOOD: (
        "lacks the column 'GeneratedTokens' of the azure format (is it 'GenratedTokens'?; found: TIMESTAMP, "
        "ContextTokens, GenratedTokens)"
    ),
    "TIMESTAMP,ContextTokens,GeneratedTokens,Generated_Tokens\n" + GOOD.strip() + ",3\n": (
        "must have one column 'GeneratedTokens' (got 'GeneratedTokens' and 'Generated_Tokens')"
    ),
    "a,b\n1,2\n": "must have the columns of a known format: azure (TIMESTAMP, ContextTokens, GeneratedTokens); sim",
    # lengths
    AZURE + GOOD + "2023-11-16 18:17:04,NaN,3\n": f"row 2: ContextTokens: {WHOLE} (got 'NaN')",
    AZURE + "2023-11-16 18:17:04,,3\n": f"row 1: ContextTokens: {WHOLE} (got an empty cell)",
    AZURE + "2023-11-16 18:17:04,-5,3\n": f"row 1: ContextTokens: {WHOLE} (got '-5')",
    AZURE + GOOD + GOOD + "2023-11-16 18:17:04,5,2147483648\n": f"row 3: GeneratedTokens: {WHOLE} (got '2147483648')",
    AZURE + "2023-11-16 18:17:04,5,1e400\n": f"row 1: GeneratedTokens: {WHOLE} (got '1e400')",
    AZURE + "2023-11-16 18:17:04,5.5,1\n": f"row 1: ContextTokens: {WHOLE} (got '5.5')",
    AZURE + "2023-11-16 18:17:04,x,1\n2023-11-16 18:17:04,y,1\n": (
        f"row 1: ContextTokens: {WHOLE} (got 'x', and 1 more)"
    ),
    # times
    AZURE + GOOD + "yesterday,5,1\n": f"row 2: TIMESTAMP: {DATE} (got 'yesterday')",
    AZURE + "1700000000,5,1\n": f"row 1: TIMESTAMP: {DATE} (got '1700000000')",
    AZURE + "2023-02-30 00:00:00,5,1\n": f"row 1: TIMESTAMP: {DATE} (got '2023-02-30 00:00:00')",
    AZURE + "9999-01-01 00:00:00,5,1\n": f"row 1: TIMESTAMP: {DATE} (got '9999-01-01 00:00:00')",
    AZURE + "1700-01-01 00:00:00,5,1\n" + GOOD: (
        "must span at most 1,000,000,000 seconds, but rows 1 and 2 are further apart; look for a wrong date"
    ),
    OWN + "1700000000000,5,1\n": f"row 1: arrival_s: {SECONDS} (got '1700000000000')",
    OWN + "nan,5,1\n": f"row 1: arrival_s: {SECONDS} (got 'nan')",
    OWN + "soon,5,1\n": f"row 1: arrival_s: {SECONDS} (got 'soon')",
    # nothing there
    "": "is empty; a trace needs at least one request",
    "\n\n": "is empty; a trace needs at least one request",
    AZURE: "has a header and no rows; a trace needs at least one request",
    AZURE + "2023-11-16 18:17:04,5,0\n": "has no request left: each of its 1 rows lacks output or prompt tokens",
    "{}\n{}\n": "must have the columns of a known format: ",
    # form
    OWN + "0,1,2,3\n": "rows must have as many fields as the header's 3 (got more)",
    OWN + "0,1,2\n0,1,2,3\n": "is not valid csv (",
    OWN + '0,1,"2\n': "is not valid csv (",
    '[{"arrival_s": 0}]': "must hold one JSON object per line (got a JSON array)",
    '{"arrival_s": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}\n{"arrival_s": 0,\n': (
        "line 2: is not valid JSON ("
    ),
    '{"arrival_s": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}\n[1]\n': "line 2: must be one JSON object",
    '{"arrival_s": 0} {"arrival_s": 1}\n': "line 1: must be one JSON object",
    '{"a": ' + "[" * 100_000 + "\n": "line 1: is not valid JSON (",
    '{"arrival_s": 0, "num_prompt_tokens": true, "num_output_tokens": 1}\n': (
        f"row 1: num_prompt_tokens: {WHOLE} (got 'True')"
    ),
    '{"arrival_s": 0, "num_prompt_tokens": [4], "num_output_tokens": 1}\n': (
        f"row 1: num_prompt_tokens: {WHOLE} (got 'a list')"
    ),
    '{"arrival_s": 0, "num_prompt_tokens": 4}\n{"arrival_s": 0, "num_output_tokens": 4}\n': (
        f"row 2: num_prompt_tokens: {WHOLE} (got "
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=[case[:70] for case in CASES.values()])
def test_one_sentence_names_row_rule_and_value(tmp_path: Path, text: str, expected: str) -> None:
    """``trace.csv: row 3: ContextTokens: rule (got value)``: an InputError, so the exit code is 2."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"trace.csv: {expected}")
    assert str(caught.value).isprintable()
    assert isinstance(caught.value, InputError)


PACKED = gzip.compress((AZURE + GOOD * 5000).encode())
BINARY = {
    "truncated gzip": (PACKED[:-40], "is a truncated gzip file; fetch it again"),
    "damaged gzip": (PACKED[:30] + b"\xff" * 10 + PACKED[40:], "is a damaged gzip file ("),
    "binary junk": (bytes(range(128, 256)), "must be csv, jsonl or parquet (byte 0 is no text)"),
    "tar.gz": (gzip.compress(b"trace.csv".ljust(257, b"\0") + b"ustar\0" + b"\0" * 250), "is a tar archive; unpack it"),
    "zip": (b"PK\x03\x04rest", "is a zip archive; unpack it, or use gzip"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "is zstd-compressed; unpack it, or use gzip"),
    "damaged parquet": (b"PAR1" + b"\x00" * 50, "is not a readable parquet file ("),
    "nul bytes": (b"\x00" * 50, "must have the columns of a known format: "),
    "utf-16": (AZURE.encode("utf-16"), "must be csv, jsonl or parquet (byte 0 is no text)"),
}


@pytest.mark.parametrize("case", BINARY)
def test_bytes_that_are_no_trace(tmp_path: Path, case: str) -> None:
    """Archives, damage and junk are told apart by content."""
    content, expected = BINARY[case]
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"trace.csv: {expected}")
    assert str(caught.value).isprintable()


def test_places_that_hold_no_file(tmp_path: Path) -> None:
    """There is no such file, and a scenario says how to name one; a folder, a pipe and an impossible name are called
    what they are."""
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path / "none.csv": "none.csv: no such file",
        tmp_path: "must be a file (got a folder)",
        tmp_path / "pipe": "must be a file (got a device or pipe)",
        tmp_path / "a\x00b": "cannot be a file's name",
        tmp_path / ("x" * 5000): "cannot be read (",
    }
    for path, expected in cases.items():
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert expected in str(caught.value)
        assert str(caught.value).isprintable()
        assert "--set" not in str(caught.value)
    with pytest.raises(TraceError, match=r"none.csv: no such file; name the trace by --set workload.trace=FILE$"):
        build_workload(TraceWorkload(trace="none.csv"), 0, tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "shown"),
    [
        ("num_prompt_tokens", [4.0, float("nan")], "row 2: num_prompt_tokens: must be a whole number"),
        ("num_prompt_tokens", [True, False], "row 1: num_prompt_tokens: must be a whole number"),
        ("num_output_tokens", [[1], [2]], "row 1: num_output_tokens: must be a whole number"),
        ("num_output_tokens", [4, -(2**62)], "row 2: num_output_tokens: must be a whole number"),
        ("arrival_s", [0.0, float("inf")], "row 2: arrival_s: must be a number of seconds"),
        ("arrival_s", [b"\xff", b"x"], "row 1: arrival_s: must be a number of seconds"),
    ],
)
def test_typed_columns_are_held_to_the_same_rules(
    tmp_path: Path, column: str, values: list[object], shown: str
) -> None:
    """Parquet's own types do not get bad values past the rules."""
    frame = pd.DataFrame({"arrival_s": [0, 1], "num_prompt_tokens": [1, 1], "num_output_tokens": [1, 1]})
    frame[column] = values
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=f"^t.parquet: {shown}"):
        read_trace(tmp_path / "t.parquet")


def test_a_format_that_was_named_is_the_one_that_is_missed(tmp_path: Path) -> None:
    """``format: azure`` on one of our own traces says which columns of that format are missing."""
    (tmp_path / "t.csv").write_text(OWN + "0,1,1\n")
    with pytest.raises(TraceError, match=r"^t.csv: lacks the columns 'TIMESTAMP', 'ContextTokens', 'GeneratedTokens'"):
        read_trace(tmp_path / "t.csv", "azure")


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacking stops at the limit (2 GiB; lowered here so that the test is quick)."""
    monkeypatch.setattr("simserve.workload.trace_file.MAX_BYTES", 2**20)
    packed = io.BytesIO()
    with gzip.open(packed, "wb") as stream:
        stream.write(b"\x20" * (3 * 2**20))
    (tmp_path / "t.gz").write_bytes(packed.getvalue())
    with pytest.raises(TraceError, match=r"^t.gz: must be at most"):
        read_trace(tmp_path / "t.gz")
