"""A real engine set up as a scenario says, in a process of its own; vLLM in a child of the Python that has it.

The only place of simserve, beside the command line, that reaches into ``calibrate``: torch is imported when an engine
is asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from simserve.errors import InputError, ScenarioError
from simserve.model_spec import load_model_spec
from simserve.recorded.steps import EngineRun
from simserve.request import RequestTable
from simserve.scenario import (
    ChunkedEngineConfig,
    NoCacheConfig,
    PagedCacheConfig,
    ProfileStepTimeConfig,
    RooflineStepTimeConfig,
    Scenario,
    TransformersEngineConfig,
)
from simserve.scenario.messages import printable
from simserve.scenario.model_models import KvHeads
from simserve.simulated_model import cache_blocks, simulated_model
from simserve.step_time.profile_schema import Provenance, load_profile
from simserve.step_time.stretch import NS_PER_S
from simserve.validate.prompts import prompts_of
from simserve.validate.reach import reach_of
from simserve.workload import build_workload

if TYPE_CHECKING:
    from calibrate.replay.ask import AskedRequest, ReplaySettings
    from calibrate.replay.serve import ServeJob

EngineName = Literal["transformers", "generate", "vllm"]
POLICIES = {"transformers": ("transformers", "chunked"), "generate": ("static",), "vllm": ("chunked",)}
EXTRA = "--engine: needs torch and transformers; install them with: pip install 'simserve[calibrate]'"
OnEnded = Callable[[int], None]


class RealEngine:
    """Serves a scenario's requests, again and again, each time from nothing: a process of its own builds the engine,
    warms it up on the first requests and serves, so that what runs differ by is what processes differ by.

    ``clock`` is the one on which requests come; ``python`` the interpreter that has vLLM. Without ``fresh_processes``
    the engine is built in this one each time, which is quicker and as good for whoever compares steps alone.
    """

    def __init__(
        self,
        name: EngineName,
        clock: Literal["cpu", "wall"],
        python: str | None = None,
        *,
        fresh_processes: bool = True,
    ) -> None:
        if (python is not None) != (name == "vllm"):
            rule = "must name the Python that has vLLM" if name == "vllm" else "is for --engine vllm alone"
            raise ScenarioError(f"--engine-python: {rule} (got {python} with {name})")
        self._name, self._clock, self._python = name, clock, python
        self._in_child = fresh_processes and name != "vllm"  # which runs in a child of that Python anyway

    def __call__(self, scenario: Scenario, table: RequestTable, on_ended: OnEnded) -> EngineRun:
        """One run. Raises InputError, one sentence: the engine is not there, or cannot be what the scenario says."""
        self.check(scenario)
        try:
            from calibrate.fresh import in_fresh_process
            from calibrate.replay.serve import serve
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        job = self._job(scenario, table)
        if self._in_child:
            return in_fresh_process(serve, job, on_progress=on_ended)
        return serve(on_ended, job)

    def check(self, scenario: Scenario) -> None:
        """Raises ScenarioError when the scenario is none that this engine can serve."""
        wanted, policy = POLICIES[self._name], scenario.engine.policy
        if policy not in wanted:
            words = " or ".join(wanted)
            raise ScenarioError(
                f"{scenario.source}: engine.policy: must be {words} for --engine {self._name} (got {policy}); "
                "name another variant or engine"
            )
        changes = simulated_model(scenario).changes()
        if changes:
            raise ScenarioError(
                f"{scenario.source}: weights and attention: must be left out for --engine, which builds the model "
                f"as it is (got {changes[0]})"
            )
        if scenario.workload.concurrency is not None:
            raise ScenarioError(
                f"{scenario.source}: workload.concurrency: must be absent for --engine, whose requests come at their "
                f"own times (got {scenario.workload.concurrency:,}); give workload.arrivals instead"
            )
        for key, value in _not_run_here(scenario).items():
            if value is not None:
                raise ScenarioError(
                    printable(
                        f"{scenario.source}: {key}: must be absent for --engine, which does not run that (got {value})"
                    )
                )

    def calibrate(self, scenario: Scenario, path: Path, console: Console) -> None:
        """Time the engine's steps over what the scenario can ask of it, and write the profile to ``path``. The profile
        that the scenario names tells only what to measure with: it may be of another model."""
        made = _provenance(scenario)
        to_come = RooflineStepTimeConfig(roofline="laptop-cpu", dtype=_dtype(made))  # stands in for it
        self.check(scenario.model_copy(update={"step_time": to_come}))
        try:
            from calibrate.options import CalibrateOptions, Reach
            from calibrate.sessions import calibrate_in_sessions
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        reach = Reach(**reach_of(scenario, build_workload(scenario.workload, scenario.seed, scenario.base_dir).table))
        options = CalibrateOptions(
            model=scenario.locate(scenario.model),
            device=_device(made),
            dtype=_dtype(made),
            engine=self._name,
            engine_python=self._python,
            reach=reach,
        )
        calibrate_in_sessions(options, path, console)

    def _job(self, scenario: Scenario, table: RequestTable) -> ServeJob:
        from calibrate.replay.serve import ServeJob

        made, python = _provenance(scenario), None
        if self._python is not None:
            found = shutil.which(self._python)
            if found is None:
                raise ScenarioError(printable(f"--engine-python: must be an interpreter (got {self._python})"))
            python = Path(found)
        return ServeJob(
            engine=self._name,
            model=scenario.locate(scenario.model),
            device=_device(made),
            dtype=_dtype(made),
            settings=_settings(scenario),
            requests=tuple(_asked(table, load_model_spec(scenario.locate(scenario.model)).vocab_size)),
            clock="process_cpu" if self._clock == "cpu" else "wall",
            python=python,
        )


def _not_run_here(scenario: Scenario) -> dict[str, object]:
    """What a simulation has a word for and the engines here are not set up with; None where the scenario has none."""
    engine, cache = scenario.engine, scenario.engine.kv_cache
    heads, speculation = scenario.attention, engine.speculation
    found: dict[str, object] = {"weights": scenario.weights}
    found["attention"] = f"{{kv_heads: {heads.kv_heads}}}" if isinstance(heads, KvHeads) else heads
    found["engine.speculation"] = None if speculation is None else f"drafts of {speculation.draft_tokens}"
    if isinstance(cache, NoCacheConfig):
        return found | {"engine.kv_cache": "none"}
    return found | {"engine.kv_cache.device_memory": cache.device_memory, "engine.kv_cache.weights": cache.weights}


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
    if isinstance(cache, NoCacheConfig):
        raise ScenarioError("engine.kv_cache: must be paged or contiguous, as engines that run here have it (got none)")
    prefix_caching = isinstance(cache, PagedCacheConfig) and cache.prefix_caching
    return ReplaySettings(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        num_blocks=cache_blocks(cache, simulated_model(scenario)),
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


def _device(made: Provenance | None) -> Literal["cpu", "cuda"]:
    return "cuda" if made is not None and made.device == "cuda" else "cpu"


def _dtype(made: Provenance | None) -> Literal["fp32", "bf16", "fp16"]:
    for dtype in ("bf16", "fp16"):
        if made is not None and made.dtype == dtype:
            return dtype
    return "fp32"


def _missing(error: ModuleNotFoundError) -> Exception:
    return InputError(EXTRA) if (error.name or "").split(".")[0] in ("torch", "transformers") else error
