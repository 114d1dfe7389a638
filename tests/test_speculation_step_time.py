"""What a step with drafts takes: γ steps of the draft, and one of the target for γ + 1 tokens per sequence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.model_spec import load_model_spec
from simserve.request import Batch, Chunk
from simserve.speculation.step_time import Draft, PassTime
from simserve.step_time.hardware import load_hardware
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile
from simserve.step_time.roofline import RooflineStepTime
from tests.step_times import AffineStepTime

counts = st.integers(1, 64)
contexts = st.integers(1, 4000)


def pass_time(target, draft, share=1.0):
    return PassTime(target, Draft(draft, share), "drafts are assumed")


def verification(num_decodes, context, num_tokens, chunks=()):
    return Batch(chunks, num_decodes, num_decodes * context, tokens_per_decode=num_tokens)


class Sourced(AffineStepTime):
    """A step time whose every part can be done by hand, with a source."""

    source = RooflineStepTime(load_model_spec("llama-3.1-8b"), load_hardware("h100-sxm")).source


@given(counts, contexts, st.integers(1, 8), st.floats(0, 1))
def test_a_fraction_of_the_targets_steps_by_hand(num_decodes, context, num_drafts, share):
    """Affine steps: the target pays its base once, its decodes and their caches once, and γ more tokens as chunks do;
    the draft ``share`` of γ decode steps whose contexts grow by one."""
    model = Sourced()
    batch = verification(num_decodes, context, 1 + num_drafts)
    one = [
        model.base_s + num_decodes * (model.decode_s + model.context_token_s * (context + j)) for j in range(num_drafts)
    ]
    target_s = one[0] + model.prefill_token_s * num_decodes * num_drafts
    ramp = pass_time(model, model, share).ramp(batch, 0)
    assert ramp.first_s == pytest.approx(target_s + share * sum(one), rel=1e-9)
    assert ramp.num_steps == 1


@given(counts, contexts, st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500)), min_size=1, max_size=4))
def test_prompts_are_computed_by_the_draft_too(num_decodes, context, prompts):
    """Affine steps again: the first draft step takes the chunks along; a step of prompts alone is one of each model."""
    model, draft = Sourced(), AffineStepTime(base_s=0.001, prefill_token_s=0.00002, decode_s=0.0001)
    chunks = tuple(Chunk(new, cached) for new, cached in prompts)
    alone = PassTime(model, Draft(Sourced(0.001, 0.00002, 0.0001), 1.0), "").ramp(Batch(chunks, tokens_per_decode=4), 0)
    assert alone.first_s == pytest.approx(sum(m.seconds(Batch(chunks), 0) for m in (model, draft)))
    drafts = [
        draft.seconds(Batch(chunks if j == 0 else (), num_decodes, num_decodes * (context + j)), 0) for j in range(3)
    ]
    target_s = model.seconds(Batch(chunks, num_decodes, num_decodes * context), 0)
    target_s += 3 * num_decodes * model.prefill_token_s
    mixed = PassTime(model, Draft(Sourced(0.001, 0.00002, 0.0001), 1.0), "")
    assert mixed.ramp(verification(num_decodes, context, 4, chunks), 0).first_s == pytest.approx(target_s + sum(drafts))


@given(counts, contexts, st.integers(2, 9))
def test_a_roofline_pays_arithmetic_for_all_tokens_and_traffic_once(num_decodes, context, num_tokens):
    """From the formulas of the model and the datasheet: products with weights (head included) for B·t tokens beside one
    reading of the weights; attention the larger of t times the pairs and one reading of the caches."""
    spec, card = load_model_spec("llama-3.1-8b"), load_hardware("h100-sxm")
    flops_per_s = card.peak_flops["bf16"] * card.compute_efficiency
    bytes_per_s = card.bandwidth_bytes_per_s * card.memory_efficiency
    tokens = num_decodes * num_tokens
    pairs = num_decodes * (num_tokens * context + num_tokens * (num_tokens + 1) // 2)
    read = 2 * (spec.matmul_parameters + spec.lm_head_parameters) / bytes_per_s
    products_s = math.hypot(spec.matmul_flops(tokens, tokens) / flops_per_s, read)
    traffic_s = (num_decodes * context + tokens) * spec.kv_bytes_per_token("bf16") / bytes_per_s
    attention_s = max(spec.attention_flops(pairs) / flops_per_s, traffic_s)
    free = pass_time(RooflineStepTime(spec, card), RooflineStepTime(spec, card), 0.0)
    found = free.ramp(verification(num_decodes, context, num_tokens), 0).first_s
    assert found == pytest.approx(products_s + attention_s + card.overhead_s, rel=1e-6)


@given(counts, st.integers(64, 9_000), st.integers(2, 9))
def test_verified_rows_have_all_of_the_context(num_decodes, context_tokens, num_tokens):
    """Where contexts do not divide evenly, the rows of the target's steps still read every cached token, no more."""
    seen: list[Batch] = []

    class Seeing(Sourced):
        def ramp(self, batch, step):
            seen.append(batch)
            return super().ramp(batch, step)

    batch = Batch((), num_decodes, context_tokens, tokens_per_decode=num_tokens)
    pass_time(Seeing(), Sourced(), 0.0).ramp(batch, 0)
    rows = [each.chunks for each in seen if each.chunks]
    assert [{chunk.num_new_tokens for chunk in chunks} for chunks in rows] == [{num_tokens}, {1}]
    for chunks in rows:
        assert len(chunks) == num_decodes
        assert sum(chunk.num_context_tokens for chunk in chunks) == context_tokens


@given(st.integers(1, 8), contexts)
def test_a_measured_profile_gives_what_its_multi_token_steps_add(num_tokens, context):
    """One sequence: the measured decode, and what a measured chunk of t tokens takes longer than one of one."""
    profile = ProfileStepTime(load_profile("qwen2.5-0.5b-cpu-fp32"))
    found = pass_time(profile, profile, 0.0).ramp(verification(1, context, num_tokens), 0).first_s

    def chunk_s(new):
        return profile.ramp(Batch((Chunk(new, context),)), 0).first_s

    decode_s = profile.ramp(Batch((), 1, context), 0).first_s
    assert found == pytest.approx(decode_s + max(0.0, chunk_s(num_tokens) - chunk_s(1)), rel=1e-9)


@given(counts, contexts, st.integers(0, 400))
def test_without_drafts_nothing_changes(num_decodes, context, step):
    """One token per decode: the target's own ramp, whatever step."""
    model = Sourced()
    batch = Batch((Chunk(7, 3),), num_decodes, num_decodes * context)
    assert pass_time(model, model).ramp(batch, step) == model.ramp(batch, step)


def test_a_guess_is_not_called_measured():
    """A measured target with an estimated draft is not calibrated as a whole, and says what was assumed."""
    measured = ProfileStepTime(load_profile("qwen2.5-0.5b-cpu-fp32"))
    guessed = RooflineStepTime(load_model_spec("qwen2.5-0.5b"), load_hardware("h100-sxm"))
    assert pass_time(measured, measured).source.calibrated
    source = pass_time(measured, guessed).source
    assert not source.calibrated
    assert source.note == f"{measured.source.note.rstrip('.')}; drafts are assumed"
