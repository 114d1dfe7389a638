"""Hypothesis strategies: workloads, clients, engine settings over every policy, allocator and queue order, and clocks.

Times are drawn on a 1 ms grid half of the time, so that arrivals, deadlines and departures fall exactly on step ends;
caches are drawn around the largest request, so that they bind.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace

import numpy as np
from hypothesis import strategies as st

from simserve.clients import NOBODY, OPEN_LOOP, STAYS, ClientPlan, RetryPolicy, Turns
from simserve.request import RequestTable
from simserve.step_time.stretch import NS_PER_S, StepTime
from tests.prefixes import contents, ids_of, ranges
from tests.reference_types import Settings, Speculation
from tests.step_times import AffineStepTime, ConstantStepTime, LongestStepTime, TableStepTime, TokenStepTime

POLICIES = ("static", "continuous", "chunked", "transformers")
ALLOCATORS = ("paged", "contiguous", "none")
QUEUE_ORDERS = ("fcfs", "priority", "shortest_job_oracle")
# What a policy needs of the rest, where it does not go with everything.
NEEDS: dict[str, dict[str, object]] = {
    "transformers": {
        "allocator": "paged",
        "queue_order": "fcfs",
        "watermark": 0,
        "null_blocks": 0,
        "preemption": "recompute",
        "prefix_caching": False,
    }
}
MS = 1_000_000


def go_together(policy: str, /, **fixed: object) -> bool:
    """Whether a policy runs with these settings."""
    if fixed.get("allocator") == "none" and policy not in ("static", "continuous"):
        return False
    if fixed.get("speculation") and not may_speculate(policy, str(fixed.get("allocator"))):
        return False
    return all(fixed.get(name, value) == value for name, value in NEEDS.get(policy, {}).items())


def may_speculate(policy: str, allocator: str) -> bool:
    """Whether drafts can be verified there."""
    return policy in ("continuous", "chunked") and allocator != "none"


COMBINATIONS = tuple((p, a) for p, a in itertools.product(POLICIES, ALLOCATORS) if go_together(p, allocator=a))


@dataclass(frozen=True)
class Case:
    """One whole run: who asks, of which engine, on which clock, and how patiently."""

    table: RequestTable
    settings: Settings
    step_time: StepTime
    clients: ClientPlan = OPEN_LOOP

    def __repr__(self) -> str:
        names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
        columns = ", ".join(str(getattr(self.table, name).tolist()) for name in names)
        if self.table.content is not None:
            ids = [ids_of(self.table.content[i]) for i in range(len(self.table))]
            columns += f", Content of {ids} by {self.table.content[0].block_tokens}"
        plan = [(f.name, getattr(self.clients, f.name)) for f in fields(self.clients)]
        plan = [(name, [x.next_id, x.wait_ns] if isinstance(x, Turns) else x) for name, x in plan if x is not None]
        lists = [(name, x.tolist() if isinstance(x, np.ndarray) else x) for name, x in plan]
        clients = ", ".join(f"{name}={value}" for name, value in lists)
        return f"Case(table_of({columns}), {self.settings}, {self.step_time}, plan_of({clients}))"


def table_of(arrival_ns, prompts, outputs, declared=None, priorities=None, content=None) -> RequestTable:
    """A request table from plain lists; clients declare their true output unless ``declared`` says more."""
    columns = [arrival_ns, prompts, outputs, declared or outputs, priorities or [0] * len(prompts)]
    return RequestTable(*(np.array(column, np.int64) for column in columns), content=content)


def plan_of(
    *,
    concurrency=None,
    think_ns=None,
    timeout_ns=None,
    ttft_timeout_ns=None,
    cancel_after_ns=None,
    retry=None,
    jitter=None,
    turns=None,
) -> ClientPlan:
    """A client plan from plain lists; ``turns`` are (next_id, wait_ns)."""
    think, cancel = (None if column is None else np.array(column, np.int64) for column in (think_ns, cancel_after_ns))
    draws = None if jitter is None else np.array(jitter, np.float64)
    chained = None if turns is None else Turns(*(np.array(column, np.int64) for column in turns))
    return ClientPlan(concurrency, think, timeout_ns, ttft_timeout_ns, cancel, retry, draws, chained)


@st.composite
def session_turns(draw: st.DrawFn, n: int, times: st.SearchStrategy[int]) -> tuple[list[int], list[int]]:
    """Requests dealt out to sessions, in which each waits for the one before: (next_id, wait_ns)."""
    sessions = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    waits = draw(st.lists(st.one_of(st.just(0), times), min_size=n, max_size=n))
    following = [next((j for j in range(i + 1, n) if sessions[j] == sessions[i] > 0), NOBODY) for i in range(n)]
    return following, waits


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

    policy = choose("policy", st.sampled_from([name for name in POLICIES if go_together(name, **fixed)]))
    assert go_together(policy, **fixed), f"{policy} does not run with {fixed}"
    fixed = {**NEEDS.get(policy, {}), **fixed}
    speculation = fixed.get("speculation")
    if speculation:
        fixed["preemption"] = "recompute"
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
    takes = [name for name in ALLOCATORS if go_together(policy, **{**fixed, "allocator": name})]
    allocator = choose("allocator", st.sampled_from(takes))
    chunks = policy in ("chunked", "transformers")
    least = 0 if chunks else most if tight else draw(st.sampled_from([most, most, most, 0]))  # whole prompts need room
    budget = max(max_num_seqs * (1 + speculation.num_drafts if speculation else 1), least) + draw(
        st.one_of(st.integers(0, 8), st.integers(0, 2 * longest))
    )
    space = draw(st.sampled_from([10**6, 2 * most, most, 0])) * 1024
    return Settings(
        policy=policy,
        allocator=allocator,
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
        prefix_caching=choose("prefix_caching", st.just(False)),
        nameless_first=fixed.get("prefix_caching", False) and draw(st.booleans()),
        speculation=speculation,
        safety_margin=draw(st.sampled_from([0.15, 0.0, 0.4, 1.0])) if policy == "transformers" else 0.15,
    )


def step_times() -> st.SearchStrategy[StepTime]:
    """Constant (on the arrivals' grid), by tokens, affine in tokens and context, a kinked table, and by the longest."""
    ms = st.integers(1, 20).map(lambda n: n / 1000)
    small = st.floats(0, 1e-4)
    seconds = st.lists(st.floats(1e-4, 0.02), min_size=2, max_size=5)
    return st.one_of(
        ms.map(ConstantStepTime),
        ms.map(lambda s: TokenStepTime(s / 10)),
        st.builds(AffineStepTime, st.floats(1e-4, 0.02), small, small, small),
        st.builds(LongestStepTime, st.floats(1e-4, 0.02), st.floats(1e-5, 1e-3)),
        seconds.map(lambda ys: TableStepTime(tuple((37 * i * i, y) for i, y in enumerate(ys)))),
    )


@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    """One to five drafts: never, always or sometimes right, alike or falling along the pass."""
    num_drafts = draw(st.integers(1, 5))
    alike = st.sampled_from([0.8, 0.5, 0.0, 1.0]).map(lambda alpha: (alpha,) * num_drafts)
    each = st.lists(st.floats(0, 1), min_size=num_drafts, max_size=num_drafts).map(tuple)
    return Speculation(draw(st.one_of(alike, each)), draw(st.integers(0, 1000)))


@st.composite
def cases(draw: st.DrawFn, max_requests: int = 10, max_tokens: int = 40, tight: bool = False, **fixed: object) -> Case:
    """A whole run; keyword arguments fix fields of its ``Settings``; ``tight`` makes the cache bind.

    With ``prefix_caching`` the prompts begin alike, under a policy and a cache that can use it.
    """
    table = draw(tables(max_requests, max_tokens))
    if fixed.get("prefix_caching"):
        alike = st.one_of(contents(table), contents(table), ranges(table))
        table = draw(st.one_of(alike, alike, alike, st.just(table)))
        policy = fixed.get("policy") or draw(st.sampled_from(["chunked", "continuous"]))
        fixed = {**fixed, "policy": policy, "allocator": "paged", "preemption": "recompute"}
    return Case(table, draw(settings_for(table, tight, **fixed)), draw(step_times()))


def durations(unit_ns: int = MS, off_grid: bool = True, least: int = 1) -> st.SearchStrategy[int]:
    """Nanoseconds: a few or a few hundred units, and now and then any number between."""
    few, many = (st.integers(least, n).map(lambda n: n * unit_ns) for n in (12, 150))
    return st.one_of(few, many, st.integers(least, 100 * unit_ns)) if off_grid else st.one_of(few, many)


@st.composite
def retry_policies(draw: st.DrawFn, times: st.SearchStrategy[int]) -> RetryPolicy:
    """Up to four attempts, a nanosecond to many steps apart."""
    after = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    backoff_ns, most_ns = draw(st.one_of(times, st.just(1))), draw(times)
    multiplier, jitter = draw(st.sampled_from([1.0, 2.0, 3.0])), draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    return RetryPolicy(draw(st.integers(2, 4)), backoff_ns, multiplier, most_ns, jitter, *after)


@st.composite
def client_plans(draw: st.DrawFn, n: int, times: st.SearchStrategy[int]) -> ClientPlan:
    """Clients of ``n`` requests that do any of the things clients do; one plan in four is the plain open loop."""
    if draw(st.integers(0, 3)) == 0:
        return OPEN_LOOP

    def maybe(strategy: st.SearchStrategy) -> object:
        return draw(st.one_of(st.none(), strategy))

    def column(entry: st.SearchStrategy) -> object:
        return maybe(st.lists(entry, min_size=n, max_size=n))

    retry = draw(st.one_of(retry_policies(times), st.none()))
    concurrency = maybe(st.integers(1, 5))
    share = st.floats(0, 1, exclude_max=True)
    draws = st.lists(st.lists(share, min_size=3, max_size=3), min_size=n, max_size=n)
    jitter = draw(draws) if retry is not None and retry.jitter else None
    return plan_of(
        concurrency=concurrency,
        think_ns=None if concurrency is None else column(st.one_of(st.just(0), times)),
        timeout_ns=maybe(times),
        ttft_timeout_ns=maybe(times),
        cancel_after_ns=column(st.one_of(st.just(STAYS), times, st.just(0))),
        retry=retry,
        jitter=jitter,
        turns=maybe(session_turns(n, times)),
    )


@st.composite
def client_cases(draw: st.DrawFn, **more: object) -> Case:
    """A whole run as of ``cases``, with clients of any kind and now and then a queue that turns some away.

    In half of them all that clients do falls on the ends of steps of one length (until something is swapped).
    """
    case = draw(cases(**more))
    table, step_time, times = case.table, case.step_time, durations()
    if draw(st.booleans()):
        unit_ns = draw(st.integers(1, 20)) * MS
        step_time, times = ConstantStepTime(unit_ns / NS_PER_S), durations(unit_ns, off_grid=False)
        table = replace(table, arrival_ns=table.arrival_ns // unit_ns * unit_ns)
    limit = draw(st.sampled_from([None, None, None, 3, 2, 1]))
    settings = replace(
        case.settings, max_queued_requests=limit, retry_after_ns=draw(st.one_of(st.just(0), times)) if limit else 0
    )
    return Case(table, settings, step_time, draw(client_plans(len(table), times)))
