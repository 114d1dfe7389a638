"""From a capacity to replicas and money: arithmetic only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from simserve.tasks.intervals import Interval

MILLION, SECONDS_PER_HOUR = 1e6, 3600.0


class Replicas(TypedDict):
    """Whole replicas for a target rate, at the capacity and at both ends of its interval."""

    value: int
    low: int
    high: int


@dataclass(frozen=True)
class Question:
    """What else was asked of a capacity: a rate to serve (requests/s), a price (per GPU-hour); null: not asked."""

    target_rps: float | None = None
    price_per_gpu_hour: float | None = None


def replicas_for(target_rps: float, capacity: Interval) -> Replicas | None:
    """Replicas that a target rate needs, each at its capacity at most: rounded up. The low end of the capacity needs
    the high number. None without a capacity."""
    if capacity["value"] is None:
        return None
    count = math.ceil(target_rps / capacity["value"] - 1e-12)
    low, high = capacity["low"], capacity["high"]
    fewest = count if high is None else math.ceil(target_rps / high - 1e-12)
    most = count if low is None or low <= 0 else math.ceil(target_rps / low - 1e-12)
    return {"value": max(1, count), "low": max(1, fewest), "high": max(1, most)}


def cost_per_hour(gpus_per_replica: int, price: float, replicas: int = 1) -> float:
    """What the GPUs of so many replicas cost in an hour."""
    return gpus_per_replica * replicas * price


def cost_per_million(tokens_per_request: float, capacity: Interval, gpus: int, asked: Question) -> Interval | None:
    """Cost of a million tokens, of which each answered request brings ``tokens_per_request``.

    At capacity, one replica serves capacity requests/s. With a target rate, whole replicas serve that rate, so a part
    of what they cost buys room. None without a price, a capacity or tokens.
    """
    price, value = asked.price_per_gpu_hour, capacity["value"]
    if price is None or value is None or tokens_per_request <= 0:
        return None
    if asked.target_rps is not None:
        needed = replicas_for(asked.target_rps, capacity)
        assert needed is not None, "there is a capacity"
        hourly = tokens_per_request * asked.target_rps * SECONDS_PER_HOUR / MILLION
        at = {end: cost_per_hour(gpus, price, needed[end]) / hourly for end in ("value", "low", "high")}
        return {"value": at["value"], "low": at["low"], "high": at["high"], "n": capacity["n"], "calibration": 0.0}
    per_rps = cost_per_hour(gpus, price) * MILLION / SECONDS_PER_HOUR / tokens_per_request
    low = per_rps / capacity["high"] if capacity["high"] else None
    high = per_rps / capacity["low"] if capacity["low"] else None
    return {"value": per_rps / value, "low": low, "high": high, "n": capacity["n"], "calibration": 0.0}
