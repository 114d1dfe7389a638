"""``simserve trace fit``: what a generator is made of is found again, and what a fit misses is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from simserve.cli import app
from simserve.request import IntColumn
from simserve.scenario import GeneratedWorkload, parse_scenario
from simserve.scenario.length_models import QuantilesLength
from simserve.trace_tools.fit import Fit, fit
from simserve.trace_tools.fit_arrivals import Clock, fitted_arrivals, nearest_arrivals
from simserve.trace_tools.fit_lengths import fitted_lengths
from simserve.trace_tools.fit_pairs import going_together, held_tokens
from simserve.trace_tools.measures import ks_distance
from simserve.workload.build import build_workload
from simserve.workload.generate import at_shares, lengths
from simserve.workload.length_pairs import shares_upto
from simserve.workload.trace import read_trace
from tests.scenario_builders import small

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
LENGTHS = {"prompt_tokens": {"lognormal": {"mean": 800.0, "sigma": 0.9}}, "output_tokens": {"fixed": 40}}


def write_trace(path: Path, arrivals: dict[str, Any], n: int, tick_s: float = 0.0, until_s: float = 0.0) -> Path:
    """A trace drawn from a generator; with a tick its clock is that coarse; with an end, it has one request then, and
    none after."""
    config = GeneratedWorkload.model_validate({"num_requests": n, "arrivals": arrivals, **LENGTHS})
    table = build_workload(config, 7, Path()).table
    times = table.arrival_ns / 1e9
    times = times // tick_s * tick_s if tick_s else times
    if until_s:
        times = np.append(times[times < until_s], until_s)
    rows = zip(times.tolist(), table.num_prompt_tokens.tolist(), table.num_output_tokens.tolist(), strict=False)
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + "".join(f"{t!r},{p},{o}\n" for t, p, o in rows))
    return path


def fitted(path: Path, num_windows: int | None = None) -> Fit:
    return fit(read_trace(path), num_windows)


def section(rows: list[tuple[float, ...]], gaps: str) -> dict[str, Any]:
    names = ("duration_s", "rate_rps", "cv")
    return {"process": "windows", "gaps": gaps, "windows": [dict(zip(names, row, strict=True)) for row in rows]}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of its p-value, which is not asked for
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_ks_is_scipys(a: list[int], b: list[int]) -> None:
    """The two-sample statistic, ties and all."""
    first, second = np.array(a, np.float64), np.array(b, np.float64)
    assert ks_distance(first, second) == pytest.approx(stats.ks_2samp(first, second).statistic)


@pytest.mark.parametrize("gaps", ["gamma", "weibull"])
def test_windows_are_found_again(tmp_path: Path, gaps: str) -> None:
    """A trace of four windows: their rates within five standard errors, their cv to a fifth, the law of its gaps, and
    nothing far away."""
    rows = [(4000.0, 2.0, 3.0), (4000.0, 8.0, 0.5), (4000.0, 0.5, 1.0), (4000.0, 5.0, 3.0)]
    path = write_trace(tmp_path / "t.csv", section(rows, gaps), 70_000, until_s=16_000.0)
    found = fitted(path, 4)
    arrivals = found.workload["arrivals"]
    assert arrivals["gaps"] == gaps
    for window, (_, rate, cv) in zip(arrivals["windows"], rows, strict=True):
        assert window["rate_rps"] == pytest.approx(rate, abs=5 * max(cv, 1) * (rate / 4000) ** 0.5)
        assert window["cv"] == pytest.approx(cv, rel=0.2)
    for distance in found.quality["distances"].values():
        assert distance["trace"] < 0.03


def test_a_changing_rate_is_not_taken_for_burstiness(tmp_path: Path) -> None:
    """Poisson at a rate that goes up fifteenfold: the gaps' own cv is far above 1, the windows' is 1."""
    rows = [(1000.0, 1.0, 1.0), (200.0, 15.0, 1.0)]
    found = fitted(write_trace(tmp_path / "t.csv", section(rows, "gamma"), 5000, until_s=1200.0), 6)
    assert found.quality["gap_cv"]["trace"] > 1.5
    assert found.workload["arrivals"]["cv"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_a_coarse_clock_is_not_taken_for_burstiness(tmp_path: Path, cv: float) -> None:
    """Ten requests in each tick of a 3 s clock: nine gaps of ten are 0, and the cv is still found; gaps are compared
    as that clock would tell them."""
    gamma = {"process": "gamma", "rate_rps": 10 / 3, "cv": cv}
    found = fitted(write_trace(tmp_path / "t.csv", gamma, 20_000, tick_s=3.0), 1)
    assert found.quality["clock_is_coarse"]
    assert found.quality["clock_tick_s"] == pytest.approx(3.0)
    assert found.workload["arrivals"]["windows"][0]["cv"] == pytest.approx(cv, rel=0.15)
    assert found.quality["distances"]["gap_s"]["trace"] < 0.03


def test_lengths_are_a_lognormal_where_that_is_near_and_percentiles_where_not() -> None:
    """A lognormal's parameters are found; two humps and a spike have none and keep their own distribution to 0.01."""
    rng = np.random.default_rng(0)
    tokens = np.rint(rng.lognormal(6.0, 0.8, 20_000)).astype(np.int64)
    shape = fitted_lengths(tokens)["lognormal"]
    assert shape["mean"] == pytest.approx(np.exp(6.0 + 0.32), rel=0.03)
    assert shape["sigma"] == pytest.approx(0.8, rel=0.03)
    humps = np.concatenate([rng.integers(10, 20, 5000), rng.integers(3000, 3100, 5000)])
    humps = np.concatenate([humps, np.full(10_000, 700), [20_000]])
    found = fitted_lengths(humps)
    assert len(found["quantiles"]) < 30
    assert found["quantiles"].items() >= {"p0": 10, "p50": 700, "p100": 20_000}.items()
    drawn = lengths(QuantilesLength(**found), 40_000, rng)[0]
    assert ks_distance(drawn.astype(np.float64), humps.astype(np.float64)) <= 0.01 + 1.95 / 40_000**0.5
    assert fitted_lengths(np.full(9, 5)) == {"fixed": 5}


@given(st.lists(st.tuples(st.integers(1, 12) | st.integers(1, 10**6), st.integers(1, 900)), min_size=2, max_size=12))
def test_percentiles_are_near_whatever_the_lengths(counts: list[tuple[int, int]]) -> None:
    """Law: lengths that few or many share, neighbours or far apart: no distribution is further from its lengths than
    0.05 or, with n of them, 1/√n."""
    tokens = np.repeat([length for length, _ in counts], [count for _, count in counts]).astype(np.int64)
    found = GeneratedWorkload.model_validate(
        {"num_requests": 1, "concurrency": 1, "prompt_tokens": fitted_lengths(tokens), "output_tokens": {"fixed": 1}}
    ).prompt_tokens
    values, each = np.unique(tokens, return_counts=True)
    upto = each.cumsum() / each.sum()
    left, right = shares_upto(found, values - 1) - upto + each / each.sum(), shares_upto(found, values) - upto
    assert max(np.abs(left).max(), np.abs(right).max()) <= max(0.05, 1 / len(tokens) ** 0.5)


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=60),
    st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_whatever_the_trace_the_section_is_valid(times: list[int], tokens: list[int], num_windows: int) -> None:
    """Law: any times and lengths give a workload that a scenario takes and that can be drawn."""
    arrival_ns: IntColumn = np.sort(np.array(times, np.int64))
    arrival_ns -= arrival_ns[0]
    found, clock = fitted_lengths(np.array(tokens, np.int64)), Clock.of(arrival_ns)
    ways = [fitted_arrivals(arrival_ns, num_windows, law, clock) for law in ("gamma", "weibull")]
    for arrivals in (*ways, nearest_arrivals(arrival_ns, None, clock)):
        workload = {"num_requests": 5, "arrivals": arrivals, "prompt_tokens": found, "output_tokens": found}
        config = parse_scenario(small(workload=workload)).workload
        assert len(build_workload(config, 0, Path()).table) == 5


def test_chance_is_not_fitted(tmp_path: Path) -> None:
    """A steady Poisson process in 50 windows: their rates do not spread with the counts, whose chance the generator
    adds again, and windows of a true change keep it."""
    path = write_trace(tmp_path / "t.csv", {"process": "poisson", "rate_rps": 2.0}, 5000)
    rates = [window["rate_rps"] for window in fitted(path, 50).workload["arrivals"]["windows"]]
    assert np.std(rates) < 0.5 * (2.0 / 50) ** 0.5  # by chance: √(rate / 50 s)
    path = write_trace(tmp_path / "u.csv", section([(500.0, 1.0, 1.0), (500.0, 9.0, 1.0)], "gamma"), 5000, until_s=1e3)
    rates = [window["rate_rps"] for window in fitted(path, 20).workload["arrivals"]["windows"]]
    assert np.mean(rates[:10]) == pytest.approx(1.0, abs=0.25)
    assert np.mean(rates[10:]) == pytest.approx(9.0, abs=0.7)


def test_a_handful_of_requests_are_poisson_for_all_we_know(tmp_path: Path) -> None:
    """Ten gaps of one second would be a metronome, and two are nothing."""
    for n in (2, 10):
        rows = "".join(f"{i},5,5\n" for i in range(n))
        (tmp_path / f"{n}.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
        assert fitted(tmp_path / f"{n}.csv").workload["arrivals"]["cv"] == 1.0


def test_traffic_that_stops_and_goes_gets_more_windows(tmp_path: Path) -> None:
    """Ten seconds of 20 requests/s, fifty of nothing, and so on: 200 in a window know nothing of that."""
    path = write_trace(tmp_path / "t.csv", section([(10.0, 20.0, 1.0), (50.0, 0.0, 1.0)], "gamma"), 8000)
    few, more = fitted(path, 40), fitted(path)
    assert len(more.workload["arrivals"]["windows"]) > 80
    assert more.quality["rate_curve"]["misplaced_share"] < 0.5 * few.quality["rate_curve"]["misplaced_share"]


def test_lengths_go_together_as_in_the_trace(tmp_path: Path) -> None:
    """The rank correlation is scipy's, the generator has it, and none is fitted where there is none but chance."""
    rng = np.random.default_rng(1)
    prompts = rng.lognormal(6, 1, 3000).astype(int) + 1
    outputs = (prompts * rng.lognormal(-1, 0.7, 3000)).astype(int) + 1
    for name, answers in (("t", outputs), ("u", rng.permutation(outputs))):
        rows = "".join(f"{i},{p},{o}\n" for i, (p, o) in enumerate(zip(prompts, answers, strict=True)))
        (tmp_path / f"{name}.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
    found = fitted(tmp_path / "t.csv")
    expected = stats.spearmanr(prompts, outputs).statistic
    told = found.quality["prompt_output_rank_correlation"]
    assert told["trace"] == pytest.approx(expected)
    assert found.workload["length_correlation"] == pytest.approx(expected, abs=1e-3)
    assert told["generator"] == pytest.approx(expected, abs=0.04)
    assert "length_correlation" not in fitted(tmp_path / "u.csv").workload


def test_kinds_of_requests_get_a_table() -> None:
    """Long prompts of short answers, short ones of long answers, and some with both short: by a rank correlation they
    meet otherwise, and requests hold half as much again or more; by the table, doubly stochastic, they hold them
    to a seventh, for its twelve classes part no kind from another to the percent."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(3, 4000, p=[0.5, 0.2, 0.3])
    prompts = rng.integers(1, 300, 4000) + np.array([20_000, 1000, 1000])[kinds]
    outputs = rng.integers(1, 300, 4000) + np.array([900, 10_000, 100])[kinds]
    expected = float(held_tokens(prompts, outputs).mean())
    both = {"prompt_tokens": fitted_lengths(prompts), "output_tokens": fitted_lengths(outputs)}
    section = going_together(prompts, outputs, both)
    table = np.array(section["length_table"])
    np.testing.assert_allclose([*table.sum(axis=0), *table.sum(axis=1)], 1, atol=1e-3)
    by_rank = {"length_correlation": float(stats.spearmanr(prompts, outputs).statistic)}
    found = []
    for way in (section, by_rank):
        workload = both | way | {"num_requests": 20_000, "concurrency": 1}
        drawn = build_workload(parse_scenario(small(workload=workload)).workload, 5, Path()).table
        found.append(float(held_tokens(drawn.num_prompt_tokens, drawn.num_output_tokens).mean()))
    assert found[0] == pytest.approx(expected, rel=1 / 7)
    assert found[1] > 1.5 * expected


def test_what_a_generator_cannot_say_is_said(tmp_path: Path) -> None:
    """Priorities are named as left out; where all lengths are alike there is no rank correlation."""
    rng = np.random.default_rng(1)
    rows = "".join(f"{i},{p},7,{i % 2}\n" for i, p in enumerate(rng.integers(1, 99, 300)))
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,priority\n" + rows)
    quality = fitted(tmp_path / "t.csv").quality
    assert quality["prompt_output_rank_correlation"] == {"trace": None, "generator": None}
    assert quality["left_out"] == ["priorities"]


def test_the_command_writes_a_section_that_a_scenario_takes(tmp_path: Path) -> None:
    """The file holds ``workload:``; the terminal shows distances and both curves; nothing is replaced."""
    path, out = write_trace(tmp_path / "t.csv", {"process": "poisson", "rate_rps": 2.0}, 900), tmp_path / "w.yaml"
    done = CliRunner().invoke(app, ["trace", "fit", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    for said in ("KS distance, prompt tokens", "requests at another time", "generator", "put it in place of"):
        assert said in done.output
    workload = yaml.safe_load(out.read_text())["workload"]
    assert parse_scenario(small(workload=workload)).workload.model_dump(exclude_unset=True) == workload
    again = CliRunner().invoke(app, ["trace", "fit", str(path), "--out", str(out)])
    assert again.exit_code == 2
    assert "must not exist yet" in again.output
    told = json.loads(CliRunner().invoke(app, ["trace", "fit", str(path), "--json"]).stdout)
    assert told["workload"] == workload


@pytest.mark.parametrize("text", ["t,num_prompt_tokens\n1,2\n", "num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n"])
def test_no_trace_or_no_times_is_one_sentence(tmp_path: Path, text: str) -> None:
    """Exit code 2, and a sentence that begins with the file."""
    (tmp_path / "t.csv").write_text(text)
    done = CliRunner().invoke(app, ["trace", "fit", str(tmp_path / "t.csv")])
    assert done.exit_code == 2
    assert "t.csv: " in done.output
    assert "Traceback" not in done.output


@given(st.integers(0, 2**32), st.floats(1.0, 3.0))
def test_percentiles_have_the_mean_too(seed: int, tail: float) -> None:
    """A long tail that a distribution function hardly sees: within 1 % of the mean of 10,000, where no lognormal is."""
    rng = np.random.default_rng(seed)
    tokens = np.minimum(np.rint(20 * (1 + rng.pareto(tail, 10_000))), 10**6).astype(np.int64)
    found = fitted_lengths(tokens)
    if "quantiles" in found:
        shares = (np.arange(200_000) + 0.5) / 200_000
        drawn = at_shares(QuantilesLength(**found), shares)[0]
        assert drawn.mean() == pytest.approx(tokens.mean(), rel=0.02)


@pytest.mark.parametrize(("name", "gap", "by_tick"), [("azure/*conv.csv", 0.03, False), ("mooncake/conv*", 0.03, True)])
def test_public_traces_are_fitted_well(name: str, gap: float, by_tick: bool) -> None:
    """Azure's and Mooncake's conversations (skipped where the files are not): gaps and lengths to a few percent."""
    files = sorted(TRACES.glob(name))
    if not files:
        pytest.skip("the public traces are not here")
    quality = fitted(files[0]).quality
    assert quality["clock_is_coarse"] == by_tick
    assert quality["distances"]["gap_s"]["trace"] < gap
    assert max(quality["distances"][key]["trace"] for key in ("prompt_tokens", "output_tokens")) < 0.05
    assert quality["rate_curve"]["misplaced_share"] < 0.1
