"""Step by step with real engines on the smallest model: who computes what, over what, with how many blocks free.

Scheduling has no tolerance. Step counts are those found apart from this project (transformers 5.24 on a CPU).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.model import build_model, find_model
from calibrate.replay.ask import AskedRequest, ReplaySettings, ask_lengths
from calibrate.replay.continuous import TransformersReplay
from calibrate.replay.driver import replay
from calibrate.replay.static import StaticReplay
from simserve.kv_cache import PagedAllocator
from simserve.recorded.differences import compare_steps
from simserve.recorded.steps import read_engine_run, write_engine_run
from simserve.scheduling import Limits, Pool
from simserve.scheduling.transformers_fifo import TransformersScheduler
from tests.real_engines import (
    ask_skewed64,
    assert_identical,
    come_by_steps,
    compare_with_ours,
    our_steps,
    table_by_steps,
)
from tests.reference_types import Settings

AMPLE = ReplaySettings(8, 512, 2048, num_blocks=256, block_size=16)
OURS = Settings("chunked", "paged", 8, 512, 2048, num_blocks=256, block_size=16)


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(find_model("tiny"), "cpu", "fp32", "sdpa", 0)


def test_whole_prompts_under_a_budget(model: Any) -> None:
    """292 steps, mean batch 6.42: every one of them ours."""
    run = replay(TransformersReplay(model, AMPLE), ask_skewed64())
    assert_identical(run, compare_with_ours(run, OURS), 292)
    assert round(sum(len(step.prefills) + len(step.decodes) for step in run.steps) / 292, 2) == 6.42


def test_prompts_cut_to_a_budget_of_32_tokens(model: Any) -> None:
    """302 steps: chunks of the same sizes, over the same contexts, beside the same decodes."""
    run = replay(TransformersReplay(model, replace(AMPLE, max_num_batched_tokens=32)), ask_skewed64())
    assert_identical(run, compare_with_ours(run, replace(OURS, max_num_batched_tokens=32)), 302)
    assert any(work.num_context_tokens for step in run.steps for work in step.prefills)


@pytest.mark.parametrize("budget", [32, 512])
def test_arrivals_by_step(model: Any, budget: int) -> None:
    """Requests that come between two steps are admitted by the next one, the engine idle or not, as ours are."""
    asked = come_by_steps(ask_skewed64(), budget)
    run = replay(TransformersReplay(model, replace(AMPLE, max_num_batched_tokens=budget)), asked)
    assert_identical(run, compare_with_ours(run, replace(OURS, max_num_batched_tokens=budget)))
    assert len({each.added_at_step for each in run.requests}) > 20


@pytest.mark.parametrize("clock", ["process_cpu", "wall"])
def test_arrivals_by_the_clock_that_the_steps_make(model: Any, clock: Any) -> None:
    """A request is handed over before the first step that begins at its time or later. Replayed with its arrivals
    counted in steps, the run is ours, however fast this machine is."""
    asked = [replace(each, arrival_s=0.004 * each.id) for each in ask_skewed64()[:24]]
    run = replay(TransformersReplay(model, AMPLE), asked, clock)
    assert_identical(run, compare_with_ours(run, OURS))
    field = "cpu_s" if clock == "process_cpu" else "wall_s"
    for each, wanted in zip(run.requests, asked, strict=True):
        assert getattr(each.arrival, field) == pytest.approx(wanted.arrival_s)
        begins = [getattr(step.begin, field) for step in run.steps]
        assert getattr(each.first_scheduled, field) >= wanted.arrival_s
        if each.added_at_step < len(begins):
            assert begins[each.added_at_step] >= wanted.arrival_s
        if each.added_at_step > 0:
            assert begins[each.added_at_step - 1] < wanted.arrival_s


def our_fifo(settings: ReplaySettings) -> TransformersScheduler:
    """Our policy after the engine's, with the same settings."""
    limits = Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.max_model_len)
    cache = PagedAllocator(settings.num_blocks, settings.block_size, max_model_len=settings.max_model_len, watermark=0)
    margin = 0.15 if settings.safety_margin is None else settings.safety_margin
    return TransformersScheduler(Pool(limits, cache), margin)


@pytest.mark.parametrize(
    ("num_blocks", "budget", "num_steps"),
    [(256, 512, 292), (40, 512, 292), (30, 512, 356), (20, 512, 533), (20, 32, None), (17, 20, None)],
)
def test_few_blocks(model: Any, num_blocks: int, budget: int, num_steps: int | None) -> None:
    """Who starves, who is reset and when it comes again, over margins and a closed queue: all of it ours."""
    settings = replace(AMPLE, num_blocks=num_blocks, max_num_batched_tokens=budget)
    run = replay(TransformersReplay(model, settings), ask_skewed64("skewed64_tiny"))
    ours = our_steps(table_by_steps(run), OURS, our_fifo(settings))
    assert_identical(run, compare_steps(run.steps, ours), num_steps)
    assert (run.num_preemptions > 0) == (num_blocks < 256)


@st.composite
def small_runs(draw: st.DrawFn) -> tuple[ReplaySettings, list[AskedRequest]]:
    """A few requests, all at once or between steps, and a cache that holds the largest and little more."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=9))
    block_size = draw(st.sampled_from([4, 8, 16]))  # the engine takes no smaller ones
    most = max(prompt + output for prompt, output in lengths)
    settings = ReplaySettings(
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from([3, 7, 16, 64])),
        max_model_len=64,
        num_blocks=-(-most // block_size) + draw(st.integers(0, 5)),
        block_size=block_size,
        safety_margin=draw(st.sampled_from([None, 0.0, 0.3])),
    )
    asked = ask_lengths(lengths, 1024)
    return settings, come_by_steps(asked, draw(st.integers(0, 99))) if draw(st.booleans()) else asked


@settings(max_examples=30, deadline=None)
@given(small_runs())
def test_any_small_run_with_few_blocks(model: Any, drawn: tuple[ReplaySettings, list[AskedRequest]]) -> None:
    """Step by step ours, whatever the lengths, arrivals, budget, slots and margin."""
    told, asked = drawn
    run = replay(TransformersReplay(model, told), asked)
    assert_identical(run, compare_steps(run.steps, our_steps(table_by_steps(run), OURS, our_fifo(told))))


def test_static_groups(model: Any) -> None:
    """``generate`` on groups of 8, padded: 715 steps, the sum of each group's longest answer; tokens that the model
    computes, padding included, are ours too."""
    run = replay(StaticReplay(model, AMPLE), ask_skewed64())
    assert_identical(run, compare_with_ours(run, replace(OURS, policy="static")), 715)


def test_a_run_is_the_same_every_time_and_survives_its_file(model: Any, tmp_path: Path) -> None:
    """Two runs differ in times alone; what is written is read back equal."""
    asked = come_by_steps(ask_skewed64()[:16], 3)
    first, second = (replay(TransformersReplay(model, AMPLE), asked) for _ in range(2))
    bare = [[replace(step, begin=(0, 0), end=(0, 0)) for step in run.steps] for run in (first, second)]
    assert bare[0] == bare[1]
    write_engine_run(tmp_path / "run.jsonl", first)
    again = read_engine_run(tmp_path / "run.jsonl")
    assert again == replace(first, versions=dict(first.versions), settings=dict(first.settings))


def test_times_add_up(model: Any) -> None:
    """Both clocks: steps follow each other, a token's time is its step's end, and taking requests in takes time too."""
    run = replay(TransformersReplay(model, AMPLE), ask_skewed64()[:8])
    for clock in (0, 1):
        assert run.steps[0].begin[clock] > 0  # eight requests were handed over before
        for before, after in zip(run.steps, run.steps[1:], strict=False):
            assert before.begin[clock] < before.end[clock] == after.begin[clock]
        ends = {step.end[clock] for step in run.steps}
        assert {moment[clock] for each in run.requests for moment in each.tokens} <= ends
    assert run.settings["engine.max_num_seqs"] == 8 and run.settings["clock"] == "process_cpu"


def test_one_token_answers_and_one_token_prompts(model: Any) -> None:
    """The shortest there is: a prompt of one token is a prefill, an answer of one token needs no decode."""
    asked = [AskedRequest(0, (5,), 1), AskedRequest(1, (6,), 3), AskedRequest(2, (7, 8), 1)]
    run = replay(TransformersReplay(model, AMPLE), asked)
    assert_identical(run, compare_with_ours(run, OURS), 3)
    assert len(run.steps[0].prefills) == 3 and not run.steps[0].decodes
