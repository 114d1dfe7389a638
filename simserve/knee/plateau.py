"""Where no backlog grows: the plateau of throughput, and the load that reaches it. For closed loops, and for bounded
waiting lines."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from simserve.knee.bootstrap import bootstrap_interval
from simserve.knee.calibration import calibration_spread, widened
from simserve.knee.probe import Probe
from simserve.knee.saturation import Saturation, StudyError
from simserve.knee.study import Ask
from simserve.scenario import Scenario
from simserve.scenario.messages import printable
from simserve.tasks.intervals import interval

FloatArray = npt.NDArray[np.float64]
REACHED = 0.95  # of the plateau
MIN_GAIN = 1.02  # a doubling that gains less is flat
REQUESTS_PER_CLIENT = 4  # fewer, and a run is mostly its beginning and its end
NUM_DRAWS = 400
MAX_DOUBLINGS = 10


def closed_loop_saturation(probe: Probe, replications: int) -> tuple[Saturation, str | None]:
    """Double the clients until two doublings in a row gain less than 2 % in requests/s.

    The plateau is the mean over the flat part; the saturation load is where throughput reaches 95 % of it, by
    interpolation over log clients, with an interval by bootstrap over replications. The note says when throughput still
    rose at as many clients as the requests allow.
    """
    limit = most_clients(probe.study.num_requests)
    clients: list[float] = []
    columns: list[list[float]] = []
    while len(clients) < 3 or not _flat(columns):
        count = 2 ** len(clients)
        if count > limit:
            break
        (runs,) = probe.grid([float(count)], replications, f"throughput of {count} clients")
        clients.append(float(count))
        columns.append([run["requests_per_s"] or 0.0 for run in runs])
    rows = np.array(columns, np.float64).T
    flat = _flat(columns)
    plateau = interval(rows[:, -2:].mean(axis=1).tolist() if flat else rows[:, -1].tolist())
    x = np.array(clients)
    reached = bootstrap_interval(rows, lambda mean: _reached(x, mean), probe.study.scenario.seed, NUM_DRAWS)
    note = f"{probe.variant}: throughput still rose at {clients[-1]:,.0f} clients, as many as the requests allow"
    spread = calibration_spread(probe, clients[-1], replications)
    return Saturation(reached, (), widened(plateau, spread), spread), None if flat else note


def is_bounded(scenario: Scenario) -> bool:
    """Whether an open loop's waiting line has an end: who finds it full is turned away, or who waits long gives up."""
    clients = scenario.workload.clients
    return scenario.engine.max_queued_requests is not None or not (clients.timeout_s is clients.ttft_timeout_s is None)


def bounded_saturation(probe: Probe, replications: int) -> tuple[Saturation, str]:
    """Of a line that cannot grow: double the rate until two doublings gain less than 2 % in answered requests/s. The
    saturation rate is the highest throughput seen, for more load may waste work on those who leave. Raises StudyError
    where nobody is answered."""
    base_rps = probe.study.axis.base_rps or 1.0
    first = probe.run([Ask(None, r) for r in range(replications)], "everybody at once")
    answered = math.fsum(run["backlogged_rps"] or run["requests_per_s"] or 0.0 for run in first) / len(first)
    if answered <= 0:
        raise StudyError(printable(f"{probe.variant}: nobody is answered when all come at once; allow a longer queue"))
    loads: list[float] = []
    columns: list[list[float]] = []
    while len(columns) < 3 or (not _flat(columns) and len(columns) < MAX_DOUBLINGS):
        load = probe.study.axis.snap(answered / base_rps * 2.0 ** (len(columns) - 1))
        (runs,) = probe.grid([load], replications, f"throughput at {load:.4g} {probe.study.axis.unit}")
        loads.append(load)
        columns.append([(run["requests_per_s"] or 0.0) / base_rps for run in runs])
    highest = max(columns, key=math.fsum)
    spread = calibration_spread(probe, loads[columns.index(highest)], replications)
    note = (
        f"{probe.variant}: its waiting line is bounded (a queue limit, or clients who give up), so no backlog grows; "
        "the saturation rate is the throughput that more load does not raise"
    )
    found = widened(interval(highest), spread)
    low = found["low"]
    return Saturation({**found, "low": None if low is None else max(0.0, low)}, spread=spread), note


def most_clients(num_requests: int) -> int:
    """The most clients that a run of so many requests tells anything about."""
    return max(4, num_requests // REQUESTS_PER_CLIENT)


def _flat(columns: list[list[float]]) -> bool:
    """Whether the last two doublings gained less than 2 % each."""
    means = [math.fsum(column) / len(column) for column in columns[-3:]]
    return len(means) == 3 and all(b < MIN_GAIN * a for a, b in itertools.pairwise(means))


def _reached(clients: FloatArray, throughput: FloatArray) -> float | None:
    """Clients at which throughput first reaches ``REACHED`` of its plateau (the mean of the last two)."""
    wanted = REACHED * throughput[-2:].mean()
    above = np.flatnonzero(throughput >= wanted)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(clients[0])
    share = (wanted - throughput[i - 1]) / (throughput[i] - throughput[i - 1])
    return float(np.exp(np.log(clients[i - 1]) + share * np.log(clients[i] / clients[i - 1])))
