"""What holds for every dialect: told by its columns, whatever the bytes look like; odd rows counted, never silent."""

import gzip
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.errors import InputError, TraceError
from simserve.scenario.workload_models import TraceFormat
from simserve.workload import Trace, read_trace
from simserve.workload.dialects import DIALECTS, choose_dialect
from tests.test_traces_fuzz import check
from tests.trace_samples import GAP_NS, OUTPUTS, PROMPTS, SAMPLES

DATA = Path(__file__).parents[1] / "../shared/data/traces"
NAMES = sorted(SAMPLES)
PROMPT_COLUMN = {name: dialect.columns["num_prompt_tokens"] for name, dialect in DIALECTS.items()}
OUTPUT_COLUMN = {name: dialect.columns["num_output_tokens"] for name, dialect in DIALECTS.items()}
fuzz = settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read(folder: Path, content: bytes, format_name: str = "auto") -> Trace:
    (folder / "t").write_bytes(content)
    return read_trace(folder / "t", format_name)


def is_csv(name: str) -> bool:
    return not SAMPLES[name].startswith("{")


def changed(name: str, column: str, value: object) -> str:
    """The sample with another value in its second row."""
    first, *rows = SAMPLES[name].split("\n")
    if not is_csv(name):
        return first + "\n" + json.dumps(json.loads(rows[0]) | {column: value})
    cells = rows[1].split(",")
    cells[first.split(",").index(column)] = "" if value is None else str(value)
    return "\n".join([first, rows[0], ",".join(cells)])


def test_there_is_a_sample_of_every_format() -> None:
    """A dialect without its traps would not be held against them; the schema knows them all."""
    assert set(SAMPLES) == set(DIALECTS) == set(get_args(TraceFormat)) - {"auto"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("named", [True, False])
def test_a_sample_has_its_values(tmp_path: Path, name: str, named: bool) -> None:
    """By name and by its columns alone: times from the first (none of them is 0), in the dialect's unit."""
    trace = read(tmp_path, SAMPLES[name].encode(), name if named else "auto")
    assert trace.arrival_ns.tolist() == [0, GAP_NS]
    assert trace.num_prompt_tokens.tolist() == PROMPTS
    assert trace.num_output_tokens.tolist() == OUTPUTS
    assert trace.has_times
    columns = (
        SAMPLES[name].split("\n")[0].split(",") if is_csv(name) else list(json.loads(SAMPLES[name].split("\n")[0]))
    )
    assert choose_dialect(columns, "auto", "t").name == name


BYTES = {
    "final newline": lambda text: text.encode() + b"\n",
    "CRLF": lambda text: text.replace("\n", "\r\n").encode() + b"\r\n",
    "BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "blank lines": lambda text: text.replace("\n", "\n\n").encode() + b"\n\n\n",
    "BOM, CRLF and gzip": lambda text: gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", BYTES)
def test_bytes_do_not_matter(tmp_path: Path, name: str, how: str) -> None:
    """Line ends, byte-order mark, compression and blank lines: the same trace, the same notes."""
    plain, other = read(tmp_path, SAMPLES[name].encode()), read(tmp_path, BYTES[how](SAMPLES[name]))
    for column in ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "priority"):
        assert (getattr(plain, column) == getattr(other, column)).all()
    assert plain.notes == other.notes
    for a, b in ((plain.session, other.session), (plain.wait_ns, other.wait_ns)):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_no_output_is_a_failure_and_counted(tmp_path: Path, name: str) -> None:
    """Zero outputs: not a request, and said."""
    trace = read(tmp_path, changed(name, OUTPUT_COLUMN[name], 0).encode())
    assert len(trace) == 1
    assert "t: 1 row without output tokens (failed requests) left out" in trace.notes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, "NaN", 1.5, 2**31, "x"])
@pytest.mark.parametrize("columns", [PROMPT_COLUMN, OUTPUT_COLUMN], ids=["prompt", "output"])
def test_odd_lengths_name_their_row(tmp_path: Path, name: str, value: object, columns: dict[str, str]) -> None:
    """Negative, NaN, fractions, too long, text: file, row, column, rule and value."""
    with pytest.raises(TraceError, match=rf"^t: row 2: {columns[name]}: must be a whole number from 0 to .* \(got "):
        read(tmp_path, changed(name, columns[name], value).encode())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["NaN", "soon", 1e300])
def test_odd_times_name_their_row(tmp_path: Path, name: str, value: object) -> None:
    """What is no time in the dialect's unit: file, row, column, rule and value. (TraceLab's later rounds have none.)"""
    column = (DIALECTS[name].columns | dict(DIALECTS[name].optional))["arrival"]
    if name == "tracelab":
        text = SAMPLES[name].replace("0,4000,0,", f"0,{value},0,")
        row = 1
    else:
        text, row = changed(name, column, value), 2
    with pytest.raises(TraceError, match=rf"^t: row {row}: {column}: must be a (number|date) "):
        read(tmp_path, text.encode())


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"tracelab"}))
def test_rows_out_of_order_and_twice(tmp_path: Path, name: str) -> None:
    """Sorted from the earliest, whatever row that is; repeated rows are kept and counted."""
    lines = SAMPLES[name].split("\n")
    head, (first, second) = (lines[:1], lines[1:]) if is_csv(name) else ([], lines)
    trace = read(tmp_path, "\n".join([*head, second, first, second]).encode())
    assert trace.arrival_ns.tolist() == [0, GAP_NS, GAP_NS]
    assert trace.num_prompt_tokens.tolist() == [PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    assert "t: 1 row earlier than the row before: sorted by arrival" in trace.notes
    assert "t: 1 row repeating an earlier one kept" in trace.notes


CELLS = st.sampled_from(["", "0", "1", "33", "-1", "nan", "1e400", '"', "x", "[1, 2]", "2024-05-10 00:00:00", "\x00"])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.dictionaries(st.sampled_from(["timestamp", "event_type", "input_toks", "output_toks"]), st.integers())),
)  # fmt: skip


@fuzz
@given(name=st.sampled_from(NAMES), data=st.data())
def test_any_damage_to_a_sample(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Cells and keys of a good trace replaced, dropped, repeated: a workload by the rules, or one sentence."""
    lines = SAMPLES[name].split("\n")
    if is_csv(name):
        table = [line.split(",") for line in lines]
        for _ in range(data.draw(st.integers(1, 4))):
            row = data.draw(st.integers(0, len(table) - 1))
            table[row][data.draw(st.integers(0, len(table[row]) - 1))] = data.draw(CELLS)
        text = "\n".join(",".join(row) for row in table)
    else:
        rows = [json.loads(line) for line in lines]
        for _ in range(data.draw(st.integers(1, 4))):
            row = data.draw(st.sampled_from(rows))
            row[data.draw(st.sampled_from([*rows[0], "sub_requests"]))] = data.draw(VALUES)
        text = "\n".join(json.dumps(row) for row in rows)
    check(tmp_path, text.encode(), format=data.draw(st.sampled_from(["auto", name])))


@fuzz
@given(name=st.sampled_from(NAMES), data=st.data())
def test_any_byte_of_a_sample(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """One byte changed, or the file cut off anywhere, gzipped or not."""
    content = SAMPLES[name].encode()
    content = gzip.compress(content, mtime=0) if data.draw(st.booleans()) else content
    i = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    check(
        tmp_path, content[:i] if cut else content[:i] + data.draw(st.binary(min_size=1, max_size=1)) + content[i + 1 :]
    )


@pytest.mark.parametrize("path", sorted(DATA.rglob("*")) if DATA.exists() else [])
def test_every_public_file_is_read_or_refused_in_words(path: Path) -> None:
    """Each file of the collection is a trace as it is, but for the archive of a generator's parameters."""
    if path.is_dir():
        return
    if path.name.endswith(".tar.gz"):
        with pytest.raises(InputError, match=r"is a tar archive; unpack it and name one of its files, or"):
            read_trace(path)
        return
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    num_lines = sum(bool(line.strip()) for line in text.splitlines()) - (not text.startswith(b"{"))
    trace = read_trace(path)
    assert len(trace) == num_lines
    assert trace.has_times == ("vidur" not in str(path))


def test_the_agents_rounds_have_their_figures() -> None:
    """TraceLab's rounds as a loop over the JSON sums them; each comes when the last of its input was there."""
    path = DATA / "tracelab/sanitized_round_trace.jsonl"
    if not path.exists():
        pytest.skip("the public rounds are not beside this checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    trace = read_trace(path)
    assert int(trace.num_prompt_tokens.sum()) == sum(row["input_tokens_total"] for row in rows) == 514_012
    assert int(trace.num_output_tokens.sum()) == sum(row["output_tokens"] for row in rows) == 11_335
    assert trace.session is not None
    assert trace.wait_ns is None
    claude = [row for row in rows if row["provider"] == "claude"]
    ready = max(e["timestamp"] for e in claude[1]["timing_events"] if e["event_type"] == "tool_result")
    assert ready == "2026-06-01T05:40:50.938Z"
    begin = "2026-06-01T05:40:20.151Z"
    first = int(np.flatnonzero(trace.num_prompt_tokens == 32_272)[0])
    second = int(np.flatnonzero(trace.num_prompt_tokens == 35_740)[0])
    assert begin in json.dumps(claude[0])
    assert trace.arrival_ns[second] - trace.arrival_ns[first] == 30_787 * 10**6
