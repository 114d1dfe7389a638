"""The loop that serves requests on an engine, with an engine that does as it is told: clocks, arrivals, complaints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")  # calibrate is what needs it
pytest.importorskip("transformers")

from calibrate.clock import Timing
from calibrate.errors import CalibrationError
from calibrate.replay.ask import AskedRequest, ReplaySettings, ask_lengths, random_prompt
from calibrate.replay.driver import EngineIdentity, RunClock, replay
from calibrate.replay.ledger import Taken
from simserve.recorded.steps import Decode, Prefill

ADDING = Timing(0.5, 0.25)  # wall, CPU
STEPPING = Timing(2.0, 1.0)


class Obedient:
    """Serves all it has at once: a prompt in one step, then a token a step; nothing is ever preempted unless told."""

    settings = ReplaySettings(64, 4096, 4096, num_blocks=64, block_size=16)
    identity = EngineIdentity("obedient", {"obedient": "1"})

    def __init__(self, spoil: Callable[[Taken], Taken] = lambda taken: taken) -> None:
        self._spoil = spoil
        self._left: dict[int, int] = {}
        self._context: dict[int, tuple[int, int]] = {}  # cached, known

    def add(self, asked: AskedRequest) -> Timing:
        self._left[asked.id] = asked.num_output_tokens
        self._context[asked.id] = (0, len(asked.prompt))
        return ADDING

    def is_ready(self, more_coming: bool) -> bool:
        return bool(self._left)

    def step(self) -> list[Taken]:
        work = []
        for i in list(self._left):
            cached, known = self._context[i]
            work.append((i, known - cached, cached))
            self._context[i] = (known, known + 1)
            self._left[i] -= 1
        finished = frozenset(i for i, left in self._left.items() if left == 0)
        self._left = {i: left for i, left in self._left.items() if left}
        return [self._spoil(Taken(STEPPING, work, free_blocks=7, finished=finished))]

    def stop(self) -> None:
        """Nothing is held."""


def test_both_clocks_count_what_the_engine_took_and_nothing_else() -> None:
    """Handing over and stepping add up; a token stands at the end of its step; the first step is the prefill."""
    run = replay(Obedient(), ask_lengths([(3, 2), (5, 1)], 100))
    assert [step.begin for step in run.steps] == [(0.5, 1.0), (1.5, 3.0)]
    assert [step.end for step in run.steps] == [(1.5, 3.0), (2.5, 5.0)]
    first, second = run.steps
    assert sorted(first.prefills) == [Prefill(0, 3, 0), Prefill(1, 5, 0)] and first.decodes == ()
    assert second.decodes == (Decode(0, 3),) and second.prefills == ()
    assert (first.admitted, second.admitted, first.num_batched_tokens, first.free_blocks) == ((0, 1), (), 8, 7)
    assert run.requests[0].tokens == ((1.5, 3.0), (2.5, 5.0)) and run.requests[1].tokens == ((1.5, 3.0),)


def test_an_idle_engine_s_clocks_jump_to_the_next_arrival() -> None:
    """Nobody sleeps: a run with an hour of silence in it takes no time, and says so on both clocks."""
    asked = [AskedRequest(0, (1,), 1), AskedRequest(1, (1,), 1, arrival_s=3600.0)]
    run = replay(Obedient(), asked)
    assert run.requests[1].arrival.cpu_s == 3600.0
    assert run.steps[1].begin.cpu_s == 3600.0 + ADDING.cpu_s
    assert run.steps[1].begin.wall_s - run.steps[0].end.wall_s == pytest.approx(
        run.steps[1].begin.cpu_s - run.steps[0].end.cpu_s - ADDING.cpu_s + ADDING.wall_s
    )


@pytest.mark.parametrize(("clock", "steps"), [("process_cpu", [0, 2]), ("wall", [0, 1])])
def test_arrivals_are_meant_on_the_clock_that_was_chosen(clock: RunClock, steps: list[int]) -> None:
    """At 2 s of the CPU clock two steps have begun; at 2 s of the wall clock one."""
    asked = [AskedRequest(0, (1,), 5), AskedRequest(1, (1,), 5, arrival_s=2.0)]
    run = replay(Obedient(), asked, clock)
    assert [each.added_at_step for each in run.requests] == steps
    arrival = run.requests[1].arrival
    assert (arrival.cpu_s if clock == "process_cpu" else arrival.wall_s) == 2.0
    begin = run.steps[steps[1] - 1].begin
    share = (arrival.cpu_s - begin.cpu_s) / STEPPING.cpu_s  # within the step under way, the same share on both clocks
    assert share == pytest.approx((arrival.wall_s - begin.wall_s) / STEPPING.wall_s)


def test_who_comes_at_a_step_that_nobody_takes_comes_when_the_engine_is_idle() -> None:
    """The first request ends after two steps, so the second need not wait for a tenth that will never be."""
    asked = [AskedRequest(0, (1,), 2), AskedRequest(1, (1,), 1, at_step=10), AskedRequest(2, (1,), 1, at_step=11)]
    run = replay(Obedient(), asked)
    assert [each.added_at_step for each in run.requests] == [0, 2, 3]


SPOILT = {
    "serves nobody": (lambda taken: taken._replace(work=[]), "step 0 must serve somebody"),
    "ends one too early": (
        lambda taken: taken._replace(finished=frozenset({0})),
        r"have all their tokens, \[\] .got \[0",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_an_engine_whose_account_does_not_add_up_is_refused(case: str) -> None:
    """Its steps would be compared with ours, and its times with our predictions."""
    spoil, words = SPOILT[case]
    with pytest.raises(CalibrationError, match=words):
        replay(Obedient(spoil), [AskedRequest(0, (1, 2), 9)])


def test_requests_are_numbered_in_the_order_of_their_coming() -> None:
    """Anything else could not be put in a table of requests."""
    for asked in ([AskedRequest(1, (1,), 1)], [AskedRequest(0, (1,), 1, arrival_s=2), AskedRequest(1, (1,), 1)]):
        with pytest.raises(CalibrationError, match="count from 0 in the order"):
            replay(Obedient(), asked)


def test_a_preempted_sequence_prefills_again_what_it_had_made() -> None:
    """After a preemption it is admitted anew, and its recomputation is a prefill though it is past its prompt."""
    seen = []

    def preempt_before_the_third(taken: Taken) -> Taken:
        seen.append(taken)
        if len(seen) != 3:
            return taken
        (i, _, cached), *_ = taken.work
        return taken._replace(work=[(i, cached + 1, 0)], preempted=(i,))

    run = replay(Obedient(preempt_before_the_third), [AskedRequest(0, (1, 2, 3), 4)])
    third = run.steps[2]
    assert (third.preempted, third.admitted) == ((0,), (0,))
    assert third.prefills == (Prefill(0, 5, 0),) and third.decodes == ()
    assert run.requests[0].num_preemptions == run.num_preemptions == 1
    assert run.steps[3].decodes == (Decode(0, 5),)


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 6), st.floats(0, 20), st.integers(0, 8)), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_nobody_is_lost_and_nobody_is_early(rows: list[tuple[int, int, float, int]], by_step: bool) -> None:
    """Whatever the arrivals, every request gets its tokens, none before its time, and times never go back."""
    times = sorted(row[3] if by_step else row[2] for row in rows)
    asked = [
        AskedRequest(
            i, random_prompt(i, rows[i][0], 99), rows[i][1], **({"at_step": t} if by_step else {"arrival_s": t})
        )
        for i, t in enumerate(times)
    ]
    ended: list[int] = []
    run = replay(Obedient(), asked, on_progress=ended.append)
    assert ended[-1] == len(rows) and ended == sorted(ended)
    for each, wanted in zip(run.requests, asked, strict=True):
        assert len(each.tokens) == wanted.num_output_tokens
        assert each.arrival.cpu_s <= each.first_scheduled.cpu_s < each.tokens[0].cpu_s
        if not by_step:
            assert each.arrival.cpu_s == pytest.approx(wanted.arrival_s)
    ends = [step.end for step in run.steps]
    assert ends == sorted(ends) and all(step.begin < step.end for step in run.steps)
