"""What the shipped scenario of sessions must show: contexts that stay in memory are computed once, and those that do
not are computed again and again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from simserve.scenario import load_scenario
from simserve.simulate import RunResult, simulate

SCENARIO = Path(__file__).parents[1] / "scenarios" / "sessions.yaml"


@cache
def result() -> RunResult:
    """A third of the scenario's turns."""
    return simulate(load_scenario(SCENARIO, ("workload.num_requests=700",)))


def test_every_agent_plays_one_session_at_a_time() -> None:
    """As many sessions are open at once as there are agents, until no new one is left; turns come after answers."""
    turns = result().workload.clients.turns
    assert turns is not None
    for variant in result().variants.values():
        r = variant.records.requests
        ends = np.flatnonzero(turns.next_id >= 0)
        assert (r.arrival_ns[turns.next_id[ends]] == (r.end_ns[ends] + turns.wait_ns[turns.next_id[ends]])).all()
        begins, lasts = r.arrival_ns[~turns.follows], r.end_ns[turns.next_id < 0]
        assert max((begins <= t).sum() - (lasts <= t).sum() for t in begins) <= 24


def test_a_context_is_computed_once_if_it_stays() -> None:
    """With 48 GiB nearly all that can be found is found; with 24 GiB most of it was evicted while the tool ran."""
    without, small, large = (variant.summary for variant in result().variants.values())
    assert without["kv_cache"]["prefix_hit_rate"] == 0
    assert large["kv_cache"]["prefix_hit_rate"] > 0.95 * large["kv_cache"]["prefix_hit_bound"]
    assert small["kv_cache"]["prefix_hit_rate"] < 0.6 * small["kv_cache"]["prefix_hit_bound"]
    assert small["kv_cache"]["prefix_evicted_tokens"] > 20 * large["kv_cache"]["prefix_evicted_tokens"]
    assert large["computed_tokens"] < small["computed_tokens"] / 4 < without["computed_tokens"] / 4


def test_the_first_token_comes_at_once_only_where_contexts_stay() -> None:
    """Half the memory gives most of what the cache is worth away."""
    without, small, large = (variant.summary for variant in result().variants.values())
    assert large["ttft_s"]["mean"] < min(without["ttft_s"]["mean"], small["ttft_s"]["mean"]) / 5
    assert large["goodput_rps"] > 2 * max(without["goodput_rps"], small["goodput_rps"])
