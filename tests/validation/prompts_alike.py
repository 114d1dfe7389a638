"""Prompts that begin alike in three ways, as tokens and as the chains that say the same; they need no vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import NamedTuple

from simserve.request import Chain

NOBODYS = 10**6  # tokens from here on are in one place only
SPAN = 256  # numbers of a conversation: more tokens than it ever has


class Prompt(NamedTuple):
    """A prompt's tokens, a chain that says the same, and the tokens of its answer."""

    tokens: list[int]
    chain: Chain
    answer: Iterator[int]


class Paths:
    """Prompts whose content blocks, of 1 to 8 tokens, are a path in a small tree. The last may be short, and tokens
    that nobody else has may follow."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._block_tokens, self._nobodys = rng, rng.randint(1, 8), count(NOBODYS)
        self._nodes: dict[tuple[int, ...], int] = {}
        self._drawn: list[tuple[tuple[int, ...], int]] = []

    def draw(self) -> Prompt:
        path, short_by = self._path()
        size, keys = self._block_tokens, [path[: k + 1] for k in range(len(path))]
        if short_by:
            keys[-1] = (*path, -short_by)  # another node than the whole block
        ids = [self._nodes.setdefault(key, len(self._nodes)) for key in keys]
        chain = Chain(ids, size, short_by)
        tokens = [node * size + k for node in ids for k in range(size)][: chain.num_tokens]
        return ending(tokens, chain, self._nobodys, self._rng)

    def ended(self, chain: Chain, num_tokens: int) -> None:
        """A prompt comes again at any time."""

    def _path(self) -> tuple[tuple[int, ...], int]:
        rng = self._rng
        if self._drawn and rng.random() < 0.6:
            return rng.choice(self._drawn)
        path = tuple(rng.randint(0, 1) for _ in range(rng.randint(0, 4)))
        self._drawn.append((path, rng.choice([0, rng.randint(0, self._block_tokens - 1)]) if path else 0))
        return self._drawn[-1]


class Groups:
    """Prompts of four groups: alike within a group, and at their beginnings, now and then, across groups."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._nobodys = rng, count(NOBODYS)
        self._leads = [range(first, first + rng.randint(0, 20)) for first in rng.choices((80, 100), k=4)]

    def draw(self) -> Prompt:
        group, num_tokens = self._rng.randint(0, 3), self._rng.randint(0, 20)
        lead = self._leads[group][:num_tokens]
        ids = range(group * 20, group * 20 + num_tokens)
        return ending([*lead, *ids[len(lead) :]], Chain(ids, 1, lead=lead), self._nobodys, self._rng)

    def ended(self, chain: Chain, num_tokens: int) -> None:
        """A prompt comes again at any time."""


class Conversations:
    """Prompts that repeat the turn before, answer and all, once it has ended."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._begun = rng, count()
        self._idle: list[range] = []  # what they hold so far

    def draw(self) -> Prompt:
        if not self._idle or self._rng.random() < 0.3:
            first = SPAN * next(self._begun)
            self._idle.append(range(first, first))
        before = self._idle.pop(self._rng.randrange(len(self._idle)))
        ids = range(before.start, before.start + SPAN)
        num_tokens = len(before) + self._rng.randint(1, 8)
        return Prompt([*ids[:num_tokens]], Chain(ids, 1), iter(ids[num_tokens:]))

    def ended(self, chain: Chain, num_tokens: int) -> None:
        """The next turn may come, of which so many tokens are known."""
        assert isinstance(chain.ids, range)
        self._idle.append(chain.ids[:num_tokens])


def ending(tokens: list[int], chain: Chain, nobodys: Iterator[int], rng: Random) -> Prompt:
    """A prompt of these tokens and some, or none, that are nobody else's, as those of its answer are."""
    num_more = rng.choice([0, 0, 1, 3] if tokens else [1, 2, 3])
    return Prompt([*tokens, *islice(nobodys, num_more)], chain, nobodys)


KINDS: tuple[type[Paths | Groups | Conversations], ...] = (Paths, Groups, Conversations)
