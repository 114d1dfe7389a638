"""``step_time:`` of a scenario: measured, or estimated from a datasheet."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from simserve.scenario.choice import Choice
from simserve.scenario.engine_models import Dtype
from simserve.scenario.fields import Strict


class ProfileStepTimeConfig(Strict):
    """Measured step times; what is named beside the profile must be what it was measured with."""

    profile: str = Field(min_length=1, description="a shipped profile's name, or the path of a profile file")
    dtype: str | None = Field(None, min_length=1, description="refuse a profile of another type of weights")
    tensor_parallel: int | None = Field(None, ge=1, le=1024, description="refuse a profile of another number of GPUs")
    attention: str | None = Field(None, min_length=1, description="refuse a profile of another attention kernel")


def _named_folder(value: object) -> object:
    if value is None or value == "":
        got = "null" if value is None else "empty text"
        raise ValueError(f"must name the folder of the tables (got {got}); give it by --set step_time.operators=DIR")
    return value


class OperatorsStepTimeConfig(Strict):
    """Step times summed from operators that a profiler measured (LLMServingSim's or Vidur's tables)."""

    operators: Annotated[str, BeforeValidator(_named_folder), WithJsonSchema({"type": ["string", "null"]})] = Field(
        description="the folder of the tables, relative to this file; or give it by --set step_time.operators=DIR"
    )
    tensor_parallel: int = Field(1, ge=1, le=1024, description="GPUs that share each layer: which tables to take")
    host_overhead_s: float = Field(
        0.0, ge=0, le=3600, allow_inf_nan=False, description="the engine's own work per step, seconds; comes on top"
    )
    unequal_contexts: bool | None = Field(
        None,
        description="whether decodes of a step wait for the longest of them as skew.csv says; by default where it is, "
        "and the meta.yaml beside it does not turn it off (skew_fit.enabled)",
    )
    max_captured_tokens: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="the engine captures CUDA graphs of up to so many tokens and pads smaller steps to the next of "
        "vLLM's sizes (1, 2, 4, multiples of 8, of 16 from 256); by default nothing is padded",
    )


class RooflineStepTimeConfig(Strict):
    """Step times estimated from a datasheet, for what was never measured."""

    roofline: str = Field(min_length=1, description="hardware name, such as h100-sxm")
    tensor_parallel: int = Field(1, ge=1, le=1024, description="GPUs that share each layer")
    dtype: Dtype = Field("bf16", description="type that products compute in, and of weights unless weights: says other")


STEP_TIMES = Choice(
    {"profile": ProfileStepTimeConfig, "operators": OperatorsStepTimeConfig, "roofline": RooflineStepTimeConfig}
)
StepTimeConfig = Annotated[
    Annotated[ProfileStepTimeConfig, Tag("<profile>")]
    | Annotated[OperatorsStepTimeConfig, Tag("<operators>")]
    | Annotated[RooflineStepTimeConfig, Tag("<roofline>")],
    Discriminator(STEP_TIMES.tag),
]
