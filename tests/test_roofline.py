"""The roofline against a formula written out again, step by step, and against the laws it must keep."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.request import Batch, Chunk
from simserve.step_time.hardware import HARDWARE, Hardware, load_hardware
from simserve.step_time.roofline import RooflineStepTime, check_fits, kv_bytes_per_device
from simserve.step_time.stretch import Stretch

NO_CONTEXT = Batch(num_decodes=1, decode_context_tokens=0)
H100 = HARDWARE["h100-sxm"]
LLAMA = load_model_spec("llama-3.1-8b")
FREE = replace(H100, compute_efficiency=1.0, memory_efficiency=1.0, overhead_s=0.0)

chunks = st.lists(st.builds(Chunk, st.integers(1, 600), st.integers(0, 5_000)), max_size=3).map(tuple)
decodes = st.lists(st.integers(0, 5_000), max_size=8)
devices = st.sampled_from([(name, tp) for name in HARDWARE for tp in (1, 2, 4) if tp == 1 or name != "laptop-cpu"])
models = st.sampled_from(["qwen2.5-7b", "llama-3.1-8b", "llama-2-13b"])


def batch_of(parts: tuple[Chunk, ...], contexts: list[int]) -> Batch:
    return Batch(chunks=parts, num_decodes=len(contexts), decode_context_tokens=sum(contexts))


def seconds(model: RooflineStepTime, batch: Batch, step: int = 0) -> float:
    return model.ramp(batch, step).first_s


def naive_seconds(spec: ModelSpec, card: Hardware, tp: int, parts: list[Chunk], contexts: list[int]) -> float:
    """One bf16 step from its matrices, one sequence at a time, in the order of the model's definition."""
    layer = {
        "qkv": spec.hidden_size * (spec.num_attention_heads + 2 * spec.num_kv_heads) * spec.head_dim,
        "out": spec.num_attention_heads * spec.head_dim * spec.hidden_size,
        "mlp": 3 * spec.hidden_size * spec.intermediate_size,
    }
    body, head = spec.num_layers * sum(layer.values()), spec.hidden_size * spec.vocab_size
    flops = card.peak_flops["bf16"] * card.compute_efficiency
    bandwidth = card.bandwidth_bytes_per_s * card.memory_efficiency
    tokens = sum(part.num_new_tokens for part in parts) + len(contexts)
    dense_flops = 2 * body * tokens + 2 * head * (len(parts) + len(contexts))
    dense_s = math.sqrt((dense_flops / tp / flops) ** 2 + (2 * (body + head) / tp / bandwidth) ** 2)
    per_pair = 4 * spec.num_layers * spec.num_attention_heads * spec.head_dim
    per_cached = 2 * 2 * spec.num_layers * spec.head_dim * max(1.0, math.ceil(spec.num_kv_heads / tp))
    pairs = sum(sum(part.num_context_tokens + i + 1 for i in range(part.num_new_tokens)) for part in parts)
    cached = sum(part.num_context_tokens + part.num_new_tokens for part in parts)
    chunk_s = max(per_pair * pairs / tp / flops, per_cached * cached / bandwidth)
    decode_s = sum(max(per_pair * (c + 1) / tp / flops, per_cached * (c + 1) / bandwidth) for c in contexts)
    link_s = 0.0
    if tp > 1:
        assert card.link_bytes_per_s is not None
        ring = 2 * (tp - 1) / tp * tokens * spec.hidden_size * 2 / (card.link_bytes_per_s * card.link_efficiency)
        link_s = 2 * spec.num_layers * (card.link_latency_s * math.log2(tp) + ring)
    return dense_s + chunk_s + decode_s + link_s + card.overhead_s


@settings(max_examples=60, deadline=None)
@given(parts=chunks, contexts=decodes, device=devices, name=models, num_steps=st.integers(1, 40))
def test_ramps_are_the_naive_sum_of_steps(parts, contexts, device, name, num_steps):
    """A stretch of n steps takes what n single steps take when each is computed anew from its matrices, with decodes
    one token longer per step and chunks longer by their own new tokens."""
    if not parts and not contexts:
        return
    card, tp, spec = HARDWARE[device[0]], device[1], load_model_spec(name)
    span_s = Stretch(RooflineStepTime(spec, card, tp), batch_of(parts, contexts)).span_s(num_steps)
    steps_s = (
        naive_seconds(
            spec,
            card,
            tp,
            [Chunk(new, context + k * new) for new, context in parts],
            [context + k for context in contexts],
        )
        for k in range(num_steps)
    )
    assert span_s == pytest.approx(sum(steps_s), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(parts=chunks, contexts=decodes, device=devices, step=st.integers(0, 50))
def test_a_ramp_continues_into_the_one_it_announces(parts, contexts, device, step):
    """Asked again at any step within a ramp, the model names the same duration; durations are positive and never fall,
    and what is unbounded does not shrink."""
    model = RooflineStepTime(LLAMA, HARDWARE[device[0]], device[1])
    batch = batch_of(parts, [*contexts, 7])
    ramp = model.ramp(batch, step)
    assert ramp.first_s > 0
    assert ramp.slope_s >= 0
    for ahead in {0, min(ramp.num_steps - 1, 100), min(ramp.num_steps, 100)}:
        assert seconds(model, batch, step + ahead) >= (ramp.first_s + ahead * ramp.slope_s) * (1 - 1e-12)
        if ahead < ramp.num_steps:
            assert seconds(model, batch, step + ahead) == pytest.approx(ramp.first_s + ahead * ramp.slope_s, rel=1e-12)


def test_the_bound_of_attention_changes_at_the_announced_step():
    """At the bare peaks a cached token costs as much to read as 73.8 pairs to compute, so a chunk of 80 over no context
    reads longer than it computes until 80 c + 3,240 pairs outweigh c + 80 tokens: c = 432, six steps of 80."""
    model = RooflineStepTime(LLAMA, FREE)
    batch = Batch(chunks=(Chunk(80, 0),))
    ramp = model.ramp(batch, 0)
    after = model.ramp(batch, ramp.num_steps)
    assert ramp.num_steps == 6
    assert after.slope_s > ramp.slope_s
    assert after.first_s > ramp.first_s + ramp.num_steps * ramp.slope_s


@pytest.mark.parametrize("parts", [(Chunk(50, 0),), (Chunk(60, 100_000), Chunk(15, 0), Chunk(15, 0), Chunk(15, 0))])
def test_a_stretch_across_a_change_of_bound_is_exact(parts):
    """From memory to arithmetic, or back: the sum over both ramps is the sum of the single steps."""
    model = RooflineStepTime(LLAMA, H100)
    batch = Batch(chunks=parts)
    assert model.ramp(batch, 0).num_steps < 5_000
    num_steps = model.ramp(batch, 0).num_steps + 10
    single = sum(seconds(model, batch, step) for step in range(num_steps))
    assert Stretch(model, batch).span_s(num_steps) == pytest.approx(single, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(parts=chunks, contexts=decodes, device=devices, more=st.integers(1, 500))
def test_more_work_never_takes_less_time(parts, contexts, device, more):
    """Time grows with new tokens, with context, and with another decode or chunk."""
    model = RooflineStepTime(LLAMA, HARDWARE[device[0]], device[1])
    contexts = [*contexts, 10]
    base = seconds(model, batch_of(parts, contexts))
    assert seconds(model, batch_of(parts, [*contexts, more])) > base
    assert seconds(model, batch_of(parts, [contexts[0] + more, *contexts[1:]])) >= base
    assert seconds(model, batch_of((*parts, Chunk(more, 0)), contexts)) > base
    if parts:
        new, context = parts[0]
        assert seconds(model, batch_of((Chunk(new + more, context), *parts[1:]), contexts)) > base
        assert seconds(model, batch_of((Chunk(new, context + more), *parts[1:]), contexts)) >= base


def test_a_decode_alone_reads_its_weights():
    """Without overhead, one decode takes the bytes of weights (embedding apart) over the bandwidth: 15.0 GB at 3.35
    TB/s; its arithmetic is less than a hundredth of that."""
    weight_bytes = 2 * (LLAMA.num_parameters - LLAMA.lm_head_parameters)
    assert seconds(RooflineStepTime(LLAMA, FREE), NO_CONTEXT) == pytest.approx(weight_bytes / 3.35e12, rel=1e-3)


def test_a_long_prefill_computes():
    """Without overhead, 8,192 tokens take 2 FLOPs per weight and token and half of attention's square over the peak."""
    flops = 2 * LLAMA.matmul_parameters * 8_192 + 4 * 32 * 32 * 128 * 8_192 * 8_193 / 2
    model = RooflineStepTime(LLAMA, FREE)
    assert seconds(model, Batch(chunks=(Chunk(8_192, 0),))) == pytest.approx(flops / 989.4e12, rel=1e-2)


@settings(max_examples=30, deadline=None)
@given(contexts=st.lists(st.integers(0, 3_000), min_size=1, max_size=4))
def test_twice_the_bandwidth_halves_a_decode_less_its_overhead(contexts):
    """Few decodes are memory bound, so their time beside the overhead is inverse to the bandwidth."""
    batch = batch_of((), contexts)
    faster = replace(H100, bandwidth_bytes_per_s=2 * H100.bandwidth_bytes_per_s)
    slow_s = seconds(RooflineStepTime(LLAMA, H100), batch) - H100.overhead_s
    fast_s = seconds(RooflineStepTime(LLAMA, faster), batch) - H100.overhead_s
    assert fast_s == pytest.approx(slow_s / 2, rel=2e-3)


@settings(max_examples=30, deadline=None)
@given(parts=chunks, contexts=decodes)
def test_twice_both_peaks_halve_every_step_less_its_overhead(parts, contexts):
    """Time beside the overhead is a length over a speed: doubling both speeds halves it, whatever the bound."""
    batch = batch_of(parts, [*contexts, 3])
    peaks = {dtype: 2 * peak for dtype, peak in H100.peak_flops.items()}
    faster = replace(H100, bandwidth_bytes_per_s=2 * H100.bandwidth_bytes_per_s, peak_flops=peaks)
    slow_s = seconds(RooflineStepTime(LLAMA, H100), batch) - H100.overhead_s
    assert seconds(RooflineStepTime(LLAMA, faster), batch) - H100.overhead_s == pytest.approx(slow_s / 2, rel=1e-9)


def test_one_device_does_not_communicate():
    """With tensor_parallel 1 the link changes nothing; with 2, free links leave exactly half of the work."""
    slow_link = replace(H100, link_latency_s=1.0, link_efficiency=1e-9)
    batch = batch_of((Chunk(300, 50),), [100, 2_000])
    alone = seconds(RooflineStepTime(LLAMA, H100), batch)
    assert seconds(RooflineStepTime(LLAMA, slow_link), batch) == alone
    free_link = replace(H100, link_latency_s=0.0, link_bytes_per_s=math.inf)
    halved = seconds(RooflineStepTime(LLAMA, free_link, 2), batch)
    assert halved - H100.overhead_s == pytest.approx((alone - H100.overhead_s) / 2, rel=1e-9)


@given(tp=st.sampled_from([2, 4, 8, 16, 32]), tokens=st.integers(1, 4_000))
def test_all_reduces_are_two_per_layer(tp, tokens):
    """The link costs 2 per layer × (latency per doubling + the ring's 2 (tp − 1) / tp of tokens × hidden × 2 bytes)."""
    batch = Batch(chunks=(Chunk(tokens, 0),))
    free_link = replace(H100, link_latency_s=0.0, link_bytes_per_s=math.inf)
    card = replace(H100, link_latency_s=5e-6, link_bytes_per_s=450e9, link_efficiency=0.5)
    link_s = seconds(RooflineStepTime(LLAMA, card, tp), batch) - seconds(RooflineStepTime(LLAMA, free_link, tp), batch)
    ring_s = 2 * (tp - 1) / tp * tokens * 4_096 * 2 / 225e9
    assert link_s == pytest.approx(2 * 32 * (5e-6 * math.log2(tp) + ring_s), rel=1e-6)


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_repeated_beyond_their_number(tp, heads):
    """Llama-3.1-8B has 8 KV heads: more devices than that each keep a whole one, so the cache stops shrinking."""
    assert kv_bytes_per_device(LLAMA, tp, "bf16") == 2 * 32 * heads * 128 * 2


def test_a_narrower_cache_is_read_faster():
    """The cache's dtype is its own: fp8 halves what each cached token adds to a decode, whatever the weights are."""
    slope = {
        dtype: RooflineStepTime(LLAMA, H100, kv_dtype=dtype).ramp(NO_CONTEXT, 0).slope_s for dtype in ("bf16", "fp8")
    }
    assert slope["fp8"] == pytest.approx(slope["bf16"] / 2)
    assert RooflineStepTime(LLAMA, H100).ramp(NO_CONTEXT, 0).slope_s == slope["bf16"]


def test_the_laptop_meets_the_two_steps_it_was_made_from():
    """Source chapter: Qwen2.5-0.5B in fp32 prefills 40 tokens in 1.02 s and decodes in 166 ms at any context from 16 to
    1,024."""
    model = RooflineStepTime(load_model_spec("qwen2.5-0.5b"), HARDWARE["laptop-cpu"], dtype="fp32")
    assert seconds(model, Batch(chunks=(Chunk(40, 0),))) == pytest.approx(1.02, rel=0.01)
    for context in (16, 1_024):
        assert seconds(model, Batch(num_decodes=1, decode_context_tokens=context)) == pytest.approx(0.166, rel=0.03)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_entry_is_whole(name):
    """Each names its datasheet and where its efficiencies come from, keeps them within the peak, and says the error or
    that nothing was measured."""
    entry = HARDWARE[name]
    assert entry.datasheet
    assert 0 < entry.compute_efficiency <= 1
    assert 0 < entry.memory_efficiency <= 1
    assert 0 < entry.link_efficiency <= 1
    assert {"fp32", "bf16"} <= set(entry.peak_flops)
    assert (
        entry.mean_error is not None
        or "never measured" in entry.efficiency_source
        or "nothing" in (entry.efficiency_source)
    )


def test_the_source_says_that_nothing_was_calibrated():
    """The badge of a roofline: not calibrated, no held-out error, and the error of the fit in its note."""
    source = RooflineStepTime(LLAMA, H100, 2).source
    assert (source.kind, source.calibrated, source.holdout_mape, source.points) == ("roofline", False, None, ())
    assert "3.7 %" in source.note
    assert source.device == "2 × NVIDIA H100 SXM 80 GB"
    assert "no measured error" in RooflineStepTime(LLAMA, HARDWARE["l40s"]).source.note


def test_unknown_hardware_gets_its_neighbour():
    """A misspelt name is refused with the nearest one, names match in any case."""
    assert load_hardware("H100-SXM") is H100
    with pytest.raises(ScenarioError, match=r"unknown hardware 'h100'; did you mean 'h[12]00-sxm'\?"):
        load_hardware("h100")
    with pytest.raises(ScenarioError, match=r"known: a100-sxm, h100-sxm"):
        load_hardware("zzz")


@pytest.mark.parametrize(
    ("card", "tp", "dtype", "message"),
    [
        ("a100-sxm", 1, "fp8", "step_time.dtype: a100-sxm cannot compute in 'fp8'; it knows fp32, fp16, bf16, int8"),
        ("h100-sxm", 0, "bf16", "step_time.tensor_parallel: must be ≥ 1 (got 0)"),
        (
            "h100-sxm",
            3,
            "bf16",
            "step_time.tensor_parallel: must divide the 32 attention heads of llama-3.1-8b (got 3)",
        ),
        ("laptop-cpu", 2, "fp32", "step_time.tensor_parallel: must be 1 on laptop-cpu, which has no link (got 2)"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(card, tp, dtype, message):
    """Key, rule and value stand in the message."""
    with pytest.raises(ScenarioError) as caught:
        RooflineStepTime(LLAMA, HARDWARE[card], tp, dtype)
    assert str(caught.value) == message


def test_a_model_larger_than_its_devices_is_refused():
    """70.6 billion parameters in bf16 are 131.4 GiB: two H100 hold them, one does not; a cache needs room beside."""
    llama = load_model_spec("llama-3.1-70b")
    check_fits(llama, H100, 2)
    with pytest.raises(ScenarioError, match=r"need 131.4 GiB, but 1 × h100-sxm has 80.0 GiB; raise tensor_parallel"):
        check_fits(llama, H100, 1)
    with pytest.raises(ScenarioError, match=r"need 131.4 GiB and the cache 40.0 GiB, but 2 × h100-sxm has 160.0 GiB"):
        check_fits(llama, H100, 2, "bf16", 40 * 1024**3)


@pytest.mark.parametrize(
    "batch", [Batch(num_decodes=64, decode_context_tokens=70_000), batch_of((Chunk(400, 9),), [5])]
)
def test_benchmark_ramp(benchmark, batch):
    """One ramp is asked for at each scheduling decision: microseconds."""
    model = RooflineStepTime(LLAMA, H100)
    assert benchmark(model.ramp, batch, 3).first_s > 0
