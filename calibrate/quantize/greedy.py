"""Greedy decoding: the answers of a model, and what a model would choose along a path that is given."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.kv_cache import cache_argument

Model = Any
_ROWS = 16
_LOGITS = 1 << 26  # of one forward: 256 MiB in fp32


def answer(model: Model, prompts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """``prompts`` (rows of equal length) with ``num_tokens`` greedy tokens behind each; nothing stops an answer."""
    return torch.cat([_answer(model, rows, num_tokens) for rows in torch.split(prompts, _ROWS)])


def next_tokens(model: Model, paths: torch.Tensor, num_prompt: int) -> torch.Tensor:
    """The token that ``model`` would choose at each place behind the prompt, given what stands before it on the path:
    one forward for all of them."""
    chosen = []
    for rows in torch.split(paths, rows_at_once(model, paths.shape[1])):
        with torch.inference_mode():
            logits = model(input_ids=rows, use_cache=False).logits
        chosen.append(logits[:, num_prompt - 1 : -1].argmax(dim=2))
    return torch.cat(chosen)


def rows_at_once(model: Model, num_tokens: int) -> int:
    """Rows of so many tokens whose logits fit in memory together: a vocabulary of 151,936 leaves room for three of
    128."""
    return max(1, min(_ROWS, _LOGITS // (num_tokens * int(model.config.vocab_size))))


def _answer(model: Model, prompts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    argument = cache_argument(model)
    path = ids = prompts
    cache: dict[str, Any] = {}
    with torch.inference_mode():
        for _ in range(num_tokens):
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1, **cache)
            ids = out.logits[:, -1:].argmax(dim=2)
            path = torch.cat([path, ids], dim=1)
            cache = {argument: cache_of(out)}
    return path


def cache_of(out: Any) -> Any:  # noqa: ANN401 - its field has the name of the argument, which changed in transformers 5.24
    """The cache in what a forward returned."""
    cache = getattr(out, "cache", None)
    return out.past_key_values if cache is None else cache
