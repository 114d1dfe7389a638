"""What a request costs. `make bench` prints the times; README and VALIDATION.md quote them with the machine.

The raw SimPy timeout rate is measured in the same run, so that figures from different machines can be compared.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import simpy

from simserve.model_spec import load_model_spec
from simserve.scenario import parse_scenario
from simserve.step_time.hardware import load_hardware
from simserve.step_time.roofline import RooflineStepTime
from simserve.workload import build_workload
from tests.builders import run_engine
from tests.reference_types import Settings

ROOT = Path(__file__).parents[2]
AZURE = ROOT / "../shared/data/traces/azure/AzureLLMInferenceTrace_conv.csv"
NUM_REQUESTS = 10_000
SATURATION_RPS = 20.6  # what Llama-3.1-8B on the H100 roofline serves of these requests with 256 slots


def lognormal_table(rate_rps: float):
    """Poisson arrivals of prompts about 1,000 and outputs about 200 tokens long."""
    scenario = parse_scenario(
        {
            "name": "benchmark",
            "model": "llama-3.1-8b",
            "step_time": {"roofline": "h100-sxm"},
            "workload": {
                "num_requests": NUM_REQUESTS,
                "arrivals": {"process": "poisson", "rate_rps": rate_rps},
                "prompt_tokens": {"lognormal": {"mean": 1000.0, "sigma": 0.8, "max": 8000}},
                "output_tokens": {"lognormal": {"mean": 200.0, "sigma": 0.8, "max": 2000}},
            },
            "engine": {"policy": "chunked", "kv_cache": {"allocator": "paged", "num_blocks": 25_000}},
        }
    )
    return build_workload(scenario.workload, 0, ROOT).table


def test_simpy_timeouts(benchmark):
    """100,000 bare timeouts: the yardstick."""

    def run():
        env = simpy.Environment()

        def process():
            for _ in range(100_000):
                yield env.timeout(1)

        env.process(process())
        env.run()

    benchmark.pedantic(run, rounds=5)


@pytest.mark.parametrize("load", [0.25, 0.9, 2.0])
def test_engine_loop(benchmark, load):
    """10,000 requests, chunked and paged: far from saturation, near it, and in overload with a long queue."""
    table = lognormal_table(load * SATURATION_RPS)
    settings = Settings("chunked", "paged", 256, 2048, 16_384, num_blocks=25_000, block_size=16)
    model = RooflineStepTime(load_model_spec("llama-3.1-8b"), load_hardware("h100-sxm"))
    records = benchmark.pedantic(lambda: run_engine(table, settings, model), rounds=3)
    benchmark.extra_info.update(requests=NUM_REQUESTS, steps=records.num_steps, spans=len(records.spans.rows))


@pytest.mark.skipif(not AZURE.exists(), reason="the Azure 2023 conversation trace is not at ../shared/data")
def test_whole_azure_command(benchmark, tmp_path):
    """`simserve run scenarios/azure.yaml` on all 19,366 requests, report included, start-up included."""
    command = [sys.executable, "-m", "simserve", "run", str(ROOT / "scenarios/azure.yaml"), "--quiet"]
    command += ["--set", f"workload.trace={AZURE}", "--out", str(tmp_path / "azure")]
    benchmark.pedantic(lambda: subprocess.run(command, check=True), rounds=3)
