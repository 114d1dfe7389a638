"""What "more load" means for a scenario: the one key that is turned, its unit, and everybody at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.merge import merge
from simserve.scenario.messages import printable

EVERYBODY_AT_ONCE = 1e6  # workload.rate_scale of a trace: an hour arrives within 4 ms, still in whole nanoseconds


@dataclass(frozen=True)
class LoadAxis:
    """The key of offered load. ``base_rps``: requests per second at one unit of load (a trace at ``rate_scale`` 1; 1.0
    where load is a rate of requests, and as many as a session has where it is one of sessions); null in a closed loop,
    where clients wait for their answers."""

    key: str
    label: str
    unit: str
    base_rps: float | None

    @property
    def is_closed_loop(self) -> bool:
        """Load is a number of clients."""
        return self.base_rps is None

    def snap(self, load: float) -> float:
        """The nearest load that can be set: whole clients, at least one; rates to ten digits."""
        return float(max(1, round(load))) if self.is_closed_loop else float(f"{load:.10g}")

    def distinct(self, loads: Iterable[float]) -> list[float]:
        """Loads that can be set, ascending, each once."""
        return sorted({self.snap(load) for load in loads})

    def at(self, data: Mapping[str, Any], load: float) -> dict[str, Any]:
        """A scenario's plain data at another load."""
        value = int(load) if self.is_closed_loop else float(load)
        setting: dict[str, Any] = {self.key.rpartition(".")[2]: value}
        return merge(data, {"workload": {"arrivals": setting} if ".arrivals." in self.key else setting})

    def everybody_at_once(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """An open loop's plain data with all requests there from the start."""
        if self.key == "workload.rate_scale":
            return self.at(data, EVERYBODY_AT_ONCE)
        workload = {**data["workload"], "arrivals": {"process": "all_at_once"}}
        return {**data, "workload": workload}

    def as_dict(self) -> dict[str, Any]:
        """``load`` of the documents."""
        return {"key": self.key, "label": self.label, "unit": self.unit, "base_rps": self.base_rps}


def load_axis(data: Mapping[str, Any], source: str, trace_rps: float | None = None) -> LoadAxis:
    """The axis of a validated scenario's plain data. ``trace_rps`` is the own rate of a trace, or of all tenants
    together (requests/s), and for generated sessions how many requests one has.

    Raises ScenarioError for a workload that has no load to turn: everybody at once.
    """
    workload = data["workload"]
    if workload.get("concurrency") is not None:
        return LoadAxis("workload.concurrency", "concurrent clients", "clients", None)
    if "tenants" in workload:
        return LoadAxis("workload.rate_scale", "rate scale (1 = the tenants' own rates)", "×", trace_rps)
    if "trace" in workload:
        if trace_rps is None or not math.isfinite(trace_rps):
            where = printable(f"{source}: workload.trace")
            raise ScenarioError(f"{where}: must span some time to be scaled (every request arrives at once)")
        return LoadAxis("workload.rate_scale", "rate scale (1 = as traced)", "×", trace_rps)
    if workload["arrivals"]["process"] == "all_at_once":
        raise ScenarioError(
            printable(
                f"{source}: workload.arrivals.process: must have a rate or clients to turn up (got all_at_once); give "
                "process: poisson with a rate_rps, or concurrency: N instead of arrivals"
            )
        )
    if workload["arrivals"]["process"] == "windows":
        raise ScenarioError(
            printable(
                f"{source}: workload.arrivals.process: must have one rate to turn up (got windows); make it a "
                "tenant's, under workload.tenants: their rate_scale can be turned"
            )
        )
    if workload.get("sessions") is not None:
        return LoadAxis("workload.arrivals.rate_rps", "offered load, sessions/s", "sessions/s", trace_rps)
    return LoadAxis("workload.arrivals.rate_rps", "offered load, requests/s", "requests/s", 1.0)
