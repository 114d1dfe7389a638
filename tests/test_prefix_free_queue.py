"""The queue of free blocks against a list that is searched and cut."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simserve.kv_cache.free_queue import FreeQueue


class QueueMachine(RuleBasedStateMachine):
    """The model: free blocks in a list, the first to be taken first, and the held ones in another."""

    @initialize(first=st.integers(0, 2), size=st.integers(0, 90))
    def build(self, first, size):
        self.real = FreeQueue(first, first + size)
        self.free = list(range(first, first + size))
        self.held: list[int] = []
        self.appended: set[int] = set()  # only those may be taken out of the middle: others cannot be found

    def take(self, blocks: list[int]) -> None:
        self.held += blocks
        self.appended -= set(blocks)

    @precondition(lambda self: self.free)
    @rule()
    def pop(self):
        assert self.real.pop() == self.free[0]
        self.take([self.free.pop(0)])

    @rule(data=st.data())
    def pop_many(self, data):
        count = data.draw(st.integers(0, len(self.free)))
        assert self.real.pop_many(count).tolist() == self.free[:count]
        self.take(self.free[:count])
        del self.free[:count]

    def give(self, data: st.DataObject) -> list[int]:
        given = data.draw(st.permutations(self.held))[: data.draw(st.integers(0, len(self.held)))]
        self.held = [block for block in self.held if block not in given]
        return given

    @rule(data=st.data())
    def append(self, data):
        given = self.give(data)
        self.real.append(np.array(given, np.int64))
        self.free += given
        self.appended |= set(given)

    @rule(data=st.data())
    def prepend(self, data):
        given = self.give(data)
        self.real.prepend(np.array(given, np.int64))
        self.free = given + self.free

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def remove(self, data):
        some = data.draw(st.lists(st.sampled_from(sorted(self.appended)), unique=True))
        self.real.remove(np.array(some, np.int64))
        self.free = [block for block in self.free if block not in some]
        self.take(some)

    @invariant()
    def the_same_blocks_in_the_same_order(self):
        assert self.real.blocks() == self.free
        assert len(self.real) == len(self.free)


TestFreeQueue = QueueMachine.TestCase
TestFreeQueue.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_queue_that_is_used_for_long_stays_as_long_as_it_is():
    """Entries of blocks that left the middle are dropped: a thousand rounds over ten blocks take room for tens."""
    queue = FreeQueue(0, 10)
    for _ in range(1000):
        taken = queue.pop_many(6)
        queue.append(taken)
        queue.remove(taken[::2])
        queue.append(taken[::2])
    assert sorted(queue.blocks()) == list(range(10))
    assert len(queue._log) < 100
