"""What an engine is asked to serve, and how it is set up."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, fields

from simserve.recorded.steps import Setting

FIRST_TOKEN = 4  # ids below may be special


@dataclass(frozen=True)
class AskedRequest:
    """Prompt (token ids) and forced output length, with when it comes: ``arrival_s`` on the clock of the run, or
    ``at_step``, before the step of that number (from 0) is taken; neither: at the beginning."""

    id: int
    prompt: tuple[int, ...]
    num_output_tokens: int
    arrival_s: float = 0.0
    at_step: int | None = None


@dataclass(frozen=True)
class ReplaySettings:
    """How an engine is set up, in field words. ``safety_margin`` is transformers' own (None: its default);
    ``num_blocks`` counts vLLM's null block."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    prefix_caching: bool = False
    safety_margin: float | None = None
    async_scheduling: bool = False
    threads: int = 1

    def told(self) -> dict[str, Setting]:
        """As a run keeps them: what a scenario has a key for under that key, the rest by name."""
        own = ("safety_margin", "async_scheduling", "threads")
        cache = ("num_blocks", "block_size", "prefix_caching")
        values: dict[str, Setting] = {}
        for field in fields(self):
            prefix = "" if field.name in own else "engine.kv_cache." if field.name in cache else "engine."
            values[prefix + field.name] = getattr(self, field.name)
        return values


def random_prompt(seed: int, num_tokens: int, vocabulary: int) -> tuple[int, ...]:
    """Token ids that share no prefix with another seed's but by chance."""
    rng = random.Random(seed)
    return tuple(rng.randrange(FIRST_TOKEN, vocabulary) for _ in range(num_tokens))


def ask_lengths(lengths: Iterable[tuple[int, int]], vocabulary: int) -> list[AskedRequest]:
    """Requests of (prompt, output) lengths, all at once, with random prompts."""
    return [
        AskedRequest(i, random_prompt(i, num_prompt, vocabulary), num_output)
        for i, (num_prompt, num_output) in enumerate(lengths)
    ]
