"""Token ids for a real engine: random, and equal where the workload says that prompts begin alike."""

from __future__ import annotations

import random
from collections.abc import Iterator

from simserve.request import Chain, RequestTable

FIRST_TOKEN = 4  # ids below may be special


def prompts_of(table: RequestTable, vocabulary: int) -> Iterator[tuple[int, ...]]:
    """Each request's prompt. Blocks of equal content are equal tokens; what is not known of a prompt shares nothing
    with another but by chance."""
    for i, num_tokens in enumerate(table.num_prompt_tokens.tolist()):
        known: list[int] = []
        if table.content is not None:
            known = _known(table.content[i], vocabulary)[:num_tokens]
        yield (*known, *_tokens(f"request {i}", num_tokens - len(known), vocabulary))


def _known(chain: Chain, vocabulary: int) -> list[int]:
    if isinstance(chain.ids, range):
        lead = _tokens(f"range {chain.lead.start}", len(chain.lead), vocabulary)
        return lead + _tokens(f"range {chain.ids.start}", chain.num_tokens, vocabulary)[len(lead) :]
    blocks = [_tokens(f"block {block}", chain.block_tokens, vocabulary) for block in chain.ids]
    return [token for block in blocks for token in block][: chain.num_tokens]


def _tokens(seed: str, num_tokens: int, vocabulary: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(FIRST_TOKEN, vocabulary) for _ in range(num_tokens)]
