"""``weights:``, ``attention:`` and the three ways to size a cache: what is read, refused, dropped by overrides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.scenario import parse_scenario, scenario_schema
from simserve.scenario.load import apply_overrides
from simserve.scenario.merge import merge
from simserve.scenario.model_models import KvHeads
from simserve.tasks.axes import build_axes
from simserve.tasks.settings import apply_settings, grid
from tests.scenario_builders import small

GIB = 2**30
CAPACITIES: list[dict[str, Any]] = [
    {"num_blocks": 64},
    {"memory": "8GiB"},
    {"memory": "8GiB", "weights": "int4", "overhead": "1GiB"},
    {"device_memory": "8GiB", "overhead": 0},
    {"device_memory": "8GiB", "weights": "int8"},
]


def sized(**cache: Any) -> dict[str, Any]:
    """The small scenario with a cache of this size."""
    return small(engine__kv_cache={"allocator": "paged", **cache})


@pytest.mark.parametrize(
    ("written", "read"),
    [("int4", "int4"), ("INT4:128", "int4"), ("int4:64", "int4:64"), ("float16", "fp16"), (4.125, "4.125"), (4, "4")],
)
def test_weights_have_one_name_however_they_are_written(written: object, read: str) -> None:
    """Names of ``simserve memory``; a number is bits per weight, as text or as a number."""
    assert parse_scenario(small(weights=written)).weights == read
    assert parse_scenario(small(weights=str(written))).weights == read
    assert parse_scenario(sized(memory="8GiB", weights=written)).engine.kv_cache.weights == read


@pytest.mark.parametrize("written", ["mha", "gqa", "mqa", {"kv_heads": 7}, None])
def test_attention_is_a_name_or_a_number_of_heads(written: object) -> None:
    """The one switch in its two forms."""
    read = parse_scenario(small(attention=written)).attention
    assert read == (KvHeads(kv_heads=7) if isinstance(written, dict) else written)


CASES = [
    (small(weights="int5"), "weights: must be a weight scheme (got 'int5'); did you mean 'int"),
    (small(weights=65), "weights: bits per weight must be from 0.1 to 64 (got 65)"),
    (small(weights=True), "weights: must be text (got true)"),
    (small(weights=["int4"]), "weights: must be text (got a list)"),
    (
        small(weights="int4:0"),
        "weights: the group of int4 must be a whole number from 1 to 1048576, row or tensor (got",
    ),
    (
        small(attention="mla"),
        "attention: must be mha, gqa, mqa or a number of KV heads such as {kv_heads: 8} (got 'mla')",
    ),
    (small(attention=8), "attention: must be mha, gqa, mqa or a number of KV heads such as {kv_heads: 8} (got 8)"),
    (small(attention={"heads": 8}), "attention: unknown key 'heads' (did you mean 'kv_heads'?)"),
    (small(attention={"kv_heads": 0}), "attention.kv_heads: must be ≥ 1 (got 0)"),
    (small(attention={"kv_heads": 2.0}), "attention.kv_heads: must be a whole number (got 2.0, which YAML reads as"),
    (small(attention={}), "attention.kv_heads: must be given (heads of keys (and of values) in each layer;"),
    (sized(), "engine.kv_cache: give exactly one of num_blocks, memory, device_memory (got none)"),
    (
        sized(memory="1GiB", device_memory="1GiB"),
        "engine.kv_cache: give exactly one of num_blocks, memory, device_memory (got memory and device_memory)",
    ),
    (
        sized(num_blocks=9, weights="int4"),
        "engine.kv_cache: weights: goes with memory or device_memory (got num_blocks)",
    ),
    (
        sized(memory="1GiB", overhead="1GiB"),
        "engine.kv_cache: overhead: goes with device_memory, or memory and weights (got memory alone)",
    ),
    (
        sized(memory="1GiB", weights="int3"),
        "engine.kv_cache.weights: must be a weight scheme (got 'int3'); did you mean",
    ),
    (sized(device_memory="16"), "engine.kv_cache.device_memory: must be a size with its unit, such as 8GiB"),
    (sized(device_memory="1GiB", overhead=-1), "engine.kv_cache.overhead: must be ≥ 0 (got -1)"),
    (
        merge(sized(memory="8GiB", weights="int8"), {"weights": "int4"}),
        "weights and engine.kv_cache.weights must be the same, or one of them left out (got int4 and int8); with "
        "engine.kv_cache.device_memory the cache follows weights",
    ),
    (
        merge(sized(memory="8GiB", weights="int8"), {"variants": {"v": {"weights": "int4"}}, "weights": "int8"}),
        "variants.v: weights and engine.kv_cache.weights must be the same, or one of them left out (got int4 and int8)",
    ),
]


@pytest.mark.parametrize(("data", "expected"), CASES, ids=[expected[:60] for _, expected in CASES])
def test_one_sentence_names_place_rule_and_value(data: dict[str, Any], expected: str) -> None:
    """As everywhere in a scenario."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data, "s")
    assert str(caught.value).startswith(f"s: {expected}")
    assert "\n" not in str(caught.value)


@given(st.lists(st.sampled_from(CAPACITIES), min_size=1, max_size=6))
def test_any_chain_of_capacities_stays_valid(chain: list[dict[str, Any]]) -> None:
    """Law: a variant that sizes the cache another way need not unset the old way, its weights or its overhead."""
    data = sized(num_blocks=64)
    for capacity in chain:
        data = merge(data, {"engine": {"kv_cache": capacity}})
        cache = parse_scenario(data).engine.kv_cache
        key = next(iter(capacity))
        assert getattr(cache, key) is not None
        assert [getattr(cache, other) for other in ("num_blocks", "memory", "device_memory") if other != key] == [
            None
        ] * 2


def test_variants_and_set_take_either_form_of_attention() -> None:
    """A name over a number, a number over a name, and back to the model's own."""
    variants = {
        "own": {"attention": None},
        "one": {"attention": "mqa"},
        "two": {"attention": {"kv_heads": 2}},
        "base": {},
    }
    data = small(attention={"kv_heads": 7}, weights="int8", variants=variants)
    read = {name: v.attention for name, v in parse_scenario(data).resolve_variants().items()}
    assert read == {"own": None, "one": "mqa", "two": KvHeads(kv_heads=2), "base": KvHeads(kv_heads=7)}
    assert parse_scenario(apply_overrides(data, ["attention=mha"])).attention == "mha"
    named = apply_overrides(small(attention="mha"), ["attention.kv_heads=2", "weights=nf4"])
    assert (parse_scenario(named).attention, parse_scenario(named).weights) == (KvHeads(kv_heads=2), "nf4")
    assert {v.weights for v in parse_scenario(data).resolve_variants().values()} == {"int8"}


def test_a_sweep_goes_over_weights_heads_and_memory() -> None:
    """Names and bits of weights, whole heads, sizes with a unit: each point is a scenario of its own."""
    data = sized(device_memory="8GiB")
    over = {
        "weights": "bf16,int8,int4,4.25",
        "attention.kv_heads": "1,2,7",
        "engine.kv_cache.device_memory": [GIB, 2 * GIB],
    }
    axes = build_axes(data, "s", over, ())
    points = [parse_scenario(apply_settings(data, point)) for point in grid(axes)]
    assert {point.weights for point in points} == {"bf16", "int8", "int4", "4.25"}
    assert {point.attention.kv_heads for point in points if isinstance(point.attention, KvHeads)} == {1, 2, 7}
    assert {point.engine.kv_cache.device_memory for point in points} == {GIB, 2 * GIB}
    assert len(points) == 4 * 3 * 2


def test_heads_of_a_range_are_whole() -> None:
    """A range over a key that takes whole numbers is rounded to them, also under a section with a short form."""
    assert build_axes(small(), "s", {"attention.kv_heads": "1:14:4"}, ())[0].values == (1, 5, 10, 14)


def test_editors_know_the_keys() -> None:
    """The JSON schema has the switches, and takes a number for weights and a name for attention."""
    keys = scenario_schema()["properties"]
    assert {"type": "number"} in keys["weights"]["anyOf"]
    assert "mqa" in str(keys["attention"])
