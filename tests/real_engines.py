"""Runs of real engines beside ours: the 64 skewed requests, and a policy of ours over the requests of a run."""

from __future__ import annotations

import json
import random
from pathlib import Path

from calibrate.replay.ask import AskedRequest, ask_lengths, random_prompt
from simserve.recorded.differences import StepComparison, compare_steps
from simserve.recorded.steps import EngineRun, StepRecord
from simserve.recorded.watch import StepWatcher
from simserve.request import Content, RequestTable
from simserve.scheduling import Scheduler
from simserve.step_time.stretch import NS_PER_S
from tests.builders import build_scheduler, run_engine
from tests.prefixes import content_of
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import table_of

VOCABULARY = 1024
DATA = Path(__file__).parent / "data"


def ask_skewed64(name: str = "skewed64") -> list[AskedRequest]:
    """The 64 requests, all at once, with random prompts of their lengths."""
    return ask_lengths(json.loads((DATA / f"{name}.json").read_text())["requests"], VOCABULARY)


def come_by_steps(asked: list[AskedRequest], seed: int) -> list[AskedRequest]:
    """The same requests, each a few steps after the one before; now and then several at one step."""
    rng, step, spread = random.Random(seed), 0, []
    for each in asked:
        step += rng.choice((0, 0, 1, 3, 6, 12))
        spread.append(AskedRequest(each.id, each.prompt, each.num_output_tokens, at_step=step))
    return spread


def ask_alike(num_requests: int, seed: int) -> list[AskedRequest]:
    """Prompts that begin as others do, for one to four blocks of 32 tokens, some ending there, coming by steps."""
    rng, step, asked = random.Random(seed), 0, list[AskedRequest]()
    roots = [random_prompt(1000 + 10 * seed + i, tokens, VOCABULARY) for i, tokens in enumerate((96, 64, 128, 40))]
    for i in range(num_requests):
        root = rng.choice(roots)[: rng.choice([32, 64, 96, 128])]
        tail = random_prompt(1000 * seed + i, rng.choice([0, 1, 5, 20, 32, 33, 60]), VOCABULARY)
        step += rng.choice((0, 0, 1, 3, 6))
        asked.append(AskedRequest(i, root + tail, rng.randint(1, 60), at_step=step))
    return asked


def content_by_tokens(asked: list[AskedRequest], block_tokens: int) -> Content:
    """What the prompts hold, block by block."""
    starts = range(0, 1 << 20, block_tokens)
    blocks = [[each.prompt[i : i + block_tokens] for i in starts[: len(each.prompt) // block_tokens]] for each in asked]
    return content_of(blocks, block_tokens)


def table_by_steps(run: EngineRun, content: Content | None = None) -> RequestTable:
    """The requests of ``run``, each arriving as many seconds after the start as steps were begun before the engine was
    told of it."""
    served = run.requests
    assert [each.id for each in served] == list(range(len(served)))
    columns = ([getattr(each, name) for each in served] for name in ("num_prompt_tokens", "num_output_tokens"))
    return table_of([each.added_at_step * NS_PER_S for each in served], *columns, content=content)


def our_steps(table: RequestTable, settings: Settings, scheduler: Scheduler | None = None) -> list[StepRecord]:
    """Every step of our policy, one second each."""
    watcher = StepWatcher(scheduler or build_scheduler(settings))
    run_engine(table, settings, ConstantStepTime(1.0), fast_forward=False, scheduler=watcher)
    return watcher.steps


def compare_with_ours(run: EngineRun, settings: Settings, content: Content | None = None) -> StepComparison:
    """The steps of a real engine against those of our policy for the same requests."""
    return compare_steps(run.steps, our_steps(table_by_steps(run, content), settings))


def assert_identical(run: EngineRun, compared: StepComparison, num_steps: int | None = None) -> None:
    """All steps are the same, and there are as many as are known from elsewhere; every request got what it asked."""
    assert compared.first is None, str(compared.first)
    assert compared.identical == compared.compared == len(run.steps)
    assert num_steps is None or len(run.steps) == num_steps
    assert all(len(each.tokens) == each.num_output_tokens for each in run.requests)
