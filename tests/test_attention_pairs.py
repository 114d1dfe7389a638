"""(query, key) pairs of steps: closed forms against every token of every step, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.request import Batch, Chunk
from tests.builders import build_scheduler, run_engine
from tests.strategies import Case, client_cases
from tests.watched import WatchedScheduler

run_briefly = settings(max_examples=40, deadline=None)

chunks = st.lists(st.builds(Chunk, st.integers(1, 20), st.integers(0, 50)), max_size=4).map(tuple)


def pairs_one_by_one(batch: Batch, step: int) -> int:
    """Keys that each new token of one step of a decision attends to. A batch knows decodes by their sum."""
    total = 0
    for new, context in batch.chunks:
        if batch.recomputes:
            total += sum(range(1, new + step + 1))
        else:
            total += sum(context + new * step + position for position in range(1, new + 1))
    each = batch.tokens_per_decode
    return total + sum(
        batch.decode_context_tokens + batch.num_decodes * (step + position) for position in range(1, each + 1)
    )


@run_briefly
@given(chunks, st.integers(0, 5), st.integers(0, 200), st.integers(0, 9), st.integers(1, 30))
def test_any_steps_of_a_decision(rows: tuple[Chunk, ...], decodes: int, context: int, begin: int, num_steps: int):
    """Chunks whose context grows by their tokens, decodes whose context grows by one."""
    batch = Batch(rows, decodes, context if decodes else 0)
    expected = sum(pairs_one_by_one(batch, k) for k in range(begin, begin + num_steps))
    assert batch.num_attention_pairs(begin, num_steps) == expected


@run_briefly
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 30))
def test_whole_sequences(lengths: list[int], begin: int, num_steps: int):
    """Without a cache: n (n + 1) / 2 pairs of each row, a token longer at each step."""
    batch = Batch(tuple(Chunk(length, 0) for length in lengths), recomputes=True)
    expected = sum(n * (n + 1) // 2 for k in range(begin, begin + num_steps) for n in (m + k for m in lengths))
    assert batch.num_attention_pairs(begin, num_steps) == expected


@run_briefly
@given(st.integers(1, 5), st.integers(0, 200), st.integers(1, 6))
def test_verified_drafts(decodes: int, context: int, each: int):
    """A pass verifies ``each`` tokens per sequence, each attending to the drafts before it."""
    batch = Batch((), decodes, context, tokens_per_decode=each)
    assert batch.num_attention_pairs(0, 1) == pairs_one_by_one(batch, 0)


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_a_run_counts_every_step_once(policy: str):
    """Fast-forward or not, preempted, swapped, given up: the sum over the steps that a policy decided."""

    @run_briefly
    @given(client_cases(policy=policy))
    def holds(case: Case):
        watched = WatchedScheduler(build_scheduler(case.settings))
        run_engine(case.table, case.settings, case.step_time, False, scheduler=watched, clients=case.clients)
        expected, k = 0, 0
        for i, batch in enumerate(watched.batches):
            k = k + 1 if i and batch is watched.batches[i - 1] else 0
            expected += pairs_one_by_one(batch, k)
        fast = run_engine(case.table, case.settings, case.step_time, True, clients=case.clients)
        assert fast.num_attention_pairs == expected

    holds()
