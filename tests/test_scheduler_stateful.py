"""A policy driven by hand, without engine or clock: requests come, steps pass, clients leave between any two of them.

Whatever the order, a sequence that was given up holds nothing, the policy's counts are those of the ones who stay, and
these are all served.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from simserve.kv_cache import ContiguousAllocator, NoCache, PagedAllocator
from simserve.request import Batch, Request, Sequence
from tests.builders import build_scheduler
from tests.reference_types import Settings, Speculation
from tests.strategies import ALLOCATORS, NEEDS, POLICIES, QUEUE_ORDERS, go_together

LONGEST = 12
LENGTH = st.integers(1, LONGEST)


class PolicyUnderDepartures(RuleBasedStateMachine):
    """``waiting`` and ``running`` are who should be there; ``rows`` of a static batch outlive their clients."""

    policy: str
    drafts: Speculation | None = None

    @initialize(
        data=st.data(),
        shape=st.tuples(st.integers(2, 5), st.integers(0, 16), st.integers(1, 4), st.integers(0, 6)),
        swap_space=st.sampled_from([0, 8 * 1024, 10**6]),
    )
    def build(self, data, shape, swap_space):
        takes = NEEDS.get(self.policy, {})
        kinds = [kind for kind in ALLOCATORS if go_together(self.policy, allocator=kind, speculation=self.drafts)]
        allocator = data.draw(st.sampled_from(kinds))
        order = takes.get("queue_order") or data.draw(st.sampled_from(QUEUE_ORDERS))
        swap_space = 0 if "preemption" in takes or self.drafts else swap_space
        max_num_seqs, more_budget, block_size, room = shape
        blocks = -(-2 * LONGEST // block_size) + room
        budget = more_budget + (max_num_seqs if self.policy in ("chunked", "transformers") else 2 * LONGEST)
        s = Settings(self.policy, allocator, max_num_seqs, budget, 2 * LONGEST, blocks, block_size, order)
        if self.drafts is not None:
            s = replace(s, speculation=self.drafts, max_num_batched_tokens=max(budget, 4 * max_num_seqs))
        s = replace(s, preemption="swap" if swap_space else "recompute", swap_space_bytes=swap_space)
        self.scheduler = build_scheduler(s)
        self.pool = self.scheduler.pool
        self.num_requests = 0
        self.last_decision: Batch | None = None
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.rows: list[Sequence] = []  # admitted and not yet released, wanted or not
        self.gone: list[Sequence] = []

    @rule(requests=st.lists(st.tuples(LENGTH, LENGTH, st.integers(0, 2)), min_size=1, max_size=3))
    def come(self, requests):
        for prompt, output, priority in requests:
            request = Request(self.num_requests, self.num_requests, prompt, output, output, priority)
            assert self.scheduler.refusal(request) is None
            self.num_requests += 1
            self.waiting.append(Sequence(request))
            self.pool.waiting.push(self.waiting[-1])

    @rule(num_steps=st.integers(1, 6), more_coming=st.booleans())
    def pass_steps(self, num_steps, more_coming):
        self.let_pass(num_steps, more_coming)

    def let_pass(self, num_steps: int, more_coming: bool) -> None:
        for _ in range(num_steps):
            decision = self.scheduler.schedule(0, more_coming)
            if not isinstance(decision, Batch):
                return
            self.move(decision)
            for seq in self.scheduler.finish_step(decision, 1):  # the engine asks when each will be done
                self.pool.cohort.steps_to_emit(seq, seq.request.num_output_tokens - seq.num_generated_tokens)
            for seq in [seq for seq in self.running if self.generated(seq) == seq.request.num_output_tokens]:
                if seq.joined_clock >= 0:  # else it is done, and its static batch goes on
                    self.take_out(self.scheduler.finish(seq))

    @rule(waits=st.booleans(), i=st.integers(0, 3), num_steps=st.integers(0, 3))
    def leave(self, waits, i, num_steps):
        """A client goes: one near the head of the queue, or one whose request runs; and some steps pass."""
        queue = sorted(self.waiting, key=lambda seq: seq.num_preemptions == 0)
        if waits and queue:
            self.leave_the_queue(queue[i % len(queue)])
        elif self.running:
            self.leave_the_batch(self.running[i % len(self.running)])
        self.let_pass(num_steps, False)

    def leave_the_queue(self, seq):
        """Its place and its swap space are free, and nothing else changed."""
        held = self.held(self.rows)
        seq.has_left = True
        assert self.scheduler.abort(seq) == []
        self.waiting.remove(seq)
        self.gone.append(seq)
        assert seq not in self.pool.waiting
        assert self.held(self.rows) == held

    def leave_the_batch(self, seq):
        """Its blocks and its slot are free; in a static batch when nobody in it has anything left to compute."""
        before = self.held(self.rows)
        seq.has_left = True
        released = self.scheduler.abort(seq)
        self.running.remove(seq)
        self.gone.append(seq)
        unfinished = [row for row in self.running if self.generated(row) < row.request.num_output_tokens]
        if self.policy != "static":
            assert released == [seq]
        else:
            assert set(released) == (set() if unfinished else set(self.rows))
        self.take_out(released)
        assert self.held(self.rows) == {row.id: before[row.id] for row in self.rows}
        assert not any(self.held(released).values())

    @invariant()
    def counts_and_memory_are_of_those_who_are_there(self):
        if not hasattr(self, "pool"):
            return
        allocator = self.pool.allocator
        assert (len(self.pool.waiting), self.pool.num_running) == (len(self.waiting), len(self.running))
        held = self.held(self.rows)
        total = allocator.num_usable_blocks if isinstance(allocator, PagedAllocator) else allocator.capacity_tokens
        has_cache = not isinstance(allocator, NoCache)
        assert sum(held.values()) + allocator.num_free_blocks == total
        assert not any(self.held([seq for seq in self.gone if seq not in self.rows]).values())
        assert self.pool.used_tokens == has_cache * sum(self.computed(seq) for seq in self.rows)

    def teardown(self):
        """INV-9: who stays is served in bounded steps, and then nothing is left."""
        if not hasattr(self, "pool"):
            return
        for _ in range(100 * (self.num_requests + 1)):
            if not self.waiting and not self.running:
                break
            self.let_pass(1, False)
        assert not self.waiting and not self.running and not self.rows
        assert not len(self.pool.cohort)

    def move(self, batch: Batch) -> None:
        """Whom a new decision (not one that stands) put out and let in."""
        assert not any(seq.has_left for seq, _ in batch.prefills)
        if batch.num_decodes:
            assert batch.num_decodes == (len(self.rows) if self.policy == "static" else len(self.pool.cohort))
        if batch.recomputes and not batch.prefills:
            assert batch.num_seqs == (len(self.rows) if self.policy == "static" else len(self.pool.cohort))
        if batch is self.last_decision:
            return
        self.last_decision = batch
        for seq in batch.preempted:
            self.running.remove(seq)
            self.rows.remove(seq)
            self.waiting.append(seq)
        for seq in batch.admitted:
            self.waiting.remove(seq)
            self.running.append(seq)
            self.rows.append(seq)

    def take_out(self, released: list[Sequence]) -> None:
        for seq in released:
            self.rows.remove(seq)
            if seq in self.running:
                self.running.remove(seq)

    def generated(self, seq: Sequence) -> int:
        decodes = seq.joined_clock >= 0  # all it knows but the last is computed
        return self.computed(seq) + 1 - seq.request.num_prompt_tokens if decodes else seq.num_generated_tokens

    def computed(self, seq: Sequence) -> int:
        return self.pool.cohort.num_computed_tokens(seq) if seq.joined_clock >= 0 else seq.num_computed_tokens

    def held(self, seqs: list[Sequence]) -> dict[int, int]:
        """Blocks (contiguous: tokens) that each of these holds."""
        allocator = self.pool.allocator
        if isinstance(allocator, PagedAllocator):
            return {seq.id: len(allocator.table(seq)) for seq in seqs}
        if isinstance(allocator, NoCache):
            return {seq.id: 0 for seq in seqs}
        assert isinstance(allocator, ContiguousAllocator)
        ranges = {seq.id: allocator.range_of(seq) for seq in seqs}
        return {i: r[1] if r else 0 for i, r in ranges.items()}


DRAFTS = Speculation((0.9, 0.6, 0.3))
MODES = [
    (policy, drafts) for policy in POLICIES for drafts in (None, DRAFTS) if go_together(policy, speculation=drafts)
]


@pytest.mark.parametrize(("policy", "drafts"), MODES, ids=[p + "-drafts" * bool(drafts) for p, drafts in MODES])
def test_a_policy_holds_nothing_for_those_who_left(policy, drafts):
    """INV-1, INV-2, INV-9 of each policy by itself, over every cache and queue order, with drafts and without."""
    members = {"policy": policy, "drafts": drafts}
    machine = type(f"{policy.title()}UnderDepartures", (PolicyUnderDepartures,), members)
    run_state_machine_as_test(machine, settings=settings(max_examples=200, stateful_step_count=30, deadline=None))
