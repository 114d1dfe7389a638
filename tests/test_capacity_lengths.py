"""Runs grow towards saturation as queues forget more slowly, and never beyond their bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.capacity.lengths import FARTHEST, LONGEST, NEAREST, RELAXATIONS, Lengths


@given(st.floats(0.01, 0.999), st.integers(1, 10**6), st.booleans())
def test_a_run_is_long_enough_or_the_longest(rho, num_requests, can_grow):
    """20 / (1 − ρ)² requests or more, unless that is beyond the bound; a trace is as long as it is."""
    length = Lengths(num_requests, can_grow, 10.0).at(10.0 * rho)
    assert 1 <= length <= (LONGEST if can_grow else 1)
    if can_grow and length < LONGEST:
        assert length * num_requests >= RELAXATIONS / (1 - rho) ** 2 * (1 - 1e-9)
    if length > 1:  # no longer than needed
        assert length / 2 * num_requests < RELAXATIONS / (1 - rho) ** 2


@given(st.integers(1, 10**7), st.booleans())
def test_the_settled_load_is_one_whose_runs_are_long_enough(num_requests, can_grow):
    """Between 0.9 and 0.98 of saturation, and no nearer than the longest runs can tell."""
    lengths = Lengths(num_requests, can_grow, 10.0)
    share = lengths.settled_load / 10.0
    assert share + 1e-9 >= FARTHEST and share - 1e-9 <= NEAREST
    if share > FARTHEST + 1e-9:
        assert lengths.longest * num_requests >= RELAXATIONS / (1 - share) ** 2 * (1 - 1e-6)


def test_a_thousand_requests_by_hand():
    """At ρ = 0.95, 20 / 0.0025 = 8,000 requests; 16,000 at most settle up to 1 − sqrt(20 / 16,000)."""
    lengths = Lengths(1000, True, 2.0)
    assert (lengths.at(1.0), lengths.at(1.9), lengths.at(2.0)) == (1, 8, 16)
    assert lengths.settled_load == pytest.approx(2 * (1 - 0.00125**0.5))
    assert Lengths(1000, True, None).at(64.0) == 1  # clients bound their own queue
