"""The wiring, on one screen: a scenario goes in, the records and the summary of every variant come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import simpy

from simserve.arrivals import Arrivals
from simserve.assemble import assemble
from simserve.engine import Engine, EngineOptions
from simserve.errors import ScenarioError
from simserve.metrics import summarize
from simserve.recorder import Recorder
from simserve.records import Records, RequestRecords
from simserve.request import RequestTable
from simserve.scenario import Scenario
from simserve.scenario.messages import printable
from simserve.scheduling import Scheduler
from simserve.step_time import StepTime
from simserve.workload import Workload, build_workload

OnProgress = Callable[[str, int, int], None]  # variant, requests ended, requests in all


@dataclass(frozen=True)
class VariantResult:
    """One variant: its whole scenario, the step times it used, what happened, and its object of ``summary.json``."""

    name: str
    scenario: Scenario
    step_time: StepTime
    records: Records
    summary: dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """A scenario's variants, all run on the same requests."""

    scenario: Scenario
    workload: Workload
    variants: dict[str, VariantResult]


def simulate(scenario: Scenario, on_progress: OnProgress | None = None, fast_forward: bool = True) -> RunResult:
    """Run every variant of a scenario on the same requests.

    ``on_progress(variant, num_ended, num_requests)`` is called as requests end. Raises InputError before anything
    runs when some input is wrong.
    """
    parts = {}
    for name, variant in scenario.resolve_variants().items():
        with _located(scenario, name):
            parts[name] = assemble(variant)
    with _located(scenario):
        workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
    for name, ready in parts.items():
        with _located(scenario, name):
            _check_servable(workload.table, ready.scheduler)
    variants = {}
    for name, ready in parts.items():

        def tell(num_ended: int, name: str = name) -> None:
            if on_progress is not None:
                on_progress(name, num_ended, len(workload.table))

        options = EngineOptions(fast_forward, ready.swap_bytes_per_s, tell)
        records = run_engine(workload.table, ready.scheduler, ready.step_time, options)
        summary = summarize(records, ready.scenario.slo)
        variants[name] = VariantResult(name, ready.scenario, ready.step_time, records, summary)
    return RunResult(scenario, workload, variants)


@contextmanager
def _located(scenario: Scenario, variant: str = "") -> Iterator[None]:
    """Begin the message of a ScenarioError with the file, and with the variant where the file names any."""
    try:
        yield
    except ScenarioError as error:
        where = f"variants.{variant}: " if variant and scenario.variants else ""
        raise ScenarioError(printable(f"{scenario.source}: {where}{error}")) from None


def _check_servable(table: RequestTable, scheduler: Scheduler) -> None:
    """One request that cannot be served is rejected and counted; a scenario that can serve none is wrong."""
    refusal = None
    for i in range(len(table)):
        refusal = scheduler.refusal(table[i])
        if refusal is None:
            return
    raise ScenarioError(f"must be able to serve some request, but all {len(table)} are refused ({refusal})")


def run_engine(
    table: RequestTable, scheduler: Scheduler, step_time: StepTime, options: EngineOptions | None = None
) -> Records:
    """One engine over one workload, from its first arrival until nothing is left to do."""
    pool = scheduler.pool
    records = Records(RequestRecords(table))
    records.capacity_tokens, records.max_num_seqs = pool.allocator.capacity_tokens, pool.limits.max_num_seqs
    env = simpy.Environment()
    engine = Engine(Arrivals(table), scheduler, step_time, Recorder(records, pool), options or EngineOptions())
    env.process(engine.run(env))
    env.run()
    return records
