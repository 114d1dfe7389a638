"""Runs that were ended early without need: simulated to their end before a mean is taken over them.

A run is ended when its own backlog is proved to grow. Over all replications of a point the proof may not hold; then the
first part of an unlucky run must not stand among whole ones, and there is a mean to be taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simserve.sweep.plan import Plan
from simserve.tasks.backlog import BacklogTest, pooled
from simserve.tasks.runner import Runner
from simserve.tasks.task import Measures, Task

Results = Sequence[Mapping[str, Measures]]


def with_whole_runs(plan: Plan, runner: Runner, measured: Results, drawn: Results) -> tuple[Results, Results]:
    """``measured`` and ``drawn`` with the rest of every run that was ended early although its point does not grow."""
    n = plan.config.replications
    stable = [_stable(names, measured[i * n : (i + 1) * n]) for i, names in enumerate(plan.names)]
    return (
        _completed(plan.measured(), stable, n, runner, measured),
        _completed(plan.drawn(), stable, n, runner, drawn),
    )


def _stable(names: Sequence[str], runs: Results) -> list[str]:
    """The variants of a setting whose backlog does not grow over all replications."""
    return [name for name in names if not pooled([BacklogTest.of(run[name]) for run in runs]).grows]


def _completed(
    tasks: Sequence[Task], stable: Sequence[Sequence[str]], n: int, runner: Runner, results: Results
) -> Results:
    again: dict[int, Task] = {}
    for k, (task, result) in enumerate(zip(tasks, results, strict=True)):
        names = tuple(name for name in stable[k // n] if result[name]["backlog"]["stopped_early"])
        if names:
            again[k] = replace(task, variants=names, stop_early=False)
    found = dict(zip(again, runner.run(list(again.values()), "runs that ended too early"), strict=True))
    return [{**result, **found.get(k, {})} for k, result in enumerate(results)]
