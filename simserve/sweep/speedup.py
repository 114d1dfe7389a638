"""What speculation gains and where it begins to cost: the speed of every speculating variant over the plain one's.

Speed is that of an answer once it has begun, tokens after the first per second: 1 / TPOT. It is compared on the same
requests, replication by replication. The break-even is where the pooled curve crosses 1; its interval comes from
resampling replications, as that of a capacity does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.scenario import Scenario, parse_scenario
from simserve.scenario.speculation_models import DraftCostConfig
from simserve.speculation.build import probabilities
from simserve.speculation.formula import mean_speedup
from simserve.sweep.plan import Plan
from simserve.tasks.intervals import calibration_sd, interval
from simserve.tasks.metric_names import metric_value
from simserve.tasks.task import Measures

MEASURE = "tpot_s.mean"
NUM_RESAMPLES = 1000
MIN_CROSSING = 0.95  # of the resampled curves, for an interval that can be called one

Results = Sequence[Mapping[str, Measures]]
Matrix = npt.NDArray[np.float64]


def build_speedups(plan: Plan, measured: Results, drawn: Results) -> dict[str, Any] | None:
    """The block ``speedups`` of ``sweep.json``: a curve per speculating variant and setting of the other axes, with
    what the closed form says where the cost of a draft is a number.

    None where no variant speculates or none does without, and where no axis has numbers to draw it over.
    """
    variants = plan.scenario.resolve_variants()
    speculating = [name for name, each in variants.items() if getattr(each.engine, "speculation", None)]
    plain = next((name for name in variants if name not in speculating), None)
    axis = plan.load_axis or next((each.key for each in plan.axes if _is_numeric(each.values)), None)
    if not speculating or plain is None or axis is None or any(set(names) != set(variants) for names in plan.names):
        return None
    curves = [
        _curve(plan, name, plain, axis, others, measured, drawn)
        for name in speculating
        for others in _settings_beside(plan, axis)
    ]
    return {"baseline": plain, "axis": axis, "measure": MEASURE, "curves": [each for each in curves if each["points"]]}


def speedup_notes(speedups: Mapping[str, Any] | None) -> Iterator[str]:
    """A sentence per curve: where speculation pays."""
    for curve in speedups["curves"] if speedups else ():
        assert speedups is not None
        others = ", ".join(f"{_last(key)} {value}" for key, value in curve["settings"].items())
        where = f"{curve['variant']}{' at ' if others else ''}{others}"
        yield f"speculation of {where} against {speedups['baseline']}: {_verdict(curve, _last(speedups['axis']))}"


def break_even(xs: Sequence[float], ratios: Matrix, seed: int = 0) -> dict[str, Any] | None:
    """Where the mean of ``ratios`` (replications × ``xs``, rising) first crosses 1, on straight lines between its
    points, with the interval that holds 95 % of resampled replications; ``pays`` says on which side ratios exceed 1.

    None where it does not cross. No interval for one replication, nor where fewer than 95 % of the resamples cross.
    """
    pooled = ratios.mean(axis=0)
    at = _crossing(xs, pooled)
    if at is None:
        return None
    found = {"value": at, "low": None, "high": None, "pays": "below" if pooled[0] > 1 else "above"}
    if len(ratios) > 1:
        rows = np.random.default_rng(seed).integers(len(ratios), size=(NUM_RESAMPLES, len(ratios)))
        crossings = [x for x in (_crossing(xs, ratios[row].mean(axis=0)) for row in rows) if x is not None]
        if len(crossings) >= MIN_CROSSING * NUM_RESAMPLES:
            low, high = np.quantile(crossings, [0.025, 0.975])
            found |= {"low": float(low), "high": float(high)}
    return found


def _crossing(xs: Sequence[float], values: npt.NDArray[np.float64]) -> float | None:
    above = values > 1
    changed = np.flatnonzero(above[1:] != above[:-1])
    if not len(changed):
        return None
    i = int(changed[0])
    way = (1 - values[i]) / (values[i + 1] - values[i])
    return float(xs[i] + way * (xs[i + 1] - xs[i]))


def _curve(  # noqa: PLR0913, PLR0917 - what is compared, over what, and of which runs
    plan: Plan,
    name: str,
    plain: str,
    axis: str,
    others: Mapping[str, Any],
    measured: Results,
    drawn: Results,
) -> dict[str, Any]:
    at = [i for i, each in enumerate(plan.settings) if {k: v for k, v in each.items() if k != axis} == others]
    at.sort(key=lambda i: _number(plan.settings[i][axis]))
    n = plan.config.replications
    points, columns, xs = [], [], []
    for i in at:
        ratios = [_ratio(result, name, plain) for result in measured[i * n : (i + 1) * n]]
        draws = [_ratio(result, name, plain) for result in drawn[i * n : (i + 1) * n]]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) < len(ratios):  # a replication without a second token has no speed
            continue
        noise = calibration_sd(ratios, draws) if draws else 0.0
        x = _number(plan.settings[i][axis])
        xs.append(x)
        columns.append(known)
        points.append({"x": x, **interval(ratios, noise, len(draws)), "formula": _formula(_variant(plan, i, name))})
    crossing = break_even(xs, np.array(columns).T) if points else None
    return {"variant": name, "settings": dict(others), "points": points, "break_even": crossing}


def _variant(plan: Plan, setting: int, name: str) -> Scenario:
    """A variant as it is at a setting."""
    scenario = parse_scenario(plan.data[setting], plan.scenario.source, plan.scenario.base_dir)
    return scenario.resolve_variants()[name]


def _formula(variant: Scenario) -> float | None:
    """The closed form's speed-up, None where what a draft costs is not a number but other step times."""
    speculation = variant.engine.speculation
    if speculation is None or not isinstance(speculation.draft, DraftCostConfig):
        return None
    return mean_speedup(probabilities(variant, speculation), speculation.draft.cost)


def _ratio(result: Mapping[str, Measures], name: str, plain: str) -> float | None:
    mine, base = (metric_value(result[each], MEASURE) for each in (name, plain))
    return base / mine if mine and base else None


def _settings_beside(plan: Plan, axis: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in plan.settings:
        others = {key: value for key, value in each.items() if key != axis}
        if others not in found:
            found.append(others)
    return found


def _verdict(curve: Mapping[str, Any], axis: str) -> str:
    at, points = curve["break_even"], curve["points"]
    if at is None:
        low, high = (pick(point["value"] for point in points) for pick in (min, max))
        always = "faster" if low > 1 else "slower"
        return f"{always} everywhere here, {low:.2f} to {high:.2f} times the speed of an answer"
    bounds = f" ({at['low']:.3g} to {at['high']:.3g})" if at["low"] is not None else ""
    other = "below" if at["pays"] == "above" else "above"
    return f"it pays {at['pays']} {axis} {at['value']:.3g}{bounds}, and slows generation down {other}"


def _is_numeric(values: Sequence[object]) -> bool:
    return len(values) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _last(key: str) -> str:
    return key.rpartition(".")[2]
