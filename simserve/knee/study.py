"""A scenario whose load is turned: what is the same in all of its simulations, and the task of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simserve.knee.load_axis import LoadAxis, load_axis
from simserve.knee.replicated import drawn_anew
from simserve.scenario import GeneratedWorkload, Scenario, TenantsWorkload, TraceWorkload, parse_scenario
from simserve.scenario.load import apply_overrides
from simserve.scenario.merge import merge
from simserve.scenario.messages import printable
from simserve.scenario.yaml_file import read_yaml
from simserve.step_time.stretch import NS_PER_S
from simserve.tasks.settings import apply_settings
from simserve.tasks.task import Task
from simserve.tasks.warmup import MIN_REQUESTS, SHARE
from simserve.workload import build_workload
from simserve.workload.generated_sessions import drawn_sessions
from simserve.workload.mixture import total_rate_rps
from simserve.workload.resample import blocks_in_words


class Ask(NamedTuple):
    """One run: a load (None: everybody at once), a replication, whether its step times are a bootstrap draw of the
    profile's instead of those measured, and how many times the scenario's requests it has, where they are generated."""

    load: float | None
    replication: int
    is_drawn: bool = False
    length: int = 1


@dataclass(frozen=True)
class Study:
    """``data`` is the scenario's plain data, overrides applied; ``variants`` are its variants, each a whole scenario.
    ``num_requests`` is how many requests each run has, ``replications`` how many runs there are of each load at first;
    ``notes`` say what was changed to replicate it. ``calibration_noise`` says whether intervals hold what another
    calibration might have given."""

    data: Mapping[str, Any]
    scenario: Scenario
    variants: Mapping[str, Scenario]
    axis: LoadAxis
    num_requests: int
    replications: int
    notes: tuple[str, ...] = ()
    calibration_noise: bool = True

    def task(self, variant: str, ask: Ask, stop_early: bool = False) -> Task:
        """One run of a variant, on the requests of its replication, which are the same at every load and in every
        variant."""
        everybody = ask.load is None
        data = self.axis.everybody_at_once(self.data) if everybody else self.axis.at(self.data, ask.load or 0.0)
        if ask.length != 1:
            data = merge(data, {"workload": {"num_requests": ask.length * self.num_requests}})
        return Task(
            data=data,
            source=self.scenario.source,
            base_dir=str(self.scenario.base_dir.resolve()),
            seed=self.scenario.seed + ask.replication,
            calibration_draw=ask.replication if ask.is_drawn else None,
            variants=(variant,),
            stop_early=stop_early,
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Study:
        """The same question of a scenario with other settings. Raises ScenarioError."""
        data = apply_settings(self.data, settings, typed=settings.keys())
        source, base_dir = self.scenario.source, self.scenario.base_dir
        if any(key.startswith("workload.") for key in settings):
            return replace(
                study_of(data, source, base_dir, self.replications), calibration_noise=self.calibration_noise
            )
        scenario = parse_scenario(data, source, base_dir)
        return replace(self, data=data, scenario=scenario, variants=scenario.resolve_variants())


def open_study(path: Path, overrides: Sequence[str], seed: int | None, replications: int) -> Study:
    """Read a scenario file, with overrides, and find its axis of load. Raises InputError."""
    seeds = () if seed is None else (f"seed={seed}",)
    return study_of(_plain_data(path, (*overrides, *seeds)), path.name, path.parent, replications)


def study_of(data: Mapping[str, Any], source: str, base_dir: Path, replications: int) -> Study:
    """The study of a scenario's plain data. Raises InputError.

    A trace that is to be replicated is resampled in blocks (circular block bootstrap) unless the scenario says how.
    """
    scenario = parse_scenario(data, source, base_dir)
    data, drawn = drawn_anew(data, scenario, replications)
    if drawn:
        scenario = parse_scenario(data, source, base_dir)
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        return _of_trace(data, scenario, replications)
    num_requests = workload.num_requests
    cut = (f"the first {SHARE:.0%} of the requests of each run are warm-up and left out",)
    notes = (*(cut if num_requests >= MIN_REQUESTS else ()), *drawn)
    axis = load_axis(data, source, _own_rps(workload, scenario.seed, base_dir))
    return Study(data, scenario, scenario.resolve_variants(), axis, num_requests, replications, notes)


def _own_rps(workload: GeneratedWorkload | TenantsWorkload, seed: int, base_dir: Path) -> float | None:
    """Requests per second at one unit of load, where that is no rate of requests."""
    if isinstance(workload, TenantsWorkload):
        return total_rate_rps(workload, base_dir)
    if workload.sessions is None:
        return None
    return workload.num_requests / drawn_sessions(workload, workload.sessions, seed).num_sessions


def _plain_data(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """A scenario file's data with overrides applied, its ``sweep:`` left aside."""
    read = read_yaml(path)
    if not isinstance(read, Mapping):
        parse_scenario(read, path.name, path.parent)  # says what is wrong with it
        return {}
    return apply_overrides({key: value for key, value in read.items() if key != "sweep"}, overrides)


def _of_trace(data: Mapping[str, Any], scenario: Scenario, replications: int) -> Study:
    """The study of a trace, which is read here once for its length and its own rate."""
    config = scenario.workload.model_copy(update={"rate_scale": 1.0, "resample": None})
    workload = build_workload(config, scenario.seed, scenario.base_dir)
    n = len(workload.table)
    span_ns = int(workload.table.arrival_ns[-1] - workload.table.arrival_ns[0])
    axis = load_axis(data, scenario.source, (n - 1) * NS_PER_S / span_ns if span_ns else None)
    notes = workload.notes
    if replications > 1 and data["workload"].get("resample") is None:
        block = math.isqrt(n - 1) + 1
        resampled = {**data["workload"], "resample": {"block_requests": block}}
        data = {**data, "workload": resampled}
        blocks = blocks_in_words(block, of_sessions=workload.clients.turns is not None)
        again = "(workload.resample); --replications 1 replays it as it is"
        notes += (printable(f"the trace is resampled for each replication in {blocks} {again}"),)
        scenario = parse_scenario(data, scenario.source, scenario.base_dir)
    return Study(data, scenario, scenario.resolve_variants(), axis, n, replications, tuple(notes))
