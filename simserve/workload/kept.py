"""What turns keep of the prompt and the answer before them in their session: contexts that grow, shrink, or begin anew.

A turn that keeps k tokens begins with the first k of the prompt before it, followed by that one's answer; what else it
holds is new. So the chain of a request goes on beyond its prompt: it says what the answer will hold, and the next turn
begins with both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simserve.clients.plan import NOBODY
from simserve.request import Chain, Content, IntColumn, Ranges
from simserve.workload.content import led_by, ranges_of, taken

TOKENS_PER_BLOCK = 16  # where contexts shrink: the usual block sizes of engines are its multiples


def kept_of_those_left(kept: IntColumn, before: IntColumn, is_left: npt.NDArray[np.bool_]) -> IntColumn:
    """What each row keeps of the last row before it in its session that is left: of what it keeps of one that is not,
    as much as that one had kept itself."""
    kept = kept.copy()
    for i in np.flatnonzero(before != NOBODY).tolist():  # rows before are done, for they come earlier
        if not is_left[before[i]]:
            kept[i] = min(kept[i], kept[before[i]])
    return kept


def session_content(
    before: IntColumn, kept: IntColumn, prompts: IntColumn, outputs: IntColumn, prefixes: Ranges | None = None
) -> Content | Ranges:
    """What requests hold of which ``kept`` tells how many tokens of the prompt and answer ``before`` it a prompt begins
    with; of lengths in tokens, by rows of which ``before`` names earlier ones. Whoever keeps nothing begins with its
    shared prefix.

    Ranges, exact to the token, where contexts grow or begin anew; whole blocks of 16 tokens where some shrink, or two
    grow out of one.
    """
    sizes, follows = prompts + outputs, before != NOBODY
    whole = np.where(follows, sizes[before], 0)
    kept = np.where(follows, np.minimum(kept, prompts), 0)
    grown_from = before[kept > 0]
    if ((kept == 0) | (kept >= whole)).all() and len(np.unique(grown_from)) == len(grown_from):
        return _grown(before, kept > 0, sizes, prefixes)
    return _in_blocks(before, kept, sizes, prefixes)


def continued(before: IntColumn, prompts: IntColumn, outputs: IntColumn) -> IntColumn:
    """``kept`` of conversations of which only lengths are known: whoever is long enough for it begins with the whole
    prompt and answer before."""
    whole = np.where(before != NOBODY, (prompts + outputs)[before], 0)
    return np.where(prompts >= whole, whole, 0)


def kept_of_content(before: IntColumn, content: Content | Ranges | None, prompts: IntColumn) -> IntColumn:
    """The other way round: with how many tokens of the prompt and answer before it a prompt begins, as far as the
    content tells."""
    kept = np.zeros(len(before), np.int64)
    if content is None:
        return kept
    for i in np.flatnonzero(before != NOBODY).tolist():
        kept[i] = min(_same_tokens(content[before[i]], content[i]), prompts[i])
    return kept


def _same_tokens(a: Chain, b: Chain) -> int:
    """Tokens from the start that two chains are known to have in common."""
    if isinstance(a.ids, range) and isinstance(b.ids, range):
        return min(len(a.ids), len(b.ids)) if a.ids.start == b.ids.start else 0
    n = min(len(a.ids), len(b.ids))
    differs = np.asarray(a.ids[:n]) != np.asarray(b.ids[:n])
    same = int(differs.argmax()) if differs.any() else n
    return min(same * a.block_tokens, a.num_tokens, b.num_tokens)


def _grown(before: IntColumn, continues: npt.NDArray[np.bool_], sizes: IntColumn, prefixes: Ranges | None) -> Ranges:
    """Requests that continue each other begin alike, as the first of them does."""
    opening = np.arange(len(before))
    for i in np.flatnonzero(continues).tolist():
        opening[i] = opening[before[i]]
    content = ranges_of(opening, sizes)
    if prefixes is None or not prefixes.num_tokens.any():
        return content
    return led_by(content, taken(prefixes, opening))


def _in_blocks(before: IntColumn, kept: IntColumn, sizes: IntColumn, prefixes: Ranges | None) -> Content:
    """An id per whole block: those of the request before as far as they are kept, or of a shared prefix where nothing
    is, and new ones for the rest."""
    begun, num_ids = _prefix_blocks(len(before), prefixes)
    rows: list[IntColumn] = []
    for i, (num_blocks, num_kept) in enumerate(zip((sizes // TOKENS_PER_BLOCK).tolist(), kept.tolist(), strict=True)):
        old = rows[before[i]][: num_kept // TOKENS_PER_BLOCK] if num_kept else np.arange(*begun[i])
        num_new = num_blocks - len(old)
        rows.append(np.concatenate([old, np.arange(num_ids, num_ids + num_new)]))
        num_ids += num_new
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes // TOKENS_PER_BLOCK)])
    return Content(np.concatenate(rows), offsets, TOKENS_PER_BLOCK)


def _prefix_blocks(num_rows: int, prefixes: Ranges | None) -> tuple[list[tuple[int, int]], int]:
    """Begin and end of the ids of each row's prefix, whole blocks, and how many ids all prefixes have."""
    if prefixes is None:
        return [(0, 0)] * num_rows, 0
    num_blocks = prefixes.num_tokens // TOKENS_PER_BLOCK
    first = ranges_of(prefixes.first, num_blocks).first
    ends = first + num_blocks
    return list(zip(first.tolist(), ends.tolist(), strict=True)), int(ends.max(initial=0))
