"""``simserve knee``: for every variant its saturation rate, its load knee and its batch knee, as one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.knee.batch import batch_knee_of
from simserve.knee.bootstrap import without_interval
from simserve.knee.calibration import widened
from simserve.knee.curve import RANGE, curve_knee
from simserve.knee.plateau import bounded_saturation, closed_loop_saturation, is_bounded, most_clients
from simserve.knee.points import curve_point, latencies_of
from simserve.knee.probe import Probe
from simserve.knee.saturation import Saturation, StudyError, open_loop_saturation
from simserve.knee.step_times import step_time_of
from simserve.knee.study import Study
from simserve.tasks.runner import Runner

KIND = "simserve knee"
CLOSED_LOOP_SPAN = 4  # times the clients that saturate: beyond, latency only goes on in a straight line


def find_knees(study: Study, runner: Runner, metric: str, replications: int, num_loads: int) -> dict[str, Any]:
    """The content of ``knee.json``; ``metric`` is a dotted latency. Raises InputError: too few requests to saturate."""
    variants: dict[str, Any] = {}
    saturations: dict[str, Saturation] = {}
    notes, failed = list(study.notes), []
    for name in study.variants:
        probe = Probe(study, name, runner)
        try:
            saturation, note = saturation_of(probe, replications)
        except StudyError as error:
            failed.append(error)
            variants[name] = _without(probe, str(error))
            notes.append(f"no saturation rate: {name}: {error}")
            continue
        notes += [note] if note else []
        saturations[name] = saturation
        variants[name] = _variant(probe, saturation, metric, replications, num_loads)
    if len(failed) == len(study.variants):
        raise failed[0]
    notes += _unproved(saturations)
    notes += calibration_notes({name: saturation.spread for name, saturation in saturations.items()})
    closed = study.axis.is_closed_loop
    looked = f"1 client to at most {CLOSED_LOOP_SPAN} times" if closed else f"{RANGE[0]:.0%} to {RANGE[1]:.0%} of"
    notes.append(f"load knee: Kneedle on {metric} over load, from {looked} the saturation load")
    return {
        "schema_version": 1,
        "kind": KIND,
        "scenario": study.scenario.name,
        "model": study.scenario.model,
        "load": study.axis.as_dict(),
        "metric": metric,
        "replications": replications,
        "variants": variants,
        "notes": notes,
    }


def calibration_notes(spreads: Mapping[str, float]) -> list[str]:
    """What of the intervals is noise of calibration, by variant."""
    parts = [f"{name} {spread:.1%}" for name, spread in spreads.items() if spread > 0]
    said = f"intervals hold what another calibration might give, a standard deviation of: {', '.join(parts)}"
    return [said] if parts else []


def saturation_of(probe: Probe, replications: int) -> tuple[Saturation, str | None]:
    """By the rule for the scenario's kind of load, and a note where it could not be settled."""
    if probe.study.axis.is_closed_loop:
        return closed_loop_saturation(probe, replications)
    if is_bounded(probe.study.variants[probe.variant]):
        return bounded_saturation(probe, replications)
    return open_loop_saturation(probe, replications), None


def _variant(probe: Probe, saturation: Saturation, metric: str, replications: int, num_loads: int) -> dict[str, Any]:
    axis, scenario = probe.study.axis, probe.study.variants[probe.variant]
    low, high = looked_at(saturation, probe.study)
    loads = axis.distinct(_doubling(low, high, num_loads) if axis.is_closed_loop else _towards(low, high, num_loads))
    grid = probe.grid(loads, replications, f"{len(loads)} loads up to {loads[-1]:.4g} {axis.unit}")
    seed, latencies = probe.study.scenario.seed, latencies_of(grid, metric)
    knee = curve_knee(loads, latencies, loads[0], loads[-1], seed, axis.is_closed_loop)
    knee = knee if axis.is_closed_loop else widened(knee, saturation.spread)  # clients are not faster or slower
    return {
        "saturation": saturation.as_dict(),
        "knee": {**knee, "range": [loads[0], loads[-1]]},
        "batch_knee": batch_knee_of(scenario),
        "curve": [curve_point(load, runs) for load, runs in zip(loads, grid, strict=True)],
        "step_time": step_time_of(scenario),
    }


def _without(probe: Probe, reason: str) -> dict[str, Any]:
    """A variant whose saturation rate could not be found: null, with the reason; the others have theirs."""
    scenario = probe.study.variants[probe.variant]
    nothing = without_interval(None, 0)
    return {
        "saturation": {**nothing, "checks": [], "calibration_spread": 0.0},
        "knee": {**nothing, "range": None},
        "batch_knee": batch_knee_of(scenario),
        "curve": [],
        "step_time": step_time_of(scenario),
        "reason": reason,
    }


def _unproved(saturations: dict[str, Saturation]) -> list[str]:
    """Notes where the tests do not bear an estimate out: the backlog grows below it, or does not above it."""
    seen: dict[tuple[float, bool], list[str]] = {}
    for name, saturation in saturations.items():
        for check in saturation.checks:
            if check["grows"] != (check["at"] > 1):
                seen.setdefault((check["at"], check["grows"]), []).append(name)
    return [
        f"{', '.join(names)}: the backlog {'grew' if grows else 'was not seen to grow'} at {at:g} times the saturation "
        "rate; more requests in each run would show more"
        for (at, grows), names in seen.items()
    ]


def looked_at(saturation: Saturation, study: Study) -> tuple[float, float]:
    """The range of loads that the knee is looked for in."""
    if study.axis.is_closed_loop:
        return 1.0, min(max(4.0, CLOSED_LOOP_SPAN * saturation.load), most_clients(study.num_requests))
    return RANGE[0] * saturation.load, RANGE[1] * saturation.load


def _doubling(low: float, high: float, count: int) -> list[float]:
    """Geometric clients, and those that were simulated for the plateau already."""
    plateau = [2.0**i for i in range(int(np.log2(high)) + 1)]
    return [*plateau, *np.geomspace(low, high, count).tolist()]


def _towards(low: float, high: float, count: int) -> list[float]:
    """Loads that come closer together towards saturation, where latency turns: idle capacity shrinks by a constant
    factor from each to the next."""
    full = high / RANGE[1]
    idle = np.geomspace(1 - low / full, 1 - high / full, count)
    return [float(full * (1 - share)) for share in idle]
