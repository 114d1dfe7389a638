"""An engine without a KV cache: what it computes, when it admits, and that fast-forward changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import simulate
from simserve.clients import OPEN_LOOP
from simserve.engine import EngineOptions
from simserve.records import FINISHED, REJECTED, Records, RequestRecords
from simserve.request import Batch, Chunk, RequestTable
from simserve.scheduling import Limits, NoCacheContinuousScheduler, NoCachePool, NoCacheStaticScheduler, Scheduler
from simserve.step_time.stretch import Stretch
from tests.builders import skewed64
from tests.step_times import MODELS, ConstantStepTime, TokenStepTime
from tests.strategies import Case, client_cases, table_of

run_briefly = settings(max_examples=60, deadline=None)
POLICIES = {"continuous": NoCacheContinuousScheduler, "static": NoCacheStaticScheduler}
every_policy = pytest.mark.parametrize("policy", POLICIES)


class Watched:
    """Keeps the tokens of every step that a policy decides (run step by step)."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner, self.pool = inner, inner.pool
        self.step_tokens: list[int] = []
        self.rows: list[int] = []
        self._standing: tuple[Batch | None, int] = None, 0

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def schedule(self, now_ns: int, more_coming: bool):
        decision = self._inner.schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            k = self._standing[1] + 1 if decision is self._standing[0] else 0
            self._standing = decision, k
            self.step_tokens.append(decision.at_step(k).num_batched_tokens)
            self.rows.append(decision.num_seqs)
        return decision


def scheduler_of(policy: str, max_num_seqs: int = 8, max_num_batched_tokens: int = 4096, max_model_len: int = 2048):
    limits = Limits(max_num_seqs, max_num_batched_tokens, max_model_len)
    return POLICIES[policy](NoCachePool(limits))


def run(table: RequestTable, scheduler, step_time=None, fast_forward=True, clients=OPEN_LOOP) -> Records:
    options = EngineOptions(fast_forward)
    return simulate.run_engine(table, scheduler, step_time or ConstantStepTime(), options, clients)


def whole_sequences(prompts: np.ndarray, emitted: np.ndarray) -> np.ndarray:
    """Σ over emitted tokens of what was known before each: P, P + 1, …"""
    return np.array([sum(range(p, p + n)) for p, n in zip(prompts.tolist(), emitted.tolist(), strict=True)])


@every_policy
def test_the_chapters_figure(policy):
    """512 prompt and 256 answer tokens: 163,712 through the model where an engine with a cache computes 767."""
    records = run(table_of([0], [512], [256]), scheduler_of(policy))
    assert records.num_computed_tokens == 163_712
    assert records.num_steps == 256
    assert records.num_computed_tokens - records.num_recomputed_tokens == 767
    assert round(163_712 / 768) == 213


@every_policy
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_fast_forward_is_exact(policy, model):
    """INV-7: the 64 skewed requests, every column, span and gap, with each kind of clock."""
    fast, slow = (run(skewed64(), scheduler_of(policy), model, on) for on in (True, False))
    assert (fast.requests.status == FINISHED).all()
    assert_same(fast, slow)


@every_policy
def test_fast_forward_is_exact_whatever_clients_do(policy):
    """INV-7 with arrivals, time-outs, cancellations, retries and closed loops; INV-5: everyone's work is what was known
    at each token they were given, however they left; INV-6: no step beyond the limits."""

    @run_briefly
    @given(client_cases(policy=policy))
    def holds(case: Case):
        s = case.settings
        limits = s.max_num_seqs, s.max_num_batched_tokens, s.max_model_len
        fast = run(case.table, scheduler_of(policy, *limits), case.step_time, True, case.clients)
        watched = Watched(scheduler_of(policy, *limits))
        slow = run(case.table, watched, case.step_time, False, case.clients)
        assert_same(fast, slow)
        assert max(watched.step_tokens, default=0) <= s.max_num_batched_tokens
        assert max(watched.rows, default=0) <= s.max_num_seqs
        assert sum(watched.step_tokens) == fast.num_computed_tokens + fast.num_padding_tokens
        once = (case.clients.retry is None) & (fast.requests.num_attempts <= 1)
        expected = whole_sequences(case.table.num_prompt_tokens, fast.requests.num_emitted_tokens)
        assert (fast.requests.num_computed_tokens == expected)[once].all()
        assert fast.num_computed_tokens == fast.requests.num_computed_tokens.sum()
        assert (fast.num_preemptions, fast.swapped_bytes, fast.capacity_tokens) == (0, 0, 0)

    holds()


def assert_same(fast: Records, slow: Records) -> None:
    for name in (*RequestRecords.TIMES, *RequestRecords.COUNTS, "status"):
        assert (getattr(fast.requests, name) == getattr(slow.requests, name)).all(), name
    for name, column in fast.spans.columns().items():
        assert (column == slow.spans.columns()[name]).all(), name
    assert (fast.itl_counts == slow.itl_counts).all()
    for field in fields(Records):
        value = getattr(fast, field.name)
        if isinstance(value, int | float):
            assert value == getattr(slow, field.name), field.name


@run_briefly
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8), st.integers(1, 4))
def test_times_by_hand(lengths, slots):
    """Continuous, everyone there at once, 1 ms per token: replayed by a loop that adds up whole sequences."""
    table = table_of([0] * len(lengths), *(list(column) for column in zip(*lengths, strict=True)))
    records = run(table, scheduler_of("continuous", slots), TokenStepTime(0.001))
    waiting, running, now, ends = list(enumerate(lengths)), [], 0, {}
    while waiting or running:
        while waiting and len(running) < slots:
            i, (prompt, answer) = waiting.pop(0)
            running.append([i, prompt, answer])
        now += sum(known for _, known, _ in running)
        running = [[i, known + 1, left - 1] for i, known, left in running]
        ends |= {i: now for i, _, left in running if not left}
        running = [row for row in running if row[2]]
    assert (records.requests.end_ns / 1e6).round(3).tolist() == [ends[i] for i in range(len(lengths))]


def test_room_is_counted_at_the_largest_step():
    """Two of 10 + 10 declared need 38 tokens in their last common step: with 37 they run one after the other, though
    answers of two tokens would never have got there."""
    table = table_of([0, 0], [10, 10], [2, 2], [10, 10])
    for budget, together in ((38, True), (37, False)):
        records = run(table, scheduler_of("continuous", 8, budget))
        assert (records.requests.first_scheduled_ns == 0).all() == together


def test_static_rows_are_padded_and_held():
    """Prompts of 2 and 5 tokens, answers of 3 and 1: three steps of two rows of 5, 6 and 7 tokens, of which the first
    needs 2 + 3 + 4 and the second 5; the finished row is held for two steps."""
    records = run(table_of([0, 0], [2, 5], [3, 1]), scheduler_of("static"), TokenStepTime(0.001))
    assert records.requests.end_ns.tolist() == [36_000_000, 36_000_000]
    assert (records.num_computed_tokens, records.num_padding_tokens) == (14, 36 - 14)
    assert records.spans.columns()["num_finished_held"].sum() == 2


def test_a_static_group_is_cut_by_its_last_step():
    """Three requests of 10 + 5 need 3 × 14 tokens at the end: a budget of 41 starts two of them."""
    table = table_of([0] * 3, [10] * 3, [5] * 3)
    for budget, first in ((42, 3), (41, 2)):
        records = run(table, scheduler_of("static", 8, budget))
        assert (records.requests.first_scheduled_ns == 0).sum() == first


@every_policy
def test_what_no_step_can_hold_is_refused(policy):
    """30 + 11 − 1 tokens where a step takes 39; with 40 it is served."""
    table = table_of([0, 0], [30, 5], [11, 5])
    refused = run(table, scheduler_of(policy, 8, 39)).requests
    assert refused.status.tolist() == [REJECTED, FINISHED]
    assert "40 tokens" in refused.reject_reason[0]
    assert (run(table, scheduler_of(policy, 1, 40)).requests.status == FINISHED).all()


@every_policy
def test_declared_answers_are_cut_by_the_models_length(policy):
    """A client that declares 1,000 tokens of a model of 50 can take 50 − 1 in one step, and no more."""
    table = table_of([0], [30], [11], [1000])
    assert run(table, scheduler_of(policy, 8, 49, 50)).requests.status.tolist() == [FINISHED]
    assert run(table, scheduler_of(policy, 8, 48, 50)).requests.status.tolist() == [REJECTED]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@given(rows=st.lists(st.integers(1, 60), min_size=1, max_size=4), num_steps=st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_a_stretch_is_the_sum_of_whole_forwards(model, rows, num_steps):
    """Step k of a decision takes what a prefill of the rows, each k tokens longer, takes over an empty context."""
    batch = Batch(tuple(Chunk(n, 0) for n in rows), recomputes=True)
    forwards = [Batch(tuple(Chunk(n + k, 0) for n in rows)) for k in range(num_steps)]
    expected = sum(model.ramp(forward, 0).first_s for forward in forwards)
    assert Stretch(model, batch).span_s(num_steps) == pytest.approx(expected, rel=1e-12)


def test_a_leaving_client_frees_its_room():
    """A request that fills the step is given up after 25 ms; the one behind it starts at the end of that step."""
    table = table_of([0, 0], [20, 20], [21, 1], [21, 1])
    clients = replace(OPEN_LOOP, cancel_after_ns=np.array([25_000_000, 1 << 62]))
    records = run(table, scheduler_of("continuous", 8, 40), ConstantStepTime(0.01), clients=clients)
    assert records.requests.first_scheduled_ns.tolist() == [0, 30_000_000]
    assert records.requests.num_computed_tokens.tolist() == [20 + 21 + 22, 20]
