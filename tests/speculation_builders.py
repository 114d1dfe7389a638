"""Engines that speculate, in a line: settings and acceptance in, a scheduler or records out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from simserve import simulate
from simserve.clients import OPEN_LOOP, ClientPlan
from simserve.engine import EngineOptions
from simserve.kv_cache import Allocator, ContiguousAllocator
from simserve.kv_cache.lookahead import LookaheadAllocator, LookaheadPrefixCachingAllocator
from simserve.records import Records
from simserve.request import RequestTable
from simserve.scheduling import Limits, Scheduler
from simserve.speculation.acceptance import Acceptance
from simserve.speculation.schedulers import DraftingPool, SpeculativeChunkedScheduler, SpeculativeContinuousScheduler
from simserve.speculation.step_time import Draft, PassTime
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import StepTime
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime


def build_allocator(s: Settings) -> Allocator:
    """The cache that the settings name, for sequences that look ahead."""
    if s.allocator == "contiguous":
        return ContiguousAllocator(s.num_blocks * s.block_size, s.reserve, s.max_model_len)
    common = {"max_model_len": s.max_model_len, "watermark": s.watermark, "null_blocks": s.null_blocks}
    if s.prefix_caching:
        return LookaheadPrefixCachingAllocator(s.num_blocks, s.block_size, nameless_first=s.nameless_first, **common)
    return LookaheadAllocator(s.num_blocks, s.block_size, **common)


def speculating(s: Settings, acceptance: Acceptance) -> Scheduler:
    """The policy that the settings name, verifying drafts that are accepted so."""
    limits = Limits(s.max_num_seqs, s.max_num_batched_tokens, s.max_model_len)
    pool = DraftingPool(limits, build_allocator(s), acceptance, s.queue_order)
    return SpeculativeContinuousScheduler(pool) if s.policy == "continuous" else SpeculativeChunkedScheduler(pool)


def run_speculating(
    table: RequestTable,
    s: Settings,
    acceptance: Acceptance,
    step_time: StepTime | None = None,
    *,
    fast_forward: bool = True,
    scheduler: Scheduler | None = None,
    clients: ClientPlan = OPEN_LOOP,
) -> Records:
    """Run the engine to its end; what it recorded. The step time sees passes as they are, drafts cost nothing."""
    options = EngineOptions(fast_forward, max_queued_requests=s.max_queued_requests, retry_after_ns=s.retry_after_ns)
    return simulate.run_engine(
        table, scheduler or speculating(s, acceptance), step_time or ConstantStepTime(), options, clients
    )


ASSUMED = StepTimeSource("constant", "roofline", "none", False, None, "assumed")


@dataclass(frozen=True)
class SourcedConstant(ConstantStepTime):
    """A constant step with a source, as models of scenarios have one."""

    source: StepTimeSource = ASSUMED


def constant_pass_time(step_s: float, cost: float) -> StepTime:
    """Every step of the target takes ``step_s``, every draft step ``cost`` of that."""
    target = SourcedConstant(step_s)
    return PassTime(target, Draft(target, cost), "")


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    """One to five drafts; never, always or sometimes right, alike or falling along the draft."""
    num_drafts = draw(st.integers(1, 5))
    alike = st.sampled_from([0.0, 0.5, 0.8, 1.0]).map(lambda alpha: (alpha,) * num_drafts)
    each = st.lists(st.floats(0, 1), min_size=num_drafts, max_size=num_drafts).map(tuple)
    return Acceptance(draw(st.one_of(alike, each)), draw(st.integers(0, 1000)))


def fitting(s: Settings, acceptance: Acceptance) -> Settings:
    """The settings with room in a step for a pass of all slots."""
    least = s.max_num_seqs * (1 + acceptance.num_drafts)
    return replace(s, max_num_batched_tokens=max(least, s.max_num_batched_tokens), preemption="recompute")
