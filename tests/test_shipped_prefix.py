"""What the shipped scenario of shared prefixes must show: a common beginning is computed once if memory lasts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario import load_scenario
from simserve.simulate import simulate

SCENARIO = Path(__file__).parents[1] / "scenarios" / "shared-prefix.yaml"


@cache
def summaries() -> dict[str, dict[str, Any]]:
    """A fifth of the scenario's requests."""
    result = simulate(load_scenario(SCENARIO, ("workload.num_requests=600",)))
    return {name: variant.summary for name, variant in result.variants.items()}


def test_the_same_is_asked_and_less_is_computed() -> None:
    """Each variant gives the same answers; what is not computed is what was found."""
    without, small, large = summaries().values()
    assert {each["num_finished"] for each in summaries().values()} == {600}
    assert without["output_tokens"] == small["output_tokens"] == large["output_tokens"]
    assert large["computed_tokens"] < small["computed_tokens"] < without["computed_tokens"]
    assert large["computed_tokens"] < without["computed_tokens"] / 2


def test_more_memory_finds_more_and_an_infinite_cache_all() -> None:
    """16 GiB forget most of the customers' prompts before they are asked for again, 48 GiB few."""
    without, small, large = (each["kv_cache"] for each in summaries().values())
    assert without["prefix_hit_rate"] == 0
    assert small["prefix_hit_rate"] < large["prefix_hit_rate"] < large["prefix_hit_bound"]
    assert small["prefix_hit_bound"] == pytest.approx(large["prefix_hit_bound"])
    assert small["prefix_evicted_tokens"] > 2 * large["prefix_evicted_tokens"]


def test_who_asks_waits_for_his_own_question_only() -> None:
    """First tokens within the second that was promised, which the other two break for some or for most."""
    without, small, large = summaries().values()
    assert without["ttft_s"]["p99"] > 10 * large["ttft_s"]["p99"]
    assert large["goodput_rps"] > small["goodput_rps"] > 2 * without["goodput_rps"]
