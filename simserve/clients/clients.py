"""Who sends, who gives up and who comes again, as events in order of time.

The engine takes events out (``pop_until``), looks ahead (``peek_until``, ``next_reaction_ns``) and tells what became of
each attempt; what a client does next follows from that alone, so the future beyond the next reaction is never needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from simserve.clients.arrivals import Arrivals
from simserve.clients.plan import NOBODY, STAYS, ClientPlan
from simserve.request import Request, RequestTable, Sequence


class Arrival(NamedTuple):
    """A client sends a request, for the ``attempt``-th time (from 1)."""

    time_ns: int
    request: Request
    attempt: int


class Departure(NamedTuple):
    """A client gives an attempt up, ``cancelled`` of its own accord or because a time-out passed; ``seq`` is None when
    it left while it was backing off."""

    time_ns: int
    request: Request
    cancelled: bool
    seq: Sequence | None


class _Deadline(NamedTuple):
    """When a client will give up, if nothing happens before; in the order in which deadlines act."""

    time_ns: int
    id: int
    is_timeout: bool  # of two at once, the cancellation counts
    only_first_token: bool
    attempt: int  # 0: of any attempt


class Clients:
    """The clients of one run. Events come in order of (time, departures before arrivals, id)."""

    def __init__(self, table: RequestTable, plan: ClientPlan) -> None:
        self._plan = plan
        self._table = table
        self._turns = plan.turns
        self._rows = Arrivals(table, None if plan.turns is None else (~plan.turns.follows).nonzero()[0])
        self._is_closed = plan.concurrency is not None
        self._sends: list[tuple[int, int, int, Request]] = []  # time, id, attempt: what was decided to be sent later
        self._deadlines: list[_Deadline] = []
        self._has_deadlines = any(x is not None for x in (plan.timeout_ns, plan.ttft_timeout_ns, plan.cancel_after_ns))
        sends_in_turn = self._is_closed or plan.turns is not None
        self._reacts = sends_in_turn or self._has_deadlines or plan.retry is not None
        self._present: dict[int, tuple[int, Sequence]] = {}  # attempt and sequence of those waiting or running
        self._away: dict[int, tuple[int, Request]] = {}  # last attempt of those backing off
        for _ in range(min(plan.concurrency or 0, len(table))):
            self._send_next(0, think=False)

    @property
    def next_ns(self) -> int | None:
        """When the next event happens, as far as is known now; None when nothing more will happen by itself."""
        row_ns = None if self._is_closed else self._rows.next_ns
        reaction_ns = self.next_reaction_ns
        if reaction_ns is None or row_ns is None:
            return row_ns if reaction_ns is None else reaction_ns
        return min(row_ns, reaction_ns)

    @property
    def next_reaction_ns(self) -> int | None:
        """The next event that depends on what happened before: a departure, a retry, a send in a closed loop. What
        comes after it is only known once the engine has answered."""
        if not self._reacts:
            return None
        self._forget_met_deadlines()
        if not self._deadlines:
            return self._sends[0][0] if self._sends else None
        return min(self._deadlines[0].time_ns, self._sends[0][0]) if self._sends else self._deadlines[0].time_ns

    @property
    def is_arrival_scheduled(self) -> bool:
        """Whether somebody is going to send, whatever the engine does."""
        return bool(self._sends) or (not self._is_closed and self._rows.next_ns is not None)

    def pop_until(self, end_ns: int) -> Iterator[Arrival | Departure]:
        """Take out, in order, the events before ``end_ns``, those included that follow from them."""
        rows = self._rows
        if not self._reacts:  # the most common clients: they send, and take what comes
            while (row_ns := rows.next_ns) is not None and row_ns < end_ns:
                yield Arrival(row_ns, rows.take(), 1)
            return
        while (time_ns := self.next_ns) is not None and time_ns < end_ns:
            if self._deadlines and self._deadlines[0].time_ns == time_ns:
                yield self._departure(heapq.heappop(self._deadlines))
            else:
                yield self._arrival(time_ns)

    def peek_until(self, end_ns: int) -> Iterator[Request]:
        """Look, in order, at the requests that an open loop brings before ``end_ns``."""
        return iter(()) if self._is_closed else self._rows.peek_until(end_ns)

    def gives_up_by(self, request: Request, time_ns: int) -> bool:
        """Whether a request, sent at its own arrival time, might be given up by ``time_ns``."""
        if not self._has_deadlines:
            return False
        return any(deadline.time_ns <= time_ns for deadline in self._deadlines_of(request, request.arrival_ns, 1))

    def waits(self, seq: Sequence, attempt: int) -> None:
        """The engine took the attempt in: from now on its client's patience runs."""
        if self._reacts:
            self._present[seq.id] = attempt, seq
        if self._has_deadlines:
            for deadline in self._deadlines_of(seq.request, seq.arrival_ns, attempt):
                heapq.heappush(self._deadlines, deadline)

    def turned_away(self, arrival: Arrival, retry_after_ns: int) -> bool:
        """The engine answered 429; True if the client will come again."""
        retry = self._plan.retry
        if retry is None or not retry.after_rejection or arrival.attempt >= retry.max_attempts:
            return False
        if arrival.attempt == 1 and self._plan.cancel_after_ns is not None:
            self._may_cancel(arrival.request)
        self._come_again(arrival.request, arrival.attempt, arrival.time_ns, retry_after_ns)
        return True

    def gave_up(self, departure: Departure) -> bool:
        """The attempt is withdrawn; True if the client will come again."""
        attempt, _ = self._present.pop(departure.request.id, (0, None))
        retry = self._plan.retry
        if departure.cancelled or retry is None or not retry.after_timeout or attempt >= retry.max_attempts:
            return False
        self._come_again(departure.request, attempt, departure.time_ns, 0)
        return True

    def ended(self, request_id: int, now_ns: int) -> None:
        """The request is over for its client, whatever became of it: in a session the next turn follows, and in a
        closed loop, at the end of a session, the next session."""
        if self._reacts:
            self._present.pop(request_id, None)
        if self._turns is not None and (next_id := int(self._turns.next_id[request_id])) != NOBODY:
            time_ns = now_ns + int(self._turns.wait_ns[next_id])
            heapq.heappush(self._sends, (time_ns, next_id, 1, self._table[next_id]))
        elif self._is_closed:
            self._send_next(now_ns, think=True)

    def _come_again(self, request: Request, attempt: int, now_ns: int, retry_after_ns: int) -> None:
        plan = self._plan
        assert plan.retry is not None
        draw = 0.0 if plan.jitter is None else float(plan.jitter[request.id, attempt - 1])
        time_ns = now_ns + plan.retry.delay_ns(attempt, draw, retry_after_ns)
        self._away[request.id] = attempt, request
        heapq.heappush(self._sends, (time_ns, request.id, attempt + 1, request))

    def _send_next(self, now_ns: int, think: bool) -> None:
        """A client of the closed loop takes the next request that nobody has sent, and that is nobody's next turn."""
        if self._rows:
            request = self._rows.take()
            think_ns = int(self._plan.think_ns[request.id]) if think and self._plan.think_ns is not None else 0
            heapq.heappush(self._sends, (now_ns + think_ns, request.id, 1, request))

    def _arrival(self, time_ns: int) -> Arrival:
        """The arrival at ``time_ns``: from the table or sent by decision, the lower id first."""
        rows, sends = self._rows, self._sends
        is_row = not self._is_closed and rows.next_ns == time_ns
        if is_row and (not sends or sends[0][0] > time_ns or sends[0][1] > rows.next_id):
            return Arrival(time_ns, rows.take(), 1)
        _, _, attempt, request = heapq.heappop(sends)
        self._away.pop(request.id, None)
        if attempt == 1:
            request = replace(request, arrival_ns=time_ns)
        return Arrival(time_ns, request, attempt)

    def _departure(self, deadline: _Deadline) -> Departure:
        if deadline.id in self._present:
            _, seq = self._present[deadline.id]
            return Departure(deadline.time_ns, seq.request, not deadline.is_timeout, seq)
        _, request = self._away.pop(deadline.id)
        self._sends = [send for send in self._sends if send[1] != deadline.id]
        heapq.heapify(self._sends)
        return Departure(deadline.time_ns, request, True, None)

    def _deadlines_of(self, request: Request, sent_ns: int, attempt: int) -> Iterator[_Deadline]:
        plan, i = self._plan, request.id
        if plan.timeout_ns is not None:
            yield _Deadline(sent_ns + plan.timeout_ns, i, True, False, attempt)
        if plan.ttft_timeout_ns is not None:
            yield _Deadline(sent_ns + plan.ttft_timeout_ns, i, True, True, attempt)
        if attempt == 1 and plan.cancel_after_ns is not None and plan.cancel_after_ns[i] != STAYS:
            yield _Deadline(request.arrival_ns + int(plan.cancel_after_ns[i]), i, False, False, 0)

    def _may_cancel(self, request: Request) -> None:
        """A client that was turned away at once may still leave while it waits to come again."""
        for deadline in self._deadlines_of(request, request.arrival_ns, 1):
            if not deadline.is_timeout:
                heapq.heappush(self._deadlines, deadline)

    def _forget_met_deadlines(self) -> None:
        """Drop from the front what cannot act any more: the answer, or the first token, came in time."""
        while self._deadlines and not self._stands(self._deadlines[0]):
            heapq.heappop(self._deadlines)

    def _stands(self, deadline: _Deadline) -> bool:
        attempt, seq = self._present.get(deadline.id, (0, None))
        if not deadline.attempt:
            return seq is not None or deadline.id in self._away
        if seq is None or attempt != deadline.attempt:
            return False
        return not (deadline.only_first_token and seq.num_generated_tokens)
