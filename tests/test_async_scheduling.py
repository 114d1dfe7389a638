"""Asynchronous scheduling (vLLM's --async-scheduling): the next step is decided while one runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.engine import EngineOptions
from simserve.errors import ScenarioError
from simserve.records import FINISHED, REJECTED
from simserve.scenario import parse_scenario
from simserve.scheduling import ChunkedScheduler
from simserve.simulate import prepare, run_engine
from tests.builders import build_scheduler
from tests.reference_types import Settings
from tests.scenario_builders import small
from tests.step_times import ConstantStepTime
from tests.strategies import MS, cases, table_of
from tests.test_invariants import everything

STEP_S = 0.010
STEP_NS = 10 * MS
run_briefly = settings(max_examples=80, deadline=None)


def run(table, s, step_time=None, is_async=True, fast_forward=True):
    scheduler = ChunkedScheduler(build_scheduler(s).pool, is_async)
    options = EngineOptions(fast_forward, s.swap_bytes_per_s, async_scheduling=is_async)
    return run_engine(table, scheduler, step_time or ConstantStepTime(STEP_S), options)


def roomy(slots, budget=10_000):
    return Settings("chunked", "paged", slots, budget, 10_000, num_blocks=100_000)


@dataclass
class Job:
    """A request in the emulation: how much of it was scheduled, and when which of its tokens came back."""

    arrival_ns: int
    prompt: int
    output: int
    scheduled: int = 0  # tokens computed, or being computed
    first_ns: int = -1
    last_ns: int = -1

    def tokens(self, budget):
        """Of the next step, given that all before will have come back; none once the last token is on its way."""
        if self.scheduled < self.prompt:
            return min(budget, self.prompt - self.scheduled)
        return min(budget, 1 if self.emitted(self.scheduled) < self.output else 0)

    def emitted(self, scheduled):
        return max(0, scheduled - self.prompt + 1)


class BatchQueue:
    """vLLM's loop with a batch queue of two, literally: schedule while a step runs, take the older result, free what is
    finished; an empty schedule does not run and waits for the result that is out."""

    def __init__(self, table, slots, budget):
        columns = table.arrival_ns, table.num_prompt_tokens, table.num_output_tokens
        self.jobs = [Job(*map(int, row)) for row in zip(*columns, strict=True)]
        self.coming, self.waiting, self.running = list(self.jobs), [], []
        self.out = []  # steps that run, or will as soon as the one before has ended: (end, [(job, scheduled)])
        self.slots, self.budget, self.now, self.free_at = slots, budget, 0, 0

    def run(self):
        while self.coming or self.waiting or self.running or self.out:
            work = self.schedule()
            if work:
                self.dispatch(work)
                if len(self.out) < 2:
                    continue  # decide the next one at once
            if self.out:
                self.take_result()
            elif self.coming:
                self.now = max(self.now, self.coming[0].arrival_ns)
        return [(job.first_ns, job.last_ns) for job in self.jobs]

    def schedule(self):
        while self.coming and self.coming[0].arrival_ns <= self.now:
            self.waiting.append(self.coming.pop(0))
        room, work = self.budget, []
        for job in self.running:
            work.append((job, job.tokens(room)))
            room -= work[-1][1]
        while self.waiting and room and len(self.running) < self.slots:
            job = self.waiting.pop(0)
            self.running.append(job)
            work.append((job, job.tokens(room)))
            room -= work[-1][1]
        return [(job, tokens) for job, tokens in work if tokens]

    def dispatch(self, work):
        for job, tokens in work:
            job.scheduled += tokens
        self.free_at = max(self.now, self.free_at) + STEP_NS
        self.out.append((self.free_at, [(job, job.scheduled) for job, _ in work]))

    def take_result(self):
        self.now, done = self.out.pop(0)
        for job, scheduled in done:
            if job.emitted(scheduled) >= 1 and job.first_ns < 0:
                job.first_ns = self.now
            if job.emitted(scheduled) == job.output:
                job.last_ns = self.now
                self.running.remove(job)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), slots=st.integers(1, 4), budget=st.integers(4, 40))
def test_it_does_what_a_batch_queue_of_two_does(data, slots, budget):
    """First and last tokens of every request, to the nanosecond, against the emulated loop; arrivals on the ends of
    steps and off them."""
    n = data.draw(st.integers(1, 8))
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 3, 10, 20, 35, 200]), min_size=n, max_size=n))
    lengths = st.lists(st.integers(1, 12), min_size=n, max_size=n)
    table = table_of((np.cumsum(gaps) * MS).tolist(), data.draw(lengths), data.draw(lengths))
    r = run(table, roomy(slots, budget)).requests
    found = list(zip(r.first_token_ns.tolist(), r.last_token_ns.tolist(), strict=True))
    assert found == BatchQueue(table, slots, budget).run()


def test_a_slot_comes_back_one_step_late():
    """Two slots: the first request has its last token at 50 ms. The step after that was decided when that was not
    known, so the third request is prefilled in the step from 60 ms on; else it is in the one from 50 ms on."""
    table = table_of([0, 0, 0], [1, 1, 1], [5, 20, 1])
    late, prompt = (run(table, roomy(2), is_async=is_async).requests for is_async in (True, False))
    assert (late.last_token_ns[0], prompt.last_token_ns[0]) == (50 * MS, 50 * MS)
    assert (late.first_scheduled_ns[2], prompt.first_scheduled_ns[2]) == (60 * MS, 50 * MS)


def test_an_arrival_is_seen_one_step_late_while_the_engine_is_busy():
    """It comes at 15 ms, in the step from 10 to 20, when the one from 20 to 30 is decided already."""
    table = table_of([0, 15 * MS], [1, 1], [10, 1])
    r = run(table, roomy(2)).requests
    assert r.first_scheduled_ns.tolist() == [0, 30 * MS]


def test_an_idle_engine_sees_an_arrival_at_once():
    """Nothing is decided beforehand when nothing runs."""
    r = run(table_of([0, 500 * MS], [1, 1], [2, 1]), roomy(1)).requests
    assert r.first_scheduled_ns.tolist() == [0, 500 * MS]


@run_briefly
@given(cases(policy="chunked"))
def test_fast_forward_changes_nothing(case):
    """INV-7: on = off, bit for bit."""
    on, off = (run(case.table, case.settings, case.step_time, fast_forward=ff) for ff in (True, False))
    assert everything(on) == everything(off)


@run_briefly
@given(cases(policy="chunked", tight=True, allocator="paged"))
def test_everybody_is_served_in_a_tight_cache_too(case):
    """INV-8 and INV-9 while blocks come back late: what was held is let go of when it is in the way of the last one."""
    records = run(case.table, case.settings, case.step_time)
    r = records.requests
    assert np.isin(r.status, (FINISHED, REJECTED)).all()
    assert records.in_system_ns == int((r.end_ns - r.arrival_ns).sum())
    off = run(case.table, case.settings, case.step_time, fast_forward=False)
    assert everything(records) == everything(off)


@pytest.mark.parametrize("policy", ["static", "continuous"])
def test_it_is_a_key_of_the_chunked_policy(policy):
    """vLLM v1 has it, and no other policy here."""
    with pytest.raises(ScenarioError, match="async_scheduling"):
        parse_scenario({**small(), "engine": {**small()["engine"], "policy": policy, "async_scheduling": True}})


@pytest.mark.parametrize(
    "clients", [{"timeout_s": 5.0}, {"ttft_timeout_s": 1.0}, {"cancel": {"share": 0.5, "mean_after_s": 1.0}}]
)
def test_clients_who_give_up_need_an_engine_that_sees_it(clients):
    """One sentence: a time-out in the very step that answers would otherwise count as answered."""
    data = small(engine__policy="chunked", engine__async_scheduling=True, workload__clients=clients)
    data["step_time"] = {"roofline": "laptop-cpu", "dtype": "fp32"}
    with pytest.raises(ScenarioError, match="async_scheduling: must be false where clients give up"):
        prepare(parse_scenario(data))
    prepare(parse_scenario({**data, "engine": {**data["engine"], "async_scheduling": False}}))
