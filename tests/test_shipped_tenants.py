"""What the shipped scenario of tenants must show: priorities keep promises that first come, first served breaks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario import load_scenario
from simserve.simulate import simulate

SCENARIO = Path(__file__).parents[1] / "scenarios" / "tenants.yaml"


@cache
def summaries() -> dict[str, dict[str, Any]]:
    """A quarter of the scenario's requests, which its first bursts are in."""
    result = simulate(load_scenario(SCENARIO, ("workload.num_requests=500",)))
    return {name: variant.summary for name, variant in result.variants.items()}


def test_everybody_is_served_whoever_goes_first() -> None:
    """Both variants do the same work: every request finishes, and each tenant gets the tokens that it asked for."""
    fcfs, priority = summaries()["fcfs"], summaries()["priority"]
    assert fcfs["num_finished"] == priority["num_finished"] == 500
    assert fcfs["fairness"]["served_share"] == priority["fairness"]["served_share"] == pytest.approx(1.0)
    for name in ("chat", "summarizer", "agent"):
        assert fcfs["tenants"][name]["output_tokens"] == priority["tenants"][name]["output_tokens"]


def test_priorities_keep_the_promise_to_those_who_chat() -> None:
    """First come, first served breaks chat's limits for a third of its requests and more; with priorities nearly all
    are kept, and the summarizer, who waits instead, stays within its own."""
    fcfs, priority = (summaries()[name]["tenants"] for name in ("fcfs", "priority"))
    assert fcfs["chat"]["slo_attainment"] < 0.67
    assert priority["chat"]["slo_attainment"] > 0.95
    assert priority["summarizer"]["slo_attainment"] == 1.0
    assert priority["summarizer"]["queue_time_s"]["mean"] > fcfs["summarizer"]["queue_time_s"]["mean"]


def test_jains_index_sees_it_only_where_promises_are_compared() -> None:
    """Equal in tokens per second of waiting under both orders; in promises kept by no means."""
    fcfs, priority = (summaries()[name]["fairness"] for name in ("fcfs", "priority"))
    assert fcfs["speed"] == pytest.approx(priority["speed"], abs=0.1)
    assert priority["slo_attainment"] > fcfs["slo_attainment"] + 0.02
