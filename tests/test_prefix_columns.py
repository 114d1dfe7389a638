"""prefix_id and prefix_tokens of our own traces: read, written, and what a run's table tells comes back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve.cli import app
from simserve.errors import TraceError
from simserve.kv_cache.identities import names_of
from simserve.request import Content, Ranges
from simserve.run_directory import request_frames
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.trace_tools.export import write_trace
from simserve.workload import Trace, read_trace
from tests.prefixes import ids_of
from tests.scenario_builders import small

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens,prefix_id,prefix_tokens"
PROMPTS = {"arrivals": {"process": "poisson", "rate_rps": 5.0}, "prompt_tokens": {"uniform": {"low": 1, "high": 50}}}
TWO = [{"tokens": 100, "share": 0.5}, {"tokens": 33, "share": 0.3, "count": 3}]
in_one_folder = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, *rows: str, header: str = HEADER) -> Trace:
    (folder / "own.csv").write_text("\n".join([header, *rows]) + "\n")
    return read_trace(folder / "own.csv")


def alike(content: object) -> list[list[int]]:
    """For every two requests, how many tokens they begin with in common."""
    assert isinstance(content, Ranges)
    chains = [ids_of(content[i]) for i in range(len(content))]
    return [[len(set(a) & set(b)) for b in chains] for a in chains]


def test_prompts_of_one_id_begin_alike(tmp_path: Path) -> None:
    """As far as both say; ids may be words; a row with no id, or with 0 tokens, begins like nobody. Rows go by time."""
    trace = read(
        tmp_path, "2,50,1,chat,40", "1,50,1,chat,30", "3,50,1,,40", "4,50,1,tools,50", "5,50,1,chat,0", "6,9,1,,"
    )
    assert alike(trace.content) == [
        [30, 30, 0, 0, 0, 0],
        [30, 40, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 50, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert not any("not used" in note for note in trace.notes)


@in_one_folder
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=8),
    st.sampled_from([".csv", ".jsonl", ".parquet"]),
)
def test_what_is_written_reads_back(tmp_path: Path, rows: list[tuple[int, int, int]], form: str) -> None:
    """Law: any trace with these columns, written in any form, holds the same, and writes the same bytes again."""
    lines = [f"{i},{known + more},1,{each},{known}" for i, (each, known, more) in enumerate(rows)]
    trace, path = read(tmp_path, *lines), tmp_path / f"again{form}"
    write_trace(trace, path)
    again = read_trace(path)
    assert alike(again.content) == alike(trace.content)
    first = path.read_bytes()
    write_trace(again, path)
    assert path.read_bytes() == first


def test_turns_begin_with_what_their_session_began_with(tmp_path: Path) -> None:
    """Sessions whose first turns have a shared prefix of 10: their later turns keep it with the rest."""
    header = f"{HEADER},session_id,kept_tokens"
    rows = ("0,20,5,a,10,0,0", "1,20,5,a,10,1,0", "2,40,5,a,10,0,25", "3,20,5,b,10,2,0")
    trace = read(tmp_path, *rows, header=header)
    assert alike(trace.content) == [[25, 10, 25, 0], [10, 25, 10, 0], [25, 10, 45, 0], [0, 0, 0, 25]]
    write_trace(trace, tmp_path / "again.csv")
    assert alike(read_trace(tmp_path / "again.csv").content) == alike(trace.content)


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        (HEADER, "0,9,1,a,10", "row 1: prefix_tokens: must be at most the tokens of its prompt (got '10')"),
        (HEADER, "0,9,1,a,-1", "row 1: prefix_tokens: must be a whole number from 0"),
        (HEADER.replace(",prefix_id", ""), "0,9,1,5", "must have prefix_id and prefix_tokens together (got prefix_tok"),
        (
            HEADER.replace(",prefix_tokens", ""),
            "0,9,1,a",
            "must have prefix_id and prefix_tokens together (got prefix_id",
        ),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, header: str, row: str, said: str) -> None:
    with pytest.raises(TraceError) as error:
        read(tmp_path, row, header=header)
    assert said in str(error.value) and str(error.value).isprintable()


def test_hashes_say_more(tmp_path: Path) -> None:
    """A file with both is read by its hashes, which it says."""
    trace = read(tmp_path, "0,40,1,a,10,7 8", "1,40,1,a,10,7 9", header=f"{HEADER},prefix_hashes")
    assert isinstance(trace.content, Content)
    assert "own.csv: prefix_id not used: prefix_hashes says what prompts share" in trace.notes


@pytest.mark.parametrize("more", [{}, {"sessions": {"turns": {"uniform": {"low": 1, "high": 4}}}}], ids=str)
def test_a_runs_table_is_a_trace_of_the_same_content(tmp_path: Path, more: dict[str, Any]) -> None:
    """What requests.parquet tells of prefixes, and of sessions that begin with them, reads back to the same."""
    workload = {**PROMPTS, "num_requests": 40, "output_tokens": {"fixed": 3}, "shared_prefixes": TWO, **more}
    scenario = parse_scenario(small(workload=workload, step_time={"roofline": "h100-sxm"}), "s")
    result = simulate(scenario)
    (frame,) = request_frames(result)
    frame.to_parquet(tmp_path / "requests.parquet")
    asked = frame["prefix_tokens"] > 0
    assert set(frame["prefix_tokens"]) == {0, 33, 100} and frame["prefix_id"].isna().equals(~asked)
    table, trace = result.workload.table, read_trace(tmp_path / "requests.parquet")
    assert trace.row is not None
    expected = np.array(alike(table.content))[np.ix_(trace.row, trace.row)]
    assert (np.array(alike(trace.content)) == expected).all()


def test_trace_info_counts_what_is_known_in_tokens(tmp_path: Path) -> None:
    """Three prompts begin with 40, 40 and 30 tokens of one text and one with 10 of another: 50 different tokens of 120;
    the second and third find theirs, 70 of 200 prompt tokens."""
    read(tmp_path, "0,50,1,a,40", "1,50,1,a,40", "2,50,1,a,30", "3,50,1,b,10")
    result = CliRunner().invoke(app, ["trace", "info", str(tmp_path / "own.csv")])
    assert "at most 35.0 % of the prompt tokens (50 distinct of 120 known tokens)" in result.output


CELLS = st.sampled_from(["", "0", "7", "7.0", "-1", "x", "nan", "1e3", "9" * 20, "inf", " 5 ", '"a,b"', "é"])


@in_one_folder
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4))
def test_any_cells_are_a_trace_or_one_sentence(tmp_path: Path, cells: list[tuple[str, str]]) -> None:
    """Whatever stands in the columns; and what is known of a prompt is never more than it has."""
    try:
        trace = read(tmp_path, *(f"{i},30,1,{a},{b}" for i, (a, b) in enumerate(cells)))
    except TraceError as error:
        assert str(error).isprintable()
        return
    assert isinstance(trace.content, Ranges)
    assert (trace.content.num_tokens <= trace.num_prompt_tokens).all() and (trace.content.num_tokens >= 0).all()


def same_hits(scenario: dict[str, Any], workload: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """What every request of a workload was known to share with every other, in a run and in a replay of its table."""
    result = simulate(parse_scenario(small(workload=workload, **scenario), "s", folder))
    (frame,) = request_frames(result)
    frame.to_parquet(folder / "requests.parquet")
    trace = read_trace(folder / "requests.parquet")
    assert trace.row is not None
    return common(result.workload.table.content), common(trace.content)[np.argsort(trace.row)][:, np.argsort(trace.row)]


def common(content: object) -> Any:
    """For every two requests, how many whole blocks of 16 tokens they begin with in common."""
    assert isinstance(content, Content | Ranges)
    chains = [set(names_of(i, content[i], 16).of_content.tolist()) for i in range(len(content))]
    return np.array([[len(a & b) for b in chains] for a in chains])


@pytest.mark.parametrize("goes_on", [True, False])
def test_sessions_that_only_begin_alike_come_back_so(tmp_path: Path, goes_on: bool) -> None:
    """A trace's sessions with declared prefixes: whether its turns are taken to go on or not, the run's table tells
    what they share with each other and with other sessions."""
    rows = ("0,40,8,a,", ",60,4,a,1", "1,50,5,b,", ",70,5,b,1", "2,20,5,c,")
    header = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s"
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    workload = {"trace": "t.csv", "sessions_continue": goes_on, "shared_prefixes": {"tokens": 32}}
    ran, replayed = same_hits({"step_time": {"roofline": "h100-sxm"}}, workload, tmp_path)
    others = ~np.eye(len(ran), dtype=bool)
    assert set(ran[others]) == ({0, 2, 3} if goes_on else {0, 2})
    assert (replayed[others] == ran[others]).all()


def test_a_tenants_trace_that_tells_what_turns_keep_comes_back(tmp_path: Path) -> None:
    """Its turns begin with earlier prompts and answers, beyond what those prompts held: the run's table says how much
    of the prompts is alike, and is read; the notes do not call it a declared prefix."""
    header = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,kept_tokens"
    (tmp_path / "t.csv").write_text(f"{header}\n0,40,5,a,0\n1,60,5,a,45\n2,70,5,b,0\n")
    workload = {"num_requests": 3, "tenants": {"x": {"trace": "t.csv"}}}
    scenario = parse_scenario(small(workload=workload, step_time={"roofline": "h100-sxm"}), "s", tmp_path)
    result = simulate(scenario)
    (frame,) = request_frames(result)
    frame.to_parquet(tmp_path / "requests.parquet")
    assert alike(read_trace(tmp_path / "requests.parquet").content) == [[40, 40, 0], [40, 60, 0], [0, 0, 70]]
    (note,) = [note for note in result.workload.notes if "would be hits" in note]
    assert note == "26.5 % of the prompt tokens would be hits of an infinite prefix cache"  # 45 of 170


def test_turns_that_keep_a_part_still_begin_with_their_prefix(tmp_path: Path) -> None:
    """Contexts that shrink are known in blocks of 16: sessions of one prefix share its whole blocks all the same, as
    far as each has it, and what is kept of a prompt holds its prefix."""
    header = f"{HEADER},session_id,kept_tokens"
    rows = ("0,400,5,p,100,a,0", "1,600,5,p,100,a,300", "2,700,5,p,100,b,0", "3,90,5,p,70,c,0", "4,90,5,q,70,d,0")
    content = read(tmp_path, *rows, header=header).content
    shared = common(content).tolist()
    assert shared[0][1:] == [18, 6, 4, 0] and shared[2][3:] == [4, 0] and shared[3][4] == 0


def test_a_mixture_tells_what_each_tenants_prompts_share(tmp_path: Path) -> None:
    """One tenant's trace has sessions that begin with a shared prefix, another's requests a prefix of their own: the
    table has no sessions, so of the first it tells conversations, as far as their prompts go; of the second all."""
    header = f"{HEADER},session_id,kept_tokens"
    rows = ("0,40,5,p,16,a,0", "1,60,5,p,16,a,45", "2,70,5,p,16,b,0", "3,90,5,p,16,b,75")
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    drawn = {"arrivals": {"process": "constant", "rate_rps": 1.0}, "prompt_tokens": {"fixed": 10}}
    other = {**drawn, "output_tokens": {"fixed": 3}, "shared_prefixes": {"tokens": 33}}
    workload = {"num_requests": 7, "tenants": {"x": {"trace": "t.csv"}, "y": other}}
    ran, replayed = same_hits({"step_time": {"roofline": "h100-sxm"}}, workload, tmp_path)
    (by_tenant,) = request_frames(
        simulate(parse_scenario(small(workload=workload, step_time={"roofline": "h100-sxm"}), "s", tmp_path))
    )
    x, y = (np.flatnonzero(by_tenant["tenant"] == name) for name in "xy")
    assert (ran[np.ix_(y, y)] == 2).all() and (replayed[np.ix_(y, y)] == 2).all()
    assert not replayed[np.ix_(x, y)].any()
    assert replayed[x[0], x[1]] == 40 // 16 and replayed[x[2], x[3]] == 70 // 16
