"""vLLM in an interpreter of its own: the parent's side of ``vllm_child.py``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from calibrate.clock import Timing
from calibrate.contention import Reading, read_machine
from calibrate.engines.child import Child
from calibrate.engines.engine import EngineFacts, EngineSize, StepShape
from calibrate.errors import CalibrationError

BLOCK_SIZE = 32  # vLLM's CPU attention takes multiples of 32
_NULL_BLOCKS = 1
_SPARE_BLOCKS = 8
_SPARE_TOKENS = 8  # no sequence may reach its greatest length, and so end, within a step
CHILD_SCRIPT = Path(__file__).with_name("vllm_child.py")


@dataclass(frozen=True)
class VllmOptions:
    """``dtype`` as torch names it; ``kv_bytes_per_token`` sizes the cache."""

    dtype: str
    threads: int
    seed: int
    kv_bytes_per_token: int


class VllmEngine:
    """``config`` is a model's ``config.json``; weights are random, made by vLLM."""

    def __init__(self, python: Path, config: Mapping[str, Any], options: VllmOptions) -> None:
        self._python, self._config, self._options = python, config, options
        self._child: Child | None = None
        self._computed: StepShape = ()

    def extra_bytes_per_token(self, shapes: Sequence[StepShape]) -> int:
        """Its cache is keys and values alone."""
        del shapes
        return 0

    def start(self, shapes: Sequence[StepShape]) -> EngineFacts:
        """Run the child and have it build the engine; takes vLLM 10 to 20 s."""
        size = EngineSize.of(shapes, BLOCK_SIZE)
        environment = {"OMP_NUM_THREADS": str(self._options.threads)}
        self._child = Child(self._python, CHILD_SCRIPT, environment)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(self._config), encoding="utf-8")
            told = self._child.ask(
                "start",
                model=folder,
                dtype=self._options.dtype,
                max_num_seqs=size.max_num_seqs,
                max_num_batched_tokens=size.max_num_batched_tokens,
                max_model_len=size.max_model_len + _SPARE_TOKENS,
                num_blocks=size.num_blocks + _NULL_BLOCKS + _SPARE_BLOCKS,
                block_size=BLOCK_SIZE,
                kv_bytes_per_block=self._options.kv_bytes_per_token * BLOCK_SIZE,
                seed=self._options.seed,
            )
        if told.get("device") != "cpu":
            rule = "vLLM's steps are timed on a CPU"
            raise CalibrationError(f"engine: {rule} (got {told.get('device')}); use its CPU build")
        return _facts(told)

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        """Ask the child, whose sequences may go on for longer than any chain is."""
        del num_steps
        self._ask("prepare", sequences=shape)

    def step(self) -> Timing:
        """The child's timing of its own step."""
        told = self._ask("step")
        self._computed = tuple((new, cached) for new, cached in told["sequences"])
        return Timing(told["wall_s"], told["cpu_s"])

    def computed(self) -> StepShape:
        """As the child's scheduler told."""
        return self._computed

    def read_machine(self) -> Reading | None:
        """The child's CPU seconds are ours."""
        reading = read_machine()
        if reading is None or self._child is None:
            return reading
        return reading._replace(own_s=reading.own_s + _cpu_seconds(self._child.pid))

    def stop(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.stop()
        self._child = None

    def _ask(self, what: str, **arguments: object) -> dict[str, Any]:
        assert self._child is not None, "the engine was not started"
        return self._child.ask(what, **arguments)


def _facts(told: Mapping[str, Any]) -> EngineFacts:
    try:
        facts = {field.name: told[field.name] for field in fields(EngineFacts)}
    except KeyError as error:
        raise CalibrationError(f"engine: vLLM's process must tell its {error.args[0]} (got {sorted(told)})") from error
    if facts["kv_bytes_per_token"] % 1:
        raise CalibrationError(f"engine: KV bytes per token must be whole (got {facts['kv_bytes_per_token']})")
    return EngineFacts(**{**facts, "kv_bytes_per_token": int(facts["kv_bytes_per_token"])})


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 where the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
