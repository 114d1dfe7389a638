"""A task, run: build the scenario, simulate each variant, measure it."""

from __future__ import annotations

from simserve.engine import EngineOptions
from simserve.simulate import Prepared, prepare, run_variant
from simserve.tasks.early_stop import EarlyStop
from simserve.tasks.measure import measure
from simserve.tasks.task import Measures, Task
from simserve.tasks.warmup import warmup_rule
from simserve.tasks.work import work


def measured_variants(task: Task) -> dict[str, Measures]:
    """What ``measure`` finds of every variant of a task, all on the same requests. Raises InputError."""
    prepared = prepare(task.scenario(), task.calibration_draw, task.variants or None)
    return {name: _measured(prepared, name, task) for name in prepared.parts}


def _measured(prepared: Prepared, name: str, task: Task) -> Measures:
    scenario = prepared.parts[name].scenario
    stop = EarlyStop.for_run(prepared.workload, scenario.engine) if task.stop_early else None
    records = run_variant(prepared, name, EngineOptions(stop_when=stop))
    is_closed_loop = prepared.workload.clients.concurrency is not None
    found = measure(records, scenario.slo, warmup_rule(task.warmup, prepared), is_closed_loop)
    return {**found, **work(records, prepared.parts[name].model.spec)}
