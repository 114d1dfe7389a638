"""Packed steps compute what separate forwards compute, and their points say what is packed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.forward import Stepper, parts_of  # noqa: E402 - after the skips
from calibrate.grid import Point  # noqa: E402
from calibrate.kv_cache import _TRANSFORMERS, InPlaceCaches, cache_argument  # noqa: E402
from calibrate.model import build_model, find_model  # noqa: E402
from calibrate.packed import PackedSteps, Part  # noqa: E402

PARTS = [Part(1, 7, 0), Part(1, 5, 11), Part(3, 1, 9), Part(2, 4, 0), Part(1, 1, 30)]
POINTS = [
    Point("mixed", 1, 8, 16, False, 3, 20),
    Point("prefill", 4, 8, 0),
    Point("decode", 5, 1, 20, False, 0, 0, 0.5),
    Point("no_cache", 1, 12, 0),
]


def alone(model: Any, ids: Any, cached: list[tuple[Any, Any]]) -> Any:
    """Logits of the last token of one sequence, run by itself over its own cache."""
    cache = _TRANSFORMERS.DynamicCache(config=model.config)
    for index, (keys, values) in enumerate(cached):
        if keys.shape[2]:
            cache.update(keys, values, index)
    return model(input_ids=ids, use_cache=True, **{cache_argument(model): cache}).logits[0, -1]


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_a_packed_step_equals_separate_forwards(attn: str) -> None:
    """Prompts, a chunk over a context and decodes of two lengths in one row: each gets the logits of running alone
    over its own cache, to float32 rounding; only last tokens have logits; the model's own kernel is back afterwards."""
    source = find_model("tiny")
    model = build_model(source, "cpu", "fp32", attn, 0)
    num_tokens = sum(part.cache_tokens for part in PARTS)
    memory = InPlaceCaches(source.spec, num_tokens, model.dtype, model.device).memory
    steps = PackedSteps(model, memory, attn)
    ids = torch.randint(0, source.spec.vocab_size, (1, sum(part.num_tokens for part in PARTS)))
    with torch.inference_mode():
        inputs = steps.prepare(PARTS)
        before = [[(keys.clone(), values.clone()) for keys, values in layer.parts] for layer in steps.cache.layers]
        logits = steps.forward(input_ids=ids, use_cache=True, **{cache_argument(model): steps.cache}, **inputs).logits
        expected, start = [], 0
        for index, part in enumerate(PARTS):
            for row in range(part.num_seqs):
                mine = slice(row, row + 1), slice(None), slice(0, part.num_context_tokens)
                cached = [(layer[index][0][mine], layer[index][1][mine]) for layer in before]
                expected.append(alone(model, ids[:, start : start + part.num_new_tokens], cached))
                start += part.num_new_tokens
    assert logits.shape == (1, 8, source.spec.vocab_size)
    torch.testing.assert_close(logits[0], torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert model.config._attn_implementation == attn


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_every_kind_of_point_can_be_stepped(point: Point) -> None:
    """One forward of as many tokens as the point says, in memory of as many cached tokens as it says."""
    source = find_model("tiny")
    model = build_model(source, "cpu", "fp32", "sdpa", 0)
    caches = InPlaceCaches(source.spec, point.cache_tokens + 64, model.dtype, model.device)
    stepper = Stepper(model, caches, 0, PackedSteps(model, caches.memory, "sdpa"))
    seen: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: seen.append(args[0].numel()))
    stepper.prepare(point)
    stepper.step()
    num_decodes = point.num_decodes if point.phase != "decode" else 0
    assert seen == [point.batch_size * point.num_new_tokens + num_decodes]


def test_points_of_unequal_contexts_keep_their_mean() -> None:
    """Evenly spread contexts: from half to one and a half times the mean, the mean itself unchanged."""
    parts = parts_of(Point("decode", 5, 1, 20, False, 0, 0, 0.5))
    assert [part.num_context_tokens for part in parts] == [10, 15, 20, 25, 30]
    assert parts_of(POINTS[0]) == [Part(1, 8, 16), Part(3, 1, 20)]
    assert POINTS[0].cache_tokens == 24 + 3 * 21
    assert str(POINTS[0]) == "mixed 8 tokens × context 16 beside 3 decodes × 20"
