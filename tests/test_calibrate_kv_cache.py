"""The real caches: their bytes per token against the formula, and that writing in place computes the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.model_spec import load_model_spec

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.errors import CalibrationError  # noqa: E402 - after the skips
from calibrate.forward import Stepper, is_out_of_memory  # noqa: E402
from calibrate.kv_cache import InPlaceCaches, cache_argument, check_kv_bytes, measured_kv_bytes_per_token  # noqa: E402
from calibrate.model import ModelSource, build_model, find_model  # noqa: E402
from tests.profile_builders import make_point  # noqa: E402

# layers, hidden, query heads, KV heads, head dim: multi-head, grouped-query, multi-query, a head dim of its own
SHAPES = {
    "mha": (2, 64, 4, 4, 16),
    "gqa": (3, 64, 4, 2, 16),
    "mqa": (1, 96, 6, 1, 16),
    "wide-heads": (2, 32, 2, 1, 64),
}


def small(family: str, shape: tuple[int, int, int, int, int], tmp_path: Path) -> ModelSource:
    """A model of a few thousand parameters, from a config.json as a user would have it."""
    layers, hidden, heads, kv_heads, head_dim = shape
    config = {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": 48,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return find_model(str(tmp_path))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kv_bytes_are_exact(shape: str, dtype: str, tmp_path: Path) -> None:
    """2 · layers · KV heads · head dim · bytes, as the tensors of a real cache hold it, to the byte."""
    layers, _, _, kv_heads, head_dim = SHAPES[shape]
    source = small("qwen3" if shape == "wide-heads" else "llama", SHAPES[shape], tmp_path)
    model = build_model(source, "cpu", dtype, "sdpa", 0)
    expected = 2 * layers * kv_heads * head_dim * {"fp32": 4, "bf16": 2, "fp16": 2}[dtype]
    assert check_kv_bytes(model, source.spec, dtype) == expected
    assert measured_kv_bytes_per_token(model, batch_size=3, num_tokens=7) == expected


def test_a_cache_that_is_not_as_the_formula_says_is_refused() -> None:
    """Memory figures of a simulation would be wrong, so nothing is measured."""
    model = build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 0)
    with pytest.raises(CalibrationError, match=r"must be 256 by the formula \(got 512 in its cache\)"):
        check_kv_bytes(model, load_model_spec("tiny"), "bf16")


@pytest.mark.parametrize("shape", SHAPES)
def test_in_place_caches_compute_what_dynamic_ones_do(shape: str, tmp_path: Path) -> None:
    """The same prompt and decodes give the same logits over both: what is timed is the real computation."""
    source = small("llama" if shape != "wide-heads" else "qwen3", SHAPES[shape], tmp_path)
    model = build_model(source, "cpu", "fp32", "sdpa", 0)
    ids = torch.randint(0, 64, (3, 9))
    caches = InPlaceCaches(source.spec, 3 * 9, torch.float32, torch.device("cpu"))
    in_place = caches.shape(3, 0, 9)
    dynamic = None
    for chunk in (ids[:, :4], ids[:, 4:7], ids[:, 7:8], ids[:, 8:]):
        mine = run(model, chunk, in_place)
        theirs, dynamic = run_dynamic(model, chunk, dynamic)
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_step_attends_to_the_context_it_is_asked_for() -> None:
    """A step over C cached tokens leaves C + n in the cache, whichever points were visited before."""
    source = find_model("tiny")
    model = build_model(source, "cpu", "fp32", "sdpa", 0)
    caches = InPlaceCaches(source.spec, 4 * 65, torch.float32, torch.device("cpu"))
    seen = []
    real = caches.shape

    def spy(*shape: int) -> Any:
        seen.append(real(*shape))
        return seen[-1]

    caches.shape = spy  # type: ignore[method-assign]
    stepper = Stepper(model, caches)
    for point in (make_point("decode", 4, 64), make_point("prefill", 32, 16), make_point("decode", 1, 3)):
        for _ in range(2):
            stepper.prepare(point)
            assert seen[-1].get_seq_length() == point.num_context_tokens
            stepper.step()
            assert seen[-1].get_seq_length() == point.num_context_tokens + point.num_new_tokens


@pytest.mark.parametrize(("names", "expected"), [(["cache"], "cache"), (["past_key_values"], "past_key_values")])
def test_both_names_of_the_cache_argument_are_known(names: list[str], expected: str) -> None:
    """transformers renamed it in 5.24."""
    namespace: dict[str, Any] = {}
    exec(f"class Model:\n    def forward(self, input_ids, {names[0]}=None): ...", namespace)
    assert cache_argument(namespace["Model"]()) == expected


def test_only_memory_errors_shrink_a_grid() -> None:
    """On a GPU, in this process, and what torch's CPU allocator says."""
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_the_parameters_of_a_built_model_are_the_specs() -> None:
    """The formula of the catalogue counts the real modules."""
    for name in ("tiny", "25m"):
        source = find_model(name)
        model = build_model(source, "cpu", "fp32", "sdpa", 0)
        assert sum(p.numel() for p in model.parameters()) == source.spec.num_parameters


def run(model: Any, ids: Any, cache: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=True, **{cache_argument(model): cache}).logits


def run_dynamic(model: Any, ids: Any, cache: Any) -> tuple[Any, Any]:
    from transformers import DynamicCache

    cache = cache or DynamicCache(config=model.config)
    return run(model, ids, cache), cache
