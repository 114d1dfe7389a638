"""A scenario: one model, one step time, one workload, one engine, and variants of it that meet the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from simserve.errors import ScenarioError
from simserve.scenario.engine_models import EngineConfig
from simserve.scenario.fields import FolderName, Name, Strict
from simserve.scenario.merge import merge
from simserve.scenario.messages import one_sentence, printable
from simserve.scenario.model_models import AttentionConfig, SchemeName
from simserve.scenario.slo_models import SloConfig
from simserve.scenario.step_time_models import StepTimeConfig
from simserve.scenario.sweep_models import SweepConfig
from simserve.scenario.workload_models import WorkloadConfig

SHARED_BY_VARIANTS = ("name", "workload", "seed", "variants", "sweep")


class Scenario(Strict):
    """One file of ``scenarios/``, validated whole."""

    name: FolderName = Field(description="what reports call it; also the name of its folder")
    model: str = Field(min_length=1, description="a catalogue name such as llama-3.1-8b, or a path to a config.json")
    weights: SchemeName | None = Field(
        None,
        description="how its weights are kept: fp32, fp16, bf16, fp8, int8, int4 (groups of 128), int4:GROUP, nf4, or "
        "bits per weight such as 4.125; null: as step_time has them",
    )
    attention: AttentionConfig | None = Field(
        None,
        description="KV heads: mha (one per attention head), mqa (one), {kv_heads: N}, or gqa (the model's own, if "
        "they are grouped); null: the model's own",
    )
    step_time: StepTimeConfig = Field(description="how long a step takes")
    workload: WorkloadConfig = Field(description="which requests arrive, and when")
    engine: EngineConfig = Field(description="batching policy, its limits, and the cache")
    slo: SloConfig = Field(default_factory=SloConfig, description="limits for goodput")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="same scenario and seed, same results to the byte")
    variants: dict[Name, dict[str, Any]] = Field(
        default_factory=dict,
        description="named overrides run on the same requests; any key but name, workload, seed, variants and sweep",
    )
    sweep: SweepConfig | None = Field(None, description="what `simserve sweep` varies; a run leaves it aside")

    _base_dir: Path = PrivateAttr(default_factory=Path)
    _source: str = PrivateAttr(default="scenario")

    @model_validator(mode="after")
    def _one_kind_of_weights(self) -> Self:
        held = getattr(self.engine.kv_cache, "weights", None)
        if self.weights is not None and held is not None and held != self.weights:
            raise ValueError(
                "weights and engine.kv_cache.weights must be the same, or one of them left out "
                f"(got {self.weights} and {held}); with engine.kv_cache.device_memory the cache follows weights"
            )
        return self

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths start from: the scenario file's."""
        return self._base_dir

    @property
    def source(self) -> str:
        """The file's name, for messages."""
        return self._source

    def locate(self, name_or_path: str) -> str:
        """A path relative to the scenario file where one exists there, else the name unchanged (a catalogue's)."""
        looks_like_path = "/" in name_or_path or name_or_path.endswith(".json")
        candidate = self.base_dir / name_or_path
        return str(candidate) if looks_like_path and candidate.exists() else name_or_path

    def resolve_variants(self) -> dict[str, Scenario]:
        """Every variant as a whole scenario of its own, in the file's order; without variants, one called
        ``<policy>-<allocator>``. Raises ScenarioError when an override breaks a rule."""
        base = self.model_dump(exclude_unset=True, exclude={"variants", "sweep"})
        overrides = self.variants or {f"{self.engine.policy}-{self.engine.kv_cache.allocator}": {}}
        return {name: self._variant(name, base, override) for name, override in overrides.items()}

    def _variant(self, name: str, base: dict[str, Any], override: dict[str, Any]) -> Scenario:
        for key in (key for key in SHARED_BY_VARIANTS if key in override):
            where = printable(f"{self.source}: variants.{name}.{key}")
            raise ScenarioError(f"{where}: a variant cannot change the {key}; all variants share it")
        return build_scenario(merge(base, override), self.base_dir, self.source, ("variants", name))


def build_scenario(data: object, base_dir: Path, source: str, prefix: tuple[str, ...] = ()) -> Scenario:
    """Validate a scenario's mapping. Messages begin with ``source``, and ``prefix`` is where the mapping stands in it.
    Raises ScenarioError, one sentence."""
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise ScenarioError(one_sentence(error, Scenario, source, prefix)) from None
    scenario._base_dir = base_dir
    scenario._source = source
    return scenario
