"""The policy of transformers' continuous batching: against a slow transcription of its rules, and rules by hand.

``test_engine_steps`` holds it against the engine itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from simserve.clients import OPEN_LOOP, ClientPlan
from simserve.recorded.steps import Decode, Prefill
from simserve.recorded.watch import StepWatcher
from simserve.records import Records
from simserve.request import RequestTable
from simserve.scheduling.tail_queue import TailQueue
from tests.builders import build_scheduler, run_engine
from tests.reference_types import Settings
from tests.references import run_reference
from tests.step_times import ConstantStepTime
from tests.strategies import Case, client_cases, plan_of, table_of
from tests.test_reference_agrees import assert_all_agree
from tests.watched import WatchedScheduler


def run(case: Case, fast_forward: bool) -> tuple[Records, WatchedScheduler]:
    """One run, watched."""
    watched = WatchedScheduler(build_scheduler(case.settings))
    records = run_engine(
        case.table, case.settings, case.step_time, fast_forward, scheduler=watched, clients=case.clients
    )
    return records, watched


@pytest.mark.parametrize("tight", [True, False])
def test_it_agrees_with_the_slow_engine(tight: bool) -> None:
    """Any workload, clients, cache, budget and margin: the same records, whether steps are skipped or not; memory adds
    up after every decision and is free at the end (INV-2); everyone ends (INV-9), and slots suffice."""

    @settings(max_examples=120, deadline=None)
    @given(client_cases(tight=tight, policy="transformers"))
    def agrees(case: Case) -> None:
        reference = run_reference(case)
        for fast_forward in (True, False):
            records, watched = run(case, fast_forward)
            assert_all_agree(records, reference)
            watched.assert_memory_adds_up()
            columns = records.spans.columns()
            assert int(columns["num_running_begin"].max(initial=0)) <= case.settings.max_num_seqs
            assert watched.pool.allocator.num_free_blocks == case.settings.num_blocks
            assert watched.pool.used_tokens == 0

    agrees()


def steps(
    table: RequestTable, s: Settings, margin: float = 0.0, clients: ClientPlan = OPEN_LOOP
) -> list[tuple[list[tuple[int, ...]], list[tuple[int, ...]], tuple[int, ...]]]:
    """Prefills (request, new, cached), decodes (request, cached) and preempted of each step, a second each."""
    watcher = StepWatcher(build_scheduler(replace(s, safety_margin=margin)))
    run_engine(table, s, ConstantStepTime(1.0), fast_forward=False, scheduler=watcher, clients=clients)
    return [(sorted(step.prefills), sorted(step.decodes), step.preempted) for step in watcher.steps]


def paged(num_blocks: int, block_size: int = 2, max_num_seqs: int = 8, budget: int = 64) -> Settings:
    """Settings of a small cache."""
    return Settings("transformers", "paged", max_num_seqs, budget, 64, num_blocks=num_blocks, block_size=block_size)


def test_starvation_by_hand() -> None:
    """Three sequences in four blocks of two. The second step has one block for three: the first takes it, the third is
    reset, whose block the second finds in the third step. There the first starves: the only one, so it is reset though
    it is the oldest; it queues behind the third, which, the queue open again when the second ends, goes first."""
    table = table_of([0, 0, 0], [2, 2, 2], [4, 4, 4])
    assert steps(table, paged(4)) == [
        ([Prefill(0, 2, 0), Prefill(1, 2, 0), Prefill(2, 2, 0)], [], ()),
        ([], [Decode(0, 2)], (2,)),
        ([], [Decode(0, 3), Decode(1, 2)], ()),
        ([], [Decode(1, 3)], (0,)),
        ([], [Decode(1, 4)], ()),
        ([Prefill(2, 3, 0)], [], ()),
        ([], [Decode(2, 3)], ()),
        ([], [Decode(2, 4)], ()),
        ([Prefill(0, 5, 0)], [], ()),
    ]


def test_a_short_prompt_overtakes_one_that_does_not_fit() -> None:
    """The head of the queue blocks nobody."""
    table = table_of([0, 0, 0], [2, 7, 1], [3, 1, 1])
    first, *_, last = steps(table, paged(4))
    assert first[0] == [Prefill(0, 2, 0), Prefill(2, 1, 0)]
    assert last[0] == [Prefill(1, 7, 0)]


def test_the_margin_is_looked_at_before_a_step_and_not_within_it() -> None:
    """With ten blocks and a margin of half, an empty cache takes both prompts at once though the first leaves four; the
    one that comes then waits until the first has ended and seven are free."""
    table = table_of([0, 0, 10**9], [12, 2, 2], [2, 9, 1])
    found = steps(table, paged(10), margin=0.5)
    assert found[0][0] == [Prefill(0, 12, 0), Prefill(1, 2, 0)]
    assert [step for step, (prefills, _, _) in enumerate(found) if Prefill(2, 2, 0) in prefills] == [2]
    assert steps(table, paged(10), margin=0.2)[1][0] == [Prefill(2, 2, 0)]


def test_an_empty_engine_takes_one_prefill_whatever_the_margin() -> None:
    """Margin 1 is never kept beside others, and nobody waits for ever: one at a time."""
    found = steps(table_of([0, 0], [3, 3], [2, 2]), paged(16), margin=1.0)
    assert [len(prefills) + len(decodes) for prefills, decodes, _ in found] == [2, 2]
    found = steps(table_of([0, 10**9], [3, 3], [4, 2]), paged(16), margin=1.0)
    assert [len(prefills) + len(decodes) for prefills, decodes, _ in found] == [1, 1, 1, 1, 1, 1]


def test_the_queue_stays_closed_until_somebody_finishes() -> None:
    """After a reset there is room for a short prompt, and it is not taken before the next end."""
    table = table_of([0, 0, 0, 2 * 10**9], [2, 2, 2, 1], [4, 4, 4, 1])
    found = steps(table, paged(4))
    assert found[1][2] == (2,)
    ends = next(step for step, (_, decodes, _) in enumerate(found) if Decode(1, 4) in decodes)
    assert min(step for step, (prefills, *_) in enumerate(found) if Prefill(3, 1, 0) in prefills) == ends + 1


def test_a_queue_closed_by_someone_whose_client_left_opens_again() -> None:
    """Nobody finishes: the engine, empty, takes the next (transformers 5.24 would wait for ever)."""
    table = table_of([0, 0, 0], [2, 2, 2], [6, 6, 6])
    left = plan_of(cancel_after_ns=[3 * 10**9, 3 * 10**9, -1])
    found = steps(table, paged(4), clients=left)
    assert found[1][2] == (2,) and found[-1][1] == [Decode(2, 6)]


def test_a_long_queue_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all slots taken, or with no block free, nobody behind the next in line is looked at (work per event)."""
    looked_at = []
    everyone = TailQueue.__iter__
    monkeypatch.setattr(TailQueue, "__iter__", lambda queue: (looked_at.append(seq) or seq for seq in everyone(queue)))
    for num_blocks in (1000, 24):
        looked_at.clear()
        n = 2000
        table = table_of([0] * n, [8] * n, [12] * n)
        s = paged(num_blocks, block_size=4, max_num_seqs=8)
        watched = WatchedScheduler(build_scheduler(replace(s, safety_margin=0.0)))
        records = run_engine(table, s, ConstantStepTime(), scheduler=watched)
        assert len(looked_at) <= n + records.num_preemptions + 2 * len(watched.batches)
