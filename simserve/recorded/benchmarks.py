"""Results of load generators: requests where the file has them, else its aggregates."""

from __future__ import annotations

from pathlib import Path

from simserve.recorded import guidellm, vllm_bench
from simserve.recorded.aggregates import RecordedAggregates
from simserve.recorded.json_file import read_object, refusal
from simserve.recorded.run import RecordedRun

FORMATS = (vllm_bench.FORMAT, guidellm.FORMAT)


def benchmark_format(path: Path) -> str | None:
    """Which load generator wrote a JSON file, or None. Raises RunError when it is no JSON object."""
    data = read_object(path)
    if all(mark in data for mark in vllm_bench.MARKS):
        return vllm_bench.FORMAT
    return guidellm.FORMAT if all(mark in data for mark in guidellm.MARKS) else None


def read_benchmark(path: Path) -> RecordedRun | RecordedAggregates:
    """A run with a row per request, or what a file without them tells. Raises RunError, one sentence."""
    form = benchmark_format(path)
    if form is None:
        raise refusal(path.name, f"must be a result of {' or '.join(FORMATS)} (it has neither's keys)")
    if form == vllm_bench.FORMAT:
        data = read_object(path)
        return vllm_bench.read(path) if "ttfts" in data else vllm_bench.aggregates(path)
    return guidellm.read(path) if guidellm.keeps_requests(path) else guidellm.aggregates(path)
