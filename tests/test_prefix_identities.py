"""What blocks hold and where it is found, against a list of blocks per identity; and what long runs cost."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simserve.kv_cache import PrefixCachingAllocator, identities
from simserve.kv_cache.identities import Identities, names_of
from simserve.request import Chain, Request, Sequence

NUM_BLOCKS = 12
PROMPTS = {i: names_of(i, Chain([0, 1, 2 + i % 2][: i % 4], 1), 1) for i in range(6)}  # up to three known blocks each
LONGEST = 5


class IdentityMachine(RuleBasedStateMachine):
    """The model: for each (content node) or (request, place) the blocks that hold it, the first of them in front."""

    @initialize()
    def build(self):
        self.real = Identities()
        self.real.fit(NUM_BLOCKS)
        for names in PROMPTS.values():
            self.real.fit(0, names)
        self.holders: dict[tuple[object, ...], list[int]] = {}
        self.nameless = list(range(NUM_BLOCKS))

    def key(self, i: int, place: int) -> tuple[object, ...]:
        known = PROMPTS[i].of_content.tolist()
        return ("content", known[place]) if place < len(known) else ("own", i, place)

    @rule(i=st.sampled_from(sorted(PROMPTS)), begin=st.integers(0, LONGEST - 1), data=st.data())
    def enter(self, i, begin, data):
        """Some nameless blocks hold a run of a request's; what others hold already they hold too."""
        blocks = data.draw(st.permutations(self.nameless))[: data.draw(st.integers(0, LONGEST - begin))]
        self.real.enter(PROMPTS[i], begin, np.array(blocks, np.int64))
        for place, block in enumerate(blocks, begin):
            self.holders.setdefault(self.key(i, place), []).append(block)
            self.nameless.remove(block)

    def forget(self, blocks: list[int]) -> int:
        named = [block for block in blocks if block not in self.nameless]
        for block in named:
            next(held for held in self.holders.values() if block in held).remove(block)
        self.nameless += named
        return len(named)

    @rule(blocks=st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True, max_size=8))
    def drop(self, blocks):
        assert self.real.drop(np.array(blocks, np.int64)) == self.forget(blocks)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def drop_one(self, block):
        assert self.real.drop_one(block) == bool(self.forget([block]))

    @invariant()
    def the_first_holder_of_each_is_found(self):
        for i, names in PROMPTS.items():
            for stop in range(LONGEST + 1):
                run = []
                while len(run) < stop and self.holders.get(self.key(i, len(run))):
                    run.append(self.holders[self.key(i, len(run))][0])
                assert self.real.find(names, stop).tolist() == run

    @invariant()
    def named_are_those_that_hold_something(self):
        blocks = np.arange(NUM_BLOCKS)
        assert self.real.are_named(blocks).tolist() == [block not in self.nameless for block in blocks.tolist()]


TestIdentities = IdentityMachine.TestCase
TestIdentities.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 20), st.integers(1, 20), st.data())
def test_a_block_is_identified_by_the_content_block_that_holds_its_last_token(ids, block_size, content_tokens, data):
    """Block j ends at token (j + 1) · size: its identity tells which content block holds that last token, and where
    among the blocks that end there. Only full blocks have one, also where the last content block is short."""
    chain = Chain(ids, content_tokens, data.draw(st.integers(0, content_tokens - 1)) if ids else 0)
    names = names_of(7, chain, block_size).of_content.tolist()
    assert len(names) == chain.num_tokens // block_size
    per_content, ends = math.ceil(content_tokens / block_size), Counter()
    for j, name in enumerate(names):
        at = ((j + 1) * block_size - 1) // content_tokens
        assert divmod(name, per_content) == (ids[at], ends[at])
        ends[at] += 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 9), st.integers(1, 17))
def test_ranges_are_named_alike_where_their_blocks_are(spaces, gap, block_size):
    """Law: blocks of two ranges have one name if and only if they hold the same tokens from the start; a range may be
    seen whole or in part. Names take a block's worth of room each, not a token's."""
    owners, start = {}, gap
    for space in spaces:
        for length in range(space + 1):
            names = names_of(0, Chain(range(start, start + length), 1), block_size).of_content.tolist()
            assert len(names) == length // block_size
            for j, name in enumerate(names):
                assert owners.setdefault(name, (start, j)) == (start, j)
        start += space
    assert len(set(owners.values())) == len(owners)
    assert max(owners, default=0) <= start / block_size + 1


@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=5), st.lists(st.integers(0, 30), max_size=2), st.integers(1, 17)
)
def test_ranges_that_others_lead_are_named_by_them_as_far_as_these_go(spaces, leads, block_size):
    """Law: with the first tokens of another range, blocks are that one's as far as all of a block's tokens are, and
    its own from there on; those of two ranges with one lead share these, and nothing else."""
    starts = [0, *itertools.accumulate([*spaces, *leads])]
    owners = {}
    for start, space in zip(starts, spaces, strict=False):
        for lead_start, longest in [(0, 0), *zip(starts[len(spaces) :], leads, strict=False)]:
            lead = range(lead_start, lead_start + min(space, longest))
            names = names_of(0, Chain(range(start, start + space), 1, lead=lead), block_size).of_content.tolist()
            assert len(names) == space // block_size
            for j, name in enumerate(names):
                owner = (lead_start, j) if (j + 1) * block_size <= len(lead) else (start, j)
                assert owners.setdefault(name, owner) == owner
    assert len(set(owners.values())) == len(owners)


def test_a_range_is_named_without_looking_at_its_tokens():
    """A chain of 10¹² tokens in blocks of 10⁹ is a thousand blocks."""
    names = names_of(0, Chain(range(10**12, 2 * 10**12), 1), 10**9).of_content
    assert names.tolist() == list(range(1000, 2000))


def test_requests_of_which_nothing_is_left_are_forgotten(monkeypatch):
    """Of 500 requests that each leave a block of their own, about as many stay in the index as there are blocks; and
    who is still there is found."""
    monkeypatch.setattr(identities, "_SWEEP_FROM", 20)
    real = Identities()
    real._sweep_at = 20
    real.fit(8)
    for i in range(500):
        real.drop(np.array([i % 8]))
        real.enter(names_of(i, None, 4), 0, np.array([i % 8]))
    assert len(real._own) <= 2 * 8 + 20
    assert [real.find(names_of(i, None, 4), 1).tolist() for i in range(492, 500)] == [[i % 8] for i in range(492, 500)]
    assert not len(real.find(names_of(491, None, 4), 1))


def calls_of(num_blocks: int, cache: PrefixCachingAllocator) -> int:
    """Python functions that are called for a request to be looked up, admitted, computed, and freed."""
    ids = list(range(num_blocks))
    seq = Sequence(Request(num_blocks, 0, 16 * num_blocks + 1, 1, 1, 0, Chain(ids, 16)))
    count = 0

    def on_event(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        assert cache.can_admit(seq)
        seq.num_computed_tokens = cache.num_cached_tokens(seq)
        cache.allocate(seq, seq.num_known_tokens)
        seq.num_computed_tokens = seq.num_known_tokens
        cache.free(seq)
    finally:
        sys.setprofile(None)
    return count


def test_a_long_prompt_costs_about_as_many_calls_as_a_short_one():
    """Runs of blocks are handled as slices: 160 tokens or 160,000, looked up, found in part, taken, filled and given
    back."""
    cache = PrefixCachingAllocator(30_000, 16, max_model_len=10**6)
    calls_of(20_000, cache)  # arrays have grown
    assert calls_of(25_000, cache) <= 2 * calls_of(10, cache)
