"""Everything that a sweep will simulate, settled and checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.manifest import resolved_scenario, step_time_entry
from simserve.scenario import Scenario, parse_scenario
from simserve.scenario.load import apply_overrides, as_mapping
from simserve.scenario.sweep_models import SweepConfig
from simserve.scenario.yaml_file import read_yaml
from simserve.simulate import Prepared, prepare
from simserve.sweep.axes import Axis, build_axes, flat_notes, load_axis_of
from simserve.sweep.metric_names import check_metric
from simserve.sweep.options import SweepOptions
from simserve.sweep.settings import Settings, apply_settings, grid
from simserve.sweep.task import Task


@dataclass(frozen=True)
class Plan:
    """``data`` has one scenario (plain data, no ``sweep``) per element of ``settings``. ``is_calibrated`` says whether
    some step times were measured, so that their noise can be drawn. ``step_times`` are by variant, of the first point.
    """

    scenario: Scenario
    model: str
    axes: tuple[Axis, ...]
    load_axis: str | None
    settings: tuple[Settings, ...]
    data: tuple[Mapping[str, Any], ...]
    config: SweepConfig
    variants: tuple[str, ...]
    step_times: dict[str, dict[str, Any]]
    is_calibrated: bool
    notes: tuple[str, ...]

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
    config = (base.sweep or SweepConfig()).model_copy(update=options.chosen())
    check_metric(config.metric, f"{path.name}: sweep.metric")
    data = {key: value for key, value in data.items() if key != "sweep"}
    axes = build_axes(data, path.name, config.over, options.over)
    settings = grid(axes)
    typed = [axis.key for axis in axes if axis.typed]
    points = [apply_settings(data, each, typed) for each in settings]
    points, notes = _replicable(points, config.replications, path)
    prepared = [prepare(parse_scenario(point, path.name, path.parent)) for point in points[:1]]
    for point in points[1:]:
        prepare(parse_scenario(point, path.name, path.parent))
    return _plan(prepared[0], axes, settings, points, config, [*flat_notes(data, axes), *notes])


def _plan(
    first: Prepared,
    axes: list[Axis],
    settings: list[Settings],
    points: list[dict[str, Any]],
    config: SweepConfig,
    notes: list[str],
) -> Plan:
    step_times = {name: step_time_entry(parts) for name, parts in first.parts.items()}
    return Plan(
        scenario=first.scenario,
        model=str(resolved_scenario(first.scenario)["model"]),
        axes=tuple(axes),
        load_axis=load_axis_of(axes),
        settings=tuple(settings),
        data=tuple(points),
        config=config,
        variants=tuple(first.parts),
        step_times=step_times,
        is_calibrated=any(entry["kind"] == "profile" for entry in step_times.values()),
        notes=(*notes, *first.workload.notes),
    )


def _replicable(points: list[dict[str, Any]], replications: int, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The points, each trace among them resampled when there is more than one replication: a trace replayed again would
    be the same requests again."""
    if replications == 1:
        return points, []
    blocks: dict[str, int] = {}
    changed = []
    for point in points:
        workload = point.get("workload")
        if not isinstance(workload, Mapping) or not workload.get("trace") or workload.get("resample"):
            changed.append(point)
            continue
        name = repr((workload["trace"], workload.get("limit")))
        if name not in blocks:
            scenario = parse_scenario(point, path.name, path.parent)
            blocks[name] = math.isqrt(len(prepare(scenario, only=()).workload.table) - 1) + 1
        changed.append({**point, "workload": {**workload, "resample": {"block_requests": blocks[name]}}})
    notes = [
        f"each replication draws the trace anew in blocks of {block} consecutive requests "
        "(workload.resample); one replication replays it as it is"
        for block in dict.fromkeys(blocks.values())
    ]
    return changed, notes
