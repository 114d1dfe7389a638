"""``simserve trace slice`` and ``scale``: who stays, when they come, and what theory says of such streams."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve import cli
from simserve.errors import TraceError
from simserve.request import Content
from simserve.trace_tools.amounts import ratio, seconds
from simserve.trace_tools.change import rows_of, scaled, sliced
from simserve.trace_tools.profile import prefix_bound, profile
from simserve.workload import Trace, read_trace
from simserve.workload.sessions import OWN_TIME
from tests.test_trace_export import traces

RUNNER = CliRunner()
S = 10**9


def _typed(*words: object, exit_code: int = 0):
    done = RUNNER.invoke(cli.app, ["trace", *map(str, words)])
    assert done.exit_code == exit_code, done.output
    return done


def _trace(arrival_ns: np.ndarray, **more: object) -> Trace:
    """Everybody is known by the length of their prompt: 1, 2, 3 …"""
    n = len(arrival_ns)
    ones = np.ones(n, np.int64)
    return Trace(
        arrival_ns=arrival_ns - arrival_ns[0],
        num_prompt_tokens=np.arange(1, n + 1),
        num_output_tokens=ones,
        max_output_tokens=-ones,
        priority=0 * ones,
        notes=(),
        **more,
    )


def _poisson(n: int, rate: float, seed: int) -> Trace:
    return _trace((np.random.default_rng(seed).exponential(S / rate, n)).cumsum().astype(np.int64))


def test_a_slice_keeps_its_first_instant_and_not_its_last(tmp_path: Path) -> None:
    """Arrivals at 5, 6, 7, 8, 9 s, so at 0 to 4 from the first: from 1 to 3 are two, and the first of them is at 0."""
    source, out = tmp_path / "all.csv", tmp_path / "part.csv"
    rows = [f"{5 + i},{10 + i},1" for i in range(5)]
    source.write_text("\n".join(["arrival_s,num_prompt_tokens,num_output_tokens", *rows]))
    done = _typed("slice", source, out, "--from", "1", "--to", "3s")
    assert done.stdout == f"wrote {out} (2 requests from 5)\n"
    trace = read_trace(out)
    assert trace.num_prompt_tokens.tolist() == [11, 12] and trace.arrival_ns.tolist() == [0, S]
    _typed("slice", source, out, "--from", "1", "--head", 1, "--overwrite")
    assert read_trace(out).num_prompt_tokens.tolist() == [11]


@settings(deadline=None, max_examples=40)
@given(traces(), st.floats(0, 6), st.integers(1, 9))
def test_slices_partition_a_trace(trace: Trace, cut_s: float, head: int) -> None:
    """Law: what lies before a time and what lies from it on are the whole trace, each with what it holds."""
    parts = []
    for begin, end in ((0.0, cut_s), (cut_s, float("inf"))):
        try:
            parts.append(sliced(trace, begin, end, None))
        except TraceError as error:
            assert "must leave a request" in str(error)
    assert sum(map(len, parts)) == len(trace)
    for name in ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority"):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(trace, name).tolist()
    if trace.content is not None:
        chains = [list(part.content[i].ids) for part in parts if part.content for i in range(len(part))]
        assert chains == [list(trace.content[i].ids) for i in range(len(trace))]
    assert len(sliced(trace, 0, float("inf"), head)) == min(head, len(trace))


@settings(deadline=None, max_examples=40)
@given(traces(), st.sampled_from([1.0, 2.0, 3.0]), st.integers(0, 5))
def test_whole_copies_have_everybody_as_often(trace: Trace, rate: float, seed: int) -> None:
    """Law: laid over itself so often, each request comes so often, in order from 0; rate 1 is the trace itself, and no
    trace becomes longer than with its circle closed, unless a session reaches beyond."""
    made = scaled(trace, rate, seed)
    assert Counter(made.num_output_tokens.tolist()) == Counter(trace.num_output_tokens.tolist() * int(rate))
    assert made.arrival_ns[0] == 0 and (np.diff(made.arrival_ns) >= 0).all()
    if rate == 1:
        assert made.arrival_ns.tolist() == trace.arrival_ns.tolist()
        assert made.priority.tolist() == trace.priority.tolist()
    if trace.session is None and len(trace) > 1:
        span_ns = int(trace.arrival_ns[-1])
        assert int(made.arrival_ns[-1]) <= span_ns + span_ns / (len(trace) - 1) + 1


@pytest.mark.parametrize("rate", [0.25, 2.0, 2.5])
def test_a_scaled_poisson_stream_is_one_of_that_rate(rate: float) -> None:
    """Theory: thinned by coins, and superposed, Poisson streams are Poisson. Of 20,000 at 10/s: counts within 5
    standard errors of the coins, CV of gaps and dispersion as in test_trace_info."""
    trace = _poisson(20_000, 10.0, seed=3)
    made = scaled(trace, rate, seed=11)
    part = rate % 1
    assert abs(len(made) - rate * 20_000) <= 5 * (20_000 * part * (1 - part)) ** 0.5
    arrivals = profile(made)["arrivals"]
    assert arrivals["mean_rate_rps"] == pytest.approx(10 * rate, rel=0.1)
    assert arrivals["gap_cv"] == pytest.approx(1, abs=5 * (2 / len(made)) ** 0.5)
    assert arrivals["count_dispersion"] == pytest.approx(1, abs=5 * (2 / 59) ** 0.5)


def test_superposition_parts_bursts_and_squeezing_time_does_not() -> None:
    """Ten requests within a millisecond, once a second, for 1,000 s: four independent such streams still come in tens;
    squeezed four times, or laid over themselves without a shift, a burst would be 40 within a millisecond."""
    bursts = np.repeat(np.arange(1_000) * S, 10) + np.tile(np.arange(10) * 100_000, 1_000)

    def densest(trace: Trace) -> int:
        times = trace.arrival_ns
        return int((np.searchsorted(times, times + 10**6) - np.arange(len(times))).max())

    assert densest(_trace(bursts)) == 10
    assert densest(scaled(_trace(bursts), 4.0, seed=1)) == 10
    assert densest(scaled(_trace(bursts), 4.0, seed=1, shift_s=0)) == 40


def test_the_curve_of_a_day_stays() -> None:
    """A first half has 2,000 of 3,000 requests. A shift by a tenth of the span, the largest, moves 400 of them on and
    200 of the second half's round the circle into it: at least 1,800 of 3,000 stay."""
    times = np.concatenate([np.linspace(0, 500, 2_000, endpoint=False), np.linspace(500, 1_000, 1_000)])
    made = scaled(_trace((times * S).astype(np.int64)), 5.0, seed=2)
    first = int((made.arrival_ns < 500 * S).sum())
    assert 1.8 / 3 <= first / len(made) <= 2 / 3
    later = scaled(_trace((times * S).astype(np.int64)), 5.0, seed=2, shift_s=1_000)
    assert int((later.arrival_ns < 500 * S).sum()) / len(later) < 1.8 / 3


def test_fewer_are_a_part_of_more_with_the_same_seed() -> None:
    """One coin per request: who comes at 0.2 also comes at 0.6, and other seeds choose others."""
    trace = _poisson(2_000, 1.0, seed=1)
    kept = {rate: set(scaled(trace, rate, seed=7).num_prompt_tokens.tolist()) for rate in (0.2, 0.6)}
    assert kept[0.2] < kept[0.6]
    assert kept[0.6] != set(scaled(trace, 0.6, seed=8).num_prompt_tokens.tolist())


def test_sessions_stay_whole_and_apart() -> None:
    """500 sessions of three turns, ten seconds between them. Thinned: three turns or none. Doubled: 1,000 sessions of
    three turns, the gaps within each as they were."""
    starts = np.arange(500)[:, None] * S + np.array([0, 10 * S, 20 * S])
    order = np.argsort(starts.ravel(), kind="stable")
    trace = _trace(starts.ravel()[order], session=np.repeat(np.arange(500), 3)[order])
    thinned = scaled(trace, 0.5, seed=1)
    assert thinned.session is not None
    turns = Counter(thinned.session.tolist())
    assert set(turns.values()) == {3} and abs(len(turns) - 250) <= 5 * (500 / 4) ** 0.5
    doubled = scaled(trace, 2.0, seed=1)
    assert doubled.session is not None
    assert len(set(doubled.session.tolist())) == 1_000
    for session in range(0, 1_000, 37):
        times = doubled.arrival_ns[doubled.session == session]
        assert np.diff(times).tolist() == [10 * S, 10 * S]


def test_a_turn_whose_predecessor_is_cut_comes_at_its_own_time() -> None:
    """Turns at 0, 5 and 9 s wait 5 and 4 s: from 3 s on, the second waits for nobody, and the third still for it; of
    the last alone, nobody waits."""
    waits = np.array([OWN_TIME, 5 * S, 4 * S])
    trace = _trace(np.array([0, 5, 9]) * S, session=np.zeros(3, np.int64), wait_ns=waits)
    part = sliced(trace, 3, float("inf"), None)
    assert part.wait_ns is not None and part.wait_ns.tolist() == [OWN_TIME, 4 * S]
    assert sliced(trace, 8, float("inf"), None).wait_ns is None
    doubled = scaled(trace, 2.0, seed=0)
    assert doubled.wait_ns is not None and Counter(doubled.wait_ns.tolist()) == Counter(waits.tolist() * 2)


def test_copies_share_prompts_only_if_asked_to(tmp_path: Path) -> None:
    """Two requests with one block in common: half a hit in each copy when copies are other people, and all but the
    first when they ask the same. (Blocks of 512; the last token of a prompt is always computed.)"""
    source = tmp_path / "theirs.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2 + i]} for i in range(2)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _typed("scale", source, tmp_path / "own.csv", "--rate", "×2")
    _typed("scale", source, tmp_path / "same.csv", "--rate", "x2", "--same-prompts")
    own, same = (prefix_bound(read_trace(tmp_path / f"{name}.csv")) for name in ("own", "same"))
    assert own is not None and own["repeated_tokens"] == 2 * 512
    assert same is not None and same["repeated_tokens"] == 512 + 2 * 1023


def test_blocks_of_copies_are_other_blocks() -> None:
    """Two blocks in the trace, six in three copies of it, two with the same prompts."""
    content = Content(np.array([0, 1, 0]), np.array([0, 2, 3]), 16)
    trace = _trace(np.array([0, S]), content=content)
    for same, num_blocks in ((False, 6), (True, 2)):
        made = scaled(trace, 3.0, seed=0, same_prompts=same).content
        assert made is not None and len(made.ids) == 9 and len(set(made.ids.tolist())) == num_blocks


def test_requests_of_one_instant_keep_their_order() -> None:
    """A thousand on ten instants, given out of order: sorted stably, as the reader does."""
    trace = _trace(np.arange(1_000))
    times = 9 - np.arange(1_000) % 10
    made = rows_of(trace, np.arange(1_000), times)
    assert made.num_prompt_tokens.tolist() == sorted(range(1, 1_001), key=lambda number: times[number - 1])


def test_amounts_as_people_type_them() -> None:
    """Units of time, and a ratio with its sign or without."""
    texts = ["0", "1.5", "90s", "10min", "2 h", "1D", "250ms", "3m"]
    assert [seconds("--from", text) for text in texts] == [0, 1.5, 90, 600, 7_200, 86_400, 0.25, 180]
    assert [ratio(text) for text in ("2", "×2", "x0.5", "X 3", ".25")] == [2, 2, 0.5, 3, 0.25]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slice", "--from", "soon"], "--from: must be a time such as 90"),
        (["slice", "--to", "-5"], "--to: must be a time such as 90"),
        (["slice", "--to", "5 weeks"], "--to: must be a time such as 90"),
        (["slice", "--from", "1h", "--to", "60min"], "--to: must be later than --from"),
        (["slice", "--from", "1h"], "must leave a request (none comes from 3600 to inf s; the last of 3 comes at 2 s)"),
        (["scale", "--rate", "0"], "--rate: must be how many times as many"),
        (["scale", "--rate", "nan"], "--rate: must be how many times as many"),
        (["scale", "--rate", "2h"], "--rate: must be how many times as many"),
        (["scale", "--rate", "0.0000001"], "--rate: must leave a request (none of 3 is left)"),
        (["scale", "--rate", "2", "--shift", "far"], "--shift: must be a time"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    """Exit code 2, and nothing written."""
    source = tmp_path / "all.csv"
    source.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,1,1\n1,1,1\n2,1,1\n")
    done = _typed(words[0], source, tmp_path / "out.csv", *words[1:], exit_code=2)
    assert sentence in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "out.csv").exists()


def test_more_than_a_workload_may_have_is_refused() -> None:
    """Before any memory is taken for it."""
    with pytest.raises(TraceError, match="at most 10,000,000 requests"):
        scaled(_poisson(2_000, 1.0, seed=1), 9_000.0, seed=0)
