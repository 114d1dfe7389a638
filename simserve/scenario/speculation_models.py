"""``engine.speculation``: a draft proposes tokens, the target verifies them in one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from simserve.scenario.choice import Choice
from simserve.scenario.fields import Strict

if TYPE_CHECKING:
    from simserve.scenario.engine_models import EngineLimits

MAX_DRAFTS = 64
_WANTED = "must be a probability from 0 to 1, a list of one per draft, or {measured: FILE}"


class MeasuredAcceptance(Strict):
    """How often a draft agreed with its target, measured."""

    measured: str = Field(min_length=1, description="the file that `simserve agreement` wrote, relative to this one")


def _acceptance(value: object) -> object:
    """What can be no acceptance is turned down in one sentence, rather than in one per kind of it."""
    if isinstance(value, MeasuredAcceptance) or (isinstance(value, Mapping) and set(value) == {"measured"}):
        return value
    if isinstance(value, Mapping):
        raise ValueError(f"{_WANTED} (got {', '.join(str(key)[:60] for key in value) or 'nothing'} in the mapping)")
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
            got = f" (got {str(number)[:60]!r} in the list)" if isinstance(value, list) else ""
            raise ValueError(_WANTED + got)
    return value


Acceptance = Annotated[
    float | list[float] | MeasuredAcceptance,
    BeforeValidator(_acceptance),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}},
                MeasuredAcceptance.model_json_schema(),
            ]
        }
    ),
]


class DraftCostConfig(Strict):
    """A draft step takes a fraction of the target's step of the same sequences."""

    cost: float = Field(ge=0, le=1000, description="of the target's step (c of the published formula)")


class DraftProfileConfig(Strict):
    """A draft whose steps were measured."""

    profile: str = Field(min_length=1, description="a shipped profile's name, or the path of the draft's profile")


class DraftRooflineConfig(Strict):
    """A draft whose steps are estimated from a datasheet."""

    roofline: str = Field(min_length=1, description="hardware name, such as h100-sxm")
    model: str = Field(min_length=1, description="the draft: a catalogue name, or a path to a config.json")
    dtype: str = Field("bf16", min_length=1, description="type of its weights and activations")


DRAFTS = Choice({"cost": DraftCostConfig, "profile": DraftProfileConfig, "roofline": DraftRooflineConfig})
DraftConfig = Annotated[
    Annotated[DraftCostConfig, Tag("<cost>")]
    | Annotated[DraftProfileConfig, Tag("<profile>")]
    | Annotated[DraftRooflineConfig, Tag("<roofline>")],
    Discriminator(DRAFTS.tag),
]


class SpeculationConfig(Strict):
    """Speculative decoding: in each pass the draft proposes, the target verifies, the leading run that agrees stays."""

    draft_tokens: int = Field(ge=1, le=MAX_DRAFTS, description="drafts per pass and sequence (γ)")
    acceptance: Acceptance = Field(
        description="probability that a draft agrees with the target, given that those before it in the pass did (α): "
        "one for all, a list of one per draft, or {measured: FILE}"
    )
    draft: DraftConfig = Field(description="what drafting costs: {cost: 0.1}, {profile: NAME}, {roofline: …, model: …}")

    @model_validator(mode="after")
    def _one_acceptance_per_draft(self) -> Self:
        if isinstance(self.acceptance, list) and len(self.acceptance) != self.draft_tokens:
            raise ValueError(
                f"acceptance must have as many numbers as draft_tokens (got {len(self.acceptance)} and "
                f"{self.draft_tokens})"
            )
        return self


def check_speculation(engine: EngineLimits) -> None:
    """Raise ValueError, one sentence, where the rest of an engine leaves no room for its speculation."""
    speculation, cache = engine.speculation, engine.kv_cache
    if speculation is None:
        return
    policy, allocator = getattr(engine, "policy", ""), getattr(cache, "allocator", "none")
    if policy not in ("continuous", "chunked"):
        raise ValueError(f"speculation works with policy: continuous or chunked only (got {policy})")
    if allocator not in ("paged", "contiguous"):
        raise ValueError(f"speculation needs a KV cache: allocator paged or contiguous (got {allocator})")
    if getattr(cache, "preemption", "recompute") != "recompute":
        raise ValueError("speculation works with kv_cache.preemption: recompute only (got swap)")
    if getattr(engine, "async_scheduling", False):
        raise ValueError("speculation works without async_scheduling only (got true)")
    needed = engine.max_num_seqs * (1 + speculation.draft_tokens)
    if engine.max_num_batched_tokens < needed:
        raise ValueError(
            f"max_num_batched_tokens must be ≥ max_num_seqs × (1 + speculation.draft_tokens) = {needed}, or a full "
            f"batch could not verify its drafts in one step (got {engine.max_num_batched_tokens}); lower max_num_seqs "
            "or draft_tokens"
        )
