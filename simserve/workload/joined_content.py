"""What the prompts of several tenants hold, as one content: tenants have nothing in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.errors import ScenarioError
from simserve.request import Content, IntColumn, Ranges
from simserve.workload.content import taken
from simserve.workload.prefixes import placed


@dataclass(frozen=True)
class Part:
    """The content of one tenant's requests, and which rows of the table they are."""

    tenant: str
    rows: IntColumn
    content: Content | Ranges


def joined(parts: Sequence[Part], num_requests: int) -> Content | Ranges | None:
    """The content of all requests; rows of no part are known to hold nothing. None without parts.

    Raises ScenarioError where tenants are known in different ways: by ranges of tokens (shared_prefixes, turns that
    keep what was before them) and by blocks, or by blocks of different sizes.
    """
    if not parts:
        return None
    kinds = {_kind(part.content): part.tenant for part in parts}
    if len(kinds) > 1:
        told = " and ".join(f"{tenant}: {kind}" for kind, tenant in list(kinds.items())[:2])
        raise ScenarioError(
            f"workload.tenants: must know what prompts hold in one way (got {told}); leave out shared_prefixes, or mix "
            "traces of one block size"
        )
    ranges = [part for part in parts if isinstance(part.content, Ranges)]
    blocks = [part.content for part in parts if isinstance(part.content, Content)]
    if ranges:
        return _ranges(ranges, num_requests)
    last = sum(map(len, blocks))  # a row that holds nothing, after all others
    place = np.full(num_requests, last, np.int64)
    begin = 0
    for part in parts:
        place[part.rows] = begin + np.arange(len(part.rows))
        begin += len(part.rows)
    return taken(_end_to_end(blocks), place)


def _kind(content: Content | Ranges) -> str:
    return "ranges of tokens" if isinstance(content, Ranges) else f"blocks of {content.block_tokens:,} tokens"


def _ranges(parts: Sequence[Part], num_requests: int) -> Ranges:
    all_rows = Ranges(np.zeros(num_requests, np.int64), np.zeros(num_requests, np.int64))
    for part in parts:
        assert isinstance(part.content, Ranges)
        all_rows = placed(all_rows, part.rows, part.content)
    return all_rows


def _end_to_end(contents: Sequence[Content]) -> Content:
    """One after the other with ids of their own, and a row without any."""
    ids, lengths, short_by, num_ids = [], [], [], 0
    for content in contents:
        ids.append(content.ids + num_ids)
        num_ids += int(content.ids.max(initial=-1)) + 1
        lengths.append(np.diff(content.offsets))
        short_by.append(np.zeros(len(content), np.int64) if content.short_by is None else content.short_by)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    offsets = np.append(offsets, offsets[-1])
    short = np.append(np.concatenate(short_by), 0)
    return Content(np.concatenate(ids), offsets, contents[0].block_tokens, short if short.any() else None)
