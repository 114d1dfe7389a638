"""What fits: the chapters' figures to the token, the laws of the arithmetic, and an allocator that holds them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ModelError
from simserve.kv_cache import PagedAllocator
from simserve.memory.footprint import (
    DEFAULT_OVERHEAD_BYTES,
    GIB,
    Budget,
    cache_bytes,
    context_for,
    kv_bytes_per_token,
    resident_tokens,
    tokens_that_fit,
    users_at,
)
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec
from simserve.request import Request, Sequence

MIB = 1024**2
MEMORIES = st.integers(1, 2**45)


@dataclass(frozen=True)
class Model:
    """Only the dimensions that memory follows from."""

    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int


@pytest.mark.parametrize(
    ("model", "weights", "memory_gib", "tokens"),
    [
        (Model(13 * 10**9, 40, 40, 128), "4.125", 8, 337),
        (Model(13 * 10**9, 40, 40, 128), "int4", 8, 337),
        (Model(7 * 10**9, 32, 8, 128), "int8", 16, 65_378),
        (Model(13 * 10**9, 40, 40, 128), "int8", 16, 3_136),
    ],
)
def test_the_chapters_tokens(model, weights, memory_gib, tokens):
    """DESIGN section 7: GiB throughout, 1.5 GiB reserved, fp16 cache, int8 counted without scales."""
    assert DEFAULT_OVERHEAD_BYTES == 1536 * MIB
    assert tokens_that_fit(model, parse_scheme(weights), "fp16", Budget(memory_gib * GIB)) == tokens


def test_the_chapters_bytes_per_token():
    """DESIGN section 7: 24 layers × 2 KV heads × 64 in fp16, and 86,016 had all 14 heads kept theirs."""
    assert kv_bytes_per_token(Model(1, 24, 2, 64), "fp16") == 12_288
    assert kv_bytes_per_token(Model(1, 24, 14, 64), "fp16") == 86_016


@pytest.mark.parametrize(("users", "context"), [(32, 2048), (64, 1024), (128, 512)])
def test_768_mib_hold_65_536_tokens_however_they_are_shared(users, context):
    """DESIGN section 7; and a paged cache of these bytes admits exactly these users, and not one token more."""
    per_token = load_model_spec("qwen2.5-0.5b").kv_bytes_per_token("fp16")
    assert per_token == 12_288
    tokens = resident_tokens(768 * MIB, per_token)
    assert tokens == users * context == 65_536
    assert users_at(tokens, context) == users
    assert context_for(tokens, users) == context
    cache = PagedAllocator(768 * MIB // (16 * per_token), 16, max_model_len=context, watermark=0.0, null_blocks=0)
    admitted = 0
    while cache.can_admit(seq := Sequence(Request(admitted, 0, context, 1, 1))):
        cache.allocate(seq, context)
        admitted += 1
    assert (admitted, cache.num_free_blocks) == (users, 0)


@given(MEMORIES, MEMORIES, MEMORIES, st.integers(1, 16))
def test_memory_is_weights_overhead_cache_and_what_division_leaves(memory, weights, overhead, devices):
    """On all devices together: parts add up to the memory, but for less than a byte of weights on each device."""
    left = cache_bytes(memory, weights, overhead, devices)
    rest = memory * devices - weights - overhead * devices - left
    assert 0 <= rest < devices


@given(MEMORIES, st.integers(1, 10**7))
def test_resident_tokens_are_the_most_that_fit(left, per_token):
    """They fit, and one more does not."""
    tokens = resident_tokens(left, per_token)
    assert tokens * per_token <= left < (tokens + 1) * per_token


@given(st.integers(-(2**45), 0), st.integers(1, 10**7))
def test_without_room_there_are_no_tokens(left, per_token):
    """Missing bytes are no negative tokens."""
    assert resident_tokens(left, per_token) == 0


@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 256), st.sampled_from([1, 2, 4, 8]))
def test_devices_share_kv_heads_or_copy_them(layers, heads, head_dim, devices):
    """What a device holds of a token is whole heads, at least one, and together they hold every head."""
    model = Model(1, layers, heads, head_dim)
    on_each, rest = divmod(kv_bytes_per_token(model, "fp16", devices), devices)
    one_head = kv_bytes_per_token(Model(1, layers, 1, head_dim), "fp16")
    assert rest == 0
    assert on_each % one_head == 0
    held = on_each // one_head
    assert held >= 1
    assert held * devices >= heads > (held - 1) * devices


def test_more_devices_than_heads_gain_no_tokens_from_copies():
    """Eight devices for two KV heads: each keeps a head's copy, so a token takes four times the bytes."""
    model = load_model_spec("qwen2.5-0.5b")
    assert kv_bytes_per_token(model, "fp16", 8) == 4 * kv_bytes_per_token(model, "fp16", 2)


@given(st.sampled_from(["fp32", "fp16", "bf16", "fp8", "int8"]))
def test_one_device_holds_what_the_model_spec_says(dtype):
    """The same formula as the simulator's cache: ``ModelSpec.kv_bytes_per_token``."""
    model = load_model_spec("llama-3.1-8b")
    assert kv_bytes_per_token(model, dtype) == model.kv_bytes_per_token(dtype)


def test_an_unknown_dtype_is_one_sentence():
    """It names those that are known."""
    with pytest.raises(ModelError, match="dtype: must be one of fp32, fp16"):
        kv_bytes_per_token(load_model_spec("tiny"), "fp12")


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**6))
def test_users_and_contexts_are_two_views_of_one_number(tokens, context, users):
    """So many users fit at a context exactly when that context fits so many users."""
    assert (users_at(tokens, context) >= users) == (context_for(tokens, users) >= context)
