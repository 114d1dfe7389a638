"""Finished runs for the report: the real engine on small workloads, with a measured-looking step time behind it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np

from simserve.metrics import summarize
from simserve.request import Batch, RequestTable
from simserve.step_time.source import MeasuredPoint, StepTimeSource
from simserve.step_time.stretch import UNBOUNDED, Ramp
from simserve.workload import Workload
from tests.builders import run_engine
from tests.reference_types import Settings

S = 1_000_000_000
MANIFEST = {"kind": "simserve run", "seed": 7, "versions": {"python": "3.11.2"}, "revision": None}
STATIC = Settings("static", "contiguous", 8, 2048, 512, 160, 16)
PAGED = Settings("continuous", "paged", 8, 2048, 512, 160, 16)
POLICIES = {
    "static-contiguous": STATIC,
    "static-paged": replace(STATIC, allocator="paged"),
    "continuous-contiguous": replace(PAGED, allocator="contiguous"),
    "continuous-paged": PAGED,
}


def step_seconds(batch_size: int, num_new_tokens: int, num_context_tokens: int) -> float:
    """A plausible machine: a floor, a price per token and one per cached token read."""
    return 0.02 + 0.0012 * batch_size * num_new_tokens + 1.5e-6 * batch_size * num_context_tokens


def measured_points() -> tuple[MeasuredPoint, ...]:
    """A grid as calibration measures it, three percent off the curve in alternating directions."""
    shapes = [("decode", b, 1, c) for b in (1, 2, 4, 8, 16) for c in (16, 64, 256, 1024)]
    shapes += [("prefill", 1, n, c) for n in (8, 32, 128, 512) for c in (0, 512)]
    return tuple(
        MeasuredPoint(phase, b, n, c, step_seconds(b, n, c) * (1.03 if i % 2 else 0.97))
        for i, (phase, b, n, c) in enumerate(shapes)
    )


PROFILE = StepTimeSource("toy-cpu", "profile", "a small CPU", True, 0.031, "measured for the tests", measured_points())
ROOFLINE = StepTimeSource("toy-roofline", "roofline", "a large GPU", False, None, "a datasheet's figures")


@dataclass(frozen=True)
class SourcedStepTime:
    """``step_seconds`` as a step-time model with a source; steps of more than ``limit`` rows are extrapolated."""

    source: StepTimeSource = field(default=PROFILE)
    limit: int = 1 << 30

    def ramp(self, batch: Batch, step: int) -> Ramp:
        tokens = batch.num_batched_tokens
        cached = batch.decode_context_tokens + sum(chunk.num_context_tokens for chunk in batch.chunks) + step * tokens
        outside = batch.num_seqs > self.limit
        return Ramp(0.02 + 0.0012 * tokens + 1.5e-6 * cached, 1.5e-6 * tokens, UNBOUNDED, outside)


def skewed_table(num_requests=64, seed=0, rate_rps=5.0, prompt=8, longest=231):
    """Poisson arrivals of prompts of one length and outputs whose lengths are log-normal."""
    rng = np.random.default_rng(seed)
    outputs = np.clip(np.exp(rng.normal(np.log(18), 1.0, num_requests)), 2, longest).astype(np.int64)
    arrivals = np.round(np.cumsum(rng.exponential(S / rate_rps, num_requests))).astype(np.int64)
    return RequestTable(
        arrivals - arrivals[:1],
        np.full(num_requests, prompt, np.int64),
        outputs,
        np.full(num_requests, longest, np.int64),
        np.zeros(num_requests, np.int64),
    )


def run_of(settings=None, table=None, step_time=None, name="skewed64", notes=(), slo=None):
    """The shape of ``RunResult``: every settings run on one table."""
    table = skewed_table() if table is None else table
    slo = slo or SimpleNamespace(ttft_s=None, tpot_s=None, e2e_s=None)
    scenario = SimpleNamespace(name=name, model="toy-25m", seed=7, slo=slo)
    steps = step_time or SourcedStepTime()
    variants = {key: _variant(key, s, table, steps, scenario) for key, s in (settings or POLICIES).items()}
    return SimpleNamespace(scenario=scenario, workload=Workload(table, tuple(notes)), variants=variants)


def _variant(name, settings, table, step_time, scenario):
    records = run_engine(table, settings, step_time)
    records.max_num_seqs, records.capacity_tokens = settings.max_num_seqs, settings.num_blocks * settings.block_size
    cache = SimpleNamespace(allocator=settings.allocator, holds_weights=False)
    if settings.allocator == "contiguous":
        cache.reserve = settings.reserve
    engine = SimpleNamespace(policy=settings.policy, max_num_seqs=settings.max_num_seqs, kv_cache=cache)
    return SimpleNamespace(
        name=name,
        scenario=SimpleNamespace(name=scenario.name, model=scenario.model, slo=scenario.slo, engine=engine),
        model=SimpleNamespace(entry=lambda: {"kv_bytes_per_token": 8192, "weight_bytes": 50_000_000}),
        step_time=step_time,
        records=records,
        summary=summarize(records, scenario.slo),
    )
