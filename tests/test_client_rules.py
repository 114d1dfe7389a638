"""What clients do, rule by rule, each on a case worked out by hand: by the reference and by the real engine."""

from __future__ import annotations

import pytest

from simserve.clients import RetryPolicy
from simserve.records import RequestRecords
from tests.builders import run_engine
from tests.client_rules import RULES, Outcome, Rule
from tests.reference import Reference
from tests.references import run_reference
from tests.strategies import MS

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def outcomes_of_reference(rule: Rule) -> tuple[list[Outcome], Reference]:
    case = rule.case
    reference = run_reference(case)
    computed = [-sum(seq.num_rejected_tokens for seq in ask.attempts) for ask in reference.asks]
    for work in (work for step in reference.steps for work in step.works):
        computed[work.seq_id] += work.num_new
    found = []
    for ask in reference.asks:
        last = ask.attempts[-1]
        times = ask.end_ns / MS, len(last.token_ns), computed[ask.id]
        tries = len(ask.attempts), ask.away_ns / MS, ask.num_abandoned_tokens
        found.append(Outcome(ask.status, *times, *tries, last.first_scheduled_ns / MS))
    return found, reference


def outcomes_of_engine(rule: Rule, fast_forward: bool) -> tuple[list[Outcome], dict[str, int]]:
    case = rule.case
    records = run_engine(case.table, case.settings, case.step_time, fast_forward, clients=case.clients)
    r = records.requests
    columns = [r.end_ns / MS, r.num_emitted_tokens, r.num_computed_tokens, r.num_attempts, r.away_ns / MS]
    columns += [r.num_abandoned_tokens, r.first_scheduled_ns / MS]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = [Outcome(RequestRecords.STATUSES[status], *row) for status, row in zip(r.status, rows, strict=True)]
    return found, {name: getattr(records, name) for name, _ in rule.totals}


def assert_outcomes(found: list[Outcome], rule: Rule) -> None:
    for i, (mine, expected) in enumerate(zip(found, rule.outcomes, strict=True)):
        looked_at = mine if expected.scheduled is not None else mine._replace(scheduled=None)
        assert looked_at == expected, f"request {i}"


@every_rule
def test_the_reference_keeps_the_rule(rule):
    """The slow engine's outcome is the one worked out by hand."""
    found, reference = outcomes_of_reference(rule)
    assert_outcomes(found, rule)
    totals = {
        "num_steps": len(reference.steps),
        "num_turned_away": sum(ask.num_turned_away for ask in reference.asks),
        "num_timed_out_attempts": sum(ask.num_timed_out for ask in reference.asks),
        "num_preemptions": sum(seq.num_preemptions for seq in reference.seqs),
        "num_recomputed_tokens": sum(seq.num_recomputed_tokens for seq in reference.seqs),
        "swapped_bytes": reference.swapped_bytes,
    }
    assert {name: totals[name] for name, _ in rule.totals if name in totals} == {
        name: value for name, value in rule.totals if name in totals
    }


@every_rule
@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
def test_the_engine_keeps_the_rule(rule, fast_forward):
    """The real engine's outcome is the one worked out by hand, however it passes the steps."""
    found, totals = outcomes_of_engine(rule, fast_forward)
    assert_outcomes(found, rule)
    assert totals == dict(rule.totals)


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 100), (2, 200), (3, 400), (4, 500), (9, 500)])
def test_delays_double_up_to_a_ceiling(attempt, delay_ms):
    """Exponential backoff as HTTP clients do it: 100 ms · 2^(k−1), at most 500 ms; a full jitter of one half of the
    draw's share takes off a quarter; Retry-After is never undercut."""
    policy = RetryPolicy(9, 100 * MS, 2.0, 500 * MS, 0.5, True, True)
    assert policy.delay_ns(attempt, 0.0) == delay_ms * MS
    assert policy.delay_ns(attempt, 0.5) == 0.75 * delay_ms * MS
    assert policy.delay_ns(attempt, 0.5, retry_after_ns=400 * MS) == max(0.75 * delay_ms, 400) * MS


def test_nobody_comes_again_in_the_same_instant():
    """A client that waits for nothing still waits a nanosecond: two attempts never arrive at once."""
    assert RetryPolicy(9, 0, 1.0, 0, 0.0, True, True).delay_ns(1, 0.0) == 1
