"""End a hopeless run early: once it is proved that the waiting line grows, more of it says nothing new.

The engine tells the time and how many have arrived and finished, not who waits. With S slots at least (in system − S)
wait, so that is what is tested: it can only miss growth (a cache that fills before the slots), never invent it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from simserve.tasks.backlog import MIN_REQUESTS, NUM_BATCHES, growth_test
from simserve.workload import Workload

CHECKPOINTS = (0.4, 0.6, 0.8)  # of the requests arrived
MIN_BATCHES = 10  # an engine that stops seldom tells less than NUM_BATCHES of them apart


class EngineLimits(Protocol):
    """What is read of a scenario's engine."""

    @property
    def max_num_seqs(self) -> int: ...


class EarlyStop:
    """``EngineOptions.stop_when`` for one run. Checks at fixed checkpoints and nowhere else, so that the chance of a
    false alarm does not grow with the length of the run."""

    def __init__(self, num_requests: int, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._checkpoints = [int(share * num_requests) for share in CHECKPOINTS]
        self._arrived: list[int] = []
        self._excess: list[int] = []

    @classmethod
    def for_run(cls, workload: Workload, engine: EngineLimits) -> EarlyStop | None:
        """The rule for a workload; None where it does not apply: closed loops, sessions and people who leave keep their
        backlog bounded by themselves, and requests that all come at once offer no rate."""
        table, clients = workload.table, workload.clients
        waits = (clients.concurrency, clients.turns)
        leaves = (clients.timeout_ns, clients.ttft_timeout_ns, clients.cancel_after_ns)
        limited = getattr(engine, "max_queued_requests", None) is not None
        if limited or any(each is not None for each in (*waits, *leaves)) or len(table) < 2 * MIN_REQUESTS:
            return None
        return None if table.arrival_ns[0] == table.arrival_ns[-1] else cls(len(table), engine.max_num_seqs)

    def __call__(self, now_ns: int, num_arrived: int, num_finished: int) -> bool:
        """Whether to end the run now."""
        self._arrived.append(num_arrived)
        self._excess.append(max(0, num_arrived - num_finished - self._max_num_seqs))
        if not self._checkpoints or num_arrived < self._checkpoints[0]:
            return False
        self._checkpoints.pop(0)
        return self._grows()

    def _grows(self) -> bool:
        """The test over the later half of the arrivals so far: the earlier one is the warm-up."""
        arrived, excess = np.array(self._arrived), np.array(self._excess)
        wanted = np.linspace(arrived[-1] / 2, arrived[-1], NUM_BATCHES + 1)
        at = np.unique(np.searchsorted(arrived, wanted))
        if len(at) <= MIN_BATCHES:
            return False
        num_arrived = np.diff(arrived[at])
        return growth_test(num_arrived, num_arrived - np.diff(excess[at])).grows
