"""A mixture of tenants: whose requests arrive when, and that nobody's depend on the others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.replay.source import _first
from simserve.request import IntColumn, RequestTable
from simserve.scenario import TenantsWorkload, parse_scenario
from simserve.scenario.merge import merge
from simserve.workload import Workload, build_workload
from tests.scenario_builders import small

CHAT = {
    "arrivals": {"process": "poisson", "rate_rps": 3.0},
    "prompt_tokens": {"uniform": {"low": 1, "high": 10**6}},
    "output_tokens": {"uniform": {"low": 1, "high": 10**6}},
}
BATCH = {
    "arrivals": {"process": "gamma", "rate_rps": 1.0, "cv": 3.0},
    "prompt_tokens": {"lognormal": {"mean": 900.0, "sigma": 1.0}},
    "output_tokens": {"fixed": 7},
    "priority": 2,
    "slo": {"e2e_s": 60.0},
}
WEB = {**CHAT, "arrivals": {"process": "constant", "rate_rps": 2.0}}
ALL = {"chat": CHAT, "batch": BATCH, "web": WEB}


def scenario_of(tenants: dict[str, Any], num_requests: int = 200, **more: Any) -> dict[str, Any]:
    return small(workload={"num_requests": num_requests, "tenants": tenants, **more})


def mixed(tenants: dict[str, Any], num_requests: int = 200, seed: int = 0, **more: Any) -> Workload:
    config = parse_scenario(scenario_of(tenants, num_requests, **more), "s").workload
    assert isinstance(config, TenantsWorkload)
    return build_workload(config, seed, Path())


def rows_of(table: RequestTable, name: str) -> list[list[int]]:
    """What one tenant sends, request by request."""
    assert table.tenants is not None
    i = [tenant.name for tenant in table.tenants.each].index(name)
    rows = np.flatnonzero(table.tenants.of == i)
    columns: list[IntColumn] = [table.arrival_ns, table.num_prompt_tokens, table.num_output_tokens, table.priority]
    return np.array([column[rows] for column in columns]).T.tolist()


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.permutations(list(ALL)), st.integers(1, 3))
def test_a_tenant_sends_the_same_whoever_else_is_there(n: int, seed: int, order: list[str], kept: int) -> None:
    """INV-7. With fewer others, or in another order of names, each tenant's requests are the same, as far as they
    go; and there are n, by arrival."""
    whole = mixed(ALL, n, seed).table
    part = mixed({name: ALL[name] for name in order[:kept]}, n, seed).table
    assert len(whole) == len(part) == n
    assert (np.diff(whole.arrival_ns) >= 0).all()
    for name in order[:kept]:
        alone, together = rows_of(part, name), rows_of(whole, name)
        assert alone[: len(together)] == together


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**32))
def test_a_longer_mixture_begins_with_the_shorter(n: int, more: int, seed: int) -> None:
    """The first n requests do not depend on how many come after them."""
    short, long = mixed(ALL, n, seed).table, mixed(ALL, n + more, seed).table
    assert short.tenants is not None
    assert long.tenants is not None
    assert (long.tenants.of[:n] == short.tenants.of).all()
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "priority"):
        assert (getattr(long, name)[:n] == getattr(short, name)).all()


@given(st.integers(1, 60), st.floats(0.001, 1000.0), st.integers(0, 2**32))
def test_the_mixture_is_every_arrival_up_to_its_last(n: int, ratio: float, seed: int) -> None:
    """Against a plain superposition: n arrivals of each tenant, all sorted, the first n kept. However unequal the
    rates, nobody's arrival is missed because too few were drawn."""
    fast = {**CHAT, "arrivals": {"process": "gamma", "rate_rps": ratio, "cv": 5.0}}
    table = mixed({"slow": CHAT, "fast": fast}, n, seed).table
    alone = [mixed({name: each}, n, seed).table.arrival_ns for name, each in (("slow", CHAT), ("fast", fast))]
    assert table.arrival_ns.tolist() == np.sort(np.concatenate(alone))[:n].tolist()


def test_shares_of_the_requests_follow_the_rates() -> None:
    """3 : 1 : 2 requests per second; with a constant rate the tenant has exactly every half second."""
    workload = mixed(ALL, 30_000)
    counts = [len(rows_of(workload.table, name)) for name in ALL]
    assert counts == pytest.approx([15_000, 5_000, 10_000], rel=0.1)
    assert [row[0] for row in rows_of(workload.table, "web")[:3]] == [500_000_000, 1_000_000_000, 1_500_000_000]


def test_superposed_poisson_streams_are_one_poisson_stream() -> None:
    """Palm's theorem in its exact case: gaps of 20 tenants' Poisson arrivals together are exponential."""
    from scipy import stats

    one = {**CHAT, "arrivals": {"process": "poisson", "rate_rps": 0.5}}
    gaps = np.diff(mixed({f"t{i}": one for i in range(20)}, 20_000).table.arrival_ns) / 1e9
    assert stats.kstest(gaps, stats.expon(scale=0.1).cdf).pvalue > 1e-3


def test_tenants_bring_their_own_priority_limits_and_maxima() -> None:
    """Columns by tenant; a declared maximum is the tenant's longest output, and never below a true length."""
    web = {**WEB, "max_output_tokens": 500_000}
    workload = mixed({"chat": CHAT, "batch": BATCH, "web": web}, 300)
    table = workload.table
    assert table.tenants is not None
    assert [tuple(tenant) for tenant in table.tenants.each] == [
        ("chat", None, None, None),
        ("batch", None, None, 60.0),
        ("web", None, None, None),
    ]
    for i, longest in enumerate((table.num_output_tokens[table.tenants.of == 0].max(), 7)):
        rows = table.tenants.of == i
        assert set(table.max_output_tokens[rows].tolist()) == {int(longest)}
    assert set(table.priority[table.tenants.of == 1].tolist()) == {2}
    rows = table.tenants.of == 2
    assert (table.max_output_tokens[rows] == np.maximum(table.num_output_tokens[rows], 500_000)).all()
    raised = int((table.num_output_tokens[rows] > 500_000).sum())
    assert workload.notes == (
        f"tenant web: {raised} of {rows.sum()} declared maxima were below the true output length: raised to it",
    )


def test_rate_scale_offers_the_same_requests_faster() -> None:
    """Four times the rates: the same arrivals at a quarter of their times."""
    one, four = mixed(ALL, 100).table, mixed(ALL, 100, rate_scale=4.0).table
    assert four.arrival_ns.tolist() == pytest.approx((one.arrival_ns / 4).tolist(), abs=1.0)
    assert (four.num_prompt_tokens == one.num_prompt_tokens).all()


def test_a_tenant_that_hardly_comes_is_told_and_costs_no_time() -> None:
    """Once in thirty years beside three per second: it sends nothing, in words, and no error comes of it."""
    rare = {**CHAT, "arrivals": {"process": "constant", "rate_rps": 1e-9}}
    assert mixed({"chat": CHAT, "rare": rare}, 50).notes == ("tenant rare sends none of the first 50 requests",)
    many = {"chat": CHAT, **{f"rare{i}": rare for i in range(100)}}
    told = "100 of 101 tenants send none of the first 50 requests: rare0, rare1, rare2 and 97 more"
    assert mixed(many, 50).notes == (told,)
    with pytest.raises(ScenarioError, match=r"^workload.tenants: the last of 5 requests must arrive within 1e\+09 s"):
        mixed({"rare": rare}, 5)


@pytest.mark.parametrize(
    ("tenants", "more", "sentence"),
    [
        ({}, {}, "s: workload.tenants: must not be empty"),
        (
            {"chat": {**CHAT, "arrivals": {"process": "all_at_once"}}},
            {},
            "s: workload.tenants.chat: arrivals.process must have a rate, so that tenants can be mixed "
            "(got all_at_once)",
        ),
        (
            {"chat": {**CHAT, "arrivals": {"process": "poison", "rate_rps": 1.0}}},
            {},
            "s: workload.tenants.chat.arrivals.process: must be one of poisson, gamma, ",
        ),
        (
            {"slo": {**CHAT, "arrivals": {"process": "poisson", "rate_rps": 1.0, "cv": 2.0}}},
            {},
            "s: workload.tenants.slo.arrivals: 'cv' belongs to process: gamma",
        ),
        (
            {"slo": {**CHAT, "slo": {"ttft": 1.0}}},
            {},
            "s: workload.tenants.slo.slo: unknown key 'ttft' (did you mean 'ttft_s'?)",
        ),
        ({"slo": {**CHAT, "prioriti": 1}}, {}, "s: workload.tenants.slo: unknown key 'prioriti' (did you mean 'prio"),
        ({"chat": {**CHAT, "prompt_tokens": {}}}, {}, "s: workload.tenants.chat.prompt_tokens: must have exactly one"),
        ({"chat": {"arrivals": CHAT["arrivals"]}}, {}, "s: workload.tenants.chat.prompt_tokens: must be given"),
        ({"chat": CHAT}, {"concurrency": 3}, "s: workload: tenants come at their own times: leave concurrency out"),
        ({"chat": CHAT}, {"arrivals": CHAT["arrivals"]}, "s: workload: must have exactly one of trace, tenants, arriv"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_one_sentence(
    tenants: dict[str, Any], more: dict[str, Any], sentence: str
) -> None:
    """Where it is, by the tenant's name (though it be that of a key), the rule, and what was given."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(scenario_of(tenants, **more), "s")
    assert str(caught.value).startswith(sentence)


def test_an_override_of_a_tenants_distribution_needs_no_clean_up() -> None:
    """As for a plain generator: another kind of arrivals or lengths drops the keys that only the old one knew."""
    base = scenario_of(copy.deepcopy(ALL))
    section = {"arrivals": {"process": "poisson"}, "prompt_tokens": {"fixed": 3}}
    config = parse_scenario(merge(base, {"workload": {"tenants": {"batch": section}}})).workload
    assert isinstance(config, TenantsWorkload)
    assert config.tenants["batch"].arrivals.model_dump() == {"process": "poisson", "rate_rps": 1.0}
    assert config.tenants["batch"].prompt_tokens.model_dump() == {"fixed": 3}


def test_the_first_rows_of_a_table_keep_their_tenants() -> None:
    """A replay of the first n requests knows whose they are."""
    table = mixed(ALL, 20).table
    cut = _first(table, 8)
    assert table.tenants is not None
    assert cut.tenants is not None
    assert cut.tenants.of.tolist() == table.tenants.of[:8].tolist()
