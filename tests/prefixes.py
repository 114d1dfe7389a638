"""Prompts that begin alike: what they hold, from plain lists or drawn as paths in a small tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from simserve.request import Chain, Content, RequestTable
from simserve.workload.content import led_by, ranges_of


def ids_of(chain: Chain, most: int | None = None) -> list[int]:
    """The nodes of a chain, one by one: of its first tokens those of what leads it."""
    return [*chain.lead[:most], *chain.ids[len(chain.lead) : most]]


def content_of(prompts: Sequence[Sequence[object]], block_tokens: int, lengths: Sequence[int] | None = None) -> Content:
    """Chains of prompts, each given as what its content blocks hold: a number for every path from a beginning. With
    ``lengths`` a last block that they end in is short, and another one than any that is not as short."""
    numbers: dict[tuple[object, ...], int] = {}
    held = [len(p) * block_tokens for p in prompts]
    short_by = [max(0, a - b) for a, b in zip(held, held if lengths is None else lengths, strict=True)]
    ids = []
    for p, short in zip(prompts, short_by, strict=True):
        paths = [tuple(p[: k + 1]) for k in range(len(p))]
        paths[len(p) - (short > 0) :] = [(*p, "short by", short)] * (short > 0)
        ids.append([numbers.setdefault(path, len(numbers)) for path in paths])
    offsets = np.cumsum([0, *(len(chain) for chain in ids)])
    flat = np.array([node for chain in ids for node in chain], np.int64)
    return Content(flat, offsets, block_tokens, np.array(short_by, np.int64) if any(short_by) else None)


@st.composite
def contents(draw: st.DrawFn, table: RequestTable) -> RequestTable:
    """The same requests with prompts that are fresh, the same as an earlier one, or part of an earlier one and more;
    they end at, before, or somewhere after the end of the last content block, and now and then the trace tells of less
    than that."""
    block_tokens = draw(st.sampled_from([1, 2, 3, 4, 8]))
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
        rest = st.sampled_from([0, 0, draw(st.integers(-block_tokens + 1, block_tokens - 1))])
        lengths.append(lengths[before] if kind == "again" else len(prompts[i]) * block_tokens + draw(rest))
    if draw(st.integers(0, 4)) == 0:
        prompts = [prompt[: draw(st.integers(0, len(prompt)))] for prompt in prompts]
    content = content_of(prompts, block_tokens, lengths)
    return replace(table, num_prompt_tokens=np.array(lengths, np.int64), content=content)


@st.composite
def ranges(draw: st.DrawFn, table: RequestTable) -> RequestTable:
    """The same requests in up to four groups, whose prompts begin alike as far as each is known; and now and then
    groups begin as others do."""
    group, known = [], []
    for num_tokens in table.num_prompt_tokens.tolist():
        group.append(draw(st.integers(0, 3)))
        known.append(draw(st.one_of(st.just(num_tokens), st.integers(0, num_tokens))))
    content = ranges_of(np.array(group), np.array(known))
    if draw(st.booleans()):
        leads = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), min_size=4, max_size=4))
        content = led_by(content, ranges_of(*np.array([leads[each] for each in group]).T))
    return replace(table, content=content)
