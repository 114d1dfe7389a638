"""Runs of vLLM 0.32 (CPU build, v1 scheduler) on the smallest model, recorded once and kept in ``data``.

``SIMSERVE_VLLM_PYTHON=… python -m tests.vllm_runs`` records them anew; times are left out, they are another machine's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.model import find_model
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import replay
from calibrate.replay.vllm_replay import VllmReplay
from simserve.recorded.steps import START, EngineRun, write_engine_run
from simserve.request import Content
from tests.real_engines import DATA, ask_alike, ask_skewed64, come_by_steps, content_by_tokens
from tests.reference_types import Settings

SMALL = ReplaySettings(8, 512, 320, num_blocks=20, block_size=32)  # one of them is the null block


@dataclass(frozen=True)
class Kept:
    """One recorded run: what was asked, on which settings."""

    name: str
    asked: list[AskedRequest]
    settings: ReplaySettings

    @property
    def path(self) -> Path:
        return DATA / f"vllm-0.32-{self.name}.jsonl.gz"

    @property
    def content(self) -> Content | None:
        """What the prompts hold, where the engine looks."""
        size = self.settings.block_size
        return content_by_tokens(self.asked, size) if self.settings.prefix_caching else None


KEPT = {
    kept.name: kept
    for kept in (
        Kept("19-blocks", ask_skewed64(), SMALL),
        Kept("19-blocks-chunks", come_by_steps(ask_skewed64(), 1), replace(SMALL, max_num_batched_tokens=16)),
        Kept("prefixes", ask_alike(48, 2), replace(SMALL, num_blocks=24, prefix_caching=True)),
        Kept(
            "prefixes-chunks",
            ask_alike(48, 1),
            replace(SMALL, max_num_seqs=6, max_num_batched_tokens=40, num_blocks=24, prefix_caching=True),
        ),
    )
}


def ours_of(told: ReplaySettings) -> Settings:
    """The same in our words. vLLM 0.32 takes free blocks that hold nothing known before those that may be hit again."""
    return Settings(
        policy="chunked",
        allocator="paged",
        max_num_seqs=told.max_num_seqs,
        max_num_batched_tokens=told.max_num_batched_tokens,
        max_model_len=told.max_model_len,
        num_blocks=told.num_blocks,
        block_size=told.block_size,
        null_blocks=1,
        prefix_caching=told.prefix_caching,
        nameless_first=told.prefix_caching,
    )


def without_times(run: EngineRun) -> EngineRun:
    """The same run with every clock at its start."""
    steps = tuple(replace(step, begin=START, end=START) for step in run.steps)
    requests = tuple(
        replace(each, arrival=START, first_scheduled=START, tokens=(START,) * len(each.tokens)) for each in run.requests
    )
    return replace(run, steps=steps, requests=requests)


def record(kept: Kept, python: Path) -> EngineRun:
    """Start vLLM there and serve the run's requests on its settings."""
    engine = VllmReplay(python, find_model("tiny").spec, "fp32", kept.settings)
    try:
        return replay(engine, kept.asked)
    finally:
        engine.stop()


if __name__ == "__main__":
    for each in KEPT.values():
        write_engine_run(each.path, without_times(record(each, Path(os.environ["SIMSERVE_VLLM_PYTHON"]))))
