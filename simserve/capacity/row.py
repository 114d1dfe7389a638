"""One row of the answer: what one variant with one setting carries within the SLOs, what limits it, what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.capacity.cost import Question, cost_per_hour, cost_per_million, replicas_for
from simserve.capacity.lengths import FARTHEST, Lengths
from simserve.capacity.search import Effort, Found, find_capacity
from simserve.capacity.slo import WORST, Slo
from simserve.knee.bootstrap import without_interval
from simserve.knee.calibration import widened
from simserve.knee.find import looked_at, saturation_of
from simserve.knee.load_axis import LoadAxis
from simserve.knee.points import curve_point
from simserve.knee.probe import Probe
from simserve.knee.saturation import Saturation
from simserve.knee.step_times import gpus_per_replica, step_time_of
from simserve.scenario import GeneratedWorkload, TenantsWorkload
from simserve.tasks.intervals import Interval
from simserve.tasks.task import Measures

FloatArray = npt.NDArray[np.float64]
NOT_SETTLED = "not settled: more requests"
GROWS = 1.25  # times as much in the longest runs: more than noise


@dataclass(frozen=True)
class Asked:
    """The whole question: SLOs, target rate and price, and how hard to look."""

    slos: tuple[Slo, ...]
    question: Question
    effort: Effort


class Rates:
    """Looks up, at loads that a probe runs, how much of each SLO is used, and remembers the runs for the curve."""

    def __init__(self, probe: Probe, slos: Sequence[Slo], lengths: Lengths) -> None:
        self._probe = probe
        self._slos = slos
        self.lengths = lengths
        self.runs: dict[float, list[Measures]] = {}  # of each load the most replications that were asked for

    def used(self, loads: Sequence[float], replications: int, stop_early: bool) -> FloatArray:
        """Used shares of the limits by replication, load and SLO."""
        unit = self._probe.study.axis.unit
        what = f"{'looking along' if stop_early else f'{replications} replications at'} {len(loads)} loads, {unit}"
        lengths = [self.lengths.at(load) for load in loads]
        grid = self._probe.grid(loads, replications, what, stop_early, lengths)
        for load, runs in zip(loads, grid, strict=True):
            if len(runs) > len(self.runs.get(load, ())) or not stop_early:
                self.runs[load] = runs
        return self._ratios(grid)

    def is_bounded(self, load: float, replications: int) -> bool:
        """Whether every SLO holds at saturation, however long the runs are: none of their figures grows with them. In
        a trace, which has the length that it has: none grows much on the way there."""
        longest = self.lengths.longest
        loads, lengths = ([load, load], [1, longest]) if longest > 1 else ([FARTHEST * load, load], [1, 1])
        what = f"do waits grow with the run at {load:.4g} {self._probe.study.axis.unit}?"
        used = self._ratios(self._probe.grid(loads, replications, what, lengths=lengths)).mean(axis=0)
        return bool((used[1] <= 1).all() and (used[1] <= GROWS * used[0]).all())

    def _ratios(self, grid: Sequence[Sequence[Measures]]) -> FloatArray:
        return np.array([[[slo.ratio(run) for slo in self._slos] for run in runs] for runs in grid]).swapaxes(0, 1)

    def tightest(self, load: float) -> tuple[Slo, float]:
        """The SLO that is used most at a load, and how much of it, between the loads that were run (log scales)."""
        loads = sorted(self.runs)
        logs = np.log(loads)
        shares = [
            float(np.exp(np.interp(np.log(load), logs, np.log([_mean_share(slo, self.runs[x]) for x in loads]))))
            for slo in self._slos
        ]
        i = int(np.argmax(shares))
        return self._slos[i], shares[i]

    def mean(self, name: str, load: float) -> float:
        """A measure at a load, between the loads that were run; 0 where it was never measured."""
        known = [(x, _mean([run[name] for run in self.runs[x]])) for x in sorted(self.runs)]
        there = [(x, y) for x, y in known if y is not None]
        return float(np.interp(load, [x for x, _ in there], [y for _, y in there])) if there else 0.0


def capacity_row(probe: Probe, settings: Mapping[str, Any], asked: Asked) -> tuple[dict[str, Any], list[str]]:
    """A row of ``capacity.json`` and notes. Raises InputError."""
    axis, scenario = probe.study.axis, probe.study.variants[probe.variant]
    saturation, note = saturation_of(probe, asked.effort.replications)
    closed = axis.is_closed_loop
    is_generated = isinstance(scenario.workload, GeneratedWorkload | TenantsWorkload)
    lengths = Lengths(probe.study.num_requests, is_generated, None if closed else saturation.load)
    top = axis.snap(looked_at(saturation, probe.study)[1] if closed else lengths.settled_load)
    rates, spread = Rates(probe, asked.slos, lengths), saturation.spread
    found = find_capacity(rates.used, top, asked.effort, axis.distinct)
    load, limited_by, reason = _answer(found, saturation, top, rates, probe)
    served = _served(load, rates, axis.base_rps)
    if limited_by != "saturation":  # whose interval holds the noise of calibration already
        load, served = (load if axis.is_closed_loop else widened(load, spread)), widened(served, spread)
    gpus = gpus_per_replica(scenario)
    row = {
        "variant": probe.variant,
        "settings": dict(settings),
        "capacity": served,
        "load": load,
        "limited_by": limited_by,
        "reason": reason,
        "saturation": saturation.as_dict(),
        "gpus_per_replica": gpus,
        **_money(served, _tokens(load, rates), gpus, asked.question),
        "curve": [curve_point(x, rates.runs[x]) for x in sorted(rates.runs)],
        "num_simulations": probe.num_simulations,
        "step_time": step_time_of(scenario),
    }
    return row, ([note] if note else []) + _notes(probe, load, limited_by, rates)


def no_answer(probe: Probe, settings: Mapping[str, Any], asked: Asked, reason: str) -> dict[str, Any]:
    """The row of a variant that cannot be answered for; the others have theirs."""
    nothing = without_interval(None, 0)
    scenario = probe.study.variants[probe.variant]
    gpus = gpus_per_replica(scenario)
    return {
        "variant": probe.variant,
        "settings": dict(settings),
        "capacity": nothing,
        "load": nothing,
        "limited_by": None,
        "reason": reason,
        "saturation": {**nothing, "checks": [], "calibration_spread": 0.0},
        "gpus_per_replica": gpus,
        **_money(nothing, (0.0, 0.0), gpus, asked.question),
        "curve": [],
        "num_simulations": probe.num_simulations,
        "step_time": step_time_of(scenario),
    }


def _notes(probe: Probe, load: Interval, limited_by: str | None, rates: Rates) -> list[str]:
    """What of an answer is open, and who left of his own accord."""
    found = []
    if limited_by == NOT_SETTLED:
        remedy = "raise workload.num_requests" if rates.lengths.can_grow else "a longer trace would"
        found.append(
            f"{probe.variant}: every SLO holds as near to saturation as these runs can tell; to settle where it breaks "
            f"between {load['low']:.4g} and {load['high']:.4g} {probe.study.axis.unit}: {remedy}"
        )
    if load["value"] is not None:
        cancelled, num = (rates.mean(name, load["value"]) for name in ("num_cancelled", "num_requests"))
        if cancelled > 0:
            share = cancelled / num
            found.append(
                f"{probe.variant}: {share:.1%} of the requests were cancelled by their clients; no SLO counts them"
            )
    return found


def _answer(
    found: Found, saturation: Saturation, top: float, rates: Rates, probe: Probe
) -> tuple[Interval, str | None, str | None]:
    """The load that is carried, what limits it, and in words why there is none or why it is not an SLO."""
    axis = probe.study.axis
    if found.limited_by == "saturation" and axis.is_closed_loop:
        reason = f"every SLO holds up to {top:,.0f} clients, where latency only grows with their number"
        return without_interval(top, found.replications), "saturation", reason
    if found.limited_by == "saturation":
        if rates.is_bounded(axis.snap(saturation.load), found.replications):
            return saturation.interval, "saturation", "every SLO holds up to the saturation rate"
        high = saturation.interval["high"] or saturation.load
        between = without_interval(top, found.replications)
        between["low"], between["high"] = top, max(top, high)
        return between, NOT_SETTLED, f"every SLO holds at {top:.4g} {axis.unit}; beyond, longer runs are needed"
    if found.limited_by == "nowhere":
        return found.capacity, *_nowhere(found, rates, axis)
    assert found.capacity["value"] is not None, "an SLO limits it somewhere"
    return found.capacity, rates.tightest(found.capacity["value"])[0].metric, None


def _nowhere(found: Found, rates: Rates, axis: LoadAxis) -> tuple[str, str]:
    """The SLO that fails everywhere, and in words where it came nearest and by how much."""
    share, slo, best = min(((*rates.tightest(x)[::-1], x) for x in found.loads), key=lambda each: each[0])
    where = "even" if best == found.loads[0] else "at every load, at best"
    at = "1 client" if axis.is_closed_loop and best == 1 else f"{best:.3g} {axis.unit}"
    lost = _mean([slo.lost_share(run) for run in rates.runs[best]]) or 0.0
    by = f"{share:.3g} times its limit"
    if share >= WORST / 10 and lost > 0:  # stands for infinity
        by = f"{lost:.1%} were never answered"
    return slo.metric, f"{slo.text} fails {where} at {at}: {by}"


def _served(load: Interval, rates: Rates, base_rps: float | None) -> Interval:
    """The load in requests/s: the rate itself, a trace's scale times its rate, or what so many clients are answered."""
    if base_rps is not None:
        return _mapped(load, lambda x: x * base_rps)
    return _mapped(load, lambda x: rates.mean("requests_per_s", x))


def _mapped(found: Interval, of: Callable[[float], float]) -> Interval:
    value, low, high = (None if end is None else of(end) for end in (found["value"], found["low"], found["high"]))
    return {**found, "value": value, "low": low, "high": high}


def _tokens(load: Interval, rates: Rates) -> tuple[float, float]:
    """Output tokens, and all tokens, that a request brings on average, unanswered ones counted as none."""
    if load["value"] is None:
        return 0.0, 0.0
    answered = 1 - rates.mean("unanswered_share", load["value"])
    outputs, prompts = (rates.mean(f"mean_{kind}_tokens", load["value"]) for kind in ("output", "prompt"))
    return answered * outputs, answered * (outputs + prompts)


def _money(served: Interval, tokens: tuple[float, float], gpus: int, question: Question) -> dict[str, Any]:
    """Token rates of one replica at capacity, replicas, and costs."""
    value = served["value"]
    replicas = None if question.target_rps is None else replicas_for(question.target_rps, served)
    count = replicas["value"] if replicas else 1
    price = question.price_per_gpu_hour
    return {
        "output_tokens_per_s": None if value is None else value * tokens[0],
        "total_tokens_per_s": None if value is None else value * tokens[1],
        "replicas": replicas,
        "cost_per_million_output_tokens": cost_per_million(tokens[0], served, gpus, question),
        "cost_per_million_tokens": cost_per_million(tokens[1], served, gpus, question),
        "cost_per_hour": None if price is None or value is None else cost_per_hour(gpus, price, count),
    }


def _mean_share(slo: Slo, runs: Sequence[Measures]) -> float:
    return sum(slo.ratio(run) for run in runs) / len(runs)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
