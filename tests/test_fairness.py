"""Figures by tenant and Jain's index: by hand, by their laws, and through a whole run."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simserve.fairness import jain
from simserve.manifest import build_manifest
from simserve.metrics import summarize
from simserve.records import Records
from simserve.request import Tenant, Tenants
from simserve.run_directory import OutputChoices, write_files
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.tasks.measure import measure
from simserve.tasks.warmup import WarmupRule
from simserve.terminal import print_result
from tests.record_builders import Served, Slo, records_of

SHARES = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e12)), min_size=1, max_size=20)


def owned(records: Records, each: tuple[Tenant, ...], of: list[int]) -> Records:
    """The records, of those tenants' requests."""
    table = replace(records.requests.table, tenants=Tenants(each, np.array(of, np.int64)))
    records.requests.table = table
    records.num_arrived = len(table)
    return records


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([3, 1], 0.8), ([0.0], None), ([], None)]
)
def test_jain_by_hand(shares: list[float], index: float | None) -> None:
    """Equal shares 1; one of n gets all: 1/n; (3 + 1)² / (2 · 10) = 0.8; nothing for anybody: null."""
    assert jain(np.array(shares, np.float64)) == (None if index is None else pytest.approx(index))


@given(SHARES, st.floats(1e-6, 1e6))
def test_laws_of_jain(shares: list[float], factor: float) -> None:
    """Between 1/n and 1, and the same in other units; and 1/(1 + cv²) of the shares."""
    values = np.array(shares)
    index = jain(values)
    if index is None:
        assert not values.any()
        return
    assert 1 / len(shares) * (1 - 1e-9) <= index <= 1 + 1e-9
    assert jain(values * factor) == pytest.approx(index, rel=1e-6)
    scaled = values / values.max()
    assert index == pytest.approx(1 / (1 + (scaled.std() / scaled.mean()) ** 2), rel=1e-6)


def test_each_tenant_is_described_by_its_own_requests() -> None:
    """Two tenants, 10 s: tokens, rates over the whole run, latencies, and what became of whom."""
    a, b = Served(0, 0, 1, 5, 40), Served(0, 2, 4, 10, 10)
    records = owned(records_of(a, b, num_rejected=1), (Tenant("a"), Tenant("b")), [0, 1, 1])
    tenants = summarize(records)["tenants"]
    assert list(tenants) == ["a", "b"]
    assert (tenants["a"]["num_requests"], tenants["a"]["num_finished"], tenants["a"]["num_rejected"]) == (1, 1, 0)
    assert (tenants["b"]["num_requests"], tenants["b"]["num_finished"], tenants["b"]["num_rejected"]) == (2, 1, 1)
    assert (tenants["a"]["output_tokens_per_s"], tenants["b"]["output_tokens_per_s"]) == (4.0, 1.0)
    assert (tenants["a"]["ttft_s"]["mean"], tenants["b"]["ttft_s"]["p99"]) == (1.0, 4.0)
    assert tenants["b"]["queue_time_s"]["max"] == 2.0
    assert (tenants["a"]["slo_attainment"], tenants["b"]["slo_attainment"]) == (1.0, 0.5)


def test_fairness_by_hand() -> None:
    """Tokens 40 : 10, served 1 : 10/11 (the rejected one asked for one), in time 1 : ½, speeds 8 : 1 tokens/s."""
    a, b = Served(0, 0, 1, 5, 40), Served(0, 2, 4, 10, 10)
    records = owned(records_of(a, b, num_rejected=1), (Tenant("a"), Tenant("b"), Tenant("nobody")), [0, 1, 1])
    fairness = summarize(records)["fairness"]
    assert fairness["output_tokens_per_s"] == pytest.approx(25 / (2 * 17))  # (4 + 1)² / 2 (16 + 1)
    assert fairness["served_share"] == pytest.approx((21 / 11) ** 2 / (2 * (1 + (10 / 11) ** 2)))
    assert fairness["slo_attainment"] == pytest.approx(1.5**2 / (2 * 1.25))
    assert fairness["speed"] == pytest.approx(81 / (2 * 65))  # 40 tokens in 5 s, 10 in 10 s


def test_who_is_starved_counts_with_nothing() -> None:
    """A tenant none of whose requests was served has speed 0: of two tenants the index is ½."""
    records = owned(records_of(Served(0, 0, 1, 2, 5), num_rejected=2), (Tenant("a"), Tenant("b")), [0, 1, 1])
    summary = summarize(records)
    assert summary["tenants"]["b"]["ttft_s"]["mean"] is None
    assert set(summary["fairness"].values()) == {0.5}


def test_a_tenants_own_limits_go_before_the_scenarios() -> None:
    """TTFT 3 s for all: 2 of 4 keep it; tenant b allows itself 5 s, and E2E 9 s is asked of b alone."""
    served = [Served(0, 0, 2, 12, 9), Served(0, 0, 4, 12, 9), Served(0, 0, 4, 8, 9), Served(0, 0, 2, 12, 9)]
    plain = summarize(records_of(*served), Slo(ttft_s=3.0))
    assert plain["slo_attainment"] == 0.5
    tenants = (Tenant("a"), Tenant("b", ttft_s=5.0, e2e_s=9.0))
    owned_by = summarize(owned(records_of(*served), tenants, [0, 0, 1, 1]), Slo(ttft_s=3.0))
    assert {name: each["slo_attainment"] for name, each in owned_by["tenants"].items()} == {"a": 0.5, "b": 0.5}
    only_b = summarize(owned(records_of(*served), tenants, [1, 1, 1, 1]))
    assert only_b["slo_attainment"] == 0.25


def test_studies_hold_tenants_to_their_own_limits_too() -> None:
    """What a sweep, a knee or a capacity measures of a run is the summary's attainment."""
    served = [Served(0, 0, 2, 12, 9), Served(0, 0, 4, 12, 9), Served(0, 0, 4, 8, 9), Served(0, 0, 2, 12, 9)]
    records = owned(records_of(*served), (Tenant("a"), Tenant("b", ttft_s=5.0, e2e_s=9.0)), [0, 0, 1, 1])
    assert measure(records, Slo(ttft_s=3.0), WarmupRule(0.0, False))["slo_attainment"] == 0.5
    records = owned(records_of(*served), (Tenant("a"), Tenant("b", ttft_s=5.0, e2e_s=9.0)), [1, 1, 1, 1])
    assert measure(records, None, WarmupRule(0.0, False))["slo_attainment"] == 0.25


def test_without_tenants_nothing_is_said_of_them() -> None:
    """The keys are there only where there is something to tell."""
    assert not {"tenants", "fairness"} & summarize(records_of(Served(0, 0, 1, 2, 5))).keys()
    assert "fairness" not in measure(records_of(Served(0, 0, 1, 2, 5)), None, WarmupRule(0.0, False))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(2, 9)), min_size=1, max_size=12))
def test_fairness_is_jain_of_what_the_tenants_figures_say(rows: list[tuple[int, int, int]]) -> None:
    """Law: of any requests, each index is Jain's of the numbers that ``tenants`` has for those who sent something."""
    served = [Served(i, i, i + 1, i + end, tokens) for i, (_, tokens, end) in enumerate(rows)]
    of = [tenant for tenant, _, _ in rows]
    summary = summarize(owned(records_of(*served), tuple(Tenant(f"t{i}", e2e_s=5.0) for i in range(4)), of))
    senders = [each for each in summary["tenants"].values() if each["num_requests"]]
    compared = {
        "output_tokens_per_s": [each["output_tokens_per_s"] for each in senders],
        "slo_attainment": [each["slo_attainment"] for each in senders],
        "speed": [1 / each["normalized_latency_s"]["mean"] for each in senders],
        "served_share": [1.0 for _ in senders],
    }
    for name, values in compared.items():
        index = jain(np.array(values))
        assert summary["fairness"][name] == (None if index is None else pytest.approx(index))


def test_studies_measure_fairness_after_the_warm_up() -> None:
    """Of the whole run the summary's indices; with the first half cut, those of the second half alone: there a and b
    get 10 tokens each in 2 s, and before b had waited ten times as long."""
    served = [Served(0, 0, 1, 2, 10), Served(0, 0, 1, 20, 10), Served(30, 30, 31, 32, 10), Served(30, 30, 31, 32, 10)]
    records = owned(records_of(*served), (Tenant("a"), Tenant("b")), [0, 1, 0, 1])
    whole = measure(records, None, WarmupRule(0.0, False))
    assert whole["fairness"] == pytest.approx(summarize(records)["fairness"])
    assert whole["fairness"]["speed"] < 0.9
    assert whole["lowest_slo_attainment"] == 1.0
    assert measure(records, None, WarmupRule(0.5, True))["fairness"]["speed"] == pytest.approx(1.0)


def test_the_lowest_attainment_is_that_of_the_worst_served_tenant() -> None:
    """a keeps 5 s for both of its requests, b for one of three (one is turned away), c sends none."""
    served = [Served(0, 0, 1, 2, 9), Served(0, 0, 1, 2, 9), Served(0, 0, 1, 4, 9), Served(0, 0, 1, 9, 9)]
    each = (Tenant("a", e2e_s=5.0), Tenant("b", e2e_s=5.0), Tenant("c", e2e_s=5.0))
    records = owned(records_of(*served, num_rejected=1), each, [0, 0, 1, 1, 1])
    found = measure(records, None, WarmupRule(0.0, False))
    assert found["lowest_slo_attainment"] == pytest.approx(1 / 3)
    assert found["slo_attainment"] == pytest.approx(3 / 5)


def test_a_thousand_tenants_are_described_like_two() -> None:
    """Rows are dealt out in one sort: each tenant has its own requests, in order, and those who sent none are there."""
    served = [Served(i, i, i + 1, i + 2 + i % 3, 5) for i in range(90)]
    of = [(7 * i) % 30 * 3 for i in range(90)]
    tenants = summarize(owned(records_of(*served), tuple(Tenant(f"t{i}") for i in range(100)), of))["tenants"]
    for i in range(100):
        mine = [one.last_token_s - one.arrival_s for one, owner in zip(served, of, strict=True) if owner == i]
        assert tenants[f"t{i}"]["num_requests"] == len(mine)
        assert tenants[f"t{i}"]["e2e_s"]["mean"] == (pytest.approx(np.mean(mine)) if mine else None)


SHARED = {
    "name": "shared",
    "model": "qwen2.5-0.5b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 300,
        "tenants": {
            "chat": {
                "arrivals": {"process": "gamma", "rate_rps": 300.0, "cv": 2.0},
                "prompt_tokens": {"fixed": 100},
                "output_tokens": {"uniform": {"low": 1, "high": 50}},
                "slo": {"ttft_s": 0.05},
            },
            "batch": {
                "arrivals": {"process": "poisson", "rate_rps": 100.0},
                "prompt_tokens": {"lognormal": {"mean": 1000.0, "sigma": 0.5}},
                "output_tokens": {"fixed": 20},
                "priority": 1,
            },
        },
    },
    "engine": {
        "policy": "chunked",
        "max_num_seqs": 4,
        "queue_order": "priority",
        "kv_cache": {"allocator": "paged", "num_blocks": 4000},
    },
    "slo": {"e2e_s": 10.0},
    "variants": {"priority": {}, "fcfs": {"engine": {"queue_order": "fcfs"}}},
}


def test_a_run_with_tenants_from_file_to_folder(tmp_path: Path) -> None:
    """Counts and tokens add up to the run's own, requests.parquet says whose each request is, and priority makes those
    who have it faster and the rest slower than first come, first served."""
    result = simulate(parse_scenario(SHARED))
    write_files(
        result,
        build_manifest(result, "simserve run", datetime(2026, 1, 1, tzinfo=UTC), 1.0),
        tmp_path,
        OutputChoices(report=False),
    )
    shown = io.StringIO()
    print_result(result, Console(file=shown, width=120))
    for name, variant in result.variants.items():
        assert name in shown.getvalue()
        assert f"{1000 * variant.summary['tenants']['batch']['ttft_s']['p99']:,.0f}" in shown.getvalue()
        assert f"{variant.summary['fairness']['speed']:.3f}" in shown.getvalue()
    assert "goodput" in shown.getvalue()
    summaries = json.loads((tmp_path / "summary.json").read_text())["variants"]
    frame = pd.read_parquet(tmp_path / "requests.parquet")
    for name, summary in summaries.items():
        tenants = summary["tenants"]
        for key in ("num_requests", "num_finished", "output_tokens", "num_preemptions"):
            assert sum(each[key] for each in tenants.values()) == summary[key]
        assert sum(each["goodput_rps"] for each in tenants.values()) == pytest.approx(summary["goodput_rps"])
        ours = frame[frame["variant"] == name]
        means = ours.groupby("tenant", observed=True)["ttft_s"].mean()
        assert {key: each["ttft_s"]["mean"] for key, each in tenants.items()} == pytest.approx(means.to_dict())
    fcfs, priority = summaries["fcfs"]["tenants"], summaries["priority"]["tenants"]
    assert priority["chat"]["queue_time_s"]["mean"] < fcfs["chat"]["queue_time_s"]["mean"]
    assert priority["batch"]["queue_time_s"]["mean"] > fcfs["batch"]["queue_time_s"]["mean"]


def test_of_many_tenants_those_who_send_most_are_printed() -> None:
    """Thirty tenants: eight are shown, in their own order, and the title says of how many; Jain's index is of all."""
    tenant = SHARED["workload"]["tenants"]["chat"]
    tenants = {
        f"t{i}": {**tenant, "arrivals": {"process": "constant", "rate_rps": 100.0 if i % 4 == 3 else 1.0}}
        for i in range(30)
    }
    data = {**SHARED, "workload": {"num_requests": 300, "tenants": tenants}}
    shown = io.StringIO()
    print_result(simulate(parse_scenario(data)), Console(file=shown, width=120))
    named = [line.split(":")[0].strip() for line in shown.getvalue().splitlines() if ": TTFT p99" in line]
    busy = [f"t{i}" for i in range(30) if i % 4 == 3]
    assert len(named) == 8 and [name for name in named if name in busy] == busy
    assert "the 8 of 30 that send most" in shown.getvalue()
