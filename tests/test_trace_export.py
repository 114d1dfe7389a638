"""``simserve trace convert``: our own files hold a trace whole, whatever form they have and wherever it came from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve import cli
from simserve.errors import OutputError
from simserve.metrics import request_columns
from simserve.request import Content
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.trace_tools.export import FORMS, WRITTEN, form_of, write_trace
from simserve.workload import Trace, read_trace
from simserve.workload.sessions import waits_of
from simserve.workload.trace import UNDECLARED

RUNNER = CliRunner()
TOKENS = st.integers(1, 2**31 - 1)
MOONCAKE = [
    {"timestamp": 500, "input_length": 1100, "output_length": 7, "hash_ids": [-5, 2**63 - 1, 3]},
    {"timestamp": 500, "input_length": 1024, "output_length": 8, "hash_ids": [-5, 2**63 - 1]},
    {"timestamp": 1003, "input_length": 600, "output_length": 9, "hash_ids": [4, 3]},
    {"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [9]},
    {"timestamp": 9, "input_length": 100, "output_length": 0, "hash_ids": [9]},
]


def _typed(*words: object, exit_code: int = 0):
    done = RUNNER.invoke(cli.app, ["trace", *map(str, words)])
    assert done.exit_code == exit_code, done.output
    return done


def _columns(trace: Trace) -> dict[str, list[int]]:
    """All that a replay reads of a trace; sessions by who belongs together."""
    found = {
        name: getattr(trace, name).tolist()
        for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
    }
    if trace.content is not None:
        found |= {name: getattr(trace.content, name).tolist() for name in ("ids", "offsets")}
        found["block_tokens"] = [trace.content.block_tokens]
    if trace.session is not None:
        numbers = {-1: -1}
        found["session"] = [numbers.setdefault(one, len(numbers)) for one in trace.session.tolist()]
    if trace.wait_ns is not None:
        found["wait_ns"] = trace.wait_ns.tolist()
    return found


@st.composite
def traces(draw) -> Trace:
    """Traces as ``read_trace`` makes them, with any of the optional columns."""
    n = draw(st.integers(1, 12))
    column = lambda values: np.array(draw(st.lists(values, min_size=n, max_size=n)), np.int64)  # noqa: E731
    arrivals = np.sort(column(st.one_of(st.integers(0, 5 * 10**9), st.integers(0, 10**18))))
    prompts, content = column(TOKENS), None
    if draw(st.booleans()):
        block = draw(st.sampled_from([2, 16, 512]))
        counts = np.minimum(column(st.integers(0, 3)), prompts // block)
        if counts.any():  # of every list, ids nobody else has: what begins alike is drawn from Mooncake's below
            offsets = np.concatenate([[0], counts.cumsum()])
            content = Content(np.arange(offsets[-1]), offsets, block)
    session = column(st.integers(-1, 3)) if draw(st.booleans()) else None
    wait_ns = None
    if session is not None and draw(st.booleans()):
        wait_ns = waits_of(arrivals, session, column(st.integers(0, 1)) > 0)
    return Trace(
        arrival_ns=arrivals - arrivals[0],
        num_prompt_tokens=prompts,
        num_output_tokens=column(TOKENS),
        max_output_tokens=column(st.one_of(st.just(UNDECLARED), TOKENS)),
        priority=column(st.integers(-(2**31), 2**31 - 1)),
        notes=(),
        content=content,
        session=None if session is None or (session < 0).all() else session,
        wait_ns=wait_ns,
    )


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(), form=st.sampled_from(FORMS))
def test_what_is_written_reads_back(tmp_path: Path, trace: Trace, form: str) -> None:
    """Law: every column of every trace, to the nanosecond, in every form, over half a minute and over 30 years."""
    path = tmp_path / f"own{form}"
    write_trace(trace, path)
    again = read_trace(path)
    assert _columns(again) == _columns(trace)
    first = path.read_bytes()
    write_trace(again, path)
    assert path.read_bytes() == first or trace.session is not None  # sessions are numbered anew, by first appearance


def test_every_field_of_a_trace_is_written_or_says_how_it_was_read() -> None:
    """Who gives a Trace another column must write it, too: the rest are words about the file."""
    assert {field.name for field in dataclasses.fields(Trace)} - WRITTEN == {
        "notes",
        "has_times",
        "format_name",
        "num_rows",
        "row",
    }


@pytest.mark.parametrize("form", FORMS)
def test_shared_prompts_are_shared_in_our_format_too(tmp_path: Path, form: str) -> None:
    """Mooncake's blocks of 512 tokens: requests 2 and 3 begin alike, and hash 3 of another parent is another block.
    Short last blocks go along."""
    source, out = tmp_path / "theirs.jsonl", tmp_path / f"ours{form}"
    source.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE))
    done = _typed("convert", source, out)
    assert "(4 requests)" in done.stdout
    trace = read_trace(out)
    assert trace.arrival_ns.tolist() == [0, 500_000_000, 500_000_000, 1_003_000_000]
    assert trace.content is not None and trace.content.block_tokens == 512
    assert [list(trace.content[i].ids) for i in range(4)] == [[0], [1, 2, 3], [1, 2], [4, 5]]
    assert [trace.content[i].num_tokens for i in range(4)] == [100, 1100, 1024, 600]
    assert _columns(trace) == _columns(read_trace(source))


def test_azure_converts_to_the_columns_of_our_format_and_no_more(tmp_path: Path) -> None:
    """Seven fractional digits become seconds from the first arrival; what no row has is no column."""
    source, out = tmp_path / "azure.csv", tmp_path / "own.csv"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n"
    )
    _typed("convert", source, out, "--format", "azure")
    assert out.read_bytes() == b"arrival_s,num_prompt_tokens,num_output_tokens\n0,4808,10\n0.052,3180,8\n"


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also gzipped: no time and no name of a temporary file stands in it."""
    source = tmp_path / "theirs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE))
    for form in FORMS:
        for name in ("one", "two"):
            _typed("convert", source, tmp_path / f"{name}{form}")
        one = (tmp_path / f"one{form}").read_bytes()
        assert one == (tmp_path / f"two{form}").read_bytes()
        if form.endswith(".gz"):
            assert one[3:8] == bytes(5)  # RFC 1952: no flags, hence no name, and no time


def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """No known ending, a folder, a folder that is not there, the source itself, a file that stands there already; a
    trace without times, which our format cannot hold."""
    source = tmp_path / "azure.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04,3180,8\n")
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    vidur = tmp_path / "lengths.csv"
    vidur.write_text("num_prefill_tokens,num_decode_tokens\n3,4\n")
    cases = {
        (source, "own.xlsx"): "must end in .csv",
        (source, ".csv"): "must end in .csv",
        (source, "folder.csv"): "must be a file to write (got a folder)",
        (source, "no/own.csv"): "its folder must exist",
        (source, "azure.csv"): "must not be the trace that is read",
        (source, "there.csv"): "exists already; name another file, or give --overwrite",
        (vidur, "own.csv"): "without times",
    }
    for (file, out), words in cases.items():
        done = _typed("convert", file, tmp_path / out, exit_code=2)
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert {each.name for each in tmp_path.iterdir()} == {"azure.csv", "there.csv", "folder.csv", "lengths.csv"}
    _typed("convert", source, tmp_path / "there.csv", "--overwrite")
    assert read_trace(tmp_path / "there.csv").num_prompt_tokens.tolist() == [3180]


SESSIONS = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s,max_output_tokens,priority"
TURNS = ["0,40,20,a,,30,1", "0.25,700,9,,,,", ",90,12,a,0.5,15,", "0.3,33,8,b,,,-2", ",300,7,b,0,,"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["sessions", "mooncake"])
def test_what_is_written_replays_to_identical_records(tmp_path: Path, kind: str, form: str) -> None:
    """Sessions whose turns wait for answers, priorities, declared maxima; prompts that begin alike under a prefix
    cache: every column of the records of a run is the same, bit for bit."""
    source, out = tmp_path / "theirs", tmp_path / f"ours{form}"
    lines = [json.dumps(row) for row in MOONCAKE] if kind == "mooncake" else [SESSIONS, *TURNS]
    source.write_text("\n".join(lines))
    _typed("convert", source, out)
    theirs, ours = _records(source), _records(out)
    assert theirs.keys() == ours.keys() and len(theirs) > 10
    for name, column in theirs.items():
        np.testing.assert_array_equal(ours[name], column, err_msg=name)


def _records(path: Path) -> dict[str, np.ndarray]:
    cache = {"allocator": "paged", "block_size": 16, "num_blocks": 400, "prefix_caching": True}
    engine = {"policy": "chunked", "max_num_seqs": 2, "max_num_batched_tokens": 512, "max_model_len": 2_048}
    data = {
        **{"name": "again", "model": "25m", "step_time": {"roofline": "h100-sxm"}, "workload": {"trace": str(path)}},
        **{"engine": engine | {"queue_order": "priority", "kv_cache": cache}, "seed": 0},
    }
    (variant,) = simulate(parse_scenario(data)).variants.values()
    return {name: np.asarray(column) for name, column in request_columns(variant.records.requests).items()}


def test_a_form_is_told_by_the_end_of_a_name() -> None:
    """Case does not matter; an ending alone is no name."""
    assert form_of(Path("a.CSV.gz")) == ".csv.gz"
    assert form_of(Path("a.b.jsonl")) == ".jsonl"
    with pytest.raises(OutputError, match="must end in"):
        form_of(Path("a.csv.zip"))


def test_an_unknown_format_is_one_sentence(tmp_path: Path) -> None:
    """Misspelt: the nearest is named."""
    done = _typed("info", tmp_path / "no.csv", "--format", "azur", exit_code=2)
    assert "did you mean 'azure'?" in done.stderr
