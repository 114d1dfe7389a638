"""The figures of a replay, from outcomes written down by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.replay.dialect import Dialect
from simserve.replay.frames import event_frame, request_frame, token_gaps_s
from simserve.replay.outcome import Outcome
from simserve.replay.summary import Measured, replay_document, warnings_of
from simserve.scenario import SloConfig


def _outcome(i: int, due_s: float, times_s, late_s: float = 0.0, **more) -> Outcome:
    """A request for as many tokens as it got, one an event, finished unless said otherwise."""
    outcome = Outcome(i, due_s, 10, len(times_s), status="finished", arrival_s=due_s + late_s, num_attempts=1)
    outcome.sent_s, outcome.end_s = outcome.arrival_s, times_s[-1] if times_s else due_s + 1
    outcome.token_times_s, outcome.token_counts = list(times_s), list(range(1, len(times_s) + 1))
    outcome.counting, outcome.num_prompt_tokens = "usage of each event", 10
    for name, value in more.items():
        setattr(outcome, name, value)
    return outcome


def _document(outcomes, slo=None, cpu_share=0.1, faults=None):
    requests, events = request_frame(outcomes), event_frame(outcomes)
    measured = Measured(requests, events, Counter(faults or {}), 0, 0, cpu_share, interrupted=False)
    document = replay_document("n", "http://h:1", Dialect("m"), measured, slo or SloConfig())
    return document, warnings_of(document, requests)


def test_figures_by_hand():
    """Two answers, of 3 and 1 tokens: latencies and rates worked out on paper."""
    document, warnings = _document([_outcome(0, 0.0, [1.0, 1.5, 2.5]), _outcome(1, 1.0, [5.0])])
    assert document["ttft_s"]["mean"] == pytest.approx((1.0 + 4.0) / 2)
    assert document["tpot_s"]["mean"] == pytest.approx(0.75)  # of the first alone: one token has none
    assert document["itl_s"]["mean"] == pytest.approx(0.75) and document["itl_s"]["max"] == pytest.approx(1.0)
    assert document["e2e_s"]["max"] == pytest.approx(4.0)
    assert document["normalized_latency_s"]["mean"] == pytest.approx((2.5 / 3 + 4.0) / 2)
    assert document["makespan_s"] == pytest.approx(5.0)
    assert document["output_tokens_per_s"] == pytest.approx(4 / 5)
    assert document["total_tokens_per_s"] == pytest.approx(24 / 5)
    assert document["offered_rps"] == pytest.approx(1.0)
    assert warnings == []


def test_only_the_finished_have_latencies():
    """One that broke after two tokens keeps them, and is in no mean."""
    broken = _outcome(1, 0.0, [9.0, 9.5], status="failed", asked_output_tokens=7)
    frame = request_frame([_outcome(0, 0.0, [1.0, 2.0]), broken])
    assert frame["ttft_s"].isna().tolist() == [False, True]
    assert frame["num_emitted_tokens"].tolist() == [2, 2] and frame["num_output_tokens"].tolist() == [2, 7]
    document, _ = _document([_outcome(0, 0.0, [1.0, 2.0]), broken])
    assert document["num_failed"] == 1 and document["e2e_s"]["mean"] == pytest.approx(2.0)


def test_slo():
    """Of three requests one meets both limits, one misses TPOT, one failed."""
    outcomes = [_outcome(0, 0.0, [0.5, 0.6]), _outcome(1, 0.0, [0.5, 0.9]), _outcome(2, 0.0, [], status="failed")]
    document, _ = _document(outcomes, SloConfig(ttft_s=0.5, tpot_s=0.2))
    assert document["slo_attainment"] == pytest.approx(1 / 3)
    assert document["goodput_rps"] == pytest.approx(1 / 0.9)


@given(st.lists(st.lists(st.integers(1, 5), max_size=6), max_size=6))
def test_gaps_are_one_fewer_than_tokens(increments):
    """However tokens share events: gaps = tokens − answers that have any, and they add up to the answers' spans."""
    outcomes = []
    for i, each in enumerate(increments):
        outcome = _outcome(i, 0.0, [1.0 + 0.5 * k for k in range(len(each))])
        outcome.token_counts = np.cumsum(each).tolist()
        outcomes.append(outcome)
    gaps = token_gaps_s(event_frame(outcomes))
    assert len(gaps) == sum(map(sum, increments)) - sum(bool(each) for each in increments)
    assert gaps.sum() == pytest.approx(sum(0.5 * (len(each) - 1) for each in increments if each))


def test_lateness_is_warned_of_against_the_time_between_arrivals():
    """10 ms late: no matter at a request a second, a warning at 100; what the server's accept took is not ours."""

    def warned(gap_s: float, **more) -> bool:
        outcomes = [_outcome(i, gap_s * i, [gap_s * i + 1.0], late_s=0.01, **more) for i in range(50)]
        return any("was late" in words for words in _document(outcomes)[1])

    assert not warned(1.0)
    assert warned(0.01)
    assert not warned(0.01, connect_wait_s=0.01)


def test_lateness_of_a_burst_is_held_against_ttft():
    """Requests that are all due at once have no time between them: 10 ms are no matter where a first token takes a
    second, and are where it takes 50 ms."""

    def warnings(ttft_s: float) -> list[str]:
        return _document([_outcome(i, 0.0, [0.01 + ttft_s], late_s=0.01) for i in range(50)])[1]

    assert warnings(1.0) == []
    assert "all requests are due at once" in warnings(0.05)[0]
    assert "all requests are due at once" in _document([_outcome(0, 0.0, [], late_s=0.01, status="failed")])[1][0]


def test_whose_fault_lateness_is():
    """A client that used a whole CPU is itself the bottleneck; one that used little was kept from running."""
    outcomes = [_outcome(i, 0.01 * i, [0.01 * i + 1.0], late_s=0.05) for i in range(50)]
    assert "offer less" in _document(outcomes, cpu_share=0.95)[1][0]
    assert "quieter machine" in _document(outcomes, cpu_share=0.1)[1][0]


def test_what_did_not_go_as_asked_is_said():
    """Short answers, prompts that are off, tokens that shared events, counts that are assumed."""
    short = _outcome(
        0, 0.0, [1.0, 2.0], asked_output_tokens=9, num_prompt_tokens=12, counting="usage spread over events"
    )
    short.token_counts = [2, 4]
    document, warnings = _document([short])
    assert document["output_lengths"] == {"asked": 9, "counted": 4, "num_short": 1, "num_long": 0}
    assert document["prompt_tokens"]["mean_error"] == pytest.approx(0.2)
    assert document["tokens_per_event"]["share_together"] == pytest.approx(2 / 3)
    said = " ".join(warnings)
    for words in ("1 answers are shorter", "+20.00%", "66.7% of the tokens", "usage spread over events"):
        assert words in said


def test_nothing_at_all():
    """A replay in which nothing was sent has nulls and zeros, and no warning that makes no sense."""
    document, _ = _document([Outcome(0, 0.0, 10, 5), Outcome(1, 1.0, 10, 5)])
    assert document["num_unsent"] == 2 and document["requests_per_s"] == 0.0
    assert document["offered_rps"] is None and document["itl_s"]["p50"] is None
