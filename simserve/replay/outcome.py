"""What became of one request; times are seconds since the replay began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from simserve.replay.token_counts import Counting

Status = Literal["unsent", "running", "backing_off", "finished", "rejected", "timed_out", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = (
    "unsent",
    "running",
    "backing_off",
    "finished",
    "rejected",
    "timed_out",
    "failed",
    "cancelled",
)
NEVER = float("nan")


@dataclass(slots=True)
class Outcome:
    """``due_s`` is when it should be sent, ``arrival_s`` when its first attempt was, ``sent_s`` when its last one was.
    Tokens, their times and ``http_status`` are the last attempt's. ``connect_wait_s``: how much of its lateness it
    spent waiting for the server to accept a connection. ``token_times_s`` has an entry per event that brought tokens,
    ``token_counts`` the tokens there were by then. ``num_prompt_tokens`` as the server counted them, if it did."""

    request_id: int
    due_s: float
    asked_prompt_tokens: int
    asked_output_tokens: int
    status: Status = "unsent"
    arrival_s: float = NEVER
    sent_s: float = NEVER
    end_s: float = NEVER
    connect_wait_s: float = 0.0
    away_s: float = 0.0
    num_attempts: int = 0
    num_turned_away: int = 0
    num_prompt_tokens: int | None = None
    token_times_s: list[float] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    counting: Counting | None = None
    http_status: int = 0
    finish_reason: str = ""
    error: str = ""

    @property
    def num_emitted_tokens(self) -> int:
        """Tokens that the last attempt brought."""
        return self.token_counts[-1] if self.token_counts else 0
