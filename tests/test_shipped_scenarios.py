"""What the shipped scenarios must show, on the shipped measured profiles and the seed that their files name.

The figures are those of the chapters that the scenarios retell; ``tests/validation/test_skewed64.py`` gives the spread
over 30 seeds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simserve.request import Batch
from simserve.scenario import load_scenario
from simserve.simulate import RunResult, simulate
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@cache
def run(name: str) -> RunResult:
    return simulate(load_scenario(SCENARIOS / f"{name}.yaml"))


def gains(name: str, layout: str) -> tuple[float, float]:
    """(throughput of continuous over static, mean E2E of static over continuous)."""
    variants = run(name).variants
    static, continuous = (variants[f"{policy}-{layout}"].summary for policy in ("static", "continuous"))
    throughput = continuous["output_tokens_per_s"] / static["output_tokens_per_s"]
    return throughput, static["e2e_s"]["mean"] / continuous["e2e_s"]["mean"]


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_skewed64_continuous_gains_throughput_and_latency_together(layout):
    """Arrivals six decode steps apart: about 1.6 times the throughput, and 9 to 10 times less mean latency."""
    throughput, latency = gains("skewed64", layout)
    assert 1.5 <= throughput <= 1.7
    assert 9.0 <= latency <= 10.0


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_skewed64_burst_gains_less_latency(layout):
    """Everyone at once: 2 to 2.9 times the throughput, 2.4 to 4 times less mean latency."""
    throughput, latency = gains("skewed64-burst", layout)
    assert 2.0 <= throughput <= 2.9
    assert 2.4 <= latency <= 4.0


@pytest.mark.parametrize("name", ["skewed64", "skewed64-burst", "cache64"])
def test_everyone_is_served_every_token(name):
    """All 64 requests finish with 1,874 output tokens in all, under every variant, inside the measured range."""
    for variant in run(name).variants.values():
        assert (variant.summary["num_finished"], variant.summary["output_tokens"]) == (64, 1874)
        assert variant.step_time.source.calibrated
        assert variant.summary["extrapolated_step_share"] == 0


def test_skewed64_arrivals_are_six_decode_steps_apart():
    """The rate written in the file is 1 / (6 × the profile's decode step at batch 8), to a percent, at the contexts
    that the workload has (8 prompt tokens and up to 30 more)."""
    profile = load_profile("qwen2.5-0.5b-cpu-fp32")
    step_s = ProfileStepTime(profile).ramp(Batch(num_decodes=8, decode_context_tokens=8 * 30), 0).first_s
    assert run("skewed64").scenario.workload.arrivals.rate_rps == pytest.approx(1 / (6 * step_s), rel=0.01)


def test_cache64_paged_holds_more_sequences_in_the_same_bytes():
    """Paged holds everyone at once; contiguous the fewer the more it reserves ahead, and the cache is the same."""
    variants = {name: variant.summary for name, variant in run("cache64").variants.items()}
    assert len({summary["kv_cache"]["capacity_tokens"] for summary in variants.values()}) == 1
    held = [variants[name]["peak_running"] for name in ("paged", "contiguous-oracle", "contiguous-max-tokens")]
    assert held[0] == 64 > held[1] > held[2] > variants["contiguous-max-model-len"]["peak_running"]


def test_cache64_says_where_the_rest_of_the_bytes_went():
    """The parts of the cache add up to no more than all of it; contiguous loses most of it without filling it, and
    paged only the tails of blocks and the one token per sequence that the running step is about to fill."""
    shares = {name: variant.summary["kv_cache"] for name, variant in run("cache64").variants.items()}
    waste = ("mean_reserved_unused", "mean_internal_fragmentation", "mean_external_fragmentation")
    for name, share in shares.items():
        assert share["mean_used"] + sum(share[part] for part in waste) <= 1 + 1e-9
        assert name == "paged" or share["mean_used"] < shares["paged"]["mean_used"]
    assert shares["paged"]["mean_external_fragmentation"] == 0
    assert shares["paged"]["mean_reserved_unused"] < 64 / 1024 < shares["contiguous-oracle"]["mean_reserved_unused"]
    assert shares["contiguous-oracle"]["mean_internal_fragmentation"] == 0  # it reserves just what will be filled
    assert shares["contiguous-max-model-len"]["mean_internal_fragmentation"] > 0.5
