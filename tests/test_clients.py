"""Clients as a stream of events: who acts when, and what follows from what the engine answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.clients import NOBODY, OPEN_LOOP, ClientPlan, RetryPolicy, Turns
from simserve.clients.clients import Arrival, Clients, Departure
from simserve.engine import EngineOptions
from simserve.records import CANCELLED, FINISHED, REJECTED, TIMED_OUT
from simserve.request import Sequence
from simserve.simulate import run_engine
from tests.builders import build_scheduler
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, session_turns, table_of, tables

ROOMY = Settings("continuous", "paged", 4, 1000, 1000, num_blocks=10_000)
FOREVER = 1 << 60


def retry(**given):
    policy = {"max_attempts": 3, "backoff_ns": 10 * MS, "multiplier": 2.0, "max_backoff_ns": 25 * MS, "jitter": 0.0}
    return RetryPolicy(**{**policy, "after_rejection": True, "after_timeout": True, **given})


def run(table, plan=OPEN_LOOP, s=ROOMY, step_s=0.001, **options):
    return run_engine(table, build_scheduler(s), ConstantStepTime(step_s), EngineOptions(**options), plan)


def in_closed_loop(n, concurrency, **plan):
    return table_of([0] * n, [4] * n, [5] * n), ClientPlan(concurrency=concurrency, **plan)


def test_backoff_doubles_up_to_its_ceiling():
    """Exponential backoff: 10, 20, then the ceiling of 25 ms; full jitter may shorten it to nothing but one tick."""
    delays = [retry().delay_ns(attempt, 0.7) for attempt in (1, 2, 3, 4)]
    assert delays == [10 * MS, 20 * MS, 25 * MS, 25 * MS]
    assert retry(jitter=1.0).delay_ns(1, 0.25) == 7.5 * MS
    assert retry(jitter=1.0).delay_ns(1, 1.0) == 1


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True), st.integers(0, 10**12))
def test_nobody_comes_back_before_retry_after(attempt, draw, retry_after_ns):
    """RFC 9110, 10.2.3: Retry-After is how long the client ought to wait, so no jitter undercuts it."""
    delay = retry(jitter=0.9).delay_ns(attempt, draw, retry_after_ns)
    assert delay >= retry_after_ns
    assert delay <= max(25 * MS, retry_after_ns)


@given(tables())
def test_an_open_loop_sends_the_table_and_nothing_else(table):
    """Whatever the engine does, arrivals come at the table's times in the table's order."""
    clients = Clients(table, OPEN_LOOP)
    events = list(clients.pop_until(FOREVER))
    assert [(e.time_ns, e.request.id, e.attempt) for e in events] == [
        (int(t), i, 1) for i, t in enumerate(table.arrival_ns)
    ]
    assert clients.next_ns is None
    assert not clients.is_arrival_scheduled


def test_a_closed_loop_holds_as_many_as_it_has_clients():
    """N clients: N requests at once, and one more for each that ends, think time later."""
    table, plan = in_closed_loop(5, 2, think_ns=np.array([0, 0, 7, 0, 9]))
    clients = Clients(table, plan)
    assert [e.request.id for e in clients.pop_until(1)] == [0, 1]
    assert clients.next_ns is None
    clients.ended(1, 100)
    assert list(clients.pop_until(107)) == []
    (third,) = clients.pop_until(108)
    assert (third.time_ns, third.request.id, third.request.arrival_ns) == (107, 2, 107)


def test_departures_come_before_arrivals_and_cancellations_before_time_outs():
    """At one instant: whoever leaves makes room first, and of two reasons the client's own counts."""
    table = table_of([0, 10 * MS], [1, 1], [1, 1])
    plan = ClientPlan(timeout_ns=10 * MS, cancel_after_ns=np.array([10 * MS, -1]))
    clients = Clients(table, plan)
    (first,) = clients.pop_until(1)
    clients.waits(Sequence(first.request), 1)
    kinds = []
    for event in clients.pop_until(10 * MS + 1):
        kinds.append(type(event))
        if isinstance(event, Departure):
            assert event.cancelled
            assert not clients.gave_up(event)
            clients.ended(event.request.id, event.time_ns)
    assert kinds == [Departure, Arrival]


def test_a_met_deadline_wakes_nobody():
    """An answer that came in time leaves nothing behind: the run ends with the last answer, not with its deadline."""
    records = run(table_of([0], [4], [5]), ClientPlan(timeout_ns=3600 * 1000 * MS))
    assert records.requests.status.tolist() == [FINISHED]
    assert records.spans.columns()["end_ns"].max() == 5 * MS


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 30), concurrency=st.integers(1, 8), think_ms=st.integers(0, 20), outputs=st.integers(1, 9))
def test_a_closed_loop_obeys_the_interactive_response_time_law(n, concurrency, think_ms, outputs):
    """Denning & Buzen (1978): clients are either in the system or thinking, so N · T = Σ (response + think) up to the
    clients that have stopped by the end; and never more than N are in the system."""
    table, plan = table_of([0] * n, [4] * n, [outputs] * n), ClientPlan(concurrency, np.full(n, think_ms * MS))
    records = run(table, plan)
    r = records.requests
    spans = records.spans.columns()
    assert (spans["num_waiting_begin"] + spans["num_running_begin"] <= concurrency).all()
    num_thoughts = n - min(n, concurrency)
    busy_ns = int((r.end_ns - r.arrival_ns).sum()) + num_thoughts * think_ms * MS
    end_ns = int(r.end_ns.max())
    assert busy_ns <= min(n, concurrency) * end_ns
    assert busy_ns >= min(n, concurrency) * (end_ns - int((r.end_ns - r.arrival_ns).max()) - think_ms * MS)


def test_a_time_out_frees_the_slot_for_the_next():
    """One slot, the first request would take 100 ms and its client gives up after 10: the second starts at the end of
    the step in which that happens."""
    one_slot = Settings("continuous", "paged", 1, 1000, 1000, num_blocks=1000)
    records = run(table_of([0, 0], [4, 4], [100, 2]), ClientPlan(timeout_ns=10_500_000), one_slot)
    r = records.requests
    assert r.status.tolist() == [TIMED_OUT, TIMED_OUT]  # both were sent at 0
    patient = ClientPlan(cancel_after_ns=np.array([10_500_000, -1]))
    r = run(table_of([0, 0], [4, 4], [100, 2]), patient, one_slot).requests
    assert r.status.tolist() == [CANCELLED, FINISHED]
    assert (r.end_ns[0], r.first_scheduled_ns[1]) == (10_500_000, 11 * MS)
    assert r.num_emitted_tokens[0] == 11  # the step under way was computed to its end


def test_429_then_served_after_retry_after():
    """One slot and one place in the queue: the third is turned away, waits the server's second, and is served."""
    s = Settings("continuous", "paged", 1, 1000, 1000, num_blocks=100)
    table = table_of([0, 1 * MS, 2 * MS], [4] * 3, [10] * 3)
    limits = {"max_queued_requests": 1, "retry_after_ns": 1000 * MS}
    records = run(table, ClientPlan(retry=retry()), s, **limits)
    r = records.requests
    assert (r.status == FINISHED).all()
    assert records.num_turned_away == 1
    assert (r.num_attempts[2], r.away_ns[2], r.first_scheduled_ns[2]) == (2, 1000 * MS, 1002 * MS)
    assert (r.end_ns[2] - r.arrival_ns[2]) == 1010 * MS  # the client counts from its first attempt
    without = run(table, OPEN_LOOP, s, **limits).requests
    assert without.status.tolist() == [FINISHED, FINISHED, REJECTED]
    assert without.reject_reason[2].startswith("429")


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_run_stops_when_told(fast_forward):
    """``stop_when`` is asked with what has arrived and finished; what has not happened by then has no times."""
    asked = []

    def third_arrived(now_ns, num_arrived, num_finished):
        asked.append((now_ns, num_arrived, num_finished))
        return num_arrived == 3

    table = table_of([0, 5 * MS, 10 * MS, 500 * MS], [4] * 4, [100] * 4)
    records = run(table, fast_forward=fast_forward, stop_when=third_arrived)
    assert records.num_arrived == 3
    assert asked[-1] == (records.stopped_ns, 3, 0)
    assert records.stopped_ns >= 10 * MS
    assert (records.requests.end_ns == -1).all()
    assert records.in_system_ns == sum(records.stopped_ns - t * MS for t in (0, 5, 10))


@settings(max_examples=60, deadline=None)
@given(table=tables(), share=st.integers(1, 3))
def test_patience_without_end_changes_nothing(table, share):
    """Deadlines beyond the end of the run leave every record as it was without them."""
    plan = ClientPlan(timeout_ns=10**15, ttft_timeout_ns=10**15, cancel_after_ns=np.full(len(table), 10**15))
    with_deadlines, without = run(table, plan), run(table)
    for name in ("status", "first_scheduled_ns", "first_token_ns", "last_token_ns", "end_ns"):
        assert (getattr(with_deadlines.requests, name) == getattr(without.requests, name)).all()
    assert (with_deadlines.itl_counts == without.itl_counts).all()


def test_turns_follow_answers_by_their_wait():
    """A session of three beside a request of its own: each turn is sent its wait after the one before has ended, not
    when the table has it, and its row says so."""
    table = table_of([0, 0, 1 * MS, 3 * MS], [4] * 4, [5, 5, 2, 3])
    turns = Turns(np.array([2, NOBODY, 3, NOBODY]), np.array([0, 0, 7 * MS, 0]))
    clients = Clients(table, ClientPlan(turns=turns))
    assert [e.request.id for e in clients.pop_until(FOREVER)] == [0, 1]
    assert not clients.is_arrival_scheduled
    clients.ended(0, 50 * MS)
    (turn,) = clients.pop_until(FOREVER)
    assert (turn.time_ns, turn.request.id, turn.request.arrival_ns, turn.attempt) == (57 * MS, 2, 57 * MS, 1)
    r = run(table, ClientPlan(turns=turns)).requests
    assert r.arrival_ns.tolist() == [0, 0, 12 * MS, 14 * MS]
    assert r.end_ns.tolist() == [5 * MS, 5 * MS, 14 * MS, 17 * MS]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), table=tables())
def test_a_session_is_sequential_and_nobody_is_lost(data, table):
    """Law: a turn arrives exactly its wait after the end of the one before it, and every request ends."""
    next_id, wait_ns = data.draw(session_turns(len(table), st.integers(0, 50 * MS)))
    plan = ClientPlan(turns=Turns(np.array(next_id), np.array(wait_ns)))
    r = run(table, plan, Settings("continuous", "paged", 2, 1000, 1000, num_blocks=10_000)).requests
    assert ((r.status == FINISHED) | (r.status == REJECTED)).all()
    for i, j in enumerate(next_id):
        if j != NOBODY:
            assert r.arrival_ns[j] == r.end_ns[i] + wait_ns[j]
    starts = ~plan.turns.follows
    assert (r.arrival_ns[starts] == table.arrival_ns[starts]).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), table=tables(), concurrency=st.integers(1, 4), think_ms=st.integers(0, 20))
def test_clients_play_whole_sessions(data, table, concurrency, think_ms):
    """Law: in a closed loop a turn comes its wait after the answer before it, a session begins (in the table's order)
    when the first client is free and has thought, and never are more sessions open than there are clients."""
    next_id, wait_ns = data.draw(session_turns(len(table), st.integers(0, 50 * MS)))
    turns = Turns(np.array(next_id), np.array(wait_ns))
    plan = ClientPlan(concurrency, np.full(len(table), think_ms * MS), turns=turns)
    r = run(table, plan, Settings("continuous", "paged", 2, 1000, 1000, num_blocks=10_000)).requests
    free, openings = [-think_ms * MS] * concurrency, np.flatnonzero(~turns.follows).tolist()
    for opening in openings:
        assert r.arrival_ns[opening] == min(free) + think_ms * MS
        free.remove(min(free))
        last = opening
        while (turn := next_id[last]) != NOBODY:
            assert r.arrival_ns[turn] == r.end_ns[last] + wait_ns[turn]
            last = turn
        free.append(r.end_ns[last])
