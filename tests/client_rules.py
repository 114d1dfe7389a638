"""One small case per rule of what clients do, with the outcome worked out by hand: steps of 10 ms, times in ms.

A prompt of 4 tokens and an answer of n are computed in n steps: the prefill gives the first token, and each of n − 1
decodes another; so after k steps k tokens are out and 4 + k − 1 are in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from simserve.clients import NOBODY, STAYS, ClientPlan, RetryPolicy
from simserve.request import RequestTable
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, plan_of, table_of


class Outcome(NamedTuple):
    """What a request's row should say, in ms and tokens."""

    status: str
    end: float
    num_emitted: int = 0
    num_computed: int = 0
    num_attempts: int = 1
    away: float = 0
    num_abandoned: int = 0
    scheduled: float | None = None  # of the last attempt; None: not looked at


@dataclass(frozen=True)
class Rule:
    """A case, the outcome of each of its requests, and counters of the whole run that matter here."""

    case: Case
    outcomes: tuple[Outcome, ...]
    totals: tuple[tuple[str, int], ...] = ()


ONE = Settings("continuous", "paged", 1, 100, 100, num_blocks=1000)
TWO = replace(ONE, max_num_seqs=2)
STATIC = replace(TWO, policy="static")
TIGHT = replace(TWO, num_blocks=10, preemption="swap", swap_space_bytes=5 * 1024, swap_bytes_per_s=1e18)


def asks(arrivals, outputs, prompts=None) -> RequestTable:
    return table_of([ms * MS for ms in arrivals], prompts or [4] * len(outputs), outputs)


def retry(max_attempts: int, backoff: int, multiplier: float = 1.0) -> RetryPolicy:
    return RetryPolicy(max_attempts, backoff * MS, multiplier, 10**12, 0.0, True, True)


def plan(timeout=None, ttft_timeout=None, cancel=None, **more) -> ClientPlan:
    """Times in ms; ``cancel`` has an entry per request, None where the client stays."""
    limits = [None if ms is None else round(ms * MS) for ms in (timeout, ttft_timeout)]
    patience = None if cancel is None else [STAYS if ms is None else round(ms * MS) for ms in cancel]
    return plan_of(timeout_ns=limits[0], ttft_timeout_ns=limits[1], cancel_after_ns=patience, **more)


def rule(table: RequestTable, s: Settings, clients: ClientPlan, *outcomes: Outcome, **totals: int) -> Rule:
    return Rule(Case(table, s, ConstantStepTime(0.01), clients), outcomes, tuple(totals.items()))


DEPARTURES = {
    "a token that comes after the departure counts as work, though it is the last": rule(
        asks([0, 0], [3, 1]),
        ONE,
        plan(cancel=[25, None]),
        Outcome("cancelled", 25, 3, 6),
        Outcome("finished", 40, 1, 4, scheduled=30),
    ),
    "an answer that is whole at the deadline is in time": rule(
        asks([0], [3]), ONE, plan(timeout=30), Outcome("finished", 30, 3, 6), num_timed_out_attempts=0
    ),
    "an answer that is whole a nanosecond late is late": rule(
        asks([0], [3]), ONE, plan(timeout=30 - 1e-6), Outcome("timed_out", 30 - 1e-6, 3, 6), num_timed_out_attempts=1
    ),
    "a first token at its deadline is in time, and the rest may take as long as it will": rule(
        asks([0], [9]), ONE, plan(ttft_timeout=10), Outcome("finished", 90, 9, 12)
    ),
    "a first token after its deadline is late": rule(
        asks([0, 0], [9, 2]),
        ONE,
        plan(ttft_timeout=89),
        Outcome("finished", 90, 9, 12),
        Outcome("timed_out", 89),
        num_timed_out_attempts=1,
    ),
    "a cancellation goes before a time-out of the same instant, and nobody comes back from it": rule(
        asks([0], [9]),
        ONE,
        plan(timeout=25, cancel=[25], retry=retry(3, 5)),
        Outcome("cancelled", 25, 3, 6),
        num_timed_out_attempts=0,
    ),
    "who cancels at once was there, and was never served": rule(
        asks([0, 0], [3, 1]),
        ONE,
        plan(cancel=[0, None]),
        Outcome("cancelled", 0),
        Outcome("finished", 10, 1, 4, scheduled=0),
    ),
    "a long run of steps is cut where somebody comes and leaves in it": rule(
        asks([0, 33], [50, 3]),
        ONE,
        plan(ttft_timeout=20),
        Outcome("finished", 500, 50, 53),
        Outcome("timed_out", 53),
    ),
    "a swapped sequence that times out frees its swap space at once": rule(
        # Both are prefilled in one step and decode once; then ten blocks are full and the second is swapped out, five
        # blocks. Another two do the same afterwards: there is room to swap only if the five were given back.
        asks([0, 0, 100, 100], [6, 6, 6, 6]),
        TIGHT,
        plan(timeout=35),
        Outcome("timed_out", 35, 4, 7),
        Outcome("timed_out", 35, 2, 5),
        Outcome("timed_out", 135, 4, 7),
        Outcome("timed_out", 135, 2, 5),
        swapped_bytes=2 * 5 * 1024,
        num_recomputed_tokens=0,
        num_preemptions=2,
    ),
    "a prefill cut into chunks stops where its client leaves, and the next begins": rule(
        asks([0, 20], [1, 1], [20, 4]),
        replace(TWO, policy="chunked", max_num_batched_tokens=4),
        plan(ttft_timeout=25),
        Outcome("timed_out", 25, 0, 12),
        Outcome("finished", 40, 1, 4, scheduled=30),
    ),
}

STATIC_BATCHES = {
    "the longest member of a static batch leaves in a step: the batch ends with it": rule(
        asks([0, 0, 5], [2, 10, 1]),
        STATIC,
        plan(cancel=[None, 35, None]),
        Outcome("finished", 40, 2, 5),
        Outcome("cancelled", 35, 4, 7),
        Outcome("finished", 50, 1, 4, scheduled=40),
    ),
    "the longest member of a static batch leaves between two steps: the batch ends there": rule(
        asks([0, 0, 5], [2, 10, 1]),
        STATIC,
        plan(cancel=[None, 40, None]),
        Outcome("finished", 40, 2, 5),
        Outcome("cancelled", 40, 4, 7),
        Outcome("finished", 50, 1, 4, scheduled=40),
    ),
    "a shorter member of a static batch leaves before the batch gives it its answer": rule(
        asks([0, 0, 5], [2, 10, 1]),
        STATIC,
        plan(cancel=[35, None, None]),
        Outcome("cancelled", 35, 2, 5),
        Outcome("finished", 100, 10, 13),
        Outcome("finished", 110, 1, 4, scheduled=100),
        num_padding_tokens=8,
    ),
    "an unfinished member of a static batch leaves: its row is computed for nobody to the end": rule(
        asks([0, 0, 5], [8, 10, 1]),
        STATIC,
        plan(cancel=[35, None, None]),
        Outcome("cancelled", 35, 4, 7),
        Outcome("finished", 100, 10, 13),
        Outcome("finished", 110, 1, 4, scheduled=100),
        num_padding_tokens=6,
    ),
    "the last step of a static batch is complete before those who leave at its end leave": rule(
        asks([0, 0], [1, 1]), STATIC, plan(cancel=[5, 10]), Outcome("cancelled", 5, 1, 4), Outcome("finished", 10, 1, 4)
    ),
    "a static batch ends at a step end for those who wait for it after those who leave then have left": rule(
        asks([0, 0], [2, 9]), STATIC, plan(timeout=40), Outcome("timed_out", 40, 2, 5), Outcome("timed_out", 40, 4, 7)
    ),
    "all members of a static batch leave in a step: the batch ends with it": rule(
        asks([0, 0, 5], [9, 9, 1]),
        STATIC,
        plan(cancel=[35, 33, None]),
        Outcome("cancelled", 35, 4, 7),
        Outcome("cancelled", 33, 4, 7),
        Outcome("finished", 50, 1, 4, scheduled=40),
    ),
    "a group that is collected forgets who left": rule(
        # Two slots, and the first of three goes before the second comes: the group is full with the third.
        asks([0, 20, 30], [1, 1, 1]),
        STATIC,
        plan(cancel=[15, None, None]),
        Outcome("cancelled", 15),
        Outcome("finished", 40, 1, 4, scheduled=30),
        Outcome("finished", 40, 1, 4, scheduled=30),
    ),
    "the oldest who waits for a group leaves: the group's patience is the next one's": rule(
        asks([0, 10, 500], [1, 1, 1]),
        replace(STATIC, max_num_seqs=3, max_wait_s=0.025),
        plan(cancel=[20, None, None]),
        Outcome("cancelled", 20),
        Outcome("finished", 45, 1, 4, scheduled=35),
        Outcome("finished", 510, 1, 4, scheduled=500),
    ),
    "answers that a departure sets free are followed by the next requests before the next group starts": rule(
        # At 40 the last unfinished member leaves and its client sends the fourth request; then the other two have their
        # answers and theirs send two more, at the same time: the next group has all three.
        asks([0] * 6, [1, 1, 9, 1, 1, 1]),
        replace(STATIC, max_num_seqs=3, max_wait_s=0.0),
        plan(cancel=[None, None, 40, None, None, None], concurrency=3),
        Outcome("finished", 40, 1, 4),
        Outcome("finished", 40, 1, 4),
        Outcome("cancelled", 40, 4, 7),
        *[Outcome("finished", 50, 1, 4, scheduled=40)] * 3,
        num_steps=5,
    ),
}

RETRIES = {
    "a queue that is full turns away, and who comes again may find room": rule(
        # One waits at 0, two are turned away; at 15 the first of them finds the queue empty, the second does not; it
        # comes at 45 for the third time.
        asks([0, 0, 0], [3, 1, 1]),
        replace(ONE, max_queued_requests=1),
        plan(retry=retry(3, 15, multiplier=2)),
        Outcome("finished", 30, 3, 6),
        Outcome("finished", 40, 1, 4, num_attempts=2, away=15, scheduled=30),
        Outcome("finished", 55, 1, 4, num_attempts=3, away=45, scheduled=45),
        num_turned_away=3,
    ),
    "the last attempt that is turned away is a rejection": rule(
        asks([0, 0, 0], [3, 1, 1]),
        replace(ONE, max_queued_requests=1),
        plan(retry=retry(2, 15)),
        Outcome("finished", 30, 3, 6),
        Outcome("finished", 40, 1, 4, num_attempts=2, away=15),
        Outcome("rejected", 15, num_attempts=2, away=15),
        num_turned_away=3,
    ),
    "Retry-After is the least a client waits": rule(
        asks([0, 0], [3, 1]),
        replace(ONE, max_queued_requests=1, retry_after_ns=42 * MS),
        plan(retry=retry(2, 5)),
        Outcome("finished", 30, 3, 6),
        Outcome("finished", 52, 1, 4, num_attempts=2, away=42),
        num_turned_away=1,
    ),
    "who was preempted waits in the queue like others": rule(
        # As in the swap above, a step later: at 30 the second is swapped out, and at 35 the queue of one is full.
        asks([0, 1, 35], [6, 6, 1]),
        replace(TIGHT, max_queued_requests=1),
        plan(cancel=[None, 45, None]),
        Outcome("finished", 70, 6, 9),
        Outcome("cancelled", 46, 2, 5),
        Outcome("rejected", 35),
        num_turned_away=1,
    ),
    "a step goes on for an attempt that was given up while the next one waits": rule(
        asks([0], [90]),
        ONE,
        plan(timeout=15, retry=retry(2, 1)),
        Outcome("timed_out", 31, 2, 10, num_attempts=2, away=1, num_abandoned=2, scheduled=20),
        num_timed_out_attempts=2,
    ),
    "who comes again stands behind those who came meanwhile": rule(
        asks([0, 46, 47], [20, 2, 1]),
        ONE,
        plan(timeout=45, retry=retry(2, 10)),
        Outcome("timed_out", 100, 2, 13, num_attempts=2, away=10, num_abandoned=5, scheduled=80),
        Outcome("finished", 70, 2, 5, scheduled=50),
        Outcome("finished", 80, 1, 4, scheduled=70),
    ),
    "a client may leave for good while it backs off, and what it got is its last attempt's": rule(
        asks([0], [90]),
        ONE,
        plan(timeout=15, cancel=[50], retry=retry(2, 100)),
        Outcome("cancelled", 50, 2, 5, num_attempts=1, away=35),
    ),
    "a client that leaves at the moment of its next attempt does not make it": rule(
        asks([0], [90]),
        ONE,
        plan(timeout=15, cancel=[50], retry=retry(2, 35)),
        Outcome("cancelled", 50, 2, 5, num_attempts=1, away=35),
    ),
    "a client's patience counts from its first attempt": rule(
        asks([0], [90]),
        ONE,
        plan(timeout=15, cancel=[30], retry=retry(9, 5)),
        Outcome("cancelled", 30, 1, 9, num_attempts=2, away=5, num_abandoned=2, scheduled=20),
        num_timed_out_attempts=1,
    ),
}

CLOSED_LOOPS = {
    "a request that can never be served is over at once, and its client goes on": rule(
        asks([0, 0, 0], [2, 1, 1], [4, 200, 4]),
        ONE,
        plan(concurrency=1, think_ns=[99 * MS, 5 * MS, 7 * MS]),
        Outcome("finished", 20, 2, 5, scheduled=0),
        Outcome("rejected", 25),
        Outcome("finished", 42, 1, 4, scheduled=32),
    ),
    "the next request is sent when the last one is over, however it ended, and not while it backs off": rule(
        # The first times out at 15, comes again at 25 and is gone for good at 40; then comes the second, which
        # starts at 45, when the step under way ends.
        asks([7, 8, 9], [90, 90, 1]),
        TWO,
        plan(timeout=15, cancel=[None, 12, None], concurrency=1, retry=retry(2, 10)),
        Outcome("timed_out", 40, 2, 10, num_attempts=2, away=10, num_abandoned=2, scheduled=25),
        Outcome("cancelled", 52, 1, 4, scheduled=45),
        Outcome("finished", 65, 1, 4, scheduled=55),
    ),
    "a group of as many as there are clients does not wait for more": rule(
        asks([0, 0, 0, 0], [1, 3, 1, 1]),
        replace(STATIC, max_num_seqs=3),
        plan(concurrency=2),
        Outcome("finished", 30, 1, 4, scheduled=0),
        Outcome("finished", 30, 3, 6, scheduled=0),
        Outcome("finished", 40, 1, 4, scheduled=30),
        Outcome("finished", 40, 1, 4, scheduled=30),
    ),
    "a client plays its session to the end, whatever became of a turn, and then takes the next one": rule(
        # 0 → 2 → 4 is one session, 1 and 3 are alone: the second client has thought 3 ms before it sends 3.
        asks([0, 0, 0, 0, 0], [2, 1, 1, 1, 2], [4, 4, 200, 4, 4]),
        TWO,
        plan(
            concurrency=2,
            think_ns=[99 * MS, 99 * MS, 99 * MS, 3 * MS, 99 * MS],
            turns=([2, NOBODY, 4, NOBODY, NOBODY], [0, 0, 5 * MS, 0, 7 * MS]),
        ),
        Outcome("finished", 20, 2, 5, scheduled=0),
        Outcome("finished", 10, 1, 4, scheduled=0),
        Outcome("rejected", 25),
        Outcome("finished", 30, 1, 4, scheduled=20),
        Outcome("finished", 52, 2, 5, scheduled=32),
    ),
}

RULES = DEPARTURES | STATIC_BATCHES | RETRIES | CLOSED_LOOPS
