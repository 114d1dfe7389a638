"""A scenario's ``workload:`` to the requests that every variant meets, made before and independent of any policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simserve.clients.plan import OPEN_LOOP, ClientPlan
from simserve.request import IntColumn, RequestTable
from simserve.scenario.workload_models import GeneratedWorkload, TraceWorkload, WorkloadConfig
from simserve.workload.generate import arrival_times_ns, lengths
from simserve.workload.refusal import refusal
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import MAX_SPAN_S, UNDECLARED, read_trace


@dataclass(frozen=True)
class Workload:
    """The requests, and in words what was odd about them: rows dropped, sorted, cut, or raised."""

    table: RequestTable
    notes: tuple[str, ...] = ()
    clients: ClientPlan = OPEN_LOOP


def build_workload(config: WorkloadConfig, seed: int, base_dir: Path) -> Workload:
    """The requests of a workload; a trace's path is relative to ``base_dir``. The same seed gives the same bytes.

    Raises TraceError for a bad trace, ScenarioError for arrivals that would take decades.
    """
    return _generated(config, seed) if isinstance(config, GeneratedWorkload) else _traced(config, base_dir)


def _generated(config: GeneratedWorkload, seed: int) -> Workload:
    """One random stream per column, so that changing a distribution leaves the other columns as they were."""
    arrivals, prompts, outputs = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
    n = config.num_requests
    arrival_ns = arrival_times_ns(config.arrivals, n, arrivals)
    num_prompt_tokens, prompts_cut = lengths(config.prompt_tokens, n, prompts)
    num_output_tokens, outputs_cut = lengths(config.output_tokens, n, outputs)
    cut = {"prompt_tokens": prompts_cut, "output_tokens": outputs_cut}
    notes = [f"{count:,} of {n:,} {name} were cut to the distribution's max" for name, count in cut.items() if count]
    declared, raised = _declared(np.full(n, UNDECLARED, np.int64), num_output_tokens, config.max_output_tokens)
    table = RequestTable(arrival_ns, num_prompt_tokens, num_output_tokens, declared, np.zeros(n, np.int64))
    return Workload(table, tuple(notes + raised))


def _traced(config: TraceWorkload, base_dir: Path) -> Workload:
    path = base_dir / config.trace
    trace = read_trace(path, config.format)
    notes = list(trace.notes)
    n = min(config.limit or len(trace), len(trace))
    if n < len(trace):
        notes.append(f"{path.name}: the first {n:,} of {len(trace):,} requests kept (workload.limit)")
    arrival_ns = _rescaled(trace.arrival_ns[:n], config.rate_scale, path.name)
    outputs = trace.num_output_tokens[:n]
    declared, raised = _declared(trace.max_output_tokens[:n], outputs, config.max_output_tokens)
    table = RequestTable(arrival_ns, trace.num_prompt_tokens[:n], outputs, declared, trace.priority[:n])
    return Workload(table, tuple(notes + raised))


def _rescaled(arrival_ns: IntColumn, rate_scale: float, where: str) -> IntColumn:
    """Arrivals ``rate_scale`` times as dense, rounded to nanoseconds; 1.0 leaves the integers alone."""
    if rate_scale == 1.0:
        return arrival_ns
    scaled = arrival_ns / rate_scale
    if scaled[-1] > MAX_SPAN_S * NS_PER_S:
        raise refusal(where, f"must span at most {MAX_SPAN_S:,} seconds after workload.rate_scale ({rate_scale:g})")
    return np.rint(scaled).astype(np.int64)


def _declared(declared: IntColumn, num_output_tokens: IntColumn, default: int | None) -> tuple[IntColumn, list[str]]:
    """What clients declare: the trace's figure, else the default (the workload's longest output), and never less than
    the true length, which the notes count."""
    fallback = int(num_output_tokens.max()) if default is None else default
    declared = np.where(declared == UNDECLARED, fallback, declared)
    num_raised = int((declared < num_output_tokens).sum())
    raised = f"{num_raised:,} of {len(declared):,} declared maxima were below the true output length: raised to it"
    return np.maximum(declared, num_output_tokens), [raised] if num_raised else []
