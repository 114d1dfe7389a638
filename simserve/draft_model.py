"""The draft of a scenario that speculates: a second model, whose weights and cache are in the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simserve.errors import InputError, ScenarioError
from simserve.memory.footprint import kv_bytes_per_token
from simserve.memory.schemes import WeightScheme, parse_scheme, weight_bytes
from simserve.model_spec import CATALOGUE, ModelSpec, load_model_spec
from simserve.scenario import RooflineStepTimeConfig, Scenario
from simserve.scenario.speculation_models import DraftProfileConfig, DraftRooflineConfig
from simserve.step_time.hardware import load_hardware
from simserve.step_time.profile_schema import ModelDimensions, Profile, load_profile
from simserve.step_time.profile_weights import measured_scheme

_WHERE = "engine.speculation.draft"


@dataclass(frozen=True)
class DraftModel:
    """A draft with its weights in ``weights`` and its cache in ``kv_dtype``, whole on one device or shared out: without
    copies."""

    spec: ModelSpec
    weights: WeightScheme
    kv_dtype: str

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights."""
        return weight_bytes(self.spec, self.weights)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that it keeps of a token, beside those of the model."""
        return kv_bytes_per_token(self.spec, self.kv_dtype)

    def entry(self) -> dict[str, Any]:
        """What ``summary.json`` and the manifest say of it."""
        return {
            "model": self.spec.name,
            "weights": self.weights.name,
            "weight_bytes": self.weight_bytes,
            "kv_dtype": self.kv_dtype,
            "kv_bytes_per_token": self.kv_bytes_per_token,
        }


def draft_model(scenario: Scenario) -> DraftModel | None:
    """The draft that a scenario names, where it takes memory beside the model. None without speculation, where only a
    cost is told, for a profile of weights in a type without a name here, and on other hardware than the model's.

    Raises InputError: no such model, profile or hardware, or a type that the hardware cannot compute in."""
    speculation = scenario.engine.speculation
    config = None if speculation is None else speculation.draft
    cache_dtype = getattr(scenario.engine.kv_cache, "dtype", None)
    try:
        if isinstance(config, DraftProfileConfig):
            profile = load_profile(scenario.locate(config.profile))
            weights, dtype = measured_scheme(profile), profile.provenance.dtype
            return None if weights is None else DraftModel(_spec_of(profile), weights, cache_dtype or dtype)
        if not isinstance(config, DraftRooflineConfig):
            return None
        known = load_hardware(config.roofline).peak_flops
        spec = load_model_spec(scenario.locate(config.model))
    except InputError as error:
        raise _placed(error) from None
    if config.dtype not in known:
        rule = f"{config.roofline} computes in {', '.join(known)}"
        raise ScenarioError(f"{_WHERE}.dtype: {rule} (got {config.dtype[:60]!r})")
    target = scenario.step_time
    if isinstance(target, RooflineStepTimeConfig) and target.roofline != config.roofline:
        return None
    return DraftModel(spec, parse_scheme(config.dtype), cache_dtype or config.dtype)


def _placed(error: InputError) -> InputError:
    """An error of a name in the draft's own keys says so, or it would be taken for one of the model that it drafts for;
    one of a file names the file."""
    rule = str(error).removeprefix("step_time.")
    key = rule.partition(":")[0]
    return ScenarioError(f"{_WHERE}.{rule}") if key in ("model", "profile", "roofline") else error


def _spec_of(profile: Profile) -> ModelSpec:
    """The model that a profile was measured on: by its name where that is known, else by its dimensions, which leave
    out biases (less than a thousandth of the weights)."""
    made = profile.provenance
    known = CATALOGUE.get(made.model)
    if known is not None and ModelDimensions.of(known) == made.dimensions:
        return known
    return ModelSpec(name=made.model, family="llama", **made.dimensions.model_dump())
