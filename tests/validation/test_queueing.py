"""One slot and one output token make every policy a single-server queue, whose waits are known in closed form.

Service time is the prompt's: fixed lengths make M/D/1; geometric ones (the exponential, rounded up to whole tokens)
make M/M/1 as the token goes to zero. Both follow Pollaczek and Khinchine: Wq = λ E[S²] / (2 (1 − ρ)), with the exact
moments of the rounded law (at a mean of 1,000 tokens they are those of the exponential to 0.1 %). Means over
independent seeds must lie within 3.3 standard errors; nothing is pinned to a seed's own answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from simserve.records import Records
from tests.builders import run_engine
from tests.reference_types import Settings
from tests.step_times import TokenStepTime
from tests.strategies import COMBINATIONS, POLICIES, table_of

pytestmark = pytest.mark.validation

NUM_SEEDS, NUM_REQUESTS, NUM_WARM_UP = 30, 8000, 1000
MEAN_TOKENS, TOKEN_S = 1000, 1e-5
SERVICE_S = MEAN_TOKENS * TOKEN_S
SIGMAS = 3.3


@dataclass(frozen=True)
class Queue:
    """One seed's run. Means leave the warm-up out; the two integrals are of the whole run."""

    mean_wait_s: float
    mean_num_waiting: float  # that an arrival finds
    share_without_wait: float
    in_system_ns: int  # as the engine counted it
    sojourn_ns: int  # Σ (end − arrival) from the records


def prompts(kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "M/D/1":
        return np.full(NUM_REQUESTS, MEAN_TOKENS)
    return rng.geometric(1 / MEAN_TOKENS, NUM_REQUESTS)


def mean_square_s2(kind: str) -> float:
    """E[S²]."""
    if kind == "M/D/1":
        return SERVICE_S**2
    p = 1 / MEAN_TOKENS
    return (2 - p) / p**2 * TOKEN_S**2


@cache
def run(kind: str, policy: str, load: float) -> list[Queue]:
    queues = []
    for seed in range(NUM_SEEDS):
        rng = np.random.default_rng([seed, round(100 * load), POLICIES.index(policy), kind == "M/D/1"])
        gaps_s = rng.exponential(SERVICE_S / load, NUM_REQUESTS)
        arrival_ns = np.round(1e9 * np.cumsum(gaps_s)).astype(np.int64)
        table = table_of(arrival_ns, prompts(kind, rng), np.ones(NUM_REQUESTS))
        allocator = "contiguous" if (policy, "contiguous") in COMBINATIONS else "paged"
        s = Settings(policy, allocator, 1, 10**6, 10**6, num_blocks=10**6, reserve="oracle")
        queues.append(measure(run_engine(table, s, TokenStepTime(TOKEN_S))))
    return queues


def measure(records: Records) -> Queue:
    arrival_ns, started_ns = records.requests.table.arrival_ns, records.requests.first_scheduled_ns
    waits_s = ((started_ns - arrival_ns) / 1e9)[NUM_WARM_UP:]
    ahead = np.arange(NUM_REQUESTS) - np.searchsorted(started_ns, arrival_ns, side="right")
    return Queue(
        float(waits_s.mean()),
        float(np.maximum(ahead, 0)[NUM_WARM_UP:].mean()),
        float((waits_s == 0).mean()),
        records.in_system_ns,
        int((records.requests.end_ns - arrival_ns).sum()),
    )


def assert_mean(per_seed: list[float], theory: float) -> None:
    """The mean over seeds is the theory's, to ``SIGMAS`` standard errors, and the error is small enough to tell."""
    error = np.std(per_seed, ddof=1) / math.sqrt(len(per_seed))
    assert error < 0.04 * theory
    assert abs(np.mean(per_seed) - theory) < SIGMAS * error, (
        f"{np.mean(per_seed):.6g} ± {error:.2g}, theory {theory:.6g}"
    )


every_queue = pytest.mark.parametrize("kind", ["M/D/1", "M/M/1"])
every_policy = pytest.mark.parametrize("policy", POLICIES)
every_load = pytest.mark.parametrize("load", [0.5, 0.8])


@every_queue
@every_policy
@every_load
def test_mean_queue_time(kind, policy, load):
    """Wq = λ E[S²] / (2 (1 − ρ)): ρ S / (2 (1 − ρ)) for M/D/1, ρ S / (1 − ρ) for M/M/1."""
    theory = load / SERVICE_S * mean_square_s2(kind) / (2 * (1 - load))
    assert_mean([queue.mean_wait_s for queue in run(kind, policy, load)], theory)


@every_queue
@every_policy
@every_load
def test_mean_queue_length(kind, policy, load):
    """Poisson arrivals see time averages: the mean number they find waiting is Lq = λ Wq."""
    rate = load / SERVICE_S
    theory = rate * rate * mean_square_s2(kind) / (2 * (1 - load))
    assert_mean([queue.mean_num_waiting for queue in run(kind, policy, load)], theory)


@every_queue
@every_policy
@every_load
def test_share_that_does_not_wait(kind, policy, load):
    """An arrival finds the server idle with probability 1 − ρ, whatever the law of service."""
    assert_mean([queue.share_without_wait for queue in run(kind, policy, load)], 1 - load)


@every_queue
@every_policy
@every_load
def test_littles_law(kind, policy, load):
    """L = λ W over each whole run, exactly: the integral as counted is the sum of the times in the system."""
    assert all(queue.in_system_ns == queue.sojourn_ns for queue in run(kind, policy, load))
