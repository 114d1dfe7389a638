"""Inter-token latencies counted by groups equal those counted token by token."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.clients import OPEN_LOOP
from simserve.clients.clients import Clients
from simserve.engine import Engine, EngineOptions
from simserve.kv_cache import PagedAllocator, SwapSpace
from simserve.recorder import Recorder
from simserve.records import Records, RequestRecords, itl_bin, itl_bin_edges_s
from simserve.request import Batch, RequestTable
from simserve.scheduling import ChunkedScheduler, ContinuousScheduler, Limits, Pool, StaticScheduler
from simserve.simulate import run_engine
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import NS_PER_S, UNBOUNDED, Ramp

POLICIES = [StaticScheduler, ContinuousScheduler, ChunkedScheduler]


class Affine:
    """A step costs something per token and per cached token, so durations really change along a stretch."""

    source = StepTimeSource("affine", "roofline", "test", False, None, "made up")

    def ramp(self, batch: Batch, step: int) -> Ramp:
        context = batch.decode_context_tokens + step * batch.num_decodes
        first = 1e-3 + 1e-4 * batch.num_batched_tokens + 1e-5 * context
        return Ramp(first, 1e-5 * batch.num_decodes, UNBOUNDED)


class TokenLog:
    """Watches a scheduler from outside: at every step, whose token came when."""

    def __init__(self, scheduler, now):
        self.times: dict[int, list[int]] = {}
        self._scheduler, self._now = scheduler, now
        finish_step = scheduler.finish_step
        scheduler.finish_step = lambda batch, num_steps: self._watch(finish_step, batch, num_steps)

    def _watch(self, finish_step, batch, num_steps):
        assert num_steps == 1
        decoding = list(self._scheduler.pool.cohort._members) if batch.num_decodes else []
        complete = finish_step(batch, num_steps)
        for request_id in [*decoding, *(seq.id for seq in complete)]:
            self.times.setdefault(request_id, []).append(self._now())
        return complete


def requests(rows):
    columns = np.array([(0 if i == 0 else gap, p, o, 30, 0) for i, (gap, p, o) in enumerate(rows)], np.int64).T
    columns[0] = np.cumsum(columns[0]) * 1_000_000
    return RequestTable(*columns)


ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=14)


def make(policy, num_blocks=1000, swap=None):
    limits = Limits(4, 64, 64)
    return policy(Pool(limits, PagedAllocator(num_blocks, 4, max_model_len=64, watermark=0.0, swap=swap)))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, swaps=st.booleans())
def test_gaps_are_those_between_a_requests_own_tokens(policy, rows, swaps):
    """Log each token's time step by step in a small cache (preemptions by recompute and by swap happen), take the gaps
    of each request, and compare: as many, and the same bin for each up to the nanosecond that rounding moves."""
    scheduler = make(policy, 24, SwapSpace(8, 1000) if swaps else None)
    env, table = simpy.Environment(), requests(rows)
    log = TokenLog(scheduler, lambda: env.now)
    records = Records(RequestRecords(table))
    options = EngineOptions(fast_forward=False, swap_bytes_per_s=1e6)
    env.process(
        Engine(Clients(table, OPEN_LOOP), scheduler, Affine(), Recorder(records, scheduler.pool), options).run(env)
    )
    env.run()
    gaps = [(b - a) / NS_PER_S for times in log.times.values() for a, b in pairwise(times)]
    assert records.itl_counts.sum() == len(gaps)
    found = Counter({int(i): int(records.itl_counts[i]) for i in np.flatnonzero(records.itl_counts)})
    for gap in gaps:
        near = [b for b in (itl_bin(gap), itl_bin(gap - 1.5e-9), itl_bin(gap + 1.5e-9)) if found[b] > 0]
        assert near, f"no bin holds the gap {gap}"
        found[near[0]] -= 1
    assert not any(found.values())
    assert records.itl_max_s == pytest.approx(max(gaps, default=0.0), abs=2e-9)


@given(st.floats(1e-6, 9e4))
def test_a_gap_lies_in_its_bin(gap_s):
    """Bin edges enclose the gaps that fall between them, and no bin is as much as 1 % wide."""
    edges = itl_bin_edges_s()
    i = itl_bin(gap_s)
    assert edges[i] * (1 - 1e-9) <= gap_s <= edges[i + 1] * (1 + 1e-9)
    assert np.all(edges[1:] / edges[:-1] < 1.01)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, swaps=st.booleans(), fast_forward=st.booleans())
def test_the_sum_of_gaps_is_exact(policy, rows, swaps, fast_forward):
    """Every gap between two tokens of a request lies between its first and its last, so all gaps of all requests add up
    to the nanosecond to Σ (last − first), whatever was preempted or skipped over."""
    scheduler = make(policy, 24, SwapSpace(8, 1000) if swaps else None)
    options = EngineOptions(fast_forward=fast_forward, swap_bytes_per_s=1e6)
    records = run_engine(requests(rows), scheduler, Affine(), options)
    done = records.requests.last_token_ns >= 0
    spans_ns = (records.requests.last_token_ns - records.requests.first_token_ns)[done]
    assert records.itl_sum_ns == int(spans_ns.sum())
