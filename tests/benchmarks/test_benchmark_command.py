"""What `simserve run` takes as a whole for a million requests: they are drawn, served, described, written and charted.

Each run is a process of its own, as a user starts it. CPU time, not the clock: the machines that this runs on have
neighbours. Compiled code is made once, before the first measurement, and kept. The bounds are those of the plain case
of the engine as machine code (extra ``fast``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import yaml

from simserve.run_command import RunOptions, run_scenario

pytest.importorskip("numba", reason="a million requests in seconds need the extra `fast`")

NUM_REQUESTS = 1_000_000
GIB = 2**30
MILLION = {
    "name": "million",
    "model": "llama-3.1-8b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": NUM_REQUESTS,
        "arrivals": {"process": "poisson", "rate_rps": 5},
        "prompt_tokens": {"lognormal": {"mean": 1000, "sigma": 0.8}},
        "output_tokens": {"lognormal": {"mean": 200, "sigma": 0.8}},
    },
    "engine": {
        "policy": "chunked",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "max_model_len": 65536,
        "kv_cache": {"allocator": "paged", "memory": "48GiB"},
    },
}
RATES_RPS = {"a quarter of saturation": 5.0, "90 %": 18.0, "twice saturation": 40.0}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """The file of a million requests; what has to be compiled is, by a run of 20,000."""
    path = tmp_path_factory.mktemp("million") / "million.yaml"
    path.write_text(yaml.safe_dump(MILLION))
    _run(path, path.parent / "few", "workload.num_requests=20000")
    return path


def _run(scenario, out, *overrides):
    """CPU seconds and peak bytes of one whole command."""
    settings = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "simserve", "run", str(scenario), "--out", str(out), *settings, "--quiet"]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


@pytest.mark.parametrize("load", RATES_RPS)
def test_a_million_requests(benchmark, scenario, tmp_path, load):
    """Everything is written and everybody served, within a third of what issue 7 allows: 20 s of CPU (30 s at 90 % of
    saturation) and 0.8 GiB (of 60, 90 and 2)."""
    rate = f"workload.arrivals.rate_rps={RATES_RPS[load]}"
    cpu_s, peak_bytes = benchmark.pedantic(_run, (scenario, tmp_path / "out", rate), rounds=1)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert next(iter(summary["variants"].values()))["num_finished"] == NUM_REQUESTS
    assert pq.ParquetFile(tmp_path / "out" / "requests.parquet").metadata.num_rows == NUM_REQUESTS
    benchmark.extra_info.update(cpu_s=round(cpu_s, 1), peak_gib=round(peak_bytes / GIB, 2))
    assert cpu_s < (30 if load == "90 %" else 20)
    assert peak_bytes < 0.8 * GIB


def test_cost_per_request_is_flat(benchmark, scenario, tmp_path):
    """All but the page, whose cost is bounded, in one process: a request of a million costs at most 15 % more than one
    of 100,000 (least of three; the first run, which loads what it needs, is not counted)."""

    def cpu_s(num_requests):
        began = time.process_time()
        run_scenario(
            RunOptions(
                scenario,
                (f"workload.num_requests={num_requests}", "workload.arrivals.rate_rps=18"),
                tmp_path / "out",
                report=False,
                quiet=True,
            )
        )
        return time.process_time() - began

    def measure():
        cpu_s(20_000)
        return [1e6 * min(cpu_s(n) for _ in range(3)) / n for n in (100_000, NUM_REQUESTS)]

    first_us, then_us = benchmark.pedantic(measure, rounds=1)
    benchmark.extra_info.update(us_per_request=[round(first_us, 2), round(then_us, 2)])
    assert then_us < 1.15 * first_us
