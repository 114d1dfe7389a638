"""Everything that a sweep will simulate, settled and checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.errors import ScenarioError
from simserve.knee.replicated import drawn_anew
from simserve.manifest import resolved_scenario, step_time_entry
from simserve.scenario import Scenario, parse_scenario
from simserve.scenario.load import apply_overrides, as_mapping
from simserve.scenario.messages import one_sentence
from simserve.scenario.sweep_models import SweepConfig
from simserve.scenario.yaml_file import read_yaml
from simserve.simulate import prepare
from simserve.sweep.options import SweepOptions
from simserve.tasks.axes import Axis, build_axes, flat_notes, load_axis_of
from simserve.tasks.metric_names import check_metric
from simserve.tasks.settings import Settings, apply_settings, grid
from simserve.tasks.task import Task
from simserve.workload.resample import blocks_in_words


@dataclass(frozen=True)
class Plan:
    """``data`` has one scenario (plain data, no ``sweep``) per element of ``settings``, and ``names`` its variants':
    equally many at each, but without ``variants`` in the file they follow policy and allocator, which may be swept.
    ``step_times`` are by variant, of the first setting that has it. ``is_calibrated`` says whether some of all were
    measured, so that their noise can be drawn.
    """

    scenario: Scenario
    model: str
    axes: tuple[Axis, ...]
    load_axis: str | None
    settings: tuple[Settings, ...]
    data: tuple[Mapping[str, Any], ...]
    config: SweepConfig
    names: tuple[tuple[str, ...], ...]
    step_times: dict[str, dict[str, Any]]
    is_calibrated: bool
    notes: tuple[str, ...]

    @property
    def num_variants(self) -> int:
        """Variants at each setting."""
        return len(self.names[0])

    @property
    def seeds(self) -> list[int]:
        """The seed of each replication."""
        return [self.scenario.seed + r for r in range(self.config.replications)]

    def measured(self) -> list[Task]:
        """Every setting times every replication, with step times as measured; replications turn fastest."""
        return [self.task(i, r) for i in range(len(self.data)) for r in range(self.config.replications)]

    def drawn(self) -> list[Task]:
        """The same with a draw of the step times for each replication; nothing where no interval is drawn, or where
        nothing was measured."""
        if not (self.is_calibrated and self.config.calibration_noise and self.config.replications > 1):
            return []
        return [self.task(i, r, r) for i in range(len(self.data)) for r in range(self.config.replications)]

    def task(self, setting: int, replication: int, calibration_draw: int | None = None) -> Task:
        """One simulation of all variants."""
        return Task(
            data=self.data[setting],
            source=self.scenario.source,
            base_dir=str(self.scenario.base_dir.resolve()),
            seed=self.scenario.seed + replication,
            calibration_draw=calibration_draw,
            warmup=self.config.warmup,
            stop_early=self.config.early_stop,
        )


def build_plan(options: SweepOptions) -> Plan:
    """Read, complete and check the scenario at every point. Raises InputError."""
    path = options.scenario
    data = apply_overrides(as_mapping(read_yaml(path), path.name), options.overrides)
    base = parse_scenario(data, path.name, path.parent)
    config = _config(base.sweep or SweepConfig(), options)
    check_metric(config.metric, f"{path.name}: sweep.metric")
    data = {key: value for key, value in data.items() if key != "sweep"}
    axes = build_axes(data, path.name, config.over, options.over)
    settings = grid(axes)
    typed = [axis.key for axis in axes if axis.typed]
    points = [apply_settings(data, each, typed) for each in settings]
    workload_notes = prepare(parse_scenario(points[0], path.name, path.parent), only=()).workload.notes
    points, notes = _replicable(points, config.replications, path)
    first = parse_scenario(points[0], path.name, path.parent)
    names, step_times = _checked(points, path)
    return Plan(
        scenario=first,
        model=str(resolved_scenario(next(iter(first.resolve_variants().values())))["model"]),
        axes=tuple(axes),
        load_axis=load_axis_of(axes),
        settings=tuple(settings),
        data=tuple(points),
        config=config,
        names=names,
        step_times={name: entries[0] for name, entries in step_times.items()},
        is_calibrated=any(entry["kind"] == "profile" for entries in step_times.values() for entry in entries),
        notes=(*flat_notes(data, axes), *notes, *_differ(step_times), *workload_notes),
    )


def _config(of_the_file: SweepConfig, options: SweepOptions) -> SweepConfig:
    """The file's block with what the command line says in its place, held to the same rules. Raises ScenarioError."""
    try:
        return SweepConfig.model_validate({**of_the_file.model_dump(), **options.chosen()})
    except ValidationError as error:
        raise ScenarioError(one_sentence(error, SweepConfig, "command line", ("sweep",))) from None


def _checked(
    points: list[dict[str, Any]], path: Path
) -> tuple[tuple[tuple[str, ...], ...], dict[str, list[dict[str, Any]]]]:
    """Every point built as a run would build it: the names of its variants, and by name the step times it has
    anywhere, each once. Raises InputError."""
    names: list[tuple[str, ...]] = []
    step_times: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        parts = prepare(parse_scenario(point, path.name, path.parent)).parts
        names.append(tuple(parts))
        for name, part in parts.items():
            entries, entry = step_times.setdefault(name, []), step_time_entry(part)
            if entry not in entries:
                entries.append(entry)
    return tuple(names), step_times


def _differ(step_times: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """A note where the step times themselves are swept, for the document shows one per variant."""
    return [
        f"the step times of {name} are swept: {', '.join(str(entry['name']) for entry in entries)}"
        for name, entries in step_times.items()
        if len(entries) > 1
    ]


def _replicable(points: list[dict[str, Any]], replications: int, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The points, each trace among them resampled when there is more than one replication: a trace replayed again would
    be the same requests again."""
    if replications == 1:
        return points, []
    blocks: dict[str, int] = {}
    told: dict[str, None] = {}
    drawn: dict[str, None] = {}
    changed = []
    for point in points:
        workload = point.get("workload")
        if isinstance(workload, Mapping) and "tenants" in workload:
            anew, of_tenants = drawn_anew(point, parse_scenario(point, path.name, path.parent), replications)
            changed.append(anew)
            drawn |= dict.fromkeys(of_tenants)
            continue
        if not isinstance(workload, Mapping) or not workload.get("trace") or workload.get("resample"):
            changed.append(point)
            continue
        name = repr((workload["trace"], workload.get("limit")))
        if name not in blocks:
            scenario = parse_scenario(point, path.name, path.parent)
            found = prepare(scenario, only=()).workload
            blocks[name] = math.isqrt(len(found.table) - 1) + 1
            told[blocks_in_words(blocks[name], of_sessions=found.clients.turns is not None)] = None
        changed.append({**point, "workload": {**workload, "resample": {"block_requests": blocks[name]}}})
    notes = [
        f"each replication draws the trace anew in {each} (workload.resample); one replication replays it as it is"
        for each in told
    ]
    return changed, [*notes, *drawn]
