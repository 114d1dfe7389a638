"""``Batch.max_decode_context``: the longest context of a decision, kept without looking at every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.kv_cache import PagedAllocator
from simserve.request import Batch, Request, Sequence
from simserve.scheduling import least, static
from simserve.scheduling.cohort import DecodeCohort
from simserve.scheduling.least import Least
from simserve.speculation.cohort import DraftingCohort
from simserve.step_time.stretch import UNBOUNDED, Ramp
from tests.builders import build_allocator, build_scheduler, run_engine
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, POLICIES, Case, cases, speculations, table_of


@dataclass(frozen=True)
class LongestStepTime:
    """Every step waits for the longest context in it."""

    needs_max_decode_context = True
    base_s: float = 0.003
    context_token_s: float = 0.0001

    def ramp(self, batch: Batch, step: int) -> Ramp:
        longest = batch.max_decode_context + step if batch.num_decodes else 0
        return Ramp(self.base_s + self.context_token_s * longest, self.context_token_s, UNBOUNDED)


class Looking:
    """A policy whose every decision is compared with what the decoding sequences have in the cache, one by one."""

    def __init__(self, case_settings: Settings) -> None:
        self.inner = build_scheduler(case_settings)
        self.pool = self.inner.pool
        self.num_looks = 0
        self.batch: Batch | None = None
        self.since = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def schedule(self, now_ns: int, more_coming: bool):
        decision = self.inner.schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            if decision is not self.batch:
                self.batch, self.since = decision, self.pool.cohort.clock
            self.num_looks += bool(decision.num_decodes)
            grown = self.pool.cohort.clock - self.since
            assert decision.max_decode_context + (grown if decision.num_decodes else 0) == self.longest(decision)
        return decision

    def longest(self, decision: Batch) -> int:
        cohort = self.pool.cohort
        if isinstance(cohort, DraftingCohort):  # whose counters are up to date, for each gets on in its own way
            return max(seq.num_computed_tokens for seq in cohort) if decision.num_decodes else 0
        if isinstance(self.inner, static.StaticScheduler):  # rows are as long as the longest prompt, and stay
            assert decision.max_decode_context * decision.num_decodes == decision.decode_context_tokens
            return decision.max_decode_context + cohort.clock - self.since if decision.num_decodes else 0
        if not decision.num_decodes:
            return 0
        return max(seq.num_computed_tokens + cohort.clock - seq.joined_clock for seq in cohort._members.values())


@settings(max_examples=60, deadline=None)
@given(cases())
@pytest.mark.parametrize("fast_forward", [True, False])
def test_every_decision_names_its_longest_context(fast_forward: bool, case: Case) -> None:
    """INV: in whatever run, preemptions and swaps included, at the first step and as long as the decision stands."""
    looking = Looking(case.settings)
    run_engine(case.table, case.settings, LongestStepTime(), fast_forward, scheduler=looking)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_pass_names_its_longest_context(data: st.DataObject) -> None:
    """With drafts, of which some stay and some go, and preemptions: what the longest really has in the cache."""
    case = data.draw(cases(speculation=data.draw(speculations()), tight=data.draw(st.booleans())))
    run_engine(case.table, case.settings, LongestStepTime(), scheduler=Looking(case.settings))


@settings(max_examples=60, deadline=None)
@given(cases(tight=True))
def test_fast_forward_changes_nothing(case: Case) -> None:
    """INV-7 for a model that waits for the longest context: the same to the bit, with preemptions on the way."""
    on, off = (run_engine(case.table, case.settings, LongestStepTime(), forward).requests for forward in (True, False))
    for name in ("first_token_ns", "last_token_ns", "end_ns", "num_preemptions"):
        assert np.array_equal(getattr(on, name), getattr(off, name)), name


@pytest.mark.parametrize("policy", POLICIES)
def test_the_longest_is_told_by_hand(policy: str) -> None:
    """Prompts of 50 and 9, outputs of 3 and 9: the longest is the first until it has gone, then the second, 12 steps
    long by then; in a static batch the padded row stays."""
    table = table_of([0, 0], [50, 9], [3, 9])
    engine = Settings(policy, "paged", 4, 200, 200, 100, block_size=16)
    seen: list[Batch] = []

    class Kept(LongestStepTime):
        def ramp(self, batch: Batch, step: int) -> Ramp:
            seen.append(batch)
            return super().ramp(batch, step)

    run_engine(table, engine, Kept())
    decodes = [batch.max_decode_context for batch in seen if batch.num_decodes]
    assert decodes == ([50] if policy == "static" else [50, 9 + 2])


def test_who_does_not_ask_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not declare the need runs without a number kept of any sequence."""
    monkeypatch.setattr(Least, "add", lambda self, number: pytest.fail("kept for nobody"))
    table = table_of([0, 0], [50, 9], [3, 9])
    run_engine(table, Settings("chunked", "paged", 4, 200, 200, 100, block_size=16), ConstantStepTime())


def test_the_work_is_in_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 requests of different lengths, all running together: each is pushed at most once and popped at most once,
    however often the longest is asked for."""
    counts = {"push": 0, "pop": 0}
    push, pop = least.heappush, least.heappop
    monkeypatch.setattr(least, "heappush", lambda *a: (counts.__setitem__("push", counts["push"] + 1), push(*a)))
    monkeypatch.setattr(least, "heappop", lambda *a: (counts.__setitem__("pop", counts["pop"] + 1), pop(*a))[1])
    n = 300
    table = table_of([i * MS for i in range(n)], [8 + 7 * i % 50 for i in range(n)], [20 + 3 * i for i in range(n)])
    s = Settings("chunked", "paged", n, 10**6, 10**4, num_blocks=10**6, block_size=4)
    allocator = build_allocator(s)
    assert isinstance(allocator, PagedAllocator)
    records = run_engine(table, s, LongestStepTime(), scheduler=build_scheduler(s, allocator))
    assert records.num_steps > 3 * n
    assert counts["push"] <= n and counts["pop"] <= counts["push"]


numbers = st.integers(-5, 5)


@given(st.lists(st.tuples(st.booleans(), numbers, st.booleans()), max_size=60))
def test_the_least_of_what_is_there(moves: list[tuple[bool, int, bool]]) -> None:
    """Against a list: numbers come and go in any order, alike ones too, and are asked for or not."""
    kept, there = Least(), []
    for comes, number, asked in moves:
        if comes:
            kept.add(number)
            there.append(number)
        elif there:
            gone = there.pop(number % len(there))
            kept.remove(gone)
        if asked:
            assert kept.value() == min(there, default=None)
    assert kept.value() == min(there, default=None)


def test_the_heap_does_not_keep_all_that_ever_were() -> None:
    """One number stays the least while 10,000 pass behind it: at most twice those there are kept, and 64."""
    kept = Least()
    kept.add(0)
    for number in range(1, 10_000):
        kept.add(number)
        kept.remove(number)
        assert len(kept._heap) == len(kept._counts) <= 2 * 1 + 64
        assert kept.value() == 0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20), st.data()
)
def test_a_cohort_watched_from_any_time_on(moves: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Whether asked to from the beginning or half way, it tells the longest of its members as they stand."""
    cohort, members, watched_at = DecodeCohort(), [], data.draw(st.integers(0, len(moves) - 1))
    for i, (num_tokens, steps, leaving) in enumerate(moves):
        if i == watched_at:
            cohort.watch_longest()
        seq = Sequence(Request(i, 0, num_tokens + 1, 99, 99), num_computed_tokens=num_tokens, admission=i)
        cohort.join(seq)
        members.append(seq)
        for _ in range(min(leaving, len(members))):
            cohort.leave(members.pop(data.draw(st.integers(0, len(members) - 1))))
        cohort.advance(steps)
        contexts = [seq.num_computed_tokens + cohort.clock - seq.joined_clock for seq in members]
        assert cohort.max_context_tokens == (max(contexts, default=0) if i >= watched_at else 0)
