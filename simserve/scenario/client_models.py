"""``workload.clients:`` and ``workload.think_time_s:`` of a scenario: how the people outside behave.

The defaults of ``retry`` are those of the ``openai`` and ``anthropic`` Python clients: two retries, 0.5 s doubled up to
8 s, shortened at random by up to a quarter, and a server's Retry-After is kept.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from simserve.scenario.choice import Choice
from simserve.scenario.fields import MAX_REQUESTS, MAX_SECONDS, Seconds, Strict


class FixedThinkTime(Strict):
    """Every client thinks equally long."""

    fixed: float = Field(ge=0, le=MAX_SECONDS, description="seconds")


class ExponentialMean(Strict):
    """An exponential distribution."""

    mean: Seconds = Field(description="mean, seconds")


class ExponentialThinkTime(Strict):
    """Independent exponential times, as in the closed queueing networks of the textbooks."""

    exponential: ExponentialMean


THINK_TIMES = Choice({"fixed": FixedThinkTime, "exponential": ExponentialThinkTime})
ThinkTimeConfig = Annotated[
    Annotated[FixedThinkTime, Tag("<fixed>")] | Annotated[ExponentialThinkTime, Tag("<exponential>")],
    Discriminator(THINK_TIMES.tag),
]


class CancelConfig(Strict):
    """Clients who leave by themselves: a share of the requests, each an exponential time after it was first sent."""

    share: float = Field(ge=0, le=1, description="share of the requests whose client leaves, from 0 to 1")
    mean_after_s: Seconds = Field(
        description="mean of the exponential time from first sending to leaving, seconds; no matter once answered"
    )


class RetryConfig(Strict):
    """Exponential backoff with jitter: attempt k + 1 comes backoff_s · multiplier^(k−1) after attempt k failed, at most
    max_backoff_s, shortened by a random share of up to jitter; after a 429 at least what Retry-After says."""

    max_attempts: int = Field(
        3, ge=2, le=20, description="how often a request is sent at most, the first time included"
    )
    backoff_s: Seconds = Field(0.5, description="delay before the second attempt, seconds")
    multiplier: float = Field(2.0, ge=1, le=100, description="each further delay is so many times the one before")
    max_backoff_s: Seconds = Field(8.0, description="longest delay, seconds (Retry-After may ask for more)")
    jitter: float = Field(0.25, ge=0, le=1, description="a delay is shortened by a random share of up to this")
    after: list[Literal["rejected", "timed_out"]] = Field(
        default=["rejected", "timed_out"],
        min_length=1,
        description="what a client tries again after: rejected (429: the queue was full), timed_out",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_backoff_s < self.backoff_s:
            raise ValueError(f"max_backoff_s must be ≥ backoff_s (got {self.max_backoff_s:g} and {self.backoff_s:g})")
        if len(set(self.after)) < len(self.after):
            raise ValueError(f"after must name each reason once (got {', '.join(self.after)})")
        return self


class ClientsConfig(Strict):
    """How long clients wait, when they leave, and whether they come again. What is null nobody does."""

    timeout_s: Seconds | None = Field(
        None,
        description="a client gives an attempt up whose whole answer is not there so long after it was sent, seconds",
    )
    ttft_timeout_s: Seconds | None = Field(
        None,
        description="a client gives an attempt up whose first token is not there so long after it was sent, seconds",
    )
    cancel: CancelConfig | None = Field(None, description="clients who leave by themselves")
    retry: RetryConfig | None = Field(None, description="when a request that failed is sent again; null: never")

    @model_validator(mode="after")
    def _first_token_before_the_last(self) -> Self:
        whole, first = self.timeout_s, self.ttft_timeout_s
        if whole is not None and first is not None and first > whole:
            raise ValueError(f"ttft_timeout_s must be ≤ timeout_s (got {first:g} and {whole:g})")
        return self


class ClientKeys(Strict):
    """What every workload shares: closed or open loop, and how its clients behave."""

    concurrency: int | None = Field(
        None,
        ge=1,
        le=MAX_REQUESTS,
        description="closed loop: so many clients, each of whom sends its next request when its last one has ended; of "
        "sessions each plays one after the other, with the waits between their turns",
    )
    think_time_s: ThinkTimeConfig | None = Field(
        None,
        description="closed loop: how long a client waits before its next request, or session, and before turns whose "
        "wait a trace does not tell; null: not at all",
    )
    clients: ClientsConfig = Field(default_factory=ClientsConfig, description="time-outs, cancellations, retries")

    @model_validator(mode="after")
    def _only_a_closed_loop_thinks(self) -> Self:
        if self.think_time_s is not None and self.concurrency is None:
            raise ValueError("think_time_s needs concurrency: clients of an open loop send at their own times")
        return self
