"""The document ``validation.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.errors import RunError
from simserve.recorded.aggregates import RecordedAggregates
from simserve.recorded.differences import StepComparison, compare_steps
from simserve.recorded.run import RecordedRun
from simserve.recorded.steps import StepRecord
from simserve.request import RequestTable
from simserve.scenario import Scenario
from simserve.scenario.messages import printable
from simserve.validate.observed import Mask, Observed, figures
from simserve.validate.predict import simulated_steps
from simserve.validate.score import nested, score

SCHEMA_VERSION = 1
KIND = "simserve validate"


@dataclass(frozen=True)
class Validated:
    """Both sides in the same columns, a simulation for every run whose requests came at times of its own (else one).
    ``drawn`` are simulations on draws of what another calibration might have measured, ``counted`` are the requests
    that finished in every run and in the simulation."""

    measured: tuple[Observed, ...]
    predicted: tuple[Observed, ...]
    counted: Mask
    drawn: tuple[Observed, ...] = ()


def both_sides(measured: Sequence[Observed], predicted: Sequence[Observed], source: str) -> Validated:
    """Raises RunError when there is no request that finished on both sides."""
    finished = [run.finished for run in (*measured, *predicted)]
    counted = np.logical_and.reduce(finished)
    if not counted.any():
        raise RunError(
            printable(f"{source}: must have a request that finished in the run and in the simulation (there is none)")
        )
    return Validated(tuple(measured), tuple(predicted), counted)


def validation_document(scenario: Scenario, engine: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """The document without what was known beforehand, steps, notes and limit, which the caller puts in."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "scenario": scenario.name,
        "engine": engine,
        "known_beforehand": [],
        "metrics": metrics,
        "steps": None,
        "notes": [],
        "limit": None,
    }


def scored(sides: Validated) -> dict[str, Any]:
    """``metrics`` of the document."""
    both = (sides.measured, sides.predicted, sides.drawn)
    measured, predicted, drawn = ([figures(run, sides.counted) for run in side] for side in both)
    return nested(score(measured, predicted, drawn))


def engine_entry(kind: str, runs: Sequence[RecordedRun] | Sequence[RecordedAggregates]) -> dict[str, Any]:
    """The real side: how it was met (``recorded``, ``in process``, ``by URL``), what it says of itself, its runs."""
    return {
        "kind": kind,
        "name": runs[0].engine or "an engine that is not named",
        "format": runs[0].format,
        "runs": [run.source for run in runs],
        "num_runs": len(runs),
        "settings": dict(getattr(runs[0], "settings", {})),
    }


def steps_entry(compared: Sequence[tuple[str, StepComparison]]) -> dict[str, Any] | None:
    """Over all runs that have steps, by their names: how many steps have the same composition, and the first that has
    not, with both sides' state; None without any."""
    if not compared:
        return None
    first = next(((name, one.first) for name, one in compared if one.first is not None), None)
    return {
        "compared": sum(one.compared for _, one in compared),
        "identical": sum(one.identical for _, one in compared),
        "first_difference": None
        if first is None
        else {
            "run": first[0],
            "step": first[1].index,
            "fields": list(first[1].fields),
            "measured": _state(first[1].measured),
            "predicted": _state(first[1].simulated),
        },
    }


def compare_run_steps(scenario: Scenario, variant: str, run: RecordedRun, table: RequestTable) -> StepComparison | None:
    """The run's steps against those that the scenario's policy decides for ``table``, each request known to it from the
    same step on. None where the run has no steps, or its requests are not in the order of their numbers."""
    if run.steps is None or run.arrived_step is None or not np.array_equal(run.file_rows, np.arange(len(run))):
        return None
    if (np.diff(run.arrived_step) < 0).any():
        return None
    return compare_steps(run.steps, simulated_steps(scenario, variant, table, run.arrived_step))


def _state(step: StepRecord | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        "prefills": [work._asdict() for work in sorted(step.prefills)],
        "decodes": [work._asdict() for work in sorted(step.decodes)],
        "admitted": list(step.admitted),
        "preempted": list(step.preempted),
        "num_batched_tokens": step.num_batched_tokens,
        "free_blocks": step.free_blocks,
    }
