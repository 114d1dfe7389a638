"""The simulated side: the scenario's engine over the requests of the real run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.engine import EngineOptions
from simserve.errors import ScenarioError
from simserve.metrics import summarize
from simserve.recorded.steps import StepRecord
from simserve.recorded.watch import StepWatcher
from simserve.records import Records
from simserve.request import Batch, IntColumn, RequestTable
from simserve.scenario import Scenario
from simserve.scenario.messages import printable
from simserve.simulate import OnProgress, Prepared, prepare, run_engine, run_variant
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import NS_PER_S, Ramp
from simserve.validate.observed import Observed, observed_records

_STEPS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Prediction:
    """What one simulation of a variant says."""

    records: Records
    observed: Observed
    extrapolated_step_share: float


def chosen_variant(scenario: Scenario, name: str | None) -> str:
    """The variant to validate: the one named, or the scenario's only one. Raises ScenarioError."""
    names = list(scenario.resolve_variants())
    if name is None and len(names) > 1:
        raise ScenarioError(
            printable(f"{scenario.source}: has several variants ({', '.join(names)}); name one by --variant")
        )
    if name is not None and name not in names:
        raise ScenarioError(
            printable(f"--variant: must be a variant of {scenario.source} (got {name!r}); it has {', '.join(names)}")
        )
    return name or names[0]


def predict(prepared: Prepared, variant: str, table: RequestTable, on_progress: OnProgress | None = None) -> Prediction:
    """Run the prepared variant on ``table`` in place of its own requests. A prepared variant runs once."""
    on_these = replace(prepared, workload=replace(prepared.workload, table=table))

    def tell(num_ended: int) -> None:
        if on_progress is not None:
            on_progress(variant, num_ended, len(table))

    records = run_variant(on_these, variant, EngineOptions(on_progress=tell))
    summary = summarize(records)
    observed = observed_records(records, float(summary["mean_batch_size"]))
    return Prediction(records, observed, float(summary["extrapolated_step_share"]))


def simulated_steps(
    scenario: Scenario, variant: str, table: RequestTable, arrived_step: IntColumn
) -> tuple[StepRecord, ...]:
    """Every step of the variant's engine when request i is there from step ``arrived_step[i]`` on: scheduling alone,
    without any clock."""
    prepared = prepare(scenario, only=[variant])
    parts = prepared.parts[variant]
    watcher = StepWatcher(parts.scheduler)
    told = replace(table, arrival_ns=arrived_step * NS_PER_S)
    run_engine(told, watcher, _UnitSteps(), EngineOptions(fast_forward=False), prepared.workload.clients)
    return tuple(watcher.steps)


class _UnitSteps:
    """Every step takes one second, so that second k is step k."""

    source = StepTimeSource("a second a step", "roofline", "none", False, None, "")

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` begins."""
        return Ramp(1.0, 0.0, _STEPS_AT_ONCE)
