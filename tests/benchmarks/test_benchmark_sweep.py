"""The promise of `simserve sweep`: 200 points × 3 variants of 2,000 requests in under 2 minutes on 2 cores, and what a
second worker gains. Run on an idle machine; `make bench` prints the times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from simserve.sweep.document import sweep_document
from simserve.sweep.options import SweepOptions
from simserve.sweep.plan import Plan, build_plan
from simserve.tasks.executors import executor_for, num_cpus
from simserve.tasks.runner import Runner
from simserve.tasks.store import PointStore

CHAT = Path(__file__).parents[2] / "scenarios" / "chat.yaml"
VARIANTS = {
    "chunked": {},
    "continuous": {"engine": {"policy": "continuous"}},
    "contiguous": {"engine": {"kv_cache": {"allocator": "contiguous", "reserve": "max_tokens"}}},
}
MAX_SECONDS = 120.0
MIN_SPEED_UP = 1.6


def _plan(folder: Path, num_rates: int, num_limits: int) -> Plan:
    """Chat traffic of 2,000 requests per point: rates from idle to twice what the server takes, times batch limits."""
    data = {**yaml.safe_load(CHAT.read_text()), "variants": VARIANTS}
    data["workload"]["num_requests"] = 2000
    path = folder / "chat.yaml"
    path.write_text(yaml.safe_dump(data))
    limits = ",".join(str(32 * (i + 1)) for i in range(num_limits))
    over = (f"workload.arrivals.rate_rps=1:20:{num_rates}", f"engine.max_num_seqs={limits}")
    return build_plan(SweepOptions(path, over=over, replications=1))


def _seconds(plan: Plan, path: Path, workers: int) -> float:
    """From the checked plan to the document, workers started and stopped."""
    began = time.perf_counter()
    with PointStore(path) as store, executor_for(workers) as executor, Runner(executor, store) as runner:
        results = runner.run(plan.measured())
    sweep_document(plan, results, [], [""] * len(plan.settings))
    return time.perf_counter() - began


@pytest.mark.skipif(num_cpus() < 2, reason="the promise is for two cores")
def test_benchmark_200_points_of_three_variants_take_under_two_minutes(benchmark, tmp_path):
    """40 rates × 5 batch limits × 3 variants of 2,000 requests, one replication, two workers."""
    plan = _plan(tmp_path, 40, 5)
    assert len(plan.measured()) == 200
    seconds = benchmark.pedantic(_seconds, (plan, tmp_path / "points.jsonl", 2), rounds=1)
    assert seconds < MAX_SECONDS


@pytest.mark.skipif(num_cpus() < 2, reason="needs two cores")
def test_benchmark_a_second_worker_is_worth_it(benchmark, tmp_path):
    """20 rates × 2 batch limits × 3 variants: two workers take at most 1 / 1.6 of what one takes."""
    plan = _plan(tmp_path, 20, 2)
    alone = _seconds(plan, tmp_path / "one.jsonl", 1)
    together = benchmark.pedantic(_seconds, (plan, tmp_path / "two.jsonl", 2), rounds=1)
    assert alone / together >= MIN_SPEED_UP
