"""The clients of the slow, obvious engine: who sends, gives up, comes back and is done with, one event at a time.

No queue of events: whenever somebody asks what happens next, every request says what it has before it, and the earliest
is it. Departures come before arrivals of the same instant, and a cancellation before a time-out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simserve.clients.plan import NOBODY, STAYS, ClientPlan
from simserve.request import Request, RequestTable
from tests.reference_types import NEVER, Seq

What = Literal["sends", "cancels", "times out"]


@dataclass(eq=False)
class Ask:
    """One request as its client sees it: unsent, present, backing_off, or how it ended; and every attempt at it."""

    request: Request
    status: str = "unsent"
    send_ns: int = NEVER  # of the next attempt, where one is to come
    left_ns: int = NEVER  # since when it is backing off
    attempts: list[Seq] = field(default_factory=list)
    end_ns: int = NEVER
    away_ns: int = 0
    absences: list[tuple[int, int]] = field(default_factory=list)  # from when to when it backed off
    num_turned_away: int = 0
    num_timed_out: int = 0
    reason: str = ""

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def arrival_ns(self) -> int:
        return self.attempts[0].arrival_ns if self.attempts else NEVER

    @property
    def is_away(self) -> bool:
        return self.status == "backing_off"

    @property
    def num_abandoned_tokens(self) -> int:
        return sum(len(seq.token_ns) for seq in self.attempts[:-1])


class Event(NamedTuple):
    """Something a client does; the earliest of several is the smallest."""

    time_ns: int
    is_send: bool
    request_id: int
    is_time_out: bool
    what: What


class ReferenceClients:
    """Everyone who asks something of the engine. ``asks`` has one entry per request, by id."""

    def __init__(self, table: RequestTable, plan: ClientPlan, retry_after_ns: int) -> None:
        self.plan = plan
        self.retry_after_ns = retry_after_ns
        self.asks = [Ask(table[i]) for i in range(len(table))]
        self.unsent: list[Ask] = []  # closed loop: what no client has taken up yet, turns after the first left aside
        self.before: dict[int, Ask] = {}  # by the id of a request, the one it waits for
        if plan.turns is not None:
            self.before = {int(j): self.asks[i] for i, j in enumerate(plan.turns.next_id) if j != NOBODY}
        if plan.concurrency is None:
            for ask in self.asks:
                if ask.id not in self.before:
                    ask.send_ns = ask.request.arrival_ns
        else:
            openings = [ask for ask in self.asks if ask.id not in self.before]
            self.unsent = openings[plan.concurrency :]
            for ask in openings[: plan.concurrency]:
                ask.send_ns = 0

    # What is to come --------------------------------------------------------------------------------------------

    @property
    def more_coming(self) -> bool:
        """Somebody is to send at a known time; not that somebody may when his answer is there."""
        return any(ask.send_ns != NEVER for ask in self.asks)

    def next_event(self) -> Event | None:
        return min((event for ask in self.asks for event in self.events_of(ask)), default=None)

    def events_of(self, ask: Ask) -> list[Event]:
        found: list[tuple[int, What]] = []
        if ask.send_ns != NEVER:
            found.append((ask.send_ns, "sends"))
        patience = self.plan.cancel_after_ns
        if ask.status in ("present", "backing_off") and patience is not None and patience[ask.id] != STAYS:
            found.append((ask.arrival_ns + int(patience[ask.id]), "cancels"))
        if ask.status == "present":
            attempt = ask.attempts[-1]
            if self.plan.timeout_ns is not None:
                found.append((attempt.arrival_ns + self.plan.timeout_ns, "times out"))
            if self.plan.ttft_timeout_ns is not None and not attempt.token_ns:
                found.append((attempt.arrival_ns + self.plan.ttft_timeout_ns, "times out"))
        return [Event(ns, what == "sends", ask.id, what == "times out", what) for ns, what in found]

    # What happens -----------------------------------------------------------------------------------------------

    def send(self, ask: Ask, now_ns: int) -> Seq:
        """The next attempt at a request leaves its client."""
        if ask.is_away:
            self.come_back(ask, now_ns)
        ask.send_ns, ask.status = NEVER, "present"
        ask.attempts.append(Seq(ask.request, now_ns))
        return ask.attempts[-1]

    def turn_away(self, ask: Ask, now_ns: int) -> None:
        """429: the queue is full."""
        ask.num_turned_away += 1
        retry = self.plan.retry
        if retry is not None and retry.after_rejection and self.back_off(ask, now_ns, self.retry_after_ns):
            return
        self.end(ask, "rejected", now_ns, "429")

    def give_up(self, ask: Ask, what: What, now_ns: int) -> None:
        """The client leaves: for good, or to come back."""
        if what == "cancels":
            if ask.is_away:
                self.come_back(ask, now_ns)
            self.end(ask, "cancelled", now_ns)
            return
        ask.num_timed_out += 1
        retry = self.plan.retry
        if retry is None or not retry.after_timeout or not self.back_off(ask, now_ns, 0):
            self.end(ask, "timed_out", now_ns)

    def back_off(self, ask: Ask, now_ns: int, at_least_ns: int) -> bool:
        """Whether the client will try again; then it knows when."""
        retry, failed = self.plan.retry, len(ask.attempts)
        assert retry is not None
        if failed == retry.max_attempts:
            return False
        draw = 0.0 if self.plan.jitter is None else float(self.plan.jitter[ask.id, failed - 1])
        ask.status, ask.left_ns = "backing_off", now_ns
        ask.send_ns = now_ns + retry.delay_ns(failed, draw, at_least_ns)
        return True

    def come_back(self, ask: Ask, now_ns: int) -> None:
        ask.away_ns += now_ns - ask.left_ns
        ask.absences.append((ask.left_ns, now_ns))

    def end(self, ask: Ask, status: str, now_ns: int, reason: str = "") -> None:
        """The request is over; whoever waits for it in a session sends next, else in a closed loop its client takes
        up the next one, and sends it when it has thought."""
        ask.status, ask.end_ns, ask.send_ns, ask.reason = status, now_ns, NEVER, reason
        for other_id, waited_for in self.before.items():
            if waited_for is ask:
                assert self.plan.turns is not None
                self.asks[other_id].send_ns = now_ns + int(self.plan.turns.wait_ns[other_id])
                return
        if self.unsent:
            following = self.unsent.pop(0)
            think = self.plan.think_ns
            following.send_ns = now_ns + (0 if think is None else int(think[following.id]))
