"""The saturation rate: the largest offered rate whose backlog does not grow. Measured, then tested.

A server with a backlog works as fast as it can, so its departures tell the rate; everybody at once makes a backlog.
But who waits changes what is served: an order that prefers short requests, fed everybody at once, makes batches of like
lengths that it could not make near saturation. So the rate is measured again just above the estimate, until the
departures agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simserve.errors import InputError
from simserve.knee.calibration import calibration_spread, widened
from simserve.knee.probe import Probe
from simserve.knee.study import Ask
from simserve.scenario.messages import printable
from simserve.tasks.backlog import BacklogTest, pooled
from simserve.tasks.intervals import Interval, interval
from simserve.tasks.task import Measures

OVERLOAD = 1.05
AGREEMENT = 0.01
MAX_ROUNDS = 6
TESTED_AT = (0.95, 1.05)  # of the saturation rate


class StudyError(InputError):
    """A question that this scenario cannot answer."""


@dataclass(frozen=True)
class Saturation:
    """In units of load. ``checks`` are growth tests below and above; ``plateau_rps`` is the throughput there in a
    closed loop (null in an open one, where it is the rate itself). ``spread`` is the standard deviation, as a share,
    that calibration gives to rates; the intervals hold it already."""

    interval: Interval
    checks: tuple[dict[str, Any], ...] = ()
    plateau_rps: Interval | None = None
    spread: float = 0.0

    @property
    def load(self) -> float:
        """The saturation rate itself."""
        assert self.interval["value"] is not None, "a study without a saturation rate was refused"
        return self.interval["value"]

    def as_dict(self) -> dict[str, Any]:
        """``saturation`` of the documents."""
        closed = {} if self.plateau_rps is None else {"plateau_rps": self.plateau_rps}
        return {**self.interval, "checks": list(self.checks), "calibration_spread": self.spread, **closed}


def open_loop_saturation(probe: Probe, replications: int) -> Saturation:
    """Per replication the departure rate under a backlog, re-run just above it until it agrees; t over replications.

    Raises StudyError when the requests are too few to keep anybody waiting.
    """
    base_rps = probe.study.axis.base_rps
    assert base_rps is not None, "an open loop"
    first = probe.run([Ask(None, r) for r in range(replications)], "everybody at once")
    known = [m["backlogged_rps"] for m in first]
    estimates = [(k or m["requests_per_s"] or 0.0) / base_rps for k, m in zip(known, first, strict=True)]
    settled = _settle(probe, estimates, [k is not None for k in known])
    found = interval(settled)
    if found["value"] is None:
        raise _too_few(probe)
    checks = growth_checks(probe, found["value"], replications)
    spread = calibration_spread(probe, None, replications)
    return Saturation(widened(found, spread), tuple(checks), spread=spread)


def growth_checks(probe: Probe, saturation: float, replications: int) -> list[dict[str, Any]]:
    """Does the backlog grow a little below and a little above? As ``checks`` of the documents."""
    loads = [probe.study.axis.snap(share * saturation) for share in TESTED_AT]
    runs = probe.grid(loads, replications, "does the backlog grow?")
    tests = [pooled_backlog(each) for each in runs]
    return [
        {"at": share, "load": load, "grows": test.grows, "p_value": test.p_value if test.is_tested else None}
        for share, load, test in zip(TESTED_AT, loads, tests, strict=True)
    ]


def pooled_backlog(runs: Sequence[Measures]) -> BacklogTest:
    """One growth test over replications."""
    return pooled([BacklogTest.of(run) for run in runs])


def _settle(probe: Probe, estimates: list[float], measured: list[bool]) -> list[float | None]:
    """Each replication's estimate after at most ``MAX_ROUNDS`` re-runs; null where nothing ever waited long enough.

    Where nobody is preferred and nobody leaves, everybody at once is a backlog like any other, the longest there can
    be, and its departures stand. Where the order prefers somebody, an overloaded server departs more than it can
    sustain (the others starve), so that a re-run may lower an estimate only.
    """
    base_rps = probe.study.axis.base_rps or 1.0
    order_matters = probe.study.variants[probe.variant].engine.queue_order != "fcfs"
    current, done = list(estimates), list(measured)
    moving = {r for r in range(len(estimates)) if not done[r] or order_matters or _clients_leave(probe)}
    for number in range(MAX_ROUNDS):
        asks = {r: Ask(probe.study.axis.snap(OVERLOAD * current[r]), r) for r in sorted(moving) if current[r] > 0}
        found = probe.run(list(asks.values()), f"saturation rate, round {number + 1}")
        moving = set()
        for r, run in zip(asks, found, strict=True):
            departures = run["backlogged_rps"]
            if departures is None:  # not overloaded
                current[r] *= 1 if done[r] else 1.25
                moving |= set() if done[r] else {r}
                continue
            change = departures / base_rps / current[r] - 1
            if not done[r] or change < 0 or not order_matters:
                current[r] = departures / base_rps
                moving |= {r} if abs(change) > AGREEMENT else set()
            done[r] = True
    return [rate if ok else None for rate, ok in zip(current, done, strict=True)]


def _clients_leave(probe: Probe) -> bool:
    """Whether an overload makes clients give up, which wastes what was computed for them."""
    clients = probe.study.scenario.workload.clients
    return any(each is not None for each in (clients.timeout_s, clients.ttft_timeout_s, clients.cancel))


def _too_few(probe: Probe) -> StudyError:
    slots = probe.study.variants[probe.variant].engine.max_num_seqs
    are_turns = probe.study.axis.unit == "sessions/s"
    asked = f"{probe.study.num_requests} requests{' in sessions, one of each at a time,' if are_turns else ''}"
    return StudyError(
        printable(
            f"{probe.study.scenario.source}: workload: must have enough requests to keep somebody waiting while 20 "
            f"finish (got {asked} for {slots} slots in variant {probe.variant}); give more requests "
            "(workload.num_requests, or workload.limit of a trace)"
        )
    )
