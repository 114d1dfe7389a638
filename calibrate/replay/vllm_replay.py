"""vLLM's v1 engine in an interpreter of its own: the parent's side of ``vllm_child.py``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrate.clock import Timing
from calibrate.engines.child import Child
from calibrate.errors import CalibrationError
from calibrate.model import TORCH_DTYPES
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import EngineIdentity
from calibrate.replay.ledger import Taken
from simserve.model_spec import ModelSpec

CHILD_SCRIPT = Path(__file__).with_name("vllm_child.py")


class VllmReplay:
    """The weights of ``spec`` are random; ``dtype`` is theirs and the cache's. Takes 10 to 20 s to start. Raises
    ``CalibrationError`` in one sentence if that Python has no vLLM, or vLLM refuses the settings."""

    def __init__(self, python: Path, spec: ModelSpec, dtype: str, settings: ReplaySettings, *, seed: int = 0) -> None:
        if settings.safety_margin is not None:
            raise CalibrationError(
                f"engine: vLLM has no safety_margin (got {settings.safety_margin}); leave it out, or use transformers"
            )
        self._child = Child(python, CHILD_SCRIPT, {"OMP_NUM_THREADS": str(settings.threads)})
        self._num_unfinished = 0
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(spec.to_hf_config()), encoding="utf-8")
            try:
                told = self._child.ask(
                    "start",
                    model=folder,
                    dtype=TORCH_DTYPES[dtype],
                    kv_bytes_per_block=spec.kv_bytes_per_token(dtype) * settings.block_size,
                    max_num_seqs=settings.max_num_seqs,
                    max_num_batched_tokens=settings.max_num_batched_tokens,
                    max_model_len=settings.max_model_len,
                    num_blocks=settings.num_blocks,
                    block_size=settings.block_size,
                    prefix_caching=settings.prefix_caching,
                    async_scheduling=settings.async_scheduling,
                    seed=seed,
                )
                _require_same(settings, told)
            except CalibrationError:
                self._child.stop()
                raise
        self.settings = settings
        self.identity = EngineIdentity("vLLM", dict(told["versions"]))

    def add(self, asked: AskedRequest) -> Timing:
        """Through its front door: input processing is part of serving."""
        told = self._child.ask("add", id=asked.id, prompt=asked.prompt, num_output_tokens=asked.num_output_tokens)
        self._num_unfinished += 1
        return Timing(told["wall_s"], told["cpu_s"])

    def is_ready(self, more_coming: bool) -> bool:
        """Whenever it has somebody."""
        del more_coming
        return self._num_unfinished > 0

    def step(self) -> list[Taken]:
        """The child's account of its own step."""
        told = self._child.ask("step")
        finished = frozenset(told["finished"])
        self._num_unfinished -= len(finished)
        timing = Timing(told["wall_s"], told["cpu_s"])
        work = [(i, new, context) for i, new, context in told["work"]]
        return [Taken(timing, work, tuple(told["preempted"]), told["free_blocks"], finished=finished)]

    def forget_prefixes(self) -> None:
        """Empty its prefix cache, so that the next run begins as the first did."""
        self._child.ask("reset")

    def stop(self) -> None:
        """End the child."""
        self._child.stop()


def _require_same(settings: ReplaySettings, told: Mapping[str, Any]) -> None:
    """What vLLM resolved to something else would make every comparison one with another engine."""
    for name in ("async_scheduling", "prefix_caching", "num_blocks", "block_size"):
        if told[name] != getattr(settings, name):
            raise CalibrationError(
                f"engine: {name} must be {getattr(settings, name)} as asked (got {told[name]} from vLLM); "
                "this build of vLLM does not do it here"
            )
