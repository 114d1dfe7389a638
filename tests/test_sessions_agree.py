"""Turns whose prompts begin with earlier prompts and answers: the real prefix cache and the slow, obvious one agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.clients.plan import NOBODY, ClientPlan, Turns
from simserve.records import FINISHED
from simserve.request import RequestTable
from simserve.workload.kept import session_content
from tests.builders import run_engine
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, client_plans, durations, settings_for, speculations, step_times
from tests.test_kept import conversations
from tests.test_prefix_agrees import check


@st.composite
def session_cases(draw: st.DrawFn, **fixed: object) -> Case:
    """A whole run of conversations whose contexts grow, shrink and begin anew, each turn after the answer before it,
    with clients of any kind and caches that evict and preempt."""
    before, kept, prompts, outputs = draw(conversations(draw(st.booleans())))
    n, gaps = len(before), st.one_of(st.just(0), st.integers(0, 60 * MS))
    arrivals = np.cumsum(draw(st.lists(gaps, min_size=n, max_size=n)))
    next_id = np.full(n, NOBODY)
    next_id[before[before != NOBODY]] = np.flatnonzero(before != NOBODY)
    waits = draw(st.lists(st.one_of(st.just(0), durations()), min_size=n, max_size=n))
    content = session_content(before, kept, prompts, outputs)
    zeros = np.zeros(n, np.int64)
    table = RequestTable(arrivals - arrivals[0], prompts, outputs, outputs, zeros, content)
    policy = draw(st.sampled_from(["chunked", "continuous"]))
    told = {"policy": policy, "allocator": "paged", "preemption": "recompute", "prefix_caching": True, **fixed}
    clients = replace(draw(client_plans(n, durations())), turns=Turns(next_id, np.array(waits, np.int64)))
    return Case(table, draw(settings_for(table, draw(st.booleans()), **told)), draw(step_times()), clients)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step-by-step"])
def test_every_record_and_every_block(fast_forward: bool) -> None:
    """Whatever the next turn finds of an answer was given back before."""

    @settings(max_examples=25, deadline=None)
    @given(session_cases())
    def agrees(case: Case) -> None:
        check(case, fast_forward)

    agrees()


@settings(max_examples=20, deadline=None)
@given(st.data(), speculations())
def test_answers_of_drafts(data: st.DataObject, drafts: object) -> None:
    """Room for drafts is no content: what a pass has not verified cannot be found."""
    check(data.draw(session_cases(speculation=drafts)))


@settings(max_examples=25, deadline=None)
@given(conversations(may_shrink=False), st.sampled_from([1, 4, 16]))
def test_a_turn_finds_all_that_was_computed_before_it(told: tuple[np.ndarray, ...], block_size: int) -> None:
    """Law: one client and room for everything: a turn that goes on finds the whole blocks of the prompt and answer
    before it but for the answer's last token, which was never computed, nor is its own last one looked up."""
    before, kept, prompts, outputs = told
    n, zeros = len(before), np.zeros(len(before), np.int64)
    table = RequestTable(zeros, prompts, outputs, outputs, zeros, session_content(*told))
    next_id = np.full(n, NOBODY)
    next_id[before[before != NOBODY]] = np.flatnonzero(before != NOBODY)
    plan = ClientPlan(concurrency=1, turns=Turns(next_id, zeros))
    engine = Settings("chunked", "paged", 2, 1000, 1000, num_blocks=5000, block_size=block_size, prefix_caching=True)
    r = run_engine(table, engine, ConstantStepTime(0.01), clients=plan).requests
    assert (r.status == FINISHED).all()
    there = np.where(kept > 0, np.minimum(kept, prompts[before] + outputs[before] - 1), 0)
    expected = np.minimum(there, prompts - 1) // block_size * block_size
    assert r.num_prefix_hit_tokens.tolist() == expected.tolist()
