"""The two ways to get the next token: over a cache that holds the rest, or from the whole sequence again."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.chapters.timing import Case
from calibrate.kv_cache import InPlaceCaches, cache_argument
from simserve.model_spec import ModelSpec


def cached_step(
    model: Any,  # noqa: ANN401 - a torch module
    spec: ModelSpec,
    shape: tuple[int, int, int],
) -> Case:
    """``shape`` is (rows, new tokens of each, cached tokens of each). The cache is as large as the step needs."""
    rows, new, context = shape
    caches = InPlaceCaches(spec, rows * (new + context), model.dtype, model.device)
    ids = _tokens(model, rows, new)
    argument = cache_argument(model)
    inputs: dict[str, Any] = {}

    def prepare() -> None:
        inputs[argument] = caches.shape(rows, context, new)

    def run() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **inputs)

    return Case(prepare, run)


def recomputed_step(model: Any, num_tokens: int) -> Case:  # noqa: ANN401
    """All ``num_tokens`` of one sequence through the model, nothing kept."""
    ids = _tokens(model, 1, num_tokens)

    def run() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False, logits_to_keep=1)

    return Case(lambda: None, run)


def _tokens(model: Any, rows: int, num_tokens: int) -> torch.Tensor:  # noqa: ANN401
    generator = torch.Generator().manual_seed(rows * 1_000_003 + num_tokens)
    return torch.randint(0, model.config.vocab_size, (rows, num_tokens), generator=generator).to(model.device)
