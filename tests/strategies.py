"""Hypothesis strategies: workloads, engine settings over every policy, allocator and queue order, and step-time models.

Times are drawn on a 1 ms grid half of the time, so that arrivals fall exactly on step ends; caches are drawn around the
largest request, so that they bind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from simserve.request import RequestTable
from simserve.step_time.stretch import StepTime
from tests.reference_types import Settings
from tests.step_times import AffineStepTime, ConstantStepTime, TableStepTime, TokenStepTime

POLICIES = ("static", "continuous", "chunked")
ALLOCATORS = ("paged", "contiguous")
QUEUE_ORDERS = ("fcfs", "priority", "shortest_job_oracle")
MS = 1_000_000


@dataclass(frozen=True)
class Case:
    """One whole run: who asks, of which engine, on which clock."""

    table: RequestTable
    settings: Settings
    step_time: StepTime

    def __repr__(self) -> str:
        names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
        columns = ", ".join(str(getattr(self.table, name).tolist()) for name in names)
        return f"Case(table_of({columns}), {self.settings}, {self.step_time})"


def table_of(arrival_ns, prompts, outputs, declared=None, priorities=None) -> RequestTable:
    """A request table from plain lists; clients declare their true output unless ``declared`` says more."""
    columns = [arrival_ns, prompts, outputs, declared or outputs, priorities or [0] * len(prompts)]
    return RequestTable(*(np.array(column, np.int64) for column in columns))


@st.composite
def tables(draw: st.DrawFn, max_requests: int = 10, max_tokens: int = 40) -> RequestTable:
    """Up to ``max_requests`` requests: bursts, gaps and exact ties; declared outputs at or above the true ones."""
    n = draw(st.integers(1, max_requests))
    lengths = st.lists(st.integers(1, max_tokens), min_size=n, max_size=n)
    gap = st.one_of(st.just(0), st.just(0), st.integers(0, 30).map(lambda ms: ms * MS), st.integers(0, 60 * MS))
    gaps = draw(st.lists(gap, min_size=n, max_size=n))
    outputs = draw(lengths)
    extra = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    declared = [output + more for output, more in zip(outputs, extra, strict=True)]
    priorities = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    arrivals = np.cumsum(gaps) - gaps[0]
    return table_of(arrivals.tolist(), draw(lengths), outputs, declared, priorities)


@st.composite
def settings_for(draw: st.DrawFn, table: RequestTable, tight: bool = False, **fixed: object) -> Settings:
    """Engine settings whose cache holds about one to four of the largest requests (now and then none).

    ``tight``: one to two of them, several slots and no small budgets, so that running requests fight for blocks.
    """

    def choose(name: str, strategy: st.SearchStrategy) -> object:
        return fixed[name] if name in fixed else draw(strategy)

    longest = int((table.num_prompt_tokens + table.max_output_tokens).max())
    most = int((table.num_prompt_tokens + table.num_output_tokens).max())
    block_size = choose("block_size", st.sampled_from([1, 2, 3, 4, 8, 16]))
    null_blocks, watermark = (
        choose("null_blocks", st.integers(0, 1)),
        choose("watermark", st.sampled_from([0, 0.1, 0.3])),
    )
    rooms = [st.integers(0, most)] if tight else [st.integers(0, 12), st.integers(-2, 6), st.integers(0, 3 * longest)]
    room = draw(st.one_of(rooms))
    base = most if tight else draw(st.sampled_from([longest, most, 1.5 * longest]))
    tokens = base * (1 + watermark) + room
    num_blocks = max(1, math.ceil(tokens / block_size)) + null_blocks
    max_num_seqs = choose("max_num_seqs", st.sampled_from([3, 4, 5] if tight else [3, 2, 4, 1, 5]))
    policy = choose("policy", st.sampled_from(POLICIES))
    least = (
        0 if policy == "chunked" else most if tight else draw(st.sampled_from([most, most, most, 0]))
    )  # whole prompts need room
    budget = max(max_num_seqs, least) + draw(st.one_of(st.integers(0, 8), st.integers(0, 2 * longest)))
    space = draw(st.sampled_from([10**6, 2 * most, most, 0])) * 1024
    return Settings(
        policy=policy,
        allocator=choose("allocator", st.sampled_from(ALLOCATORS)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=choose("max_num_batched_tokens", st.just(budget)),
        max_model_len=choose("max_model_len", st.integers(max(1, most - 2), longest + 5)),
        num_blocks=choose("num_blocks", st.just(num_blocks)),
        block_size=block_size,
        queue_order=choose("queue_order", st.sampled_from(QUEUE_ORDERS)),
        max_wait_s=choose("max_wait_s", st.sampled_from([None, 0.0, 0.01, 0.0253])),
        watermark=watermark,
        null_blocks=null_blocks,
        preemption=choose("preemption", st.sampled_from(["swap", "recompute"])),
        swap_space_bytes=choose("swap_space_bytes", st.just(space)),
        swap_bytes_per_s=choose("swap_bytes_per_s", st.sampled_from([1e6, 3e6])),
        reserve=choose("reserve", st.sampled_from(["max_model_len", "max_tokens", "oracle"])),
    )


def step_times() -> st.SearchStrategy[StepTime]:
    """Constant (on the arrivals' grid), by tokens, affine in tokens and context, and a kinked table."""
    ms = st.integers(1, 20).map(lambda n: n / 1000)
    small = st.floats(0, 1e-4)
    seconds = st.lists(st.floats(1e-4, 0.02), min_size=2, max_size=5)
    return st.one_of(
        ms.map(ConstantStepTime),
        ms.map(lambda s: TokenStepTime(s / 10)),
        st.builds(AffineStepTime, st.floats(1e-4, 0.02), small, small, small),
        seconds.map(lambda ys: TableStepTime(tuple((37 * i * i, y) for i, y in enumerate(ys)))),
    )


@st.composite
def cases(draw: st.DrawFn, max_requests: int = 10, max_tokens: int = 40, tight: bool = False, **fixed: object) -> Case:
    """A whole run; keyword arguments fix fields of its ``Settings``; ``tight`` makes the cache bind."""
    table = draw(tables(max_requests, max_tokens))
    return Case(table, draw(settings_for(table, tight, **fixed)), draw(step_times()))
