"""Every request at its own time, whatever has become of the others: an open loop.

Nothing here waits for an answer. A request's bytes and its connection are made ``LEAD_S`` before it is due, so that
only the sending itself is left to do then; how late that was is in the outcomes (``sent_s`` − ``due_s``).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from simserve.replay.client import NS_PER_S, Clients
from simserve.replay.dialect import Beginning, Dialect
from simserve.replay.outcome import Outcome
from simserve.replay.pool import Lease, Pool
from simserve.request import RequestTable

LEAD_S = 1.0
_WARM_WITHIN_S = 5.0
_PROGRESS_EVERY_S = 0.25

OnProgress = Callable[[int, int], None]  # sent, ended


class Load:
    """``outcomes`` has an entry per request of ``table``, in its order, from the start; what is known of each is there
    at any time. ``cpu_share``: of one CPU, what this process used while the load ran."""

    def __init__(
        self, clients: Clients, pool: Pool, dialect: Dialect, table: RequestTable, rng: np.random.Generator
    ) -> None:
        columns = table.arrival_ns / NS_PER_S, table.num_prompt_tokens, table.num_output_tokens
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.outcomes = [Outcome(i, *row) for i, row in enumerate(rows)]
        self.num_sent = self.num_ended = 0
        self.cpu_share = 0.0
        self._clients, self._pool, self._dialect, self._rng = clients, pool, dialect, rng
        self._content, self._salt = table.content, int(rng.integers(2**63))
        self._prepared: deque[tuple[bytes, Lease]] = deque()
        self._num_prepared = 0

    async def run(self, on_progress: OnProgress | None = None) -> bool:
        """Send all and see all to their ends; whether that came about. False: interrupted (this task was cancelled, as
        Ctrl-C does), and requests under way are marked so."""
        try:
            with _no_pauses(), self._own_cpu():
                await self._make_ready()
                async with asyncio.TaskGroup() as group:
                    helpers = [group.create_task(self._prepare_ahead()), group.create_task(self._tell(on_progress))]
                    async with asyncio.TaskGroup() as requests:
                        await self._send_all(requests)
                    for helper in helpers:
                        helper.cancel()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return False
        return True

    async def _make_ready(self) -> None:
        """What is due in the first moments is prepared before time 0, its connections too."""
        while self._is_next_within(LEAD_S):
            self._prepare()
            await asyncio.sleep(0)
        opening = [lease for _, lease in self._prepared if isinstance(lease, asyncio.Task)]
        if opening:
            await asyncio.wait(opening, timeout=_WARM_WITHIN_S)
        self._clients.began_s = time.perf_counter() + 0.01

    async def _send_all(self, group: asyncio.TaskGroup) -> None:
        for outcome in self.outcomes:
            left_s = outcome.due_s - self._now_s()
            # Also when there is nothing to wait for: it lets what was started before begin, in its order.
            await asyncio.sleep(max(0.0, left_s))
            if not self._prepared:
                self._prepare()
            request, lease = self._prepared.popleft()
            group.create_task(self._serve(outcome, request, lease))
            self.num_sent += 1

    async def _serve(self, outcome: Outcome, request: bytes, lease: Lease) -> None:
        await self._clients.serve(outcome, request, lease)
        self.num_ended += 1

    async def _prepare_ahead(self) -> None:
        while self._num_prepared < len(self.outcomes):
            if self._is_next_within(self._now_s() + LEAD_S):
                self._prepare()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(self.outcomes[self._num_prepared].due_s - self._now_s() - LEAD_S)

    def _is_next_within(self, time_s: float) -> bool:
        return self._num_prepared < len(self.outcomes) and self.outcomes[self._num_prepared].due_s <= time_s

    def _prepare(self) -> None:
        outcome = self.outcomes[self._num_prepared]
        lengths = outcome.asked_prompt_tokens, outcome.asked_output_tokens
        beginning = None if self._content is None else Beginning(self._content[outcome.request_id], self._salt)
        body = self._dialect.body(*lengths, self._rng, beginning)
        self._prepared.append((self._clients.request(self._dialect.path, body), self._pool.lease()))
        self._num_prepared += 1

    async def _tell(self, on_progress: OnProgress | None) -> None:
        while on_progress is not None:
            on_progress(self.num_sent, self.num_ended)
            await asyncio.sleep(_PROGRESS_EVERY_S)

    @contextmanager
    def _own_cpu(self) -> Iterator[None]:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu_share = (time.process_time() - cpu_s) / max(1e-9, time.perf_counter() - wall_s)

    def _now_s(self) -> float:
        return time.perf_counter() - self._clients.began_s


@contextmanager
def _no_pauses() -> Iterator[None]:
    """No walk of the garbage collector over everything in the middle of the load: it would make dozens late at once.
    Young objects are still collected."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(thresholds[0], thresholds[1], 1 << 30)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
