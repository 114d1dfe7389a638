"""The real prefix cache and the slow, obvious one agree: on all that is recorded, and on every block and its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.builders import build_scheduler, run_engine
from tests.prefix_rules import RULES
from tests.reference_types import Step
from tests.references import run_reference
from tests.strategies import Case, client_cases
from tests.test_reference_agrees import assert_all_agree
from tests.watched import Memory, WatchedScheduler

run_briefly = settings(max_examples=60, deadline=None)


def assert_blocks_agree(memories: list[Memory], steps: list[Step]) -> None:
    """The same tables and the same queue of free blocks at each decision, whatever the blocks are called: a block has
    one name for as long as it is not taken for something new (two that are taken in one step may be exchanged)."""
    names: dict[int, int] = {}
    coming = iter(steps)
    for memory in memories:
        for step in coming:
            names = {mine: name for mine, name in names.items() if mine not in step.taken}
            if step.begin_ns == memory.now_ns:
                break
        assert step.begin_ns == memory.now_ns
        pairs = list(zip(step.queue, memory.queue, strict=True))
        assert step.tables.keys() == memory.tables.keys()
        for seq_id, table in step.tables.items():
            pairs += zip(table, memory.tables[seq_id], strict=True)
        for mine, name in pairs:
            assert names.setdefault(mine, name) == name
        assert len(set(names.values())) == len(names)


def check(case: Case, fast_forward: bool = True) -> None:
    reference = run_reference(case)
    watched = WatchedScheduler(build_scheduler(case.settings))
    records = run_engine(
        case.table, case.settings, case.step_time, fast_forward, scheduler=watched, clients=case.clients
    )
    assert_all_agree(records, reference)
    assert_blocks_agree(watched.memories, reference.steps)
    watched.assert_memory_adds_up()


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
def test_every_record_and_every_block(policy, tight, fast_forward):
    """Prompts that begin alike, clients of any kind, caches that evict and preempt: the same."""

    @run_briefly
    @given(client_cases(prefix_caching=True, policy=policy, tight=tight))
    def agrees(case):
        check(case, fast_forward)

    agrees()


@run_briefly
@given(client_cases(prefix_caching=True, tight=True, block_size=2, max_requests=6, max_tokens=12))
def test_small_blocks_and_few_of_them(case):
    """Where evictions, preemptions and hits on what is left fall together."""
    check(case)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_on_every_rule(rule):
    """The cases worked out by hand: not only their outcomes, but every step and block."""
    if rule.case.settings.prefix_caching:
        check(rule.case)
        check(replace(rule.case, settings=replace(rule.case.settings, queue_order="priority")))
