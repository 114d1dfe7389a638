"""Which runs are the plain case, and how one becomes ``Records``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from simserve.compiled import at
from simserve.engine import EngineOptions
from simserve.kv_cache import PagedAllocator
from simserve.records import FINISHED, REJECTED, Records, RequestRecords
from simserve.request import RequestTable
from simserve.scheduling import ChunkedScheduler, ContinuousScheduler, Scheduler
from simserve.step_time.roofline import RooflineStepTime
from simserve.step_time.stretch import StepTime

if TYPE_CHECKING:
    from simserve.compiled.world import World

_TOTALS = (
    "itl_sum_ns",
    "num_steps",
    "num_computed_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "num_looked_up_tokens",
    "num_attention_pairs",
)
_PER_TURN = 20_000  # requests between two reports of progress
_MAX_NS = 1 << 53  # beyond, nanoseconds are no longer exact in floating point


def run_if_plain(
    table: RequestTable, scheduler: Scheduler, step_time: StepTime, options: EngineOptions
) -> Records | None:
    """The whole run, if it is the plain case and numba is installed; None where the other engine has to do it."""
    if not _is_plain(scheduler, step_time, options) or find_spec("numba") is None:
        return None
    assert isinstance(step_time, RooflineStepTime)
    return _run(table, scheduler, step_time, options.on_progress)


def _is_plain(scheduler: Scheduler, step_time: StepTime, options: EngineOptions) -> bool:
    pool = scheduler.pool
    allocator = pool.allocator
    return (
        type(scheduler) in (ChunkedScheduler, ContinuousScheduler)
        and (type(allocator) is PagedAllocator and not allocator.swaps)
        and pool.waiting.order == "fcfs"
        and type(step_time) is RooflineStepTime
        and options.fast_forward
        and (options.async_scheduling, options.max_queued_requests, options.stop_when) == (False, None, None)
    )


def _run(
    table: RequestTable, scheduler: Scheduler, step_time: RooflineStepTime, on_progress: Callable[[int], None]
) -> Records | None:
    """None if it went where only the other engine can tell what is wrong, or beyond what is exact; and where numba has
    no folder to keep machine code in, since compiling at every start takes longer than most runs."""
    from simserve.compiled.world import Limits, make_world

    try:
        from simserve.compiled import loop
    except RuntimeError:  # "no locator available"
        return None

    pool, allocator = scheduler.pool, scheduler.pool.allocator
    assert isinstance(allocator, PagedAllocator)
    refusals = _refusals(table, scheduler)
    is_refused = np.zeros(len(table), np.bool_)
    is_refused[list(refusals)] = True
    limits = Limits(
        pool.limits.max_num_seqs,
        pool.limits.max_num_batched_tokens,
        allocator.block_size,
        allocator.watermark_blocks,
        allocator.num_usable_blocks,
        isinstance(scheduler, ChunkedScheduler),
    )
    asked = table.arrival_ns, table.num_prompt_tokens, table.num_output_tokens, is_refused
    world = make_world(asked, limits, step_time.costs)
    records = Records(RequestRecords(table))
    counters = world.counters
    state = loop.PAUSED
    while state == loop.PAUSED:
        state = loop.run(world, int(counters[at.NUM_ENDED]) + _PER_TURN)
        records.spans.rows.append_all(world.spans[: counters[at.NUM_SPANS]])
        records.occupancy.rows.append_all(world.occupancy[: counters[at.NUM_OCCUPANCY]])
        world.spans[0] = world.spans[counters[at.NUM_SPANS]]  # the open one
        counters[at.NUM_SPANS] = counters[at.NUM_OCCUPANCY] = 0
        on_progress(int(counters[at.NUM_ENDED]))
    if state == loop.STALLED or counters[at.NOW] >= _MAX_NS:
        return None
    _fill(records, world, refusals)
    records.capacity_tokens, records.max_num_seqs = allocator.capacity_tokens, pool.limits.max_num_seqs
    return records


def _refusals(table: RequestTable, scheduler: Scheduler) -> dict[int, str]:
    """Reasons by request. Over a paged cache a request is refused for its prompt and output together, and then so is
    every longer one."""
    order = np.argsort(table.num_prompt_tokens + table.num_output_tokens, kind="stable")
    first = bisect_left(order, True, key=lambda i: scheduler.refusal(table[int(i)]) is not None)
    return {int(i): str(scheduler.refusal(table[int(i)])) for i in sorted(order[first:])}


def _fill(records: Records, world: World, refusals: dict[int, str]) -> None:
    """What the kernel left in its columns, where ``Recorder`` would have put it."""
    requests, counters, left = records.requests, world.counters, world.requests
    is_served = left[:, at.IS_REFUSED] == 0
    requests.reject_reason = refusals
    requests.status[:] = np.where(is_served, FINISHED, REJECTED)
    for name in RequestRecords.TIMES:
        getattr(requests, name)[:] = left[:, getattr(at, name.upper())]
    requests.num_attempts[:] = 1
    requests.num_emitted_tokens[:] = left[:, at.GENERATED]
    if counters[at.NUM_PREEMPTIONS]:  # else they stay zeros that were never written, and take no memory
        requests.num_preemptions[:] = left[:, at.PREEMPTIONS]
        requests.num_recomputed_tokens[:] = left[:, at.RECOMPUTED]
    requests.num_computed_tokens[:] = left[:, at.COMPUTED] + left[:, at.RECOMPUTED]
    records.itl_counts[:] = world.itl_counts
    records.itl_max_s = float(world.costs[at.ITL_MAX_S])
    for name in _TOTALS:
        setattr(records, name, int(counters[getattr(at, name.upper())]))
    records.num_arrived = len(requests.table)
    # What is integrated while it runs is, when all have ended, Little's other side (INV-8).
    records.in_system_ns = int((left[:, at.END_NS] - left[:, at.ARRIVAL_NS])[is_served].sum())
