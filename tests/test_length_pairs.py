"""Lengths that go together: the rank correlation that was asked for, and both distributions left as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simserve.errors import ScenarioError
from simserve.request import RequestTable
from simserve.scenario import parse_scenario
from simserve.workload.build import build_workload
from simserve.workload.length_pairs import even_table, shares_upto
from tests.scenario_builders import small

P_VALUE = 1e-3  # with fixed seeds a test that passes always passes
TABLE = {"p0": 3, "p25": 40, "p50": 40, "p90": 900, "p99.5": 4000, "p100": 16_000}
LOGNORMAL = {"lognormal": {"mean": 900.0, "sigma": 0.8, "max": 4000}}
KINDS: list[dict[str, Any]] = [
    {"fixed": 7},
    {"uniform": {"low": 3, "high": 12}},
    LOGNORMAL,
    {"lognormal": {"mean": 5.0, "sigma": 0.0}},
    {"values": [5, 900, 5, 1, 33]},
    {"quantiles": TABLE},
]
TABLE_3 = [[0.5, 0.5, 0.0], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]]
EVERY = st.sampled_from(KINDS)
CORRELATIONS = st.floats(-1, 1)


def requests(
    prompt: dict[str, Any], output: dict[str, Any], correlation: float | list[list[float]], n: int, seed: int = 0
) -> RequestTable:
    """Of a rank correlation, or of a table of classes."""
    key = "length_table" if isinstance(correlation, list) else "length_correlation"
    arrivals = {"process": "constant", "rate_rps": 1.0}
    workload = {"num_requests": n, "arrivals": arrivals, "prompt_tokens": prompt, "output_tokens": output}
    config = parse_scenario(small(workload=workload | {key: correlation}), "s").workload
    return build_workload(config, seed, Path()).table


@pytest.mark.parametrize("asked", [-1.0, -0.6, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("output", [LOGNORMAL, {"values": list(range(1, 400))}, {"uniform": {"low": 1, "high": 10**6}}])
def test_the_rank_correlation_is_the_one_asked_for(asked: float, output: dict[str, Any]) -> None:
    """Spearman's, by scipy: within five standard errors, (1 − ρ²) / √n, and what ties and the cut at max take."""
    table = requests(LOGNORMAL, output, asked, 8000)
    found = stats.spearmanr(table.num_prompt_tokens, table.num_output_tokens).statistic
    assert found == pytest.approx(asked, abs=5 * (1 - asked**2) / 8000**0.5 + 0.005)


def test_it_is_a_gaussian_copula() -> None:
    """Normal scores of both, as their ranks have them, are bivariate normal: the part of the second that the first does
    not tell is normal and has the same spread at both ends of the first."""
    table = requests({"uniform": {"low": 1, "high": 10**9}}, {"uniform": {"low": 1, "high": 10**9}}, 0.7, 20_000)
    first, second = (stats.norm.ppf(each / 1e9) for each in (table.num_prompt_tokens, table.num_output_tokens))
    r = 2 * np.sin(np.pi / 6 * 0.7)
    rest = (second - r * first) / np.sqrt(1 - r * r)
    assert stats.kstest(rest, "norm").pvalue > P_VALUE
    assert stats.ks_2samp(rest[first < -0.7], rest[first > 0.7]).pvalue > P_VALUE


@pytest.mark.parametrize("output", KINDS)
def test_answers_keep_their_distribution(output: dict[str, Any]) -> None:
    """Against as many answers without correlation, each against each (Kolmogorov–Smirnov); a list is used up."""
    alone = requests(LOGNORMAL, output, 0.0, 10_000).num_output_tokens
    for way in (0.8, TABLE_3):
        together = requests(LOGNORMAL, output, way, 10_000).num_output_tokens
        assert stats.ks_2samp(alone, together, method="asymp").pvalue > P_VALUE
        if "values" in output:
            assert sorted(together) == sorted(alone)


@pytest.mark.parametrize("output", [LOGNORMAL, {"values": list(range(1, 400))}, {"uniform": {"low": 1, "high": 10**6}}])
def test_each_class_of_prompts_has_the_answers_of_its_row(output: dict[str, Any]) -> None:
    """Places among 9,000 by rank: the counts of each pair of classes by chi-squared against the table, where a share of
    0 is none at all; inside a class, where an answer's place does not hang on its prompt's, ranks do not correlate."""
    table = requests({"uniform": {"low": 1, "high": 10**9}}, output, TABLE_3, 9000)
    prompts, outputs = (stats.rankdata(each) for each in (table.num_prompt_tokens, table.num_output_tokens))
    rows, columns = ((ranks - 0.5) * 3 // 9000 for ranks in (prompts, outputs))
    counts = np.histogram2d(rows, columns, bins=[[0, 1, 2, 3]] * 2)[0]
    expected = 3000 * np.array(TABLE_3)
    assert counts[expected == 0].sum() <= 60  # ranks at the edge of a class are off by their noise
    assert np.abs(counts - expected).max() < 5 * (3000 * 0.25) ** 0.5 + 30
    inside = (rows == 1) & (columns == 1)
    assert abs(stats.spearmanr(prompts[inside], outputs[inside]).statistic) < 5 / inside.sum() ** 0.5


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_an_even_table_is_doubly_stochastic(size: int, seed: int) -> None:
    """Law: any table of positive numbers becomes one whose rows and columns add up to 1; one that has that already
    stays."""
    found = even_table(np.random.default_rng(seed).uniform(0.1, 1, (size, size)))
    for axis in (0, 1):
        np.testing.assert_allclose(found.sum(axis=axis), 1, atol=1e-9)
    np.testing.assert_allclose(even_table(found), found, atol=1e-9)


@given(EVERY, EVERY, CORRELATIONS | st.just(TABLE_3), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_prompts_stay_and_a_longer_workload_begins_with_the_shorter(
    prompt: dict[str, Any],
    output: dict[str, Any],
    correlation: float | list[list[float]],
    n: int,
    more: int,
    seed: int,
) -> None:
    """Laws: prompts are those of no correlation, answers are whole tokens of at least one, and the first n requests do
    not depend on how many follow."""
    short, alone = requests(prompt, output, correlation, n, seed), requests(prompt, output, 0.0, n, seed)
    long = requests(prompt, output, correlation, n + more, seed)
    assert (short.num_prompt_tokens == alone.num_prompt_tokens).all()
    assert short.num_output_tokens.min() >= 1
    assert (long.num_prompt_tokens[:n] == short.num_prompt_tokens).all()
    assert (long.num_output_tokens[:n] == short.num_output_tokens).all()


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_those_of_the_draws(kind: dict[str, Any]) -> None:
    """The distribution function against the empirical one of 20,000 draws, at each length drawn: within 1.95/√n, which
    Kolmogorov's law exceeds once in a thousand."""
    arrivals = {"process": "constant", "rate_rps": 1.0}
    workload = {"num_requests": 20_000, "arrivals": arrivals, "prompt_tokens": kind, "output_tokens": kind}
    config = parse_scenario(small(workload=workload), "s").workload
    drawn = build_workload(config, 3, Path()).table.num_prompt_tokens
    places = np.unique(drawn)
    empirical = np.searchsorted(np.sort(drawn), places, side="right") / len(drawn)
    assert np.abs(empirical - shares_upto(config.prompt_tokens, places)).max() < 1.95 / 20_000**0.5
    assert shares_upto(config.prompt_tokens, np.array([0, int(drawn.max())])).tolist()[0] == 0


def test_percentiles_are_found_again() -> None:
    """The table's own lengths at its own shares; between two of them even on a logarithmic scale; spikes are spikes."""
    drawn = np.sort(requests({"quantiles": TABLE}, {"fixed": 1}, 0.0, 40_000).num_prompt_tokens)
    assert np.quantile(drawn, 0.9) == pytest.approx(900, rel=0.05)
    assert (drawn == 40).mean() == pytest.approx(0.25, abs=0.02)
    assert np.quantile(drawn, 0.7) == pytest.approx((40 * 900) ** 0.5, rel=0.06)
    assert drawn[0] >= 3
    assert drawn[-1] <= 16_000


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"length_correlation": 1.5}, "s: workload.length_correlation: must be ≤ 1.0 (got 1.5)"),
        (
            {"length_correlation": 0.5, "output_tokens": {"values": [1, 2], "shuffle": False}},
            "s: workload: length_correlation must be 0 where output_tokens come in the order listed (got 0.5)",
        ),
        (
            {"length_table": [[0.5, 0.5], [0.4, 0.6]]},
            "s: workload.length_table: must add up to 1 in each row and column (got 0.9 in column 1)",
        ),
        (
            {"length_table": [[1.0, 0.0], [1.0]]},
            "s: workload.length_table: must have as many columns as rows (got 2 rows",
        ),
        (
            {"length_table": [[1.0, 0.0], [0.0, 1.0]], "length_correlation": 0.5},
            "s: workload: length_correlation must be 0 with a length_table (got 0.5)",
        ),
        (
            {"length_table": [[1.0, 0.0], [0.0, 1.0]], "output_tokens": {"values": [1], "shuffle": False}},
            "s: workload: length_table must be null where output_tokens come in the order listed",
        ),
        ({"output_tokens": {"quantiles": {"p0": 1, "p5": 2}}}, "s: workload.output_tokens: quantiles must have p0 and"),
        (
            {"output_tokens": {"quantiles": {"p0": 1, "50": 2}}},
            "s: workload.output_tokens: quantiles must be named p0 to p100, such as p50 or p99.9 (got '50')",
        ),
        (
            {"output_tokens": {"quantiles": {"p0": 1, "p50": 9, "p60": 8, "p100": 10}}},
            "s: workload.output_tokens: quantiles must not fall (got 9 tokens at p50, 8 at p60)",
        ),
        (
            {"output_tokens": {"quantiles": {"p0": 1, "p5": 9, "p5.0": 9, "p100": 10}}},
            "s: workload.output_tokens: quantiles must differ (got 9 tokens at p5, 9 at p5)",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(workload: dict[str, Any], sentence: str) -> None:
    """Where, the rule, and what was given."""
    data = small(workload__arrivals={"process": "constant", "rate_rps": 1.0})
    data["workload"] |= workload
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data, "s")
    assert str(caught.value).startswith(sentence)


def test_tenants_have_correlations_of_their_own() -> None:
    """One goes together, one does not, and each sends what it would send alone."""
    tenant = {
        "arrivals": {"process": "poisson", "rate_rps": 1.0},
        "prompt_tokens": LOGNORMAL,
        "output_tokens": LOGNORMAL,
    }
    tenants = {"a": tenant | {"length_correlation": 0.9}, "b": tenant}
    config = parse_scenario(small(workload={"num_requests": 4000, "tenants": tenants}), "s").workload
    table = build_workload(config, 0, Path()).table
    assert table.tenants is not None
    found = [
        stats.spearmanr(table.num_prompt_tokens[rows], table.num_output_tokens[rows]).statistic
        for rows in (table.tenants.of == 0, table.tenants.of == 1)
    ]
    assert found == pytest.approx([0.9, 0.0], abs=0.1)
