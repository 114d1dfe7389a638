"""The intervals of ratios: how often they hold the truth, what identical and swapped runs give, how long blocks are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from simserve.compare.block_length import autocovariances, best_length, block_length
from simserve.compare.interval import Interval, ratio_interval, tail_rank, verdict
from simserve.compare.measures import (
    MAX_BINS,
    RATES,
    binned,
    drawn_latencies,
    drawn_rates,
    quantiles,
    time_taken_up,
)
from simserve.compare.requests import Requests
from simserve.compare.resample import MAX_CELLS, NUM_DRAWS, draw_blocks
from tests.compare_builders import ar1, requests_frame, requests_of, summary_of

SLO = {"ttft_s": 1.0}


def normal_ar1(n, rho, rng):
    """A stationary Gaussian AR(1) series of unit variance."""
    return signal.lfilter([np.sqrt(1 - rho**2)], [1, -rho], rng.normal(size=n + 200))[200:]


def mean_ratio(a, b, same_blocks, seed):
    """Interval of mean(b) / mean(a) as the comparison makes it."""
    length = block_length([a, b])
    first = draw_blocks(len(a), length, seed)
    second = first if same_blocks else draw_blocks(len(b), length, seed + 10_000)
    sums = first.sums(a) / len(a), second.sums(b) / len(b)
    return ratio_interval(b.mean() / a.mean(), *sums, first.num_blocks)


@pytest.mark.parametrize("paired", [False, True])
def test_ninety_five_of_a_hundred_intervals_hold_the_true_ratio(paired):
    """AR(1) latencies (ρ = 0.8, 500 requests) whose means are 1.3 apart: coverage within 3.5 standard errors of 95 %
    over 200 experiments. Independent runs, and runs that share most of their noise."""
    rng = np.random.default_rng(7)
    held = 0
    for seed in range(200):
        common = normal_ar1(500, 0.8, rng)
        a = 1.0 * np.exp(0.3 * common)
        own = normal_ar1(500, 0.8, rng)
        b = 1.3 * np.exp(0.3 * (0.9 * common + np.sqrt(1 - 0.81) * own if paired else own))
        interval = mean_ratio(a, b, paired, seed)
        held += interval.low <= 1.3 <= interval.high
    assert abs(held / 200 - 0.95) < 3.5 * np.sqrt(0.95 * 0.05 / 200)


@pytest.mark.validation
def test_blocks_are_what_makes_the_intervals_wide_enough():
    """The same experiment with blocks of one request, as if latencies were independent, misses the truth far more often
    than one time in twenty: the test above can fail."""
    rng = np.random.default_rng(7)
    held = 0
    for seed in range(100):
        a, b = (scale * np.exp(0.3 * normal_ar1(500, 0.8, rng)) for scale in (1.0, 1.3))
        first, second = draw_blocks(500, 1, seed), draw_blocks(500, 1, seed + 10_000)
        interval = ratio_interval(b.mean() / a.mean(), first.sums(a) / 500, second.sums(b) / 500, 500)
        held += interval.low <= 1.3 <= interval.high
    assert held < 75


def test_sharing_blocks_makes_paired_intervals_narrow():
    """Runs that share nine tenths of their noise: resampling both together gives an interval less than half as wide."""
    rng = np.random.default_rng(3)
    common, own = normal_ar1(2000, 0.8, rng), normal_ar1(2000, 0.8, rng)
    a, b = np.exp(0.3 * common), 1.3 * np.exp(0.3 * (0.95 * common + np.sqrt(1 - 0.95**2) * own))
    together, apart = (mean_ratio(a, b, same, 1) for same in (True, False))
    assert together.high - together.low < 0.5 * (apart.high - apart.low)


@pytest.mark.validation
def test_medians_are_covered_too():
    """The true ratio of medians lies in the interval in about 95 of 100 experiments, between 88 and 100."""
    rng = np.random.default_rng(11)
    held = 0
    for seed in range(100):
        runs = [requests_of(requests_frame(ar1(300, 0.6, rng, mean, 0.4), seed)) for mean in (1.0, 1.5)]
        drawn = []
        for i, run in enumerate(runs):
            blocks = draw_blocks(300, block_length([run.columns["ttft_s"]]), seed + 1000 * i)
            drawn.append(drawn_latencies(run, "ttft_s", blocks)["p50"])
        observed = drawn[1][0] / drawn[0][0]
        interval = ratio_interval(observed, *drawn, blocks.num_blocks)
        held += interval.low <= 1.5 <= interval.high
    assert 88 <= held <= 100


def queue(n, load, rng):
    """Requests through an M/M/1 queue (first come, first served; mean service 1 s) as a run would record them."""
    arrivals = np.cumsum(rng.exponential(1 / load, n))
    service = rng.exponential(1.0, n)
    done = np.cumsum(service)
    ends = done + np.maximum.accumulate(arrivals - np.append(0, done[:-1]))
    columns = {"arrival_s": arrivals, "end_s": ends, "num_emitted_tokens": np.ones(n), "num_prompt_tokens": np.ones(n)}
    return Requests({**columns, "e2e_s": ends - arrivals}, np.ones(n, bool), {})


@pytest.mark.parametrize("load", [pytest.param(0.7, marks=pytest.mark.validation), 1.5])
def test_throughput_of_two_seeds_of_one_queue_does_not_differ(load):
    """Two seeds of an M/M/1 queue, below and above saturation: at least 90 of 100 intervals of the ratio of throughputs
    hold 1, those of time in the system at least 83 (skewed and correlated); and the intervals say something."""
    rng = np.random.default_rng(3)
    held, waits, widths = 0, 0, []
    for seed in range(100):
        rates, means = [], []
        for side in (0, 1):
            run = queue(400, load, rng)
            blocks = draw_blocks(400, block_length([run.columns["e2e_s"]]), 2 * seed + side)
            rates.append(drawn_rates(run, {}, blocks)["requests_per_s"])
            means.append(drawn_latencies(run, "e2e_s", blocks)["mean"])
        found = [
            ratio_interval(b[0] / a[0], a, b, blocks.num_blocks)
            for a, b in ((rates[0], rates[1]), (means[0], means[1]))
        ]
        held += found[0].low <= 1 <= found[0].high
        waits += found[1].low <= 1 <= found[1].high
        widths.append(found[0].high / found[0].low)
    assert held >= 90 and waits >= 83
    assert np.median(widths) < 1.6


@pytest.mark.parametrize("rho", [0.3, 0.7, 0.9])
def test_block_length_of_ar1(rho):
    """Politis and White's closed form, (1.5 (2ρ/(1 − ρ²))²)^(1/3) n^(1/3), within a third, averaged over 20 series."""
    rng = np.random.default_rng(5)
    n = 20_000
    expected = (1.5 * (2 * rho / (1 - rho**2)) ** 2) ** (1 / 3) * n ** (1 / 3)
    found = np.mean([best_length(normal_ar1(n, rho, rng)) for _ in range(20)])
    assert abs(found / expected - 1) < 1 / 3


def test_block_length_is_bounded():
    """Never under n^(1/3), never over twice 3√n, nor a third of the run; 1 for a handful; NaNs do not count; constants
    need no more than n^(1/3)."""
    rng = np.random.default_rng(0)
    assert block_length([rng.normal(size=1000)]) >= 10
    assert 100 < block_length([np.cumsum(rng.normal(size=1000))]) <= np.ceil(2 * 3 * np.sqrt(1000))
    assert block_length([np.cumsum(rng.normal(size=60))]) <= 20
    assert block_length([np.ones(1000)]) == 10
    assert block_length([np.array([1.0, 2.0, 3.0])]) == 1 and block_length([]) == 1
    series = rng.normal(size=1000)
    holes = np.insert(series, np.arange(0, 1000, 10), np.nan)
    assert block_length([holes]) == block_length([series])


def test_autocovariances_by_their_definition():
    """Sums of products of deviations over n, lag by lag."""
    values = np.random.default_rng(1).normal(size=50)
    centred = values - values.mean()
    expected = [np.dot(centred[k:], centred[: 50 - k]) / 50 for k in range(8)]
    assert autocovariances(values, 7) == pytest.approx(expected)


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_resamples_keep_the_run_s_size(num_requests, block, seed):
    """Each resample draws as many cells as there are; the first is the run; cells cover every request once."""
    resamples = draw_blocks(num_requests, block, seed)
    num_cells = min(num_requests, MAX_CELLS)
    assert resamples.weights.shape == (NUM_DRAWS + 1, num_cells)
    assert (resamples.weights.sum(axis=1) == num_cells).all() and (resamples.weights >= 0).all()
    assert (resamples.weights[0] == 1).all()
    cells = resamples.cell_of(num_requests)
    assert len(cells) == num_requests and (np.diff(cells) >= 0).all() and len(np.unique(cells)) == num_cells
    assert min(block, num_requests) * 0.99 <= resamples.block_requests <= num_requests


def test_neighbours_are_drawn_together():
    """In a resample of blocks of 50, a request's neighbour is nearly always drawn as often as itself."""
    weights = draw_blocks(1000, 50, 0).weights[1:]
    changes = (np.diff(weights, axis=1) != 0).mean()
    assert changes <= 2 * 20 / 999  # 20 blocks have two ends each


def test_every_request_is_drawn_as_often_as_any_other():
    """Blocks wrap round the end: mean weights are 1 within five standard errors, at the ends too."""
    weights = draw_blocks(60, 20, 4).weights[1:]
    errors = weights.std(axis=0) / np.sqrt(NUM_DRAWS)
    assert (np.abs(weights.mean(axis=0) - 1) < 5 * errors).all()


@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=40, deadline=None)
def test_weighted_quantiles_are_numpy_s(seed, n, q):
    """The quantile of values drawn several times each is np.quantile of the drawn values."""
    rng = np.random.default_rng(seed)
    values = rng.exponential(size=n).round(1)
    weights = rng.integers(0, 4, n)
    bins, low, high = binned(values)
    cumulative = np.cumsum(np.bincount(bins, weights, len(low)))[None, :]
    found = quantiles(cumulative, low, high, q)[0]
    drawn = np.repeat(values, weights)
    assert np.isnan(found) if not len(drawn) else found == pytest.approx(np.quantile(drawn, q))


def test_shared_bins_are_close_to_exact():
    """100,000 distinct values in 2,048 bins: quantiles within a thousandth."""
    values = np.random.default_rng(2).lognormal(sigma=1.5, size=100_000)
    bins, low, high = binned(values)
    assert len(low) == MAX_BINS and (low[bins] <= values).all() and (values <= high[bins]).all()
    cumulative = np.cumsum(np.bincount(bins, minlength=MAX_BINS))[None, :].astype(float)
    for q in (0.5, 0.9, 0.99):
        assert quantiles(cumulative, low, high, q)[0] == pytest.approx(np.quantile(values, q), rel=1e-3)


def test_the_run_itself_is_resample_0():
    """Rates and latencies of resample 0 are those of the summary, some requests unanswered."""
    status = np.where(np.arange(600) % 7 == 3, "timed_out", "finished")
    frame = requests_frame(ar1(600, 0.5, np.random.default_rng(1)), status=status)
    requests, summary = requests_of(frame), summary_of(frame)
    blocks = draw_blocks(600, 9, 0)
    rates = drawn_rates(requests, SLO, blocks)
    assert {name: rates[name][0] for name in RATES} == pytest.approx({name: summary[name] for name in RATES})
    for latency in ("ttft_s", "e2e_s"):
        for name, values in drawn_latencies(requests, latency, blocks).items():
            assert values[0] == pytest.approx(summary[latency][name])


def test_time_is_shared_by_those_who_wait_for_the_same_end():
    """A batch of three that ends at 6 s takes 2 s each; the next, of one, 4 s. All of it is the makespan."""
    frame = requests_frame(np.ones(4)).assign(arrival_s=[0, 1, 2, 3], end_s=[6.0, 6, 5, 10])
    assert time_taken_up(requests_of(frame)).tolist() == [2, 2, 2, 4]


def test_no_interval_for_what_is_too_rare():
    """Five requests must lie beyond a quantile: p99 from 500 on, p90 from 50 on; nothing for fewer than ten."""
    rng = np.random.default_rng(0)
    for n, expected in ((9, set()), (49, {"mean", "p50"}), (50, {"mean", "p50", "p90"})):
        requests = requests_of(requests_frame(rng.random(n)))
        assert set(drawn_latencies(requests, "ttft_s", draw_blocks(n, 3, 0))) == expected
    for n in (499, 500):
        requests = requests_of(requests_frame(rng.random(n)))
        assert ("p99" in drawn_latencies(requests, "ttft_s", draw_blocks(n, 3, 0))) is (n == 500)


def test_the_interval_is_the_middle_of_the_draws():
    """Of 999 draws with many blocks, the 25th on each side: 2.5 % beyond each bound. Few blocks reach further out."""
    assert tail_rank(1e9) == 24
    draws = np.exp(np.concatenate([[0.0], np.linspace(-1, 1, NUM_DRAWS)]))
    interval = ratio_interval(1.0, np.ones(NUM_DRAWS + 1), draws, 1e9)
    assert np.log([interval.low, interval.high]) == pytest.approx([-0.95190, 0.95190], abs=1e-4)
    ranks = [tail_rank(m) for m in (2, 5, 20, 100, 10_000)]
    assert ranks == sorted(ranks) and ranks[0] == 0 and ranks[-2] < 24


@given(st.integers(0, 2**32), st.floats(0.1, 10), st.floats(2, 200))
@settings(max_examples=30, deadline=None)
def test_swapped_sides_have_the_reciprocal_interval(seed, ratio, num_blocks):
    """Bounds of A/B are one over the bounds of B/A, to the nine digits that are kept."""
    rng = np.random.default_rng(seed)
    a, b = rng.lognormal(size=(2, NUM_DRAWS + 1))
    there, back = ratio_interval(ratio, a, b, num_blocks), ratio_interval(1 / ratio, b, a, num_blocks)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low), rel=1e-8)


def test_draws_without_anything_leave_a_side_open():
    """A base that is zero in some draws has no upper bound; a result that is zero in some reaches down to 0."""
    ones, some = np.ones(NUM_DRAWS + 1), np.ones(NUM_DRAWS + 1)
    some[1:200] = 0
    assert ratio_interval(1.0, some, ones, 100) == Interval(1.0, None)
    assert ratio_interval(1.0, ones, some, 100) == Interval(0.0, 1.0)


@pytest.mark.parametrize(
    ("bounds", "better", "expected"),
    [
        ((1.1, 1.3), "higher", "better"),
        ((1.1, 1.3), "lower", "worse"),
        ((0.5, 0.9), "higher", "worse"),
        ((0.5, 0.9), "lower", "better"),
        ((0.9, 1.2), "lower", "unclear"),
        ((1.0, 1.2), "higher", "unclear"),
        ((1.0, 1.0), "higher", "same"),
        ((2.0, None), "higher", "better"),
        ((None, 0.5), "lower", "better"),
        ((2.0, 3.0), "", "different"),
    ],
)
def test_verdicts(bounds, better, expected):
    """Only an interval without 1 in it says better or worse."""
    assert verdict(Interval(*bounds), better) == expected
