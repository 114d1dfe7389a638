"""The wiring, on one screen: a scenario goes in, the records and the summary of every variant come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import simpy

from simserve.assemble import Parts, assemble
from simserve.clients import OPEN_LOOP, ClientPlan
from simserve.clients.clients import Clients
from simserve.compiled.run import run_if_plain
from simserve.engine import Engine, EngineOptions
from simserve.errors import ScenarioError
from simserve.metrics import summarize
from simserve.recorder import Recorder
from simserve.records import NEVER, Records, RequestRecords
from simserve.request import RequestTable
from simserve.scenario import Scenario
from simserve.scenario.messages import printable
from simserve.scheduling import Scheduler
from simserve.simulated_model import SimulatedModel
from simserve.speculation.recorder import DraftingRecorder
from simserve.speculation.schedulers import DraftingPool
from simserve.step_time import StepTime
from simserve.step_time.stretch import NS_PER_S
from simserve.workload import Workload, build_workload

OnProgress = Callable[[str, int, int], None]  # variant, requests ended, requests in all


@dataclass(frozen=True)
class VariantResult:
    """One variant: its whole scenario, the model and the step times it used, what happened, and its object of
    ``summary.json``."""

    name: str
    scenario: Scenario
    model: SimulatedModel
    step_time: StepTime
    records: Records
    summary: dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """A scenario's variants, all run on the same requests."""

    scenario: Scenario
    workload: Workload
    variants: dict[str, VariantResult]


@dataclass(frozen=True)
class Prepared:
    """A scenario ready to run: its requests, and what runs each variant."""

    scenario: Scenario
    workload: Workload
    parts: dict[str, Parts]


def simulate(scenario: Scenario, on_progress: OnProgress | None = None, fast_forward: bool = True) -> RunResult:
    """Run every variant of a scenario on the same requests.

    ``on_progress(variant, num_ended, num_requests)`` is called when a variant begins and as requests end. Raises
    InputError before anything runs when some input is wrong.
    """
    prepared = prepare(scenario)
    variants = {}
    for name, parts in prepared.parts.items():

        def tell(num_ended: int, name: str = name) -> None:
            if on_progress is not None:
                on_progress(name, num_ended, len(prepared.workload.table))

        tell(0)  # whatever happens before the first answer, such as compiling, is this variant's
        records = run_variant(prepared, name, EngineOptions(fast_forward, on_progress=tell))
        summary = summarize(records, parts.scenario.slo, parts.model.spec)
        variants[name] = VariantResult(name, parts.scenario, parts.model, parts.step_time, records, summary)
    return RunResult(scenario, prepared.workload, variants)


def prepare(scenario: Scenario, calibration_draw: int | None = None, only: Collection[str] | None = None) -> Prepared:
    """Draw the requests and build what runs each variant (``only`` those named, by default all).

    With a ``calibration_draw`` measured step times are that draw of what another calibration might have measured.
    Raises InputError when some input is wrong.
    """
    parts = {}
    for name, variant in scenario.resolve_variants().items():
        if only is None or name in only:
            with _located(scenario, name):
                parts[name] = assemble(variant, calibration_draw)
    with _located(scenario):
        workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
    for name, ready in parts.items():
        with _located(scenario, name):
            _check_servable(workload.table, ready.scheduler)
            _check_seen_in_time(workload.clients, ready.scenario)
    return Prepared(scenario, workload, parts)


def run_variant(prepared: Prepared, name: str, options: EngineOptions) -> Records:
    """Run one prepared variant, once (a scheduler is used up by its run); ``options`` are completed with what the
    variant's own scenario says."""
    parts = prepared.parts[name]
    engine = parts.scenario.engine
    limit = getattr(engine, "max_queued_requests", None)
    retry_after_ns = round(getattr(engine, "retry_after_s", 0.0) * NS_PER_S)
    options = replace(
        options,
        swap_bytes_per_s=parts.swap_bytes_per_s,
        async_scheduling=getattr(engine, "async_scheduling", False),
        max_queued_requests=limit,
        retry_after_ns=retry_after_ns,
    )
    workload = prepared.workload
    return run_engine(workload.table, parts.scheduler, parts.step_time, options, workload.clients)


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


def _check_seen_in_time(clients: ClientPlan, scenario: Scenario) -> None:
    """Under asynchronous scheduling the engine acts on what clients did a step late, which would be too late for one
    who gives up in the very step that answers it."""
    leaves = (clients.timeout_ns, clients.ttft_timeout_ns, clients.cancel_after_ns)
    if getattr(scenario.engine, "async_scheduling", False) and any(each is not None for each in leaves):
        raise ScenarioError(
            "engine.async_scheduling: must be false where clients give up (got true, with time-outs or cancellations "
            "under workload.clients); leave one of the two out"
        )


def run_engine(
    table: RequestTable,
    scheduler: Scheduler,
    step_time: StepTime,
    options: EngineOptions | None = None,
    clients: ClientPlan = OPEN_LOOP,
) -> Records:
    """One engine over one workload, from its first arrival until nothing is left to do."""
    options = options or EngineOptions()
    if clients is OPEN_LOOP and len(table) >= options.compiled_from:
        records = run_if_plain(table, scheduler, step_time, options)
        if records is not None:
            return records
    pool = scheduler.pool
    records = Records(RequestRecords(table))
    if clients.concurrency is not None:
        records.requests.arrival_ns.fill(NEVER)  # until it is sent
    elif clients.turns is not None:
        records.requests.arrival_ns[clients.turns.follows] = NEVER
    records.capacity_tokens, records.max_num_seqs = pool.allocator.capacity_tokens, pool.limits.max_num_seqs
    env = simpy.Environment()
    recorder = DraftingRecorder(records, pool) if isinstance(pool, DraftingPool) else Recorder(records, pool)
    engine = Engine(Clients(table, clients), scheduler, step_time, recorder, options)
    env.process(engine.run(env))
    env.run()
    records.num_prefix_evictions = pool.allocator.num_evictions
    return records
