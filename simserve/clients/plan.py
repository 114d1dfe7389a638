"""How clients behave, apart from what they ask: open or closed loop, patience, cancellations, retries.

Everything random in it was drawn with the workload, one draw per request, so that every variant meets the same people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn

NOBODY = -1  # in ``Turns.next_id``: the session ends
STAYS = -1  # in ``cancel_after_ns``: this client never leaves by itself


@dataclass(frozen=True)
class RetryPolicy:
    """When a client asks again, and after how long: exponential backoff with jitter, as HTTP clients do it.

    The delay before attempt k + 1 is ``backoff_ns · multiplier^(k−1)``, at most ``max_backoff_ns``, shortened by a
    random share of up to ``jitter``; after a 429 it is at least what the server's Retry-After says.
    """

    max_attempts: int  # the first included
    backoff_ns: int
    multiplier: float
    max_backoff_ns: int
    jitter: float
    after_rejection: bool  # 429
    after_timeout: bool

    def delay_ns(self, attempt: int, draw: float, retry_after_ns: int = 0) -> int:
        """How long to wait after attempt number ``attempt`` (from 1) failed; ``draw`` is uniform in [0, 1)."""
        ceiling = min(float(self.max_backoff_ns), self.backoff_ns * self.multiplier ** (attempt - 1))
        return max(1, retry_after_ns, round(ceiling * (1.0 - self.jitter * draw)))


@dataclass(frozen=True)
class Turns:
    """Sessions: request j = ``next_id[i]`` (NOBODY: none) is sent ``wait_ns[j]`` after request i has ended, whatever
    became of that; the time that the table has for it is the earliest possible. Requests that nobody precedes come at
    the table's times, or in a closed loop when a client takes them up."""

    next_id: IntColumn
    wait_ns: IntColumn

    @property
    def follows(self) -> npt.NDArray[np.bool_]:
        """Whether a request waits for another to end."""
        held = np.zeros(len(self.next_id), bool)
        held[self.next_id[self.next_id != NOBODY]] = True
        return held


@dataclass(frozen=True)
class ClientPlan:
    """The clients of a workload. Columns have one entry per request; without one, nobody does that.

    ``concurrency`` clients in a closed loop each send their next request ``think_ns`` after their last answer; without
    it requests come at the table's own times (open loop), but for those that ``turns`` holds back. With both a client
    plays whole sessions: the next turn after its wait, and after the last one the next session, ``think_ns`` of its
    first request later. ``jitter`` has a row per request and a draw per retry.
    """

    concurrency: int | None = None
    think_ns: IntColumn | None = None
    timeout_ns: int | None = None  # from an attempt's arrival to its whole answer
    ttft_timeout_ns: int | None = None  # from an attempt's arrival to its first token
    cancel_after_ns: IntColumn | None = None  # from a request's first arrival; STAYS: never
    retry: RetryPolicy | None = None
    jitter: npt.NDArray[np.float64] | None = None
    turns: Turns | None = None


OPEN_LOOP = ClientPlan()
