"""How many tokens a generation pushes through a model, with a cache and without: counted, not computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from calibrate.kv_cache import cache_argument
from simserve.step_time.chapters_schema import PushedTokens

Model = Any


def count_pushed(model: Model, name: str, num_prompt_tokens: int = 512, num_output_tokens: int = 256) -> PushedTokens:
    """Greedy generation twice: once with transformers' own cache, once with the whole sequence at every step.

    With P prompt and N output tokens the second pushes NP + N(N − 1)/2 and the first P + N − 1, because the last token
    is never computed."""
    generator = torch.Generator().manual_seed(0)
    shape = 1, num_prompt_tokens
    prompt = torch.randint(0, model.config.vocab_size, shape, generator=generator).to(model.device)
    cached, cached_tokens, cached_s = _counted(model, _generate_cached, prompt, num_output_tokens)
    again, again_tokens, again_s = _counted(model, _generate_recomputed, prompt, num_output_tokens)
    return PushedTokens(
        model=name,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        cached=cached,
        recomputed=again,
        num_equal_tokens=sum(a == b for a, b in zip(cached_tokens, again_tokens, strict=True)),
        cached_s=cached_s,
        recomputed_s=again_s,
    )


def _counted(model: Model, generate: Any, prompt: torch.Tensor, num_tokens: int) -> tuple[int, list[int], float]:  # noqa: ANN401
    began = time.process_time()
    with _count(model) as counts, torch.inference_mode():
        tokens = generate(model, prompt, num_tokens)
    return sum(counts), tokens, max(time.process_time() - began, 1e-9)


@contextmanager
def _count(model: Model) -> Iterator[list[int]]:
    """Token counts of every forward, as the embedding sees them."""
    counts: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _m, args, _out: counts.append(args[0].numel()))
    try:
        yield counts
    finally:
        hook.remove()


def _generate_cached(model: Model, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    argument = cache_argument(model)
    out = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    tokens = [_greedy(out)]
    while len(tokens) < num_tokens:
        ids = torch.tensor([[tokens[-1]]], device=prompt.device)
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{argument: _cache_of(out)})
        tokens.append(_greedy(out))
    return tokens


def _generate_recomputed(model: Model, prompt: torch.Tensor, num_tokens: int) -> list[int]:
    sequence, tokens = prompt, []
    for _ in range(num_tokens):
        tokens.append(_greedy(model(input_ids=sequence, use_cache=False, logits_to_keep=1)))
        sequence = torch.cat([sequence, torch.tensor([[tokens[-1]]], device=prompt.device)], dim=1)
    return tokens


def _cache_of(out: Any) -> Any:  # noqa: ANN401 - its field has the name of the argument, which changed in 5.24
    cache = getattr(out, "cache", None)
    return out.past_key_values if cache is None else cache


def _greedy(out: Any) -> int:  # noqa: ANN401
    return int(out.logits[0, -1].argmax())
