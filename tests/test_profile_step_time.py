"""Step times from a profile: what a decode, packed prefills and a mixed step cost, and that spans are exact sums."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.request import Batch, Chunk
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.stretch import Stretch
from tests.profile_builders import make_profile

LAUNCH_S, TOKEN_S, PAIR_S = 1e-3, 1e-4, 2e-8


def pairs(new: float, context: float) -> float:
    """Attended (query, key) pairs as the model counts them."""
    return new * context + new * new / 2


def prefill_truth(new: int, context: int) -> float:
    """A device on which time is a launch, work per token, and work per attended pair."""
    return LAUNCH_S + TOKEN_S * new + PAIR_S * pairs(new, context)


def decode_truth(batch: int, context: int) -> float:
    return 2e-3 + 5e-5 * batch + 1e-7 * batch * context


STEP_TIME = ProfileStepTime(make_profile(prefill_truth, decode_truth))
chunks = st.lists(st.builds(Chunk, st.integers(1, 300), st.integers(0, 1500)), min_size=1, max_size=6)
batches = st.builds(
    lambda chunks, decodes, mean: Batch(tuple(chunks), decodes, decodes * mean + (decodes > 1)),
    st.one_of(st.just([]), chunks),
    st.integers(0, 40),
    st.integers(0, 3000),
).filter(lambda batch: batch.num_seqs > 0)


def first_s(batch: Batch) -> float:
    return STEP_TIME.ramp(batch, 0).first_s


@given(st.integers(1, 16), st.integers(1, 1024))
def test_decode_depends_on_the_mean_context(batch_size: int, context: int) -> None:
    """Attention is linear in context, so B sequences cost what B sequences of their mean length cost."""
    batch = Batch(num_decodes=batch_size, decode_context_tokens=batch_size * context)
    assert first_s(batch) == pytest.approx(decode_truth(batch_size, context), rel=1e-9)


@pytest.mark.parametrize("sizes", [[64], [32, 32], [1] * 64, [8] * 8, [40, 20, 4], [500, 12], [256, 256]])
@pytest.mark.parametrize("context", [0, 5, 300])
def test_packed_prefills_cost_the_pairs_they_attend_to(sizes: list[int], context: int) -> None:
    """On a device whose time is affine in tokens and pairs, any packing into a measured number of tokens is exact;
    short prompts attend to less than one long prompt of as many tokens."""
    batch = Batch(tuple(Chunk(new, context) for new in sizes))
    expected = LAUNCH_S + TOKEN_S * sum(sizes) + PAIR_S * sum(pairs(new, context) for new in sizes)
    assert first_s(batch) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_splitting_a_prompt_into_several_never_costs_more(sizes: list[int]) -> None:
    """Separate prompts do not attend to one another."""
    whole, parts = Batch((Chunk(sum(sizes), 0),)), Batch(tuple(Chunk(new, 0) for new in sizes))
    assert 0 < first_s(parts) <= first_s(whole) * (1 + 1e-12)


@given(chunks, st.integers(1, 16), st.integers(1, 1000))
def test_a_mixed_step_adds_the_decodes_tokens_and_their_context(parts: list[Chunk], decodes: int, context: int) -> None:
    """At the smallest context a decode is one more packed token; more adds what it adds to a pure decode."""
    mixed = Batch(tuple(parts), decodes, decodes * context)
    packed = Batch((*parts, *[Chunk(1, 1)] * decodes))
    added = decode_truth(decodes, context) - decode_truth(decodes, 1)
    assert first_s(mixed) == pytest.approx(first_s(packed) + added, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(1, 400))
def test_a_stretch_is_the_sum_of_its_steps(batch: Batch, num_steps: int) -> None:
    """INV-7: closed form = step by step, where each step asks for the batch with its contexts grown."""
    stretch = Stretch(STEP_TIME, batch)
    total = math.fsum(first_s(_grown(batch, k)) for k in range(num_steps))
    assert stretch.span_s(num_steps) == pytest.approx(total, rel=1e-9)


@given(batches, st.integers(0, 10_000))
def test_every_step_takes_time(batch: Batch, step: int) -> None:
    """Durations are positive and finite for whatever a policy may schedule, however far outside the grid."""
    ramp = STEP_TIME.ramp(batch, step)
    assert 0 < ramp.first_s < math.inf
    assert ramp.num_steps >= 1
    assert ramp.at(min(ramp.num_steps - 1, 10**6)) > 0


def test_what_lies_outside_the_grid_is_flagged() -> None:
    """A batch of 17, a context of 1,025 and 513 new tokens were not measured; 16, 1,024 and 512 were."""
    assert not STEP_TIME.ramp(Batch(num_decodes=16, decode_context_tokens=16 * 1024), 0).extrapolated
    assert STEP_TIME.ramp(Batch(num_decodes=16, decode_context_tokens=16 * 1025), 0).extrapolated
    assert STEP_TIME.ramp(Batch(num_decodes=17, decode_context_tokens=17), 0).extrapolated
    assert not STEP_TIME.ramp(Batch((Chunk(512, 1024),)), 0).extrapolated
    assert STEP_TIME.ramp(Batch((Chunk(513, 0),)), 0).extrapolated
    assert not STEP_TIME.ramp(Batch((Chunk(8, 0),) * 8), 0).extrapolated


def test_the_source_says_who_measured_and_how_wrong() -> None:
    """The report's badge: calibrated, the device, the held-out error, and every measured point once."""
    source = STEP_TIME.source
    assert (source.kind, source.device, source.calibrated) == ("profile", "A formula", True)
    # The decode truth is bilinear, so its held-out point has no error; the prefill truth is quadratic, so its has one:
    # row 32 between 8 and 64 at context 256 lies 32·24/2 pairs under the chord.
    expected = PAIR_S * (32 - 8) * (64 - 32) / 2 / prefill_truth(32, 256) / 2
    assert source.holdout_mape == pytest.approx(expected, rel=1e-6)
    assert {(p.phase, p.batch_size, p.num_new_tokens) for p in source.points} >= {
        ("prefill", 1, 512),
        ("decode", 16, 1),
    }
    assert all(p.seconds > 0 for p in source.points)


def _grown(batch: Batch, step: int) -> Batch:
    return Batch(
        tuple(Chunk(new, context + step * new) for new, context in batch.chunks),
        batch.num_decodes,
        batch.decode_context_tokens + step * batch.num_decodes,
    )
