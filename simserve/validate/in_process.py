"""A real engine set up as a scenario says, in this process; vLLM in a child of the Python that has it.

The only place of simserve, beside the command line, that reaches into ``calibrate``: torch is imported when an engine
is asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from simserve.errors import InputError, ScenarioError
from simserve.model_spec import load_model_spec
from simserve.recorded.steps import EngineRun
from simserve.request import RequestTable
from simserve.scenario import (
    ChunkedEngineConfig,
    PagedCacheConfig,
    ProfileStepTimeConfig,
    Scenario,
    TransformersEngineConfig,
)
from simserve.scenario.messages import printable
from simserve.step_time.profile_schema import Provenance, load_profile
from simserve.step_time.stretch import NS_PER_S
from simserve.validate.prompts import prompts_of

if TYPE_CHECKING:
    from calibrate.replay.ask import AskedRequest, ReplaySettings

EngineName = Literal["transformers", "generate", "vllm"]
POLICIES = {"transformers": ("transformers", "chunked"), "generate": ("static",), "vllm": ("chunked",)}
EXTRA = "--engine: needs torch and transformers; install them with: pip install 'simserve[calibrate]'"
OnEnded = Callable[[int], None]


class RealEngine:
    """Serves a scenario's requests, again and again; before the first time once to warm up, which nobody counts.

    ``clock`` is the one on which requests come; ``python`` the interpreter that has vLLM.
    """

    def __init__(self, name: EngineName, clock: Literal["cpu", "wall"], python: str | None = None) -> None:
        if (python is not None) != (name == "vllm"):
            rule = "must name the Python that has vLLM" if name == "vllm" else "is for --engine vllm alone"
            raise ScenarioError(f"--engine-python: {rule} (got {python} with {name})")
        self._name, self._clock, self._python = name, clock, python
        self._model: Any = None
        self._vllm: Any = None

    def __call__(self, scenario: Scenario, table: RequestTable, on_ended: OnEnded) -> EngineRun:
        """One run. Raises InputError, one sentence: the engine is not there, or cannot be what the scenario says."""
        self.check(scenario)
        try:
            from calibrate.replay.driver import replay
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        asked = _asked(table, load_model_spec(scenario.locate(scenario.model)).vocab_size)
        clock: Literal["process_cpu", "wall"] = "process_cpu" if self._clock == "cpu" else "wall"
        if self._model is None and self._vllm is None:
            replay(self._started(scenario), asked, clock, lambda num_ended: None)
        return replay(self._started(scenario), asked, clock, on_ended)

    def check(self, scenario: Scenario) -> None:
        """Raises ScenarioError when the scenario is none that this engine can serve."""
        wanted, policy = POLICIES[self._name], scenario.engine.policy
        if policy not in wanted:
            words = " or ".join(wanted)
            raise ScenarioError(
                f"{scenario.source}: engine.policy: must be {words} for --engine {self._name} (got {policy}); "
                "name another variant or engine"
            )
        if scenario.workload.concurrency is not None:
            raise ScenarioError(
                f"{scenario.source}: workload.concurrency: must be absent for --engine, whose requests come at their "
                f"own times (got {scenario.workload.concurrency:,}); give workload.arrivals instead"
            )

    def calibrate(self, scenario: Scenario, path: Path, console: Console) -> None:
        """Time the engine's steps over what the scenario can ask of it, and write the profile to ``path``."""
        self.check(scenario)
        try:
            from calibrate.command import calibrate
            from calibrate.options import CalibrateOptions
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        made = _provenance(scenario)
        engine = scenario.engine
        calibrate(
            CalibrateOptions(
                model=scenario.locate(scenario.model),
                device="cpu" if made is None or made.device == "unknown" else made.device,
                dtype=_dtype(made),
                kv_cache="dynamic" if self._name == "generate" else "in-place",
                engine=None if self._name == "generate" else self._name,
                engine_python=self._python,
                grid="full",  # others have no context between 1 and 256, where an engine's decode is no straight line
                max_batch_size=engine.max_num_seqs,
                max_context=engine.max_model_len,
                max_prefill_tokens=engine.max_num_batched_tokens,
                out=path,
            ),
            console,
        )

    def stop(self) -> None:
        """Let go of it; may be called twice."""
        if self._vllm is not None:
            self._vllm.stop()
        self._model = self._vllm = None

    def _started(self, scenario: Scenario) -> Any:  # noqa: ANN401 - a ReplayEngine
        """The engine, as if nothing had run on it yet."""
        settings, made = _settings(scenario), _provenance(scenario)
        from calibrate.model import build_model, find_model

        source, dtype = find_model(scenario.locate(scenario.model)), _dtype(made)
        if self._name == "vllm":
            if self._vllm is None:
                from calibrate.replay.vllm_replay import VllmReplay

                python = shutil.which(str(self._python))
                if python is None:
                    raise ScenarioError(printable(f"--engine-python: must be an interpreter (got {self._python})"))
                self._vllm = VllmReplay(Path(python), source.spec, dtype, settings)
            else:
                self._vllm.forget_prefixes()
            return self._vllm
        from calibrate.replay.continuous import TransformersReplay
        from calibrate.replay.static import StaticReplay

        if self._model is None:
            device = "cuda" if made is not None and made.device == "cuda" else "cpu"
            self._model = build_model(source, device, dtype, "sdpa", 0)
        return (StaticReplay if self._name == "generate" else TransformersReplay)(self._model, settings)


def _asked(table: RequestTable, vocabulary: int) -> list[AskedRequest]:
    from calibrate.replay.ask import AskedRequest

    rows = zip(table.arrival_ns.tolist(), table.num_output_tokens.tolist(), prompts_of(table, vocabulary), strict=True)
    return [
        AskedRequest(i, prompt, num_output, arrival_ns / NS_PER_S)
        for i, (arrival_ns, num_output, prompt) in enumerate(rows)
    ]


def _settings(scenario: Scenario) -> ReplaySettings:
    """How the engine is set up; ``memory`` becomes the blocks that it holds."""
    from calibrate.replay.ask import ReplaySettings

    engine, cache = scenario.engine, scenario.engine.kv_cache
    num_blocks = cache.num_blocks
    if num_blocks is None:
        bytes_per_token = load_model_spec(scenario.locate(scenario.model)).kv_bytes_per_token(cache.dtype or "fp32")
        num_blocks = int(cache.memory or 0) // (cache.block_size * bytes_per_token)
    prefix_caching = isinstance(cache, PagedCacheConfig) and cache.prefix_caching
    return ReplaySettings(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        num_blocks=num_blocks,
        block_size=cache.block_size,
        prefix_caching=prefix_caching,
        safety_margin=engine.safety_margin if isinstance(engine, TransformersEngineConfig) else None,
        async_scheduling=isinstance(engine, ChunkedEngineConfig) and engine.async_scheduling,
    )


def _provenance(scenario: Scenario) -> Provenance | None:
    """Of the scenario's profile: the engine is set up with what that was measured with."""
    config = scenario.step_time
    if not isinstance(config, ProfileStepTimeConfig):
        return None
    return load_profile(scenario.locate(config.profile)).provenance


def _dtype(made: Provenance | None) -> Literal["fp32", "bf16", "fp16"]:
    for dtype in ("bf16", "fp16"):
        if made is not None and made.dtype == dtype:
            return dtype
    return "fp32"


def _missing(error: ModuleNotFoundError) -> Exception:
    return InputError(EXTRA) if (error.name or "").split(".")[0] in ("torch", "transformers") else error
