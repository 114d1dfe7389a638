"""Declared beginnings (``shared_prefixes``) to content: which request begins with which system prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.request import IntColumn, Ranges, RequestTable
from simserve.scenario.prefix_models import SharedPrefix
from simserve.workload.content import parts, ranges_of, repeated_tokens
from simserve.workload.sessions import NO_SESSION

NO_PREFIX = -1
ON_TOP = "on top of prompt_tokens"
WITHIN = "within the lengths that they have"


def drawn_prefixes(prefixes: Sequence[SharedPrefix], num_requests: int, rng: np.random.Generator) -> Ranges:
    """What each of so many requests begins with; of no tokens for those outside every share. One uniform number per
    request says both which share it is in and, by its place there, which of the ``count`` texts it has: request i
    begins with the same whatever comes after it, and stays in its share when only another's ``count`` changes."""
    places = rng.random(num_requests)
    group, num_tokens = np.full(num_requests, NO_PREFIX), np.zeros(num_requests, np.int64)
    low, num_texts = 0.0, 0
    for prefix in prefixes:
        inside = (places >= low) & (places < low + prefix.share)
        which = ((places[inside] - low) * (prefix.count / prefix.share)).astype(np.int64)
        group[inside] = num_texts + np.minimum(which, prefix.count - 1)
        num_tokens[inside] = prefix.tokens
        low, num_texts = low + prefix.share, num_texts + prefix.count
    return ranges_of(group, num_tokens)


def placed(content: Ranges, rows: IntColumn, more: Ranges) -> Ranges:
    """The content with that of more requests in these rows, which have nothing in common with the others."""
    (own, lead), (other_own, other_lead) = parts(content), parts(more)
    after = max(int((part.first + part.num_tokens).max(initial=0)) for part in (own, lead))
    columns = []
    for part, other in ((own, other_own), (lead, other_lead)):
        first, num_tokens = part.first.copy(), part.num_tokens.copy()
        first[rows], num_tokens[rows] = other.first + after, other.num_tokens
        columns += [first, num_tokens]
    return Ranges(*columns) if lead.num_tokens.any() or other_lead.num_tokens.any() else Ranges(*columns[:2])


def begun_alike(content: Ranges, num_prompt_tokens: IntColumn) -> tuple[Ranges, int]:
    """The same for prompts that hold their beginning already: those that are shorter have none, and how many these
    are."""
    is_short = num_prompt_tokens < content.num_tokens
    return Ranges(content.first, np.where(is_short, 0, content.num_tokens)), int(is_short.sum())


def first_of_session(session: IntColumn) -> IntColumn:
    """For each row the first one of its session, or itself where it has none."""
    first = np.arange(len(session))
    named = np.flatnonzero(session != NO_SESSION)
    _, places, inverse = np.unique(session[named], return_index=True, return_inverse=True)
    first[named] = named[places[inverse]]
    return first


def in_words(table: RequestTable, where: str) -> str:
    """For the notes: what was declared, as it came out. ``where`` says how the beginnings go with prompt lengths."""
    content = table.content
    assert isinstance(content, Ranges)
    begun = content.num_tokens > 0
    num_texts = len(np.unique(content.first[begun]))
    texts = "a common text" if num_texts == 1 else f"one of {num_texts:,} common texts"
    repeated, total = repeated_tokens(table)
    return (
        f"shared_prefixes: {100 * begun.mean():.1f} % of the requests begin with {texts}, {where}; "
        f"{100 * repeated / total:.1f} % of the prompt tokens would be hits of an infinite prefix cache"
    )
