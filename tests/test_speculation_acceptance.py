"""Which drafts are accepted: counters instead of a generator's state, and the law of Leviathan et al. (2023)."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simserve.speculation.acceptance import Acceptance, uniform

seeds, ids = st.integers(0, 2**63), st.integers(0, 10**7)
briefly = settings(max_examples=50, deadline=None)


def test_numbers_are_those_of_splitmix64():
    """The first outputs of splitmix64 seeded with 1234567 are published (Rosetta Code, after Vigna's splitmix64.c); a
    request's key is such an output, and its numbers are outputs of a generator that the key seeds."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def published_next(state):
        z = (state + golden) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    first = [published_next(1234567 + i * golden) for i in range(3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    key = first[2]  # of request 2 under seed 1234567
    assert uniform(1234567, 2, 4) == (published_next((key + 4 * golden) & mask) >> 11) / 2**53


@briefly
@given(seeds, ids, st.lists(st.sampled_from([0.0, 0.3, 0.8, 0.95, 1.0]), min_size=1, max_size=9), st.integers(0, 600))
def test_a_run_is_the_leading_drafts_that_agree(seed, request_id, probabilities, begin):
    """``num_accepted`` (whole pages of tokens at once) is what the rule says token by token."""
    run = 0
    while run < len(probabilities) and uniform(seed, request_id, begin + run) < probabilities[run]:
        run += 1
    assert Acceptance(tuple(probabilities), seed).num_accepted(request_id, begin) == run


@briefly
@given(seeds, ids, st.integers(1, 8), st.floats(0, 1), st.floats(0, 1), st.integers(1, 400))
def test_a_better_or_longer_draft_never_needs_more_passes(seed, request_id, num_drafts, one, other, num_tokens):
    """Agreement belongs to the place in the text: with a higher α, or one more draft, every pass begins no earlier."""
    worse, better = sorted((one, other))

    def num_passes(alpha, gamma):
        acceptance, done, passes = Acceptance((alpha,) * gamma, seed), 1, 0
        while done < num_tokens:
            done += 1 + acceptance.num_accepted(request_id, done)
            passes += 1
        return passes

    assert num_passes(better, num_drafts) <= num_passes(worse, num_drafts)
    assert num_passes(worse, num_drafts + 1) <= num_passes(worse, num_drafts)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.8, 0.9])
def test_runs_are_geometric_cut_at_gamma(alpha):
    """P(run = k) = α^k (1 - α) for k < γ and α^γ for k = γ: chi-square over 40,000 passes of independent requests."""
    gamma, num_requests, passes_each = 5, 400, 100
    acceptance, counts = Acceptance((alpha,) * gamma, seed=7), np.zeros(gamma + 1)
    for request_id in range(num_requests):
        begin = 1
        for _ in range(passes_each):
            run = acceptance.num_accepted(request_id, begin)
            counts[run] += 1
            begin += run + 1
    law = np.array([alpha**k * (1 - alpha) for k in range(gamma)] + [alpha**gamma])
    assert stats.chisquare(counts, law * counts.sum()).pvalue > 1e-4


def test_numbers_are_uniform_and_unrelated_between_neighbours():
    """Along a request, across requests and across seeds: uniform (Kolmogorov-Smirnov), neighbours uncorrelated."""
    n = 20_000
    for numbers in (
        [uniform(0, 0, i) for i in range(n)],
        [uniform(0, i, 0) for i in range(n)],
        [uniform(i, 0, 0) for i in range(n)],
    ):
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4
        correlation = np.corrcoef(*zip(*pairwise(numbers), strict=True))[0, 1]
        assert abs(correlation) < 4.5 / math.sqrt(n)
