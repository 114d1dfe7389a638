"""Prompts that begin alike: what they hold, from plain lists or drawn as paths in a small tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from simserve.request import Content, RequestTable


def content_of(prompts: Sequence[Sequence[object]], block_tokens: int) -> Content:
    """Chains of prompts, each given as what its content blocks hold: a number for every path from a beginning."""
    numbers: dict[tuple[object, ...], int] = {}
    ids = [[numbers.setdefault(tuple(p[: k + 1]), len(numbers)) for k in range(len(p))] for p in prompts]
    offsets = np.cumsum([0, *(len(chain) for chain in ids)])
    return Content(np.array([node for chain in ids for node in chain], np.int64), offsets, block_tokens)


def fitting_block_sizes(block_tokens: int) -> list[int]:
    """Sizes of cache blocks that content blocks of this size divide or are divided by."""
    return [size for size in (1, 2, 3, 4, 6, 8, 16) if size % block_tokens == 0 or block_tokens % size == 0]


@st.composite
def contents(draw: st.DrawFn, table: RequestTable, block_size: int | None = None) -> RequestTable:
    """The same requests with prompts that are fresh, the same as an earlier one, or part of an earlier one and more;
    they end at, or somewhere after, the end of a content block, and now and then the trace tells of less than that.
    ``block_size`` is the cache's, where that is known."""
    sizes = [n for n in (1, 2, 3, 4, 8) if block_size is None or block_size in fitting_block_sizes(n)]
    block_tokens = draw(st.sampled_from(sizes))
    most = int(table.num_prompt_tokens.max())
    some = st.lists(st.integers(0, 1), min_size=1, max_size=max(1, most // block_tokens))
    prompts: list[list[int]] = []
    lengths: list[int] = []
    for i in range(len(table)):
        kind = draw(st.sampled_from(["fresh", "again", "longer"])) if i else "fresh"
        if kind == "fresh":
            prompt = draw(some)
        else:
            before = draw(st.integers(0, i - 1))
            prompt = prompts[before]
            if kind == "longer":
                prompt = prompt[: draw(st.integers(0, len(prompt)))] + draw(some)
        prompts.append(prompt[: max(1, most // block_tokens)])
        rest = st.sampled_from([0, 0, draw(st.integers(0, block_tokens - 1))])
        lengths.append(lengths[before] if kind == "again" else len(prompts[i]) * block_tokens + draw(rest))
    if draw(st.integers(0, 4)) == 0:
        prompts = [prompt[: draw(st.integers(0, len(prompt)))] for prompt in prompts]
    return replace(table, num_prompt_tokens=np.array(lengths, np.int64), content=content_of(prompts, block_tokens))
