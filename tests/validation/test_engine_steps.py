"""Step by step with real engines, on a model of 25 million parameters and through vLLM: every composition is ours.

vLLM runs in an interpreter of its own, which SIMSERVE_VLLM_PYTHON names; it serves the smallest model and the larger
one. Step counts are those found apart from this project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.errors import CalibrationError
from calibrate.model import build_model, find_model
from calibrate.replay.ask import ReplaySettings
from calibrate.replay.continuous import TransformersReplay
from calibrate.replay.driver import replay
from calibrate.replay.static import StaticReplay
from calibrate.replay.vllm_replay import VllmReplay
from simserve.kv_cache import PagedAllocator
from simserve.recorded.differences import compare_steps
from simserve.recorded.steps import read_engine_run
from simserve.scheduling import Limits, Pool
from simserve.scheduling.transformers_fifo import TransformersScheduler
from tests.real_engines import (
    ask_alike,
    ask_skewed64,
    assert_identical,
    come_by_steps,
    compare_with_ours,
    content_by_tokens,
    our_steps,
    table_by_steps,
)
from tests.reference_types import Settings
from tests.vllm_runs import KEPT, SMALL, ours_of, record, without_times

pytestmark = pytest.mark.validation

VLLM_PYTHON = os.environ.get("SIMSERVE_VLLM_PYTHON")
needs_vllm = pytest.mark.skipif(VLLM_PYTHON is None, reason="SIMSERVE_VLLM_PYTHON names no interpreter that has vLLM")

AMPLE = ReplaySettings(8, 512, 2048, num_blocks=256, block_size=16)
OURS = Settings("chunked", "paged", 8, 512, 2048, num_blocks=256, block_size=16)


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(find_model("25m"), "cpu", "fp32", "sdpa", 0)


@pytest.fixture(params=["tiny", "25m"])
def vllm(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Starts vLLM on a model with settings, as often as asked; all of them end with the test."""
    started: list[VllmReplay] = []

    def start(settings: ReplaySettings) -> VllmReplay:
        started.append(VllmReplay(Path(str(VLLM_PYTHON)), find_model(request.param).spec, "fp32", settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.mark.parametrize(("budget", "num_steps"), [(512, 292), (32, 302)])
def test_transformers_on_a_larger_model(model: Any, budget: int, num_steps: int) -> None:
    """Whole prompts and cut ones: the model does not matter to the scheduler, and here it is seen not to."""
    settings = replace(AMPLE, max_num_batched_tokens=budget)
    run = replay(TransformersReplay(model, settings), ask_skewed64())
    assert_identical(run, compare_with_ours(run, replace(OURS, max_num_batched_tokens=budget)), num_steps)


def test_static_groups_on_a_larger_model(model: Any) -> None:
    """715 steps."""
    run = replay(StaticReplay(model, AMPLE), ask_skewed64())
    assert_identical(run, compare_with_ours(run, replace(OURS, policy="static")), 715)


@pytest.mark.parametrize(("num_blocks", "num_steps"), [(40, 318), (30, 327), (20, 564)])
def test_transformers_with_few_blocks(model: Any, num_blocks: int, num_steps: int) -> None:
    """Starvation and resets on the larger model, whose prompts are others than the smallest one's."""
    run = replay(TransformersReplay(model, replace(AMPLE, num_blocks=num_blocks)), ask_skewed64())
    cache = PagedAllocator(num_blocks, 16, max_model_len=2048, watermark=0)
    ours = our_steps(table_by_steps(run), OURS, TransformersScheduler(Pool(Limits(8, 512, 2048), cache)))
    assert_identical(run, compare_steps(run.steps, ours), num_steps)


@needs_vllm
@pytest.mark.parametrize(("budget", "num_steps"), [(512, 292), (32, 302)])
def test_vllm_with_ample_blocks(vllm: Any, budget: int, num_steps: int) -> None:
    """All at once, and then, on the same engine, arrivals between steps, twice."""
    settings = replace(SMALL, num_blocks=256, max_num_batched_tokens=budget)
    engine = vllm(settings)
    run = replay(engine, ask_skewed64())
    assert_identical(run, compare_with_ours(run, ours_of(settings)), num_steps)
    for seed in (1, 2):
        run = replay(engine, come_by_steps(ask_skewed64(), seed))
        assert_identical(run, compare_with_ours(run, ours_of(settings)))


@needs_vllm
def test_vllm_with_19_blocks(vllm: Any) -> None:
    """305 steps with 14 preemptions, who, when, and what each recomputes; then with arrivals between steps."""
    engine = vllm(SMALL)
    run = replay(engine, ask_skewed64())
    assert_identical(run, compare_with_ours(run, ours_of(SMALL)), 305)
    assert run.num_preemptions == 14
    for seed in (1, 2, 3):
        run = replay(engine, come_by_steps(ask_skewed64(), seed))
        assert_identical(run, compare_with_ours(run, ours_of(SMALL)))
        assert run.num_preemptions > 0


@needs_vllm
@pytest.mark.parametrize(("budget", "num_blocks"), [(16, 20), (48, 12)])
def test_vllm_with_few_blocks_and_a_small_budget(vllm: Any, budget: int, num_blocks: int) -> None:
    """Unfinished prefills are preempted and begin again, in the order that we know."""
    settings = replace(SMALL, num_blocks=num_blocks, max_num_batched_tokens=budget)
    engine = vllm(settings)
    for seed in range(3):
        asked = ask_skewed64() if seed == 0 else come_by_steps(ask_skewed64(), seed)
        run = replay(engine, asked)
        assert_identical(run, compare_with_ours(run, ours_of(settings)))


@needs_vllm
@pytest.mark.parametrize(
    ("budget", "num_seqs", "num_blocks"), [(512, 8, 256), (512, 8, 24), (40, 6, 24)], ids=["ample", "few", "chunks"]
)
def test_vllm_with_prefix_caching(vllm: Any, budget: int, num_seqs: int, num_blocks: int) -> None:
    """Hits at admission, blocks shared, evicted and found again by their own sequence after a preemption: which prompts
    find how much, and how many blocks are free, in every step."""
    few = replace(SMALL, num_blocks=num_blocks, prefix_caching=True)
    settings = replace(few, max_num_seqs=num_seqs, max_num_batched_tokens=budget)
    engine = vllm(settings)
    for seed in range(6):
        engine.forget_prefixes()
        asked = ask_alike(60, seed)
        run = replay(engine, asked)
        assert_identical(run, compare_with_ours(run, ours_of(settings), content_by_tokens(asked, 32)))


@needs_vllm
@pytest.mark.parametrize("name", KEPT)
def test_vllm_does_what_it_did_when_it_was_recorded(name: str) -> None:
    """The runs kept for ``make test`` are those that vLLM makes."""
    run = without_times(record(KEPT[name], Path(str(VLLM_PYTHON))))
    kept = read_engine_run(KEPT[name].path)
    assert (run.requests, run.steps) == (kept.requests, kept.steps)


@needs_vllm
@pytest.mark.parametrize("clock", ["process_cpu", "wall"])
def test_vllm_with_arrivals_by_its_own_clock(vllm: Any, clock: Any) -> None:
    """Whenever its steps end on this machine today: with arrivals counted in steps the run is ours."""
    engine = vllm(SMALL)
    asked = [replace(each, arrival_s=0.01 * each.id) for each in ask_skewed64()]
    run = replay(engine, asked, clock)
    assert_identical(run, compare_with_ours(run, ours_of(SMALL)))


@needs_vllm
def test_vllm_that_will_not_schedule_asynchronously_is_refused(vllm: Any) -> None:
    """Its CPU build turns the setting off whatever is asked; a run under another name would be compared wrongly."""
    with pytest.raises(CalibrationError, match=r"async_scheduling must be True as asked .got False"):
        vllm(replace(SMALL, async_scheduling=True))
