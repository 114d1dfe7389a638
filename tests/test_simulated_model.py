"""A variant's model as its switches leave it, and the room that its cache has: arithmetic, and one sentence for what
cannot be."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.assemble import assemble
from simserve.errors import InputError, ScenarioError
from simserve.memory.footprint import Budget, tokens_that_fit
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import load_model_spec
from simserve.scenario import PagedCacheConfig, parse_scenario
from simserve.simulated_model import SimulatedModel, cache_blocks, simulated_model
from simserve.step_time.profile_schema import content_digest
from simserve.summary import to_json
from tests.operator_builders import write_llmservingsim
from tests.profile_builders import make_content
from tests.scenario_builders import small

GIB = 2**30
ROOFLINE: dict[str, Any] = {"roofline": "h100-sxm", "dtype": "fp16"}


def scenario_of(**keys: Any) -> Any:
    """The small scenario on a roofline in fp16, with keys set."""
    return parse_scenario({**small(step_time=ROOFLINE), **keys}, "s")


def cached(**cache: Any) -> dict[str, Any]:
    """An engine with such a paged cache of one token a block."""
    return {"policy": "continuous", "max_num_seqs": 4, "kv_cache": {"allocator": "paged", "block_size": 1, **cache}}


def capacity(scenario: Any) -> int:
    return assemble(scenario).scheduler.pool.allocator.capacity_tokens


@pytest.mark.parametrize(
    ("params", "layers", "heads", "scheme", "memory", "tokens"),
    [
        (13_000_000_000, 40, 40, "4.125", 8, 337),
        (7_000_000_000, 32, 8, "int8", 16, 65_378),
        (13_000_000_000, 40, 40, "int8", 16, 3_136),
    ],
)
def test_the_textbook_s_caches_to_the_token(params, layers, heads, scheme, memory, tokens):
    """DESIGN section 7: GiB throughout, 1.5 GiB reserved, fp16 cache, int8 without scales; blocks of one token."""
    spec: Any = SimpleNamespace(name="b", num_parameters=params, num_layers=layers, num_kv_heads=heads, head_dim=128)
    weights = parse_scheme(scheme)
    model = SimulatedModel(spec, heads, weights, weights, "fp16", "fp16", 1)
    for key in ({"device_memory": memory * GIB}, {"memory": memory * GIB, "weights": scheme}):
        cache = PagedCacheConfig(allocator="paged", block_size=1, **key)
        assert cache_blocks(cache, model) == tokens
        assert cache_blocks(cache.model_copy(update={"block_size": 16}), model) == tokens // 16


@pytest.mark.parametrize(
    ("weights", "bits"), [(None, 16), ("int8", 8), ("int4", 4.125), ("nf4", 4.25), ("int4:32", 4.5), (4.5, 4.5)]
)
@pytest.mark.parametrize(("overhead", "reserved"), [({}, 1.5), ({"overhead": "0.5GiB"}, 0.5), ({"overhead": 0}, 0)])
def test_the_cache_is_what_weights_and_overhead_leave(weights, bits, overhead, reserved):
    """Qwen2.5-0.5B: 494,032,768 weights, 12,288 bytes a token in fp16; the same figure as ``simserve memory`` counts,
    and the same whether the scenario's weights or the cache's own are what comes off."""
    left = 4 * GIB - reserved * GIB - 494_032_768 * bits / 8
    by_model = scenario_of(weights=weights, engine=cached(device_memory="4GiB", **overhead))
    assert capacity(by_model) == left // 12_288
    by_cache = scenario_of(engine=cached(memory="4GiB", weights=weights or "fp16", **overhead))
    assert capacity(by_cache) == left // 12_288
    budget = Budget(4 * GIB, round(reserved * GIB))
    scheme = parse_scheme(str(weights or "fp16"))
    assert tokens_that_fit(load_model_spec("qwen2.5-0.5b"), scheme, "fp16", budget) == left // 12_288


@given(bits=st.floats(0.5, 24), memory=st.integers(3, 16), dtype=st.sampled_from(["fp8", "fp16", "fp32"]))
def test_fewer_bits_leave_more_tokens(bits, memory, dtype):
    """Law: halving the bits of the weights gives their half to the cache, whole tokens of it."""
    tokens = []
    for each in (bits, bits / 2):
        engine = cached(device_memory=memory * GIB, dtype=dtype)
        tokens.append(capacity(scenario_of(weights=f"{each:.6f}", engine=engine)))
    bytes_per_token = 12_288 // 2 * {"fp8": 1, "fp16": 2, "fp32": 4}[dtype]
    assert tokens[1] - tokens[0] == pytest.approx(494_032_768 * bits / 16 / bytes_per_token, abs=1.01)


def test_memory_alone_is_the_cache():
    """As it always was: all of it holds tokens, whatever the weights."""
    for weights in (None, "int4", "fp32"):
        assert capacity(scenario_of(weights=weights, engine=cached(memory="768MiB"))) == 65_536


@pytest.mark.parametrize(
    ("attention", "heads", "kv_bytes", "tokens"),
    [
        (None, 2, 12_288, 65_536),
        ("gqa", 2, 12_288, 65_536),
        ("mha", 14, 86_016, 9_362),
        ("mqa", 1, 6_144, 131_072),
        ({"kv_heads": 7}, 7, 43_008, 18_724),
    ],
)
def test_kv_bytes_follow_the_attention_switch(attention, heads, kv_bytes, tokens):
    """DESIGN section 7: 12,288 bytes a token for 24 layers × 2 KV heads × 64 in fp16, 86,016 if all 14 kept theirs; 768
    MiB hold 65,536 tokens of the one. The model's own heads stay on record."""
    scenario = scenario_of(attention=attention, engine=cached(memory="768MiB"))
    model = simulated_model(scenario)
    assert (model.spec.num_kv_heads, model.own_kv_heads, model.kv_bytes_per_token) == (heads, 2, kv_bytes)
    assert capacity(scenario) == tokens


def test_copies_of_kv_heads_take_memory_on_every_device():
    """Llama-3.1-8B on 8 devices: one KV head on each is 131,072 bytes a token; with multi-query attention each keeps a
    copy of the one head, so nothing is saved; on 2 devices half of it is."""
    tokens = {}
    for devices in (1, 2, 8):
        for attention in ("mqa", "gqa"):
            step_time = {"roofline": "h100-sxm", "dtype": "fp16", "tensor_parallel": devices}
            engine = cached(memory="8GiB")
            scenario = scenario_of(model="llama-3.1-8b", attention=attention, step_time=step_time, engine=engine)
            tokens[devices, attention] = capacity(scenario)
    own = 8 * GIB // 131_072
    assert [tokens[devices, "gqa"] for devices in (1, 2, 8)] == [own] * 3
    assert [tokens[devices, "mqa"] for devices in (1, 2, 8)] == [8 * own, 4 * own, own]


def test_each_device_has_an_overhead_and_its_share_of_the_weights():
    """32 GiB of two devices: twice 1.5 GiB and 8.03 billion weights at 2 bytes come off once. As many tokens as two
    budgets of 16 GiB hold."""
    step_time = {"roofline": "h100-sxm", "dtype": "fp16", "tensor_parallel": 2}
    scenario = scenario_of(model="llama-3.1-8b", step_time=step_time, engine=cached(device_memory="32GiB"))
    assert capacity(scenario) == (32 * GIB - 3 * GIB - 2 * 8_030_261_248) // 131_072
    budget = Budget(16 * GIB, tensor_parallel=2)
    spec = load_model_spec("llama-3.1-8b")
    assert tokens_that_fit(spec, parse_scheme("fp16"), "fp16", budget) == capacity(scenario)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"attention": {"kv_heads": 5}},
            "attention.kv_heads: must divide the 14 attention heads of qwen2.5-0.5b (got 5)",
        ),
        (
            {"attention": "gqa", "model": "llama-2-7b"},
            "attention: must say how many KV heads, such as {kv_heads: 8} (got gqa, and llama-2-7b has no groups "
            "of its own: "
            "32 KV heads for 32 attention heads)",
        ),
        (
            {"engine": cached(device_memory="1GiB"), "weights": "int8"},
            "engine.kv_cache.device_memory: must hold the weights of qwen2.5-0.5b in int8 (471 MiB), 1.500 GiB "
            "of overhead "
            "and at least one block of cache (got 1.000 GiB); take smaller weights or more memory",
        ),
        (
            {"engine": cached(memory="16GiB", weights="fp16"), "model": "llama-2-13b"},
            "engine.kv_cache.memory: must hold the weights of llama-2-13b in fp16 (24.2 GiB), 1.500 GiB of "
            "overhead and at "
            "least one block of cache (got 16.0 GiB); take smaller weights or more memory",
        ),
        (
            {
                "engine": cached(device_memory="20GiB"),
                "model": "llama-3.1-8b",
                "step_time": {**ROOFLINE, "tensor_parallel": 8},
            },
            "engine.kv_cache.device_memory: must hold the weights of llama-3.1-8b in fp16 (15.0 GiB), 1.500 GiB "
            "of overhead "
            "on each of 8 devices and at least one block of cache (got 20.0 GiB of all 8 devices "
            "together); take smaller "
            "weights or more memory",
        ),
        (
            {"engine": cached(device_memory="24"), "model": "llama-3.1-8b"},
            "s: engine.kv_cache.device_memory: must be a size with its unit, such as 8GiB (2³⁰ bytes "
            "each) or 8GB (10⁹ bytes "
            "each) (got '24')",
        ),
        (
            {"engine": cached(device_memory=24), "model": "llama-3.1-8b"},
            "engine.kv_cache.device_memory: must hold the weights of llama-3.1-8b in fp16 (15.0 GiB), 1.500 GiB of "
            "overhead and at least one block of cache (got 24 B); take smaller weights or more memory",
        ),
        (
            {"engine": cached(device_memory="81GiB"), "model": "llama-3.1-8b", "weights": "int4"},
            "engine.kv_cache.device_memory: must be ≤ the 80.0 GiB of 1 × h100-sxm, all devices "
            "together (got 81.0 GiB)",
        ),
        (
            {
                "engine": cached(memory="161GiB", weights="fp8"),
                "model": "llama-3.1-70b",
                "step_time": {**ROOFLINE, "tensor_parallel": 2},
            },
            "engine.kv_cache.memory: must be ≤ the 160 GiB of 2 × h100-sxm, all devices together (got 161 GiB)",
        ),
        (
            {"engine": cached(memory="79GiB"), "model": "llama-3.1-8b", "weights": "int4"},
            "step_time.roofline: the weights of llama-3.1-8b in int4 (4.125 bits) need 3.9 GiB and the cache "
            "79.0 GiB, but 1 × h100-sxm "
            "has 80.0 GiB; raise tensor_parallel or take smaller weights",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(keys, message):
    """Place, rule, what was given, and the remedy."""
    with pytest.raises(ScenarioError) as caught:
        assemble(scenario_of(**keys))
    assert str(caught.value) == message


def profile_file(folder: Path, **provenance: Any) -> str:
    """The path of a profile of the tiny model (2 attention heads, 1 KV head) with such a provenance."""
    content = make_content()
    content["provenance"] |= provenance
    content["digest"] = content_digest(content)
    path = folder / "p.json"
    path.write_text(to_json(content), encoding="utf-8")
    return str(path)


def tiny(path: str, **keys: Any) -> Any:
    return scenario_of(model="tiny", step_time={"profile": path}, engine=cached(num_blocks=4_096), **keys)


def test_a_profile_runs_with_the_weights_it_was_measured_with(tmp_path: Path) -> None:
    """int8 linear layers under an fp32 model: the cache stays fp32, weights are int8 with and without being asked for,
    and steps are those of the file."""
    path = profile_file(tmp_path, weight_scheme="int8")
    asked, silent = simulated_model(tiny(path, weights="int8")), simulated_model(tiny(path))
    assert asked == silent
    assert (asked.weights, asked.dtype, asked.kv_dtype) == (parse_scheme("int8"), "fp32", "fp32")
    assert asked.weight_bytes == load_model_spec("tiny").num_parameters
    assert asked.changes() == ["weights kept as int8 and multiplied in fp32, as measured"]


def test_a_profile_is_never_scaled_to_other_weights_or_heads(tmp_path: Path) -> None:
    """One sentence with the command that would measure what is asked for."""
    path = profile_file(tmp_path)
    with pytest.raises(InputError) as caught:
        assemble(tiny(path, weights="int8"))
    assert str(caught.value) == (
        f"{path}: weights: must be measured with weights in int8 (got fp32); run `simserve calibrate --model tiny "
        "--weights int8`, or take a roofline"
    )
    with pytest.raises(InputError) as caught:
        assemble(tiny(path, attention="mha"))
    assert str(caught.value) == (
        f"{path}: model: must be measured on tiny-kv2, num_kv_heads 2 (got tiny, num_kv_heads 1); run `simserve "
        "calibrate "
        "--model tiny --kv-heads 2`, or take a roofline"
    )
    assemble(tiny(path, attention="mqa", weights="fp32"))  # what it was measured with may be said


def test_a_profile_of_an_unknown_type_needs_to_be_told_what_memory_it_takes(tmp_path: Path) -> None:
    """Imported profiles may have types without a name here; memory cannot be counted in them."""
    path = profile_file(tmp_path, dtype="mxfp6")
    engine = cached(device_memory="4GiB", dtype="fp16")
    step_time = {"profile": path}
    with pytest.raises(ScenarioError) as caught:
        assemble(scenario_of(model="tiny", step_time=step_time, engine=engine))
    assert str(caught.value) == (
        "engine.kv_cache.device_memory: must have weights beside it, for 'mxfp6' is no scheme that is known here"
    )
    told = {**engine, "kv_cache": {**engine["kv_cache"], "weights": "6"}}
    model = simulated_model(scenario_of(model="tiny", step_time=step_time, engine=told))
    assert (model.entry()["weights"], model.entry()["weights_in_memory"]) == ("mxfp6", "6")


@pytest.mark.parametrize(("variant", "weights"), [("bf16", "bf16"), ("none", "fp16"), ("none", "bf16")])
def test_operator_tables_take_their_own_weights(tmp_path: Path, variant: str, weights: str) -> None:
    """What the tables were measured with may be said; where no file tells, any type of 16 bits."""
    folder = write_llmservingsim(tmp_path / "t", meta={"variant": variant})
    scenario = scenario_of(model="tiny", step_time={"operators": str(folder)}, weights=weights, attention="mqa")
    assert assemble(scenario).model.weights == parse_scheme(weights)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"weights": "int4"},
            "weights: must be those of the operator tables in t, bf16 (got int4); leave weights out, or take a "
            "roofline",
        ),
        (
            {"attention": "mha"},
            "attention: must be left out with operator tables, measured with the 1 KV head of tiny (got 2); or take a "
            "roofline",
        ),
    ],
)
def test_operator_tables_are_of_one_model(tmp_path: Path, monkeypatch: Any, keys: Any, message: str) -> None:
    """Tables hold what was measured with one shape in one type: nothing else is made of them."""
    write_llmservingsim(tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        assemble(scenario_of(model="tiny", step_time={"operators": "t"}, **keys))
    assert str(caught.value) == message


def test_a_cache_of_other_weights_than_the_steps_is_on_record() -> None:
    """``kv_cache.weights`` alone sizes the cache, and steps stay as they are timed: both are told."""
    entry = simulated_model(scenario_of(engine=cached(memory="4GiB", weights="int4"))).entry()
    assert entry == {
        "num_parameters": 494_032_768,
        "weights": "fp16",
        "bits_per_weight": 16.0,
        "weights_in_memory": "int4",
        "weight_bytes": 254_735_646,  # 494,032,768 · 4.125 / 8, rounded up
        "num_attention_heads": 14,
        "num_kv_heads": 2,
        "own_num_kv_heads": 2,
        "kv_dtype": "fp16",
        "kv_bytes_per_token": 12_288,
        "draft": None,
        "changes": ["memory counted with weights in int4 (4.125 bits), steps timed with fp16"],
    }


def test_what_was_changed_is_told_and_nothing_else() -> None:
    """A switch that says what is so anyway changes nothing; heads and weights of one's own are named."""
    assert simulated_model(scenario_of(attention="gqa", weights="fp16")).changes() == []
    assert simulated_model(
        scenario_of(attention="mha", weights="nf4", engine=cached(device_memory="4GiB"))
    ).changes() == [
        "14 KV heads instead of the model's own 2",
        "weights kept as nf4 (4.25 bits) and multiplied in fp16, without time for unpacking them",
    ]


def drafted(draft: dict[str, Any], **cache: Any) -> Any:
    """Llama-3.1-8B in fp16 with four drafts a pass, and such a cache of one token a block."""
    speculation = {"draft_tokens": 4, "acceptance": 0.8, "draft": draft}
    engine = {**cached(**cache), "speculation": speculation}
    return scenario_of(model="llama-3.1-8b", engine=engine)


SMALL_DRAFT = {"roofline": "h100-sxm", "model": "qwen2.5-0.5b", "dtype": "fp16"}


@pytest.mark.parametrize(
    ("draft", "draft_bytes", "draft_kv"),
    [
        (SMALL_DRAFT, 2 * 494_032_768, 12_288),
        ({**SMALL_DRAFT, "dtype": "fp8"}, 494_032_768, 6_144),
        ({"profile": "qwen2.5-0.5b-cpu-fp32"}, 4 * 494_032_768, 24_576),
    ],
)
def test_a_draft_takes_its_part_of_the_memory(draft: Any, draft_bytes: int, draft_kv: int) -> None:
    """24 GiB, less 1.5 GiB, the weights of both, over what both keep of a token; and it is on record."""
    scenario = drafted(draft, device_memory="24GiB")
    left = 24 * GIB - 3 * GIB // 2 - 2 * 8_030_261_248 - draft_bytes
    assert capacity(scenario) == left // (131_072 + draft_kv)
    entry = simulated_model(scenario).entry()
    assert (entry["draft"]["weight_bytes"], entry["draft"]["kv_bytes_per_token"]) == (draft_bytes, draft_kv)
    assert entry["kv_bytes_per_token"] == 131_072 and entry["changes"] == []


def test_the_cache_s_own_type_is_the_draft_s_too() -> None:
    """``kv_cache.dtype`` is of all that is cached."""
    assert simulated_model(drafted(SMALL_DRAFT, device_memory="24GiB", dtype="fp8")).entry()["draft"] == {
        "model": "qwen2.5-0.5b",
        "weights": "fp16",
        "weight_bytes": 988_065_536,
        "kv_dtype": "fp8",
        "kv_bytes_per_token": 6_144,
    }


@pytest.mark.parametrize("draft", [{"cost": 0.1}, {**SMALL_DRAFT, "roofline": "l40s"}])
def test_a_draft_that_is_not_counted_is_told(draft: Any) -> None:
    """A mere cost names no model, other hardware has a memory of its own; a cache of so many bytes is the model's."""
    scenario = drafted(draft, device_memory="24GiB")
    assert capacity(scenario) == (24 * GIB - 3 * GIB // 2 - 2 * 8_030_261_248) // 131_072
    (change,) = simulated_model(scenario).changes()
    assert (
        change
        == "the draft's own weights and cache are not counted in the memory: it is not named, or on other hardware"
    )
    assert simulated_model(drafted(draft, memory="16GiB")).changes() == []
    assert capacity(drafted(SMALL_DRAFT, memory="16GiB")) == 16 * GIB // 131_072


@pytest.mark.parametrize(
    ("draft", "cache", "message"),
    [
        (
            {**SMALL_DRAFT, "model": "llama-3.1-70b"},
            {"device_memory": "40GiB"},
            "engine.kv_cache.device_memory: must hold the weights of llama-3.1-8b in fp16 (15.0 GiB), of its draft "
            "llama-3.1-70b in fp16 (131 GiB), 1.500 GiB of overhead and at least one block of cache "
            "(got 40.0 GiB); take "
            "smaller weights or more memory",
        ),
        (
            {**SMALL_DRAFT, "model": "llama-3.1-70b"},
            {"memory": "16GiB"},
            "step_time.roofline: the weights of llama-3.1-8b in fp16 need 15.0 GiB, those of its draft "
            "131.4 GiB and the "
            "cache 56.0 GiB, but 1 × h100-sxm has 80.0 GiB; raise tensor_parallel or take smaller weights",
        ),
        (
            {**SMALL_DRAFT, "model": "llama-8"},
            {"num_blocks": 999},
            "engine.speculation.draft.model: 'llama-8' is neither a known name nor a path to a "
            "config.json; did you mean "
            "'llama-3.1-8b'?",
        ),
        (
            {**SMALL_DRAFT, "roofline": "h100"},
            {"num_blocks": 999},
            "engine.speculation.draft.roofline: unknown hardware 'h100'; did you mean 'h100-sxm'?",
        ),
        (
            {**SMALL_DRAFT, "dtype": "int5"},
            {"num_blocks": 999},
            "engine.speculation.draft.dtype: h100-sxm computes in fp32, fp16, bf16, fp8, int8 (got 'int5')",
        ),
        (
            {"profile": "qwen2.5"},
            {"num_blocks": 999},
            "engine.speculation.draft.profile: 'qwen2.5' is neither a shipped profile nor a file; did you mean "
            "'qwen2.5-0.5b-cpu-fp32'?",
        ),
    ],
)
def test_a_draft_that_cannot_be_is_one_sentence(draft: Any, cache: Any, message: str) -> None:
    """What is wrong with the draft is not blamed on the model that it drafts for."""
    with pytest.raises(InputError) as caught:
        assemble(drafted(draft, **cache))
    assert str(caught.value) == message
