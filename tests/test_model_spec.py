"""Architecture numbers against published counts, against transformers, and against their definitions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ModelError
from simserve.model_spec import CATALOGUE, DTYPE_BYTES, ModelSpec, causal_pairs, load_model_spec, spec_from_config

PUBLISHED_PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}

DECODER = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
}


def spec(**changes: object) -> ModelSpec:
    config = {key: value for key, value in (DECODER | changes).items() if value is not ...}
    return spec_from_config(config, "m", "config.json")


@pytest.mark.parametrize(("name", "published"), PUBLISHED_PARAMETERS.items())
def test_parameters_are_the_published_counts(name, published):
    """The count of each catalogue model is that of its published weights, to the parameter."""
    assert load_model_spec(name).num_parameters == published


@pytest.mark.parametrize("name", CATALOGUE)
def test_parameters_are_those_of_the_model_that_transformers_builds(name):
    """Built without memory from ``to_hf_config``, the module holds exactly ``num_parameters``."""
    torch = pytest.importorskip("torch", reason="torch comes with the extra calibrate")
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra calibrate")
    config = load_model_spec(name).to_hf_config()
    built = transformers.CONFIG_MAPPING[config.pop("model_type")](**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    assert sum(p.numel() for p in model.parameters()) == load_model_spec(name).num_parameters


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"model_type": "qwen3", "attention_bias": True, "head_dim": 24},
        {"model_type": "qwen2", "attention_bias": True, "tie_word_embeddings": True},
        {"model_type": "mistral", "head_dim": 48, "attention_bias": True},
    ],
)
def test_biases_and_norms_count_as_transformers_counts_them(changes):
    """Families differ in what their flags mean; the count follows the module that transformers builds from the file."""
    torch = pytest.importorskip("torch", reason="torch comes with the extra calibrate")
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra calibrate")
    config = {**DECODER, **changes}
    built = transformers.CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k != "model_type"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    assert sum(p.numel() for p in model.parameters()) == spec(**changes).num_parameters


def test_kv_bytes_per_token_of_the_source_chapter():
    """24 layers × 2 KV heads × 64 in fp16 take 12,288 bytes a token, and 86,016 if all 14 heads kept theirs."""
    model = load_model_spec("qwen2.5-0.5b")
    assert model.kv_bytes_per_token("fp16") == 12_288
    whole = spec_from_config(model.to_hf_config() | {"num_key_value_heads": 14}, "mha", "config.json")
    assert whole.kv_bytes_per_token("fp16") == 86_016


@pytest.mark.parametrize("shape", [(32, 2_048), (64, 1_024), (128, 512)])
def test_resident_tokens_take_the_same_bytes_however_they_are_shared_out(shape):
    """65,536 tokens of the 0.5B model take 768 MiB in fp16 (source chapter)."""
    sequences, tokens = shape
    assert sequences * tokens * load_model_spec("qwen2.5-0.5b").kv_bytes_per_token("fp16") == 768 * 1024**2


@given(dtype=st.sampled_from(sorted(DTYPE_BYTES)), name=st.sampled_from(sorted(CATALOGUE)))
def test_bytes_are_proportional_to_the_width_of_the_dtype(dtype, name):
    """Weights and cache shrink with the number's width and with nothing else."""
    model = CATALOGUE[name]
    assert model.weight_bytes(dtype) * 4 == model.weight_bytes("fp32") * DTYPE_BYTES[dtype]
    assert model.kv_bytes_per_token(dtype) * 4 == model.kv_bytes_per_token("fp32") * DTYPE_BYTES[dtype]


def test_matmul_parameters_are_the_projections_written_out():
    """Llama-3.1-8B: per layer q and o 4096², k and v 4096 × 1024, three MLP matrices 4096 × 14336; no embedding."""
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert load_model_spec("llama-3.1-8b").matmul_parameters == 32 * per_layer
    assert load_model_spec("llama-3.1-8b").lm_head_parameters == 128_256 * 4096


@given(new=st.integers(1, 60), context=st.integers(0, 60))
def test_causal_pairs_count_the_mask(new, context):
    """The closed form equals counting the ones of a causal mask over context and chunk."""
    assert causal_pairs(new, context) == sum(context + i + 1 for i in range(new))


@given(new=st.integers(2, 500), cut=st.integers(1, 499), context=st.integers(0, 500))
def test_chunking_a_prefill_leaves_its_attention_unchanged(new, cut, context):
    """Two chunks in sequence meet as many (query, key) pairs as the whole at once, wherever it is cut."""
    cut = min(cut, new - 1)
    assert causal_pairs(cut, context) + causal_pairs(new - cut, context + cut) == causal_pairs(new, context)


def test_the_head_meets_only_rows_that_emit():
    """FLOPs grow by two per head weight for each emitting row, whatever the other tokens."""
    model = load_model_spec("llama-3.1-8b")
    assert model.matmul_flops(100, 3) - model.matmul_flops(100, 2) == 2 * model.lm_head_parameters
    assert model.attention_flops(7) == 7 * 4 * 32 * 32 * 128


def test_names_match_without_case_and_by_the_last_part_of_a_hub_name():
    """Catalogue names, hub names and their instruct siblings lead to one shape."""
    assert load_model_spec("meta-llama/Llama-3.1-8B") is CATALOGUE["llama-3.1-8b"]
    assert load_model_spec("meta-llama/Llama-2-7b-chat-hf") is CATALOGUE["llama-2-7b"]
    assert load_model_spec("QWEN2.5-0.5B") is CATALOGUE["qwen2.5-0.5b"]
    assert load_model_spec("mistralai/Mistral-7B-v0.1") is CATALOGUE["mistral-7b"]


def test_a_folder_and_its_config_are_the_same_model(tmp_path):
    """A path to config.json or to its folder gives the dimensions in it, under the folder's name."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DECODER))
    assert load_model_spec(folder) == load_model_spec(folder / "config.json")
    assert load_model_spec(folder).name == "my-model"


@given(name=st.sampled_from(sorted(CATALOGUE)))
def test_a_spec_survives_its_own_config(name):
    """``to_hf_config`` loses nothing: reading it back gives the same spec."""
    assert spec_from_config(CATALOGUE[name].to_hf_config(), name, "config.json") == CATALOGUE[name]


@settings(max_examples=50)
@given(heads=st.integers(1, 32), width=st.integers(1, 64))
def test_absent_head_dim_and_kv_heads_follow_from_the_heads(heads, width):
    """Without ``head_dim`` the hidden size is shared out; without ``num_key_value_heads`` every head keeps its own."""
    model = spec(hidden_size=heads * width, num_attention_heads=heads, num_key_value_heads=...)
    assert (model.head_dim, model.num_kv_heads) == (width, heads)


def test_a_nested_text_config_is_the_decoder():
    """Multimodal files keep the decoder's dimensions one level down; tying may be said on either level."""
    nested = spec_from_config({"model_type": "llava", "tie_word_embeddings": True, "text_config": DECODER}, "m", "c")
    assert nested.num_layers == 4
    assert nested.tie_word_embeddings
    assert not spec().tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "config.json: hidden_size: is missing"),
        ({"num_hidden_layers": 0}, "config.json: num_hidden_layers: must be a positive whole number (got 0)"),
        ({"num_hidden_layers": 10**400}, "config.json: num_hidden_layers: must be ≤ 16777216 (got 1000000000"),
        ({"head_dim": 2**24 + 1}, "config.json: head_dim: must be ≤ 16777216 (got 16777217)"),
        ({"vocab_size": "256"}, "config.json: vocab_size: must be a positive whole number (got '256')"),
        ({"intermediate_size": True}, "config.json: intermediate_size: must be a positive whole number (got True)"),
        ({"hidden_size": 66}, "config.json: hidden_size: must be divisible by num_attention_heads 4"),
        ({"num_key_value_heads": 3}, "config.json: num_key_value_heads: must divide num_attention_heads 4 (got 3)"),
        ({"num_local_experts": 8}, "config.json: num_local_experts: mixture-of-experts models are not supported yet"),
        ({"model_type": "qwen3_moe"}, "config.json: model_type: mixture-of-experts models are not supported yet"),
        ({"model_type": "gpt2"}, "config.json: model_type: must be one of llama, mistral, qwen2, qwen3 (got 'gpt2')"),
        ({"model_type": ...}, "config.json: model_type: must be one of"),
    ],
)
def test_impossible_configs_are_refused_in_one_sentence(changes, message):
    """Each says which file, which key, which rule and which value."""
    with pytest.raises(ModelError) as caught:
        spec(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\xff", '{"a":' * 100_000])
def test_unreadable_files_are_refused_in_one_sentence(content, tmp_path):
    """Broken JSON, another type, another encoding, endless nesting: the file is named, nothing else happens."""
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        load_model_spec(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_unknown_names_and_missing_files_say_so():
    """A misspelt name gets its neighbour, a missing path its reason, an unknown dtype the known ones."""
    with pytest.raises(ModelError, match=r"did you mean 'llama-3.1-8b'"):
        load_model_spec("lama-3.1-8b")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model_spec("no/such/config.json")
    with pytest.raises(ModelError, match=r"dtype: must be one of fp32, .*got 'fp4'"):
        load_model_spec("tiny").weight_bytes("fp4")
