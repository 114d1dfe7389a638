"""The closed form of speculation: the published cases, its limits, and probabilities that differ by position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.speculation.formula import mean_speedup, mean_tokens_per_pass


@pytest.mark.parametrize(("alpha", "gamma", "cost", "gain"), [(0.9, 8, 0.1, 3.40), (0.3, 8, 0.1, 0.79)])
def test_the_chapters_cases(alpha, gamma, cost, gain):
    """3.40 times as fast at α 0.9 and 0.79 times at α 0.3, both with drafts of eight at a tenth of a step each."""
    assert round(mean_speedup([alpha] * gamma, cost), 2) == gain


@given(st.floats(0, 0.999), st.integers(1, 30))
def test_one_acceptance_is_a_geometric_series(alpha, gamma):
    """(1 − α^(γ+1)) / (1 − α), between one token and all γ + 1 of them."""
    mean = mean_tokens_per_pass([alpha] * gamma)
    assert mean == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha), rel=1e-9)
    assert 1 <= mean <= gamma + 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_positions_are_conditional(probabilities):
    """Draft i counts only if all before it were accepted: by hand, the sum over run lengths a of (a + 1) · P(a)."""
    mean, reached = 0.0, 1.0
    for i, probability in enumerate(probabilities):
        mean += (i + 1) * reached * (1 - probability)
        reached *= probability
    mean += (len(probabilities) + 1) * reached
    assert mean_tokens_per_pass(probabilities) == pytest.approx(mean)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 2))
def test_free_drafts_gain_every_token_and_dear_ones_lose(probabilities, cost):
    """At no cost the speed-up is the tokens per pass; it falls as drafts cost more."""
    assert mean_speedup(probabilities, 0) == pytest.approx(mean_tokens_per_pass(probabilities))
    assert mean_speedup(probabilities, cost) >= mean_speedup(probabilities, cost + 0.1)
