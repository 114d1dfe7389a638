"""Replicas and cost, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.capacity.cost import Question, cost_per_hour, cost_per_million, replicas_for


def interval(value, low=None, high=None):
    return {"value": value, "low": low, "high": high, "n": 4, "calibration": 0.0}


def test_replicas_are_whole():
    """20 requests/s at 3 each (2.8 to 3.4): 7, and 6 to 8 at the ends."""
    assert replicas_for(20, interval(3.0, 2.8, 3.4)) == {"value": 7, "low": 6, "high": 8}


def test_a_target_that_divides_needs_no_spare_replica():
    """6 at 2 each is 3, not 4; a target below one replica still needs one."""
    assert replicas_for(6, interval(2.0)) == {"value": 3, "low": 3, "high": 3}
    assert replicas_for(0.3, interval(0.1))["value"] == 3
    assert replicas_for(0.1, interval(2.0))["value"] == 1


def test_no_capacity_has_no_replicas_and_no_cost():
    """Nothing is made up."""
    assert replicas_for(6, interval(None)) is None
    assert cost_per_million(100, interval(None), 1, Question(None, 2.0)) is None
    assert cost_per_million(100, interval(2.0), 1, Question(5.0, None)) is None
    assert cost_per_million(0, interval(2.0), 1, Question(None, 2.0)) is None


def test_the_cost_of_a_million_tokens_at_capacity():
    """2 GPUs at 3.00 an hour, 5 requests/s of 200 tokens: 3.6 million tokens an hour for 6.00, 1.667 each; dearer at
    the low end of the capacity."""
    cost = cost_per_million(200, interval(5.0, 4.0, 6.0), 2, Question(None, 3.0))
    assert cost["value"] == pytest.approx(6 / 3.6)
    assert (cost["low"], cost["high"]) == (pytest.approx(6 / 3.6 * 5 / 6), pytest.approx(6 / 3.6 * 5 / 4))


def test_the_cost_of_a_target_counts_whole_replicas():
    """12 requests/s at 5 each need 3 replicas of 2 GPUs: 18.00 an hour for 12 · 200 · 3600 = 8.64 million tokens."""
    cost = cost_per_million(200, interval(5.0, 3.5, 6.1), 2, Question(12.0, 3.0))
    assert cost["value"] == pytest.approx(18 / 8.64)
    assert (cost["low"], cost["high"]) == (pytest.approx(12 / 8.64), pytest.approx(24 / 8.64))


def test_an_hour_costs_gpus_times_replicas_times_price():
    """4 × 3 × 2.50."""
    assert cost_per_hour(4, 2.5, 3) == 30.0


positive = st.floats(0.01, 1e4)


@given(positive, positive, st.floats(0.01, 0.9))
def test_replicas_carry_the_target_and_one_less_would_not(target, capacity, share):
    """At the value and at both ends; the ends are in order."""
    found = replicas_for(target, interval(capacity, capacity * (1 - share), capacity * (1 + share)))
    assert found["value"] * capacity >= target * (1 - 1e-9)
    assert found["value"] == 1 or (found["value"] - 1) * capacity < target
    assert 1 <= found["low"] <= found["value"] <= found["high"]


@given(positive, positive, st.integers(1, 64), positive, st.floats(0.1, 100))
def test_cost_is_proportional_to_price_and_gpus(tokens, capacity, gpus, price, factor):
    """And falls with tokens and capacity."""
    base = cost_per_million(tokens, interval(capacity), gpus, Question(None, price))["value"]
    assert cost_per_million(tokens, interval(capacity), gpus, Question(None, price * factor))["value"] == pytest.approx(
        base * factor
    )
    assert cost_per_million(tokens, interval(capacity), 2 * gpus, Question(None, price))["value"] == pytest.approx(
        2 * base
    )
    assert cost_per_million(tokens * factor, interval(capacity), gpus, Question(None, price))["value"] == pytest.approx(
        base / factor
    )


@given(positive, positive, positive)
def test_a_target_never_costs_less_a_token_than_full_replicas(target, capacity, tokens):
    """Rounding up buys room that is not used."""
    full = cost_per_million(tokens, interval(capacity), 1, Question(None, 2.0))["value"]
    part = cost_per_million(tokens, interval(capacity), 1, Question(target, 2.0))["value"]
    assert part >= full * (1 - 1e-9) and math.isfinite(part)
