"""One request from when it is due to its end, with the retries that its client is willing to make.

Tried again, if the plan says so, are answers of 408, 425, 429 and 5xx and attempts that broke before their first token
(all *rejected* in the plan's words), each at least after what Retry-After asks for, and *timed out* ones. A stream that
broke after its first token is not: half of it was read already. Nor is a server that asks to be left alone for more
than a minute.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter

from simserve.clients.plan import STAYS, ClientPlan
from simserve.replay.answer import Answer
from simserve.replay.errors import BrokenAnswer, Refused
from simserve.replay.exchange import Exchange, GaveUp, Limits, Stale
from simserve.replay.outcome import Outcome
from simserve.replay.pool import Lease, Pool
from simserve.replay.server import Server
from simserve.replay.words import kind_of

NS_PER_S = 1e9
BUSY = 429
_PASSING = (408, 425, BUSY)
_MAX_RETRY_AFTER_S = 60.0  # as in the openai client


class Clients:
    """Sends requests of one plan to one server. ``began_s``: the ``perf_counter`` at time 0. ``faults`` counts, in
    words, every attempt that did not bring its whole answer; ``num_stale`` kept connections found closed."""

    def __init__(self, pool: Pool, server: Server, plan: ClientPlan, stall_timeout_s: float) -> None:
        self.began_s = 0.0
        self.faults: Counter[str] = Counter()
        self.num_stale = 0
        self._pool, self._server, self._plan = pool, server, plan
        self._stall_timeout_s = stall_timeout_s

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of a request to this server."""
        return self._server.post(path, body)

    async def serve(self, outcome: Outcome, request: bytes, lease: Lease) -> None:
        """Send ``request``, again if need be, and fill ``outcome`` in. Cancelled itself, it leaves the request so."""
        leaves_s = self._leaves_s(outcome)
        try:
            while True:
                failure = await self._attempt(outcome, request, lease, leaves_s)
                if failure is None:
                    return
                delay_s = self._delay_s(outcome, failure)
                if delay_s is None:
                    return
                await self._back_off(outcome, delay_s, leaves_s)
                if outcome.status == "cancelled":
                    return
                lease = self._pool.lease()
        except asyncio.CancelledError:
            if outcome.status != "unsent":
                outcome.status, outcome.error = "cancelled", "the replay was interrupted"
                outcome.end_s = self._now_s()
            raise

    async def _attempt(self, outcome: Outcome, request: bytes, lease: Lease, leaves_s: float) -> Exception | None:
        """Send once and read to the end; what went wrong, or None. ``outcome`` has it all then."""
        answer = Answer(outcome.asked_output_tokens)
        failure: Exception | None = None
        outcome.num_attempts += 1
        try:
            try:
                await self._exchange(outcome, answer, request, lease, leaves_s)
            except Stale:  # at most once: a fresh connection has carried nothing
                self.num_stale += 1
                await self._exchange(outcome, answer, request, self._pool.fresh(), leaves_s)
            outcome.status = "finished"
        except Refused as error:
            failure, outcome.status = error, "rejected"
            outcome.num_turned_away += error.status == BUSY
        except BrokenAnswer as error:
            failure, outcome.status = error, "failed"
        except GaveUp as error:
            failure, outcome.status = error, error.status
        finally:
            self._read(outcome, answer)
        outcome.error = self._server.scrub(str(failure)) if failure else ""
        if failure:
            self.faults[kind_of(outcome.error)] += 1
        return failure

    async def _exchange(self, outcome: Outcome, answer: Answer, request: bytes, lease: Lease, leaves_s: float) -> None:
        """Connect, send and read; when, and with which HTTP status, goes to ``outcome``."""
        ready_s = outcome.sent_s = self._now_s()
        outcome.http_status = 0
        outcome.status = "running"
        if outcome.num_attempts == 1:
            outcome.arrival_s = ready_s
        exchange: Exchange | None = None
        try:
            connection = await self._pool.take(lease)
            exchange = Exchange(connection, answer, self._limits(leaves_s))
            await exchange.run(request)
        finally:
            outcome.end_s = self._now_s()
            if exchange is not None:
                outcome.sent_s, outcome.end_s = exchange.sent_s - self.began_s, exchange.end_s - self.began_s
                outcome.http_status = exchange.status
            if outcome.num_attempts == 1:
                outcome.arrival_s = outcome.sent_s
                outcome.connect_wait_s = (outcome.sent_s if exchange else outcome.end_s) - ready_s

    def _limits(self, leaves_s: float) -> Limits:
        plan = self._plan
        return Limits(
            timeout_s=_seconds(plan.timeout_ns),
            ttft_timeout_s=_seconds(plan.ttft_timeout_ns),
            stall_timeout_s=self._stall_timeout_s,
            leaves_s=leaves_s,
        )

    def _leaves_s(self, outcome: Outcome) -> float:
        """The clock's time at which this request's user leaves, counted from when it was due."""
        after_ns = self._plan.cancel_after_ns
        if after_ns is None or after_ns[outcome.request_id] == STAYS:
            return math.inf
        return self.began_s + outcome.due_s + float(after_ns[outcome.request_id]) / NS_PER_S

    def _delay_s(self, outcome: Outcome, failure: Exception) -> float | None:
        """How long to wait before another attempt; None if there is to be none."""
        retry, number = self._plan.retry, outcome.num_attempts
        if retry is None or number >= retry.max_attempts or outcome.status == "cancelled":
            return None
        asked_s = 0.0
        if isinstance(failure, Refused):
            again = retry.after_rejection and (failure.status in _PASSING or failure.status >= 500)
            asked_s = failure.retry_after_s
        elif isinstance(failure, GaveUp):
            again = retry.after_timeout
        else:
            again = retry.after_rejection and not outcome.token_times_s
        if not again or asked_s > _MAX_RETRY_AFTER_S:
            return None
        draw = 0.0 if self._plan.jitter is None else float(self._plan.jitter[outcome.request_id, number - 1])
        return retry.delay_ns(number, draw, round(asked_s * NS_PER_S)) / NS_PER_S

    async def _back_off(self, outcome: Outcome, delay_s: float, leaves_s: float) -> None:
        """Wait; a user who leaves meanwhile ends the request."""
        stays_s = leaves_s - self.began_s - self._now_s()
        outcome.status = "backing_off"
        began_s = self._now_s()
        await asyncio.sleep(min(delay_s, max(0.0, stays_s)))
        outcome.away_s += self._now_s() - began_s
        if stays_s <= delay_s:
            outcome.status, outcome.error, outcome.end_s = "cancelled", "its user left", self._now_s()

    def _read(self, outcome: Outcome, answer: Answer) -> None:
        tokens = answer.tokens()
        outcome.token_times_s = [time_s - self.began_s for time_s in tokens.times_s]
        outcome.token_counts, outcome.counting = tokens.counts, tokens.counting if tokens.counts else None
        outcome.num_prompt_tokens = answer.num_prompt_tokens
        outcome.finish_reason = answer.finish_reason

    def _now_s(self) -> float:
        return time.perf_counter() - self.began_s


def _seconds(nanoseconds: int | None) -> float:
    return math.inf if nanoseconds is None else nanoseconds / NS_PER_S
