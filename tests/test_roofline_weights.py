"""The roofline with quantized weights: bytes of the scheme, FLOPs of the dtype, and nothing else changes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ModelError, ScenarioError
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec
from simserve.request import Batch, Chunk
from simserve.step_time.hardware import HARDWARE
from simserve.step_time.roofline import RooflineStepTime, check_fits

GIB = 2**30
LLAMA = load_model_spec("llama-3.1-8b")
H100 = HARDWARE["h100-sxm"]
FREE = replace(H100, compute_efficiency=1.0, memory_efficiency=1.0, overhead_s=0.0)
ONE_DECODE = Batch(num_decodes=1)
SCHEMES = ("fp32", "bf16", "fp8", "int8", "int4", "int4:32", "nf4", "4.125", "2")


def seconds(scheme: str | None, batch: Batch, dtype: str = "bf16", tensor_parallel: int = 1) -> float:
    weights = None if scheme is None else parse_scheme(scheme)
    return RooflineStepTime(LLAMA, FREE, tensor_parallel, dtype, weights=weights).ramp(batch, 0).first_s


@pytest.mark.parametrize(
    ("scheme", "bits"), [("fp32", 32), ("int8", 8), ("int4", 4.125), ("nf4", 4.25), ("int4:32", 4.5), ("3.5", 3.5)]
)
def test_a_decode_alone_reads_the_bits_of_the_scheme(scheme, bits):
    """7.50 billion weights (all but the embedding, which is a look-up) over 3.35 TB/s, scales of groups included."""
    num_read = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 128256 * 4096
    assert seconds(scheme, ONE_DECODE) == pytest.approx(num_read * bits / 8 / 3.35e12, rel=3e-3)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_long_prefill_takes_what_its_arithmetic_takes(scheme):
    """8,192 tokens do 2 FLOPs per weight and token at the 989.4 TFLOP/s of bf16 whatever the weights are kept in;
    attention's 4 FLOPs per (query, key) pair and query width come on top."""
    flops = 2 * LLAMA.matmul_parameters * 8_192 + 4 * 32 * 32 * 128 * 8_192 * 8_193 / 2
    assert seconds(scheme, Batch(chunks=(Chunk(8_192, 0),))) == pytest.approx(flops / 989.4e12, rel=1e-2)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8", "fp32"])
def test_weights_in_the_dtype_that_computes_are_the_default(dtype):
    """Saying what is so anyway changes nothing, to the bit, nor the name of the step times."""
    batch = Batch(chunks=(Chunk(300, 50),), num_decodes=2, decode_context_tokens=700)
    said = RooflineStepTime(LLAMA, H100, 2, dtype, weights=parse_scheme(dtype))
    silent = RooflineStepTime(LLAMA, H100, 2, dtype)
    assert said.ramp(batch, 3) == silent.ramp(batch, 3)
    assert said.source == silent.source


@settings(max_examples=60, deadline=None)
@given(
    bits=st.tuples(st.floats(0.5, 32), st.floats(0.5, 32)).map(sorted),
    tokens=st.integers(1, 4_000),
    contexts=st.lists(st.integers(0, 3_000), max_size=5),
    tp=st.sampled_from([1, 2, 8]),
)
def test_fewer_bits_never_take_longer_and_save_no_more_than_their_bytes(bits, tokens, contexts, tp):
    """Law: 0 ≤ saved ≤ bytes saved over the bandwidth of the devices, whatever the step computes."""
    low, high = (format(each, ".6f") for each in bits)
    batch = Batch(chunks=(Chunk(tokens, 0),), num_decodes=len(contexts), decode_context_tokens=sum(contexts))
    saved = seconds(high, batch, tensor_parallel=tp) - seconds(low, batch, tensor_parallel=tp)
    most = (LLAMA.matmul_parameters + LLAMA.lm_head_parameters) * (float(high) - float(low)) / 8 / 3.35e12 / tp
    assert -1e-12 <= saved <= most + 1e-12


def test_the_source_is_named_after_the_weights():
    """Two variants that differ by weights alone have two sources; what the efficiencies come from stays the same."""
    source = RooflineStepTime(LLAMA, H100, 1, "bf16", weights=parse_scheme("int4")).source
    assert source.name == "llama-3.1-8b-h100-sxm-tp1-int4-bf16-roofline"
    assert source.note == RooflineStepTime(LLAMA, H100).source.note
    assert "3.7 %" in source.note


def test_smaller_weights_fit_where_larger_do_not():
    """Llama-3.1-70B: 70.55 billion weights are 131.4 GiB in bf16, 65.7 in int8, 33.9 at 4.125 bits; an H100 has 80."""
    llama = load_model_spec("llama-3.1-70b")
    check_fits(llama, H100, 1, "int8", 14 * GIB)
    check_fits(llama, H100, 1, "int4", 46 * GIB)
    with pytest.raises(ScenarioError) as caught:
        check_fits(llama, H100, 1, "int4", 47 * GIB)
    assert str(caught.value) == (
        "step_time.roofline: the weights of llama-3.1-70b in int4 (4.125 bits) need 33.9 GiB and the cache 47.0 "
        "GiB, but 1 × "
        "h100-sxm has 80.0 GiB; raise tensor_parallel or take smaller weights"
    )


@pytest.mark.parametrize(("num_kv_heads", "kv_bytes"), [(1, 16_384), (8, 131_072), (32, 524_288)])
def test_attention_follows_the_heads(num_kv_heads, kv_bytes):
    """2 · 32 layers · heads · 128 · 2 bytes per token; and keys and values of so many heads are projected: 32 · 4,096 ·
    2 · 128 weights for each. What a decode reads of the cache is in proportion."""
    spec = LLAMA.with_kv_heads(num_kv_heads)
    assert spec.kv_bytes_per_token("bf16") == kv_bytes
    assert LLAMA.num_parameters - spec.num_parameters == 32 * 4_096 * 2 * 128 * (8 - num_kv_heads)
    assert spec.name == ("llama-3.1-8b" if num_kv_heads == 8 else f"llama-3.1-8b-kv{num_kv_heads}")
    slope_s = RooflineStepTime(spec, FREE).ramp(ONE_DECODE, 0).slope_s
    arithmetic_s = 4 * 32 * 32 * 128 / 989.4e12
    assert slope_s == pytest.approx(max(kv_bytes / 3.35e12, arithmetic_s))


@pytest.mark.parametrize("num_kv_heads", [0, 3, 64])
def test_heads_that_cannot_be_shared_out_are_refused(num_kv_heads):
    """Every KV head serves equally many attention heads."""
    with pytest.raises(ModelError, match=rf"must divide the 32 attention heads of llama-3.1-8b \(got {num_kv_heads}\)"):
        LLAMA.with_kv_heads(num_kv_heads)
