"""What engine modes have to do with one another: laws that need no reference, only two runs."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.records import FINISHED, NEVER, Records, RequestRecords
from simserve.request import RequestTable
from simserve.speculation.acceptance import uniform
from tests.builders import run_engine
from tests.reference_types import Speculation
from tests.step_times import ConstantStepTime
from tests.strategies import COMBINATIONS, Case, cases, client_cases, may_speculate, speculations

run_briefly = settings(max_examples=60, deadline=None)
ROOMY = {"max_num_batched_tokens": 10**6, "max_model_len": 10**4, "num_blocks": 10**6, "block_size": 1, "watermark": 0}


def run(case: Case, fast_forward: bool = True) -> Records:
    return run_engine(case.table, case.settings, case.step_time, fast_forward, clients=case.clients)


def roomy(case: Case, **changes: object) -> Case:
    """The case with constant steps, and no want of cache nor of tokens in a step."""
    constant = case.step_time if isinstance(case.step_time, ConstantStepTime) else ConstantStepTime(0.007)
    s = replace(case.settings, **{**ROOMY, "preemption": "recompute", "prefix_caching": False, **changes})
    return replace(case, settings=s, step_time=constant)


def assert_same_times(mine: Records, other: Records, counts: tuple[str, ...] = ()) -> None:
    """Every request's times and ends are the same in both."""
    for name in ("status", "arrival_ns", *RequestRecords.TIMES, *counts):
        assert (getattr(mine.requests, name) == getattr(other.requests, name)).all(), name
    assert (mine.num_steps, mine.in_system_ns) == (other.num_steps, other.in_system_ns)


@pytest.mark.parametrize(("policy", "cached"), [("continuous", "chunked"), ("static", "static")])
def test_where_steps_cost_the_same_nobody_misses_the_cache(policy, cached):
    """With constant steps and no want of room, an engine without a cache emits every token when one with a cache does
    (``chunked``, as nobody's prefill holds up the others); only what they compute differs: NP + N(N − 1)/2 against
    P + N − 1."""

    @run_briefly
    @given(client_cases(policy=policy, allocator="none"))
    def agrees(case):
        without = run(roomy(case))
        with_cache = run(roomy(case, policy=cached, allocator="paged"))
        assert_same_times(without, with_cache, ("num_emitted_tokens", "num_attempts", "away_ns"))
        assert (without.itl_counts == with_cache.itl_counts).all()
        r, once = without.requests, (without.requests.status == FINISHED) & (without.requests.num_attempts == 1)
        prompts, outputs = case.table.num_prompt_tokens, case.table.num_output_tokens
        work = outputs * prompts + outputs * (outputs - 1) // 2
        assert (r.num_computed_tokens == work)[once].all()
        assert (with_cache.requests.num_computed_tokens == prompts + outputs - 1)[once].all()

    agrees()


def num_passes(drafts: Speculation, request_id: int, num_output_tokens: int) -> int:
    """Passes of an answer whose first token comes from its prefill."""
    done, passes = 1, 0
    while done < num_output_tokens:
        right = [uniform(drafts.seed, request_id, done + i) < alpha for i, alpha in enumerate(drafts.acceptance)]
        done += 1 + ([*right, False].index(False))
        passes += 1
    return passes


@run_briefly
@given(st.data())
def test_speculation_is_a_plain_engine_with_shorter_answers(data):
    """With constant steps and no want of room, an answer that takes k passes ends when a plain one of 1 + k tokens
    does, whatever else happens meanwhile: everyone's times are those of the plain engine."""
    drafts = data.draw(speculations())
    case = data.draw(client_cases(speculation=drafts))
    outputs = [1 + num_passes(drafts, i, int(n)) for i, n in enumerate(case.table.num_output_tokens)]
    shorter = replace(case.table, num_output_tokens=np.array(outputs, np.int64))
    order = {"queue_order": "fcfs"} if case.settings.queue_order == "shortest_job_oracle" else {}
    size = {"reserve": "max_tokens"}
    mine = run(roomy(case, **order, **size))
    plain = run(roomy(replace(case, table=shorter), speculation=None, **order, **size))
    assert_same_times(mine, plain, ("num_attempts", "away_ns"))
    once = (mine.requests.status == FINISHED) & (mine.requests.num_attempts == 1)
    if once.all():
        assert mine.num_passes == sum(outputs) - len(outputs)
        assert mine.itl_sum_ns == plain.itl_sum_ns


@run_briefly
@given(cases(policy="chunked", allocator="paged", queue_order="fcfs"), st.integers(1, 5), st.data())
def test_better_drafts_delay_nobody(case, num_drafts, data):
    """INV-10 of speculation, where it is a theorem: constant steps, arrivals on their ends (an idle engine would begin
    between them), no want of room, chunked, first come first served. As every answer takes no more passes with likelier
    drafts or one draft more, nobody starts or ends later."""
    step_ns = round(roomy(case).step_time.step_s * 10**9)
    case = replace(case, table=replace(case.table, arrival_ns=case.table.arrival_ns // step_ns * step_ns))
    worse, better = sorted(data.draw(st.tuples(st.floats(0, 1), st.floats(0, 1))))
    seed = data.draw(st.integers(0, 1000))
    kinds = [None, (worse,) * num_drafts, (better,) * num_drafts, (better,) * (num_drafts + 1)]
    runs = [run(roomy(case, speculation=kind and Speculation(kind, seed))).requests for kind in kinds]
    for slower, faster in itertools.pairwise(runs):
        assert (faster.first_scheduled_ns <= slower.first_scheduled_ns).all()
        assert (faster.end_ns <= slower.end_ns).all()


@st.composite
def twice(draw: st.DrawFn, policy: str, allocator: str) -> tuple[Case, RequestTable]:
    """A case, and its requests followed by the same again after a long silence."""
    drafts = {"speculation": draw(speculations())} if draw(st.booleans()) and may_speculate(policy, allocator) else {}
    case = draw(client_cases(policy=policy, allocator=allocator, tight=draw(st.booleans()), **drafts))
    clients = replace(case.clients, concurrency=None, think_ns=None, cancel_after_ns=None, retry=None, jitter=None)
    clients = replace(clients, turns=None)
    return replace(case, clients=clients), case.table


@pytest.mark.parametrize(("policy", "allocator"), [(p, a) for p, a in COMBINATIONS if p != "static"])
def test_an_engine_that_was_idle_remembers_nothing(policy, allocator):
    """The same requests again, long after everyone of the first time has gone: everything happens again, as much
    later. (Not where prefixes are kept, nor in a static group, which waits for whoever is to come; speculation's luck
    is each request's own, so drafts are always or never right here.)"""

    @run_briefly
    @given(twice(policy, allocator))
    def agrees(drawn):
        case, table = drawn
        drafts = case.settings.speculation
        if drafts is not None:
            certain = Speculation(tuple(float(round(alpha)) for alpha in drafts.acceptance))
            case = replace(case, settings=replace(case.settings, speculation=certain))
        once = run(case)
        later = int(once.requests.end_ns.max()) + 10**9
        columns = {
            f.name: getattr(table, f.name)
            for f in dataclasses.fields(table)
            if f.name not in ("content", "tenants", "session")
        }
        shifted = {**columns, "arrival_ns": columns["arrival_ns"] + later}
        both = RequestTable(**{name: np.concatenate([columns[name], shifted[name]]) for name in columns})
        again, n = run(replace(case, table=both)).requests, len(table)
        for name in ("arrival_ns", *RequestRecords.TIMES):
            expected = getattr(once.requests, name)
            assert (getattr(again, name)[:n] == expected).all(), name
            assert (getattr(again, name)[n:] == np.where(expected == NEVER, NEVER, expected + later)).all(), name
        for name in ("status", *RequestRecords.COUNTS):
            assert (getattr(again, name)[n:] == getattr(once.requests, name)).all(), name

    agrees()
