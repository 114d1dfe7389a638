"""What turns keep of the prompt and answer before them: against lists of tokens, written out one by one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.clients.plan import NOBODY
from simserve.errors import TraceError
from simserve.kv_cache.identities import names_of
from simserve.request import Ranges, RequestTable
from simserve.trace_tools.change import scaled
from simserve.trace_tools.export import FORMS, write_trace
from simserve.workload.content import repeated_tokens
from simserve.workload.kept import continued, kept_of_those_left, session_content
from simserve.workload.sessions import before_in_session
from simserve.workload.trace import Trace, read_trace

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s,kept_tokens\n"


@st.composite
def conversations(draw: st.DrawFn, may_shrink: bool) -> tuple[np.ndarray, ...]:
    """(before, kept, prompts, outputs) of a few sessions whose turns are interleaved."""
    n = draw(st.integers(1, 8))
    before = before_in_session(np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))))
    prompts, outputs, kept = (np.zeros(n, np.int64) for _ in range(3))
    for i in range(n):
        whole = 0 if before[i] == NOBODY else int(prompts[before[i]] + outputs[before[i]])
        some = st.integers(0, whole) if may_shrink else st.sampled_from([0, whole])
        kept[i] = draw(some)
        prompts[i] = max(1, kept[i] + draw(st.integers(0, 40)))
        outputs[i] = draw(st.integers(1, 40))
    return before, kept, prompts, outputs


def as_tokens(before: np.ndarray, kept: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> list[list[int]]:
    """Every request's tokens, answer included: what it keeps, and tokens that are nowhere else."""
    streams: list[list[int]] = []
    num_made = 0
    for i in range(len(before)):
        stream = [] if before[i] == NOBODY else streams[before[i]][: kept[i]]
        num_new = int(prompts[i] + outputs[i]) - len(stream)
        streams.append([*stream, *range(num_made, num_made + num_new)])
        num_made += num_new
    return streams


def same_beginning(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def assert_names_agree(told: tuple[np.ndarray, ...], block_size: int) -> None:
    content, streams = session_content(*told), as_tokens(*told)
    names = [names_of(i, content[i], block_size).of_content.tolist() for i in range(len(streams))]
    for i, stream in enumerate(streams):
        assert len(names[i]) == len(stream) // block_size
        for j in range(i):
            assert same_beginning(names[i], names[j]) == same_beginning(stream, streams[j]) // block_size


@settings(deadline=None, max_examples=60)
@given(conversations(may_shrink=True), st.sampled_from([16, 32]))
def test_blocks_have_one_name_where_their_tokens_are_the_same(told: tuple[np.ndarray, ...], block_size: int) -> None:
    """Law: at the usual block sizes as many blocks are named alike as tokens from the start are."""
    assert_names_agree(told, block_size)


@settings(deadline=None, max_examples=60)
@given(conversations(may_shrink=False), st.integers(1, 40))
def test_contexts_that_only_grow_are_exact_at_any_block_size(told: tuple[np.ndarray, ...], block_size: int) -> None:
    """Law: ranges of tokens, whatever the size of a block."""
    assert isinstance(session_content(*told), Ranges)
    assert_names_agree(told, block_size)


@settings(deadline=None, max_examples=60)
@given(conversations(may_shrink=False))
def test_the_bound_counts_what_any_earlier_request_holds(told: tuple[np.ndarray, ...]) -> None:
    """An infinite cache serves the longest beginning that an earlier request has, its answer included, and never a
    prompt's last token."""
    before, _, prompts, outputs = told
    zeros = np.zeros(len(before), np.int64)
    table = RequestTable(zeros, prompts, outputs, outputs, zeros, session_content(*told))
    streams = as_tokens(*told)
    seen = [max((same_beginning(streams[i], streams[j]) for j in range(i)), default=0) for i in range(len(streams))]
    expected = sum(min(s, p - 1) for s, p in zip(seen, prompts.tolist(), strict=True))
    assert repeated_tokens(table) == (expected, int(prompts.sum()))


def test_long_enough_prompts_continue() -> None:
    """Of lengths alone: 10 + 5 tokens are before a prompt of 15, which begins with them, and one of 14, which does not;
    the first of a session, and whoever is in none, begin anew."""
    before = np.array([NOBODY, 0, 1, NOBODY])
    assert continued(before, np.array([10, 15, 24, 99]), np.array([5, 10, 1, 1])).tolist() == [0, 15, 0, 0]


def test_what_is_kept_of_rows_left_out() -> None:
    """The fourth keeps 30 tokens of the third, which kept 20 of the second, which is left: 20 of the second."""
    before, kept = np.array([NOBODY, 0, 1, 2]), np.array([0, 10, 20, 30])
    assert kept_of_those_left(kept, before, np.array([True, True, False, True])).tolist() == [0, 10, 20, 20]
    assert kept_of_those_left(kept, before, np.array([True, False, False, True])).tolist() == [0, 10, 10, 10]


def read(folder: Path, text: str) -> Trace:
    (folder / "t.csv").write_text(HEADER + text)
    return read_trace(folder / "t.csv")


def test_kept_tokens_of_our_own_format(tmp_path: Path) -> None:
    """An empty cell is none kept; a failed turn passes on what it kept; of nobody nothing can be kept, and that is
    told."""
    trace = read(tmp_path, "0,40,8,a,,\n,60,0,a,1,48\n,70,5,a,1,60\n2,9,1,,,3\n")
    assert "t.csv: 1 row with kept_tokens and nobody before: taken as new" in trace.notes
    assert trace.kept is not None
    assert trace.kept.tolist() == [0, 48, 3]
    assert isinstance(trace.content, Ranges)
    assert trace.content.first.tolist() == [0, 0, 75]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,40,8,a,,\n,60,4,a,1,61\n", r"row 2: kept_tokens: must be at most the tokens of its prompt \(got '61'\)"),
        ("5,40,8,a,,\n0,60,4,a,,48\n", "row 2: kept_tokens: must follow the row before it in its session in time"),
        ("0,40,8,a,,\n,60,4,a,1,-1\n", "row 2: kept_tokens: must be a whole number"),
    ],
)
def test_kept_tokens_that_cannot_be(tmp_path: Path, text: str, expected: str) -> None:
    """One sentence that names the row."""
    with pytest.raises(TraceError, match=f"^t.csv: {expected}"):
        read(tmp_path, text)


def test_kept_tokens_need_a_session(tmp_path: Path) -> None:
    """Of whose prompt they are is the session's to say."""
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,kept_tokens\n0,1,1,0\n")
    with pytest.raises(TraceError, match=r"^t.csv: must say of whose prompt and answer kept_tokens counts \(it lacks "):
        read_trace(tmp_path / "t.csv")


def test_copies_of_sessions_are_other_conversations(tmp_path: Path) -> None:
    """Laid over itself a trace has twice the sessions, which have nothing in common, written and read again, too; and
    cannot have the very prompts again, which our format could not tell."""
    first = read(tmp_path, "0,40,8,a,,\n,60,3,a,1,48\n9,40,2,,,\n")
    double = scaled(first, 2.0, seed=0)
    write_trace(double, tmp_path / "own.csv")
    again = read_trace(tmp_path / "own.csv")
    for trace in (double, again):
        assert isinstance(trace.content, Ranges)
        assert len(np.unique(trace.content.first)) == 4
        assert trace.content.num_tokens.sum() == 2 * (48 + 63 + 42)
    with pytest.raises(TraceError, match=r"^--same-prompts: must be left out for a trace that tells what turns keep"):
        scaled(first, 2.0, seed=0, same_prompts=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_round_trip_keeps_what_turns_keep(tmp_path: Path, form: str) -> None:
    """Written in our own format, and read again: the same sessions, waits, and chains."""
    first = read(tmp_path, "0,40,8,a,,\n,60,3,a,1,31\n,70,5,a,1,60\n2,9,1,,,\n")
    write_trace(first, tmp_path / f"own{form}")
    again = read_trace(tmp_path / f"own{form}")
    for name in ("arrival_ns", "num_prompt_tokens", "session", "wait_ns", "kept"):
        assert getattr(again, name).tolist() == getattr(first, name).tolist()
    assert again.content is not None and first.content is not None
    assert [list(again.content[i].ids) for i in range(4)] == [list(first.content[i].ids) for i in range(4)]


CELL = st.one_of(st.sampled_from(["", "0", "1", "-1", "nan", "1e9", "x", "9" * 20, "2.5"]), st.integers(0, 99).map(str))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(CELL, min_size=6, max_size=6), min_size=1, max_size=6))
def test_any_cells_are_a_trace_or_one_sentence(tmp_path: Path, rows: list[list[str]]) -> None:
    """Law: never a traceback; what is read keeps no more than a prompt has, and chains end with their answers."""
    try:
        trace = read(tmp_path, "".join(",".join(row) + "\n" for row in rows))
    except TraceError as error:
        assert "\n" not in str(error)
        return
    if trace.kept is not None:
        assert (trace.kept <= trace.num_prompt_tokens).all()
        assert trace.content is not None and len(trace.content) == len(trace)
        whole = trace.num_prompt_tokens + trace.num_output_tokens
        assert all(w - 16 < trace.content[i].num_tokens <= w for i, w in enumerate(whole.tolist()))
