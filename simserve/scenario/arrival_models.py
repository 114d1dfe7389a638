"""Arrivals beside the plain ones: Weibull gaps, and rates that change (windows, days, bursts).

Where the rate changes, gaps are drawn at rate 1 and the clock runs at the rate: a busier hour squeezes the same gaps.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simserve.scenario.fields import MAX_SECONDS, Rate, Seconds, Strict

MAX_RATE_RPS = 1e9
LEAST_EXPECTED = 1e-6  # requests in a cycle of windows
Cv = Annotated[float, Field(ge=0.001, le=100)]
_CV = "standard deviation of the gaps over their mean, at a steady rate; 1 is Poisson"


class WeibullArrivals(Strict):
    """Weibull-distributed gaps: as gamma with the same cv, but with a longer tail where cv is above 1."""

    process: Literal["weibull"]
    rate_rps: Rate = Field(description="mean arrivals per second")
    cv: Cv = Field(description=_CV)


class GapKeys(Strict):
    """What arrivals at a changing rate have in common."""

    gaps: Literal["gamma", "weibull"] = Field("gamma", description="the law of the gaps")
    cv: Cv = Field(1.0, description=_CV)


class RateWindow(Strict):
    """A stretch of time with one rate."""

    duration_s: Seconds = Field(description="how long it lasts, seconds")
    rate_rps: float = Field(ge=0, le=MAX_RATE_RPS, description="mean arrivals per second in it; 0: nobody comes")
    cv: Cv | None = Field(None, description="of the gaps that begin in it; null: the process's cv")


class WindowedArrivals(GapKeys):
    """A rate, and if wanted a cv, for each stretch of time, as ServeGen describes clients; after the last window the
    first comes again."""

    process: Literal["windows"]
    windows: list[RateWindow] = Field(min_length=1, max_length=100_000, description="one after the other, from 0 on")

    @model_validator(mode="after")
    def _somebody_comes(self) -> Self:
        expected = sum(window.rate_rps * window.duration_s for window in self.windows)
        if expected < LEAST_EXPECTED:
            raise ValueError(
                f"windows must expect at least {LEAST_EXPECTED:g} requests in all, rate_rps · duration_s added up "
                f"(got {expected:g})"
            )
        return self


class DiurnalArrivals(GapKeys):
    """A day: the rate is rate_rps · (1 + amplitude · cos(2π (t − peak_s) / period_s)), in 96 even steps a period."""

    process: Literal["diurnal"]
    rate_rps: Rate = Field(description="mean arrivals per second over a whole period")
    amplitude: float = Field(0.5, ge=0, le=1, description="how far the rate goes above and below its mean, as a share")
    period_s: Seconds = Field(86_400.0, description="length of a day, seconds")
    peak_s: float = Field(50_400.0, ge=0, le=MAX_SECONDS, description="when it is busiest, seconds after the start")


class BurstArrivals(GapKeys):
    """Quiet and bursts in turn, each lasting an exponential time (with cv 1 a Markov-modulated Poisson process)."""

    process: Literal["bursts"]
    rate_rps: Rate = Field(description="mean arrivals per second in the long run, bursts and quiet together")
    factor: float = Field(ge=1, le=1e6, description="the rate in a burst is so many times the one in quiet")
    mean_burst_s: Seconds = Field(description="mean length of a burst, seconds")
    mean_quiet_s: Seconds = Field(description="mean time between bursts, seconds")
