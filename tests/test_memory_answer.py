"""One model in one memory: figures that hang together, devices that share, and the model that a what-if makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import FootprintError, ModelError
from simserve.memory.answer import Question, answer, require_fit
from simserve.memory.devices import parse_memory, parse_overhead
from simserve.memory.schemes import parse_scheme
from simserve.memory.shapes import Shape, load_shape, parse_count, shape_from_dimensions, with_kv_heads
from simserve.model_spec import CATALOGUE, load_model_spec
from simserve.step_time.hardware import HARDWARE

GIB = 2**30
MODELS = st.sampled_from(sorted(CATALOGUE))
SCHEMES = st.sampled_from(["fp32", "fp16", "int8", "int4", "nf4", "int4:32", "3.5"])


@given(MODELS, SCHEMES, st.integers(1, 2**42), st.integers(0, 2**33), st.sampled_from(["fp32", "fp16", "int8"]))
def test_the_figures_hang_together(model, weights, memory, overhead, dtype):
    """Tokens fit into what is left and one more does not; what does not fit lacks exactly what would make it fit."""
    asked = Question(kv_dtype=dtype, overhead_bytes=overhead, contexts=(100, 2_048), users=(1, 7))
    found = answer(load_shape(model), parse_scheme(weights), parse_memory(f"{memory}B"), asked)
    tokens, per_token = found["resident_tokens"], found["kv_bytes_per_token"]
    taken = found["weight_bytes"] + overhead
    assert per_token == load_model_spec(model).kv_bytes_per_token(dtype)
    assert found["fits"] == (tokens > 0) == (taken + per_token <= memory)
    assert found["missing_bytes"] == max(0, taken + per_token - memory)
    if found["fits"]:
        assert taken + tokens * per_token <= memory < taken + (tokens + 1) * per_token
        assert found["cache_bytes"] == memory - taken
    assert found["users_at_context"] == {"100": tokens // 100, "2048": tokens // 2_048}
    assert found["context_at_users"] == {"1": tokens, "7": tokens // 7}


@given(MODELS, SCHEMES, st.integers(2**31, 2**40))
def test_a_what_if_is_the_model_with_those_heads(model, weights, memory):
    """Each line is what the command would say of that model; the model's own line is its own figures."""
    scheme, size, asked = parse_scheme(weights), parse_memory(f"{memory}B"), Question()
    shape = load_shape(model)
    found = answer(shape, scheme, size, asked)
    heads = [line["num_kv_heads"] for line in found["what_if"]]
    assert heads == sorted(set(heads), reverse=True)
    assert {1, shape.num_kv_heads, shape.num_attention_heads} <= set(heads)
    for line in found["what_if"]:
        itself = answer(with_kv_heads(shape, line["num_kv_heads"]), scheme, size, asked)
        for key in ("attention", "num_parameters", "weight_bytes", "kv_bytes_per_token", "resident_tokens"):
            assert line[key] == itself[key]
        assert line["is_model"] == (line["num_kv_heads"] == found["num_kv_heads"])


def test_key_and_value_projections_follow_the_kv_heads():
    """Qwen2.5-0.5B with all 14 heads: 24 layers × 12 more heads × 64 wide × (896 inputs + a bias), twice."""
    shape = load_shape("qwen2.5-0.5b")
    more = with_kv_heads(shape, 14).num_parameters - shape.num_parameters
    assert more == 2 * 24 * 12 * 64 * (896 + 1)


@pytest.mark.parametrize(("devices", "per_token", "copies"), [(1, 12_288, 12_288), (2, 12_288, 12_288)])
def test_devices_share_weights_and_heads(devices, per_token, copies):
    """Two devices hold twice the memory, one model, and two overheads."""
    found = answer(
        load_shape("qwen2.5-0.5b"), parse_scheme("fp16"), parse_memory("4GiB"), Question(tensor_parallel=devices)
    )
    assert (found["kv_bytes_per_token"], found["kv_bytes_per_token_with_copies"]) == (per_token, copies)
    assert found["cache_bytes"] == devices * (4 * GIB - 3 * GIB // 2) - found["weight_bytes"]


def test_heads_are_copied_where_devices_are_more():
    """Fourteen devices for two KV heads: seven copies of each take seven times the bytes."""
    asked = Question(tensor_parallel=14)
    found = answer(load_shape("qwen2.5-0.5b"), parse_scheme("fp16"), parse_memory("4GiB"), asked)
    assert found["kv_bytes_per_token"] == 12_288
    assert found["kv_bytes_per_token_with_copies"] == 7 * 12_288
    assert found["resident_tokens"] == found["cache_bytes"] // (7 * 12_288)


@pytest.mark.parametrize(
    ("shape", "devices", "said"),
    [
        (load_shape("qwen2.5-0.5b"), 4, "must divide the 14 attention heads"),
        (Shape("m", 10**9, 4, 10, 64), 4, "must divide the 10 KV heads of m or be a multiple of them"),
    ],
)
def test_devices_that_cannot_share_the_heads_are_refused(shape, devices, said):
    """Engines give each device whole heads."""
    with pytest.raises(FootprintError, match=said):
        answer(shape, parse_scheme("fp16"), None, Question(tensor_parallel=devices))


def test_what_does_not_fit_is_said_with_its_sum():
    """Memory, weights, overhead, and what is missing for one token, in the units of the memory."""
    scheme, asked = parse_scheme("fp16"), Question(tensor_parallel=2)
    found = answer(load_shape("llama-2-13b"), scheme, parse_memory("12GB"), asked)
    with pytest.raises(FootprintError) as error:
        require_fit(found)
    assert str(error.value).startswith(
        "--memory: 2 × 12GB holds 24.0 GB, but the weights of llama-2-13b in fp16 take 26.0 GB and the overhead "
        "3.221 GB: 5.254 GB are missing for a single token"
    )


def test_without_memory_what_depends_on_it_is_null():
    """Weights and bytes per token are known even so, and require_fit has nothing to say."""
    found = answer(load_shape("tiny"), parse_scheme("fp16"), None, Question(contexts=(8,), users=(2,), together=True))
    require_fit(found)
    for key in ("resident_tokens", "cache_bytes", "fits", "missing_bytes", "users_at_context", "memory"):
        assert found[key] is None
    assert found["demands"] == [{"users": 2, "context": 8, "tokens": 16, "cache_bytes": 16 * 256, "fits": None}]


@pytest.mark.parametrize("name", HARDWARE)
def test_every_device_has_its_memory(name):
    """In any case of letters; what its driver keeps is in the note."""
    memory = parse_memory(name.upper())
    assert memory.num_bytes == HARDWARE[name].memory_bytes
    assert (memory.note is None) == (name == "laptop-cpu")


@pytest.mark.parametrize("text", ["8", "h10", "0GB", "99999999TiB", "", "8GiB,"])
def test_memory_that_is_none_is_one_sentence(text):
    """With the value given and a device that is near or all that are known."""
    with pytest.raises(FootprintError, match=r"--memory: .*\(got '"):
        parse_memory(text)


def test_overhead_is_a_size_or_nothing():
    """A bare 0 needs no unit."""
    assert parse_overhead("0") == 0
    assert parse_overhead("1.5GiB") == 3 * GIB // 2
    with pytest.raises(FootprintError, match=r"--overhead: must be a size .*or 0 \(got '3'\)"):
        parse_overhead("3")


@pytest.mark.parametrize(
    ("text", "count"),
    [("13B", 13 * 10**9), ("0.5b", 5 * 10**8), ("494032768", 494_032_768), ("350M", 35 * 10**7), ("1.5T", 15 * 10**11)],
)
def test_counts_of_parameters_are_read_exactly(text, count):
    """B is 10⁹, as in the names of models."""
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "B", "13X", "-1B", "0", "1.5", "1e9", "99999999T", "nan", "١B"])
def test_what_is_no_count_is_one_sentence(text):
    """Neither zero nor a part of a parameter."""
    with pytest.raises(ModelError, match="--params: must be a number of parameters such as 13B"):
        parse_count(text)


@pytest.mark.parametrize(
    ("dimensions", "said"),
    [
        (("13B", None, None, 128), "--layers, --kv-heads: must be given too"),
        ((None, 40, 40, 128), "--params: must be given too"),
        (("13B", 0, 40, 128), r"--layers: must be from 1 to 16777216 \(got 0\)"),
        (("13B", 40, 40, 2**30), "--head-dim: must be from 1"),
        (("13B", 40, 3, 128, 40), r"--kv-heads: must divide --heads 40 \(got 3\)"),
    ],
)
def test_dimensions_that_make_no_model_are_one_sentence(dimensions, said):
    """Which are missing, or which is impossible."""
    with pytest.raises(ModelError, match=said):
        shape_from_dimensions(*dimensions)


def test_attention_has_a_name_where_the_heads_are_known():
    """All heads their own: mha; groups: gqa; one pair for all: mqa; else nobody can tell."""
    kinds = [
        shape_from_dimensions("1B", 2, kv_heads, 64, heads).attention
        for kv_heads, heads in ((8, 8), (2, 8), (1, 8), (1, None), (2, None))
    ]
    assert kinds == ["mha", "gqa", "mqa", "mqa", None]


def test_without_the_architecture_weights_stay_as_they_are():
    """Bare dimensions do not say how wide projections are: parameters cannot follow the heads, and that is said."""
    shape = shape_from_dimensions("13B", 40, 40, 128, 40)
    found = answer(shape, parse_scheme("int8"), parse_memory("16GiB"), Question())
    assert [line["num_kv_heads"] for line in found["what_if"]] == [40, 8, 1]
    assert {line["num_parameters"] for line in found["what_if"]} == {13 * 10**9}
    assert "weights are counted as they are" in found["notes"][0]
    assert answer(load_shape("tiny"), parse_scheme("int8"), None, Question())["notes"] == []
