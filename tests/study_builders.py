"""Studies without an engine: a runner that answers from a formula, and the queue whose answers are in textbooks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from decimal import Decimal, getcontext
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from simserve.knee.study import Study, study_of
from simserve.simulate import simulate
from simserve.tasks.processes import InProcess
from simserve.tasks.runner import Runner
from simserve.tasks.store import PointStore
from tests.scenario_builders import small

STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def study(replications: int = 4, **changes: object) -> Study:
    """A study of SMALL with keys set, on a roofline (no profile to load)."""
    data = small(**{"step_time": {"roofline": "laptop-cpu", "dtype": "fp32"}, **changes})
    return study_of(data, "small.yaml", Path(), replications)


def measures(latency_s: float | None, **changes: object) -> dict[str, Any]:
    """Measures of a run in which every latency is the same."""
    each = {name: latency_s for name in STATISTICS}
    found = {
        "num_requests": 1000,
        "num_finished": 1000,
        "num_cancelled": 0,
        "unanswered_share": 0.0,
        "slo_attainment": 1.0,
        "requests_per_s": 1.0,
        "offered_rps": 1.0,
        "backlogged_rps": None,
        "mean_output_tokens": 100.0,
        "mean_prompt_tokens": 300.0,
        "backlog": {
            "growth": 0.0,
            "sd": 0.1,
            "num_batches": 20,
            "p_value": 0.5,
            "grows": False,
            "stopped_early": False,
        },
        "slo_quantiles": {
            name: {**each, "answered_mean": latency_s, "lost_share": 0.0}
            for name in ("ttft_s", "tpot_s", "e2e_s", "queue_time_s")
        },
        **{name: dict(each) for name in ("ttft_s", "tpot_s", "e2e_s", "queue_time_s", "itl_s")},
    }
    return {**found, **changes}


class FakeRunner:
    """Answers tasks by ``of(load, replication, task)``; load is None for everybody at once."""

    def __init__(self, of: Callable[[float | None, int, Any], dict[str, Any]], first_seed: int = 0) -> None:
        self.of = of
        self.first_seed = first_seed
        self.asked: list[tuple[float | None, int]] = []

    def run(self, tasks, what=""):
        results = []
        for task in tasks:
            workload = task.data["workload"]
            load = workload.get("concurrency") or workload.get("arrivals", {}).get("rate_rps")
            self.asked.append((load, task.seed - self.first_seed))
            results.append({task.variants[0]: self.of(load, task.seed - self.first_seed, task)})
        return results


@contextmanager
def real_runner(folder: Path):
    """The engine, in this process, its results kept in a folder."""
    with PointStore(folder / "points.jsonl") as store, Runner(InProcess(), store) as runner:
        yield runner


def md1(num_requests: int, seed: int = 0, replications: int = 4) -> Study:
    """One slot, one output token, constant prompts: M/D/1 under every policy."""
    return study(
        replications,
        seed=seed,
        workload__num_requests=num_requests,
        workload__output_tokens={"fixed": 1},
        engine__max_num_seqs=1,
    )


def service_s(of: Study) -> float:
    """What one request alone takes, by the engine."""
    workload = {**of.data["workload"], "num_requests": 1}
    alone = study_of({**of.data, "workload": workload}, "alone", Path(), 1)
    (variant,) = simulate(alone.scenario).variants.values()
    return float(variant.summary["e2e_s"]["mean"])


def md1_rate_for_mean_wait(wait_s: float, service: float) -> float:
    """The rate λ at which M/D/1 waits so long on average: Wq = ρ D / (2 (1 − ρ)) (Pollaczek and Khinchine)."""
    twice = 2 * wait_s / service
    return twice / (1 + twice) / service


def md1_wait_cdf(rate: float, service: float, t: float) -> float:
    """P(wait ≤ t) of M/D/1: (1 − ρ) Σ_{k ≤ t/D} (−λ(t − kD))^k / k! · exp(λ(t − kD)) (Erlang 1909, Crommelin 1932).

    The sum alternates, so it is taken with 60 digits.
    """
    getcontext().prec = 60
    lam, d, time = Decimal(rate), Decimal(service), Decimal(t)
    terms = (
        ((-lam * (time - k * d)) ** k if k else 1) / Decimal(math.factorial(k)) * (lam * (time - k * d)).exp()
        for k in range(int(t / service) + 1)
    )
    return float((1 - lam * d) * sum(terms))


def md1_rate_for_wait_quantile(q: float, wait_s: float, service: float) -> float:
    """The rate at which a share q of the requests wait at most so long."""
    return float(brentq(lambda rho: md1_wait_cdf(rho / service, service, wait_s) - q, 0.02, 0.99)) / service
