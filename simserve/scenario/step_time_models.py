"""``step_time:`` of a scenario: measured, or estimated from a datasheet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from simserve.scenario.choice import Choice
from simserve.scenario.engine_models import Dtype
from simserve.scenario.fields import Strict


class ProfileStepTimeConfig(Strict):
    """Measured step times; what is named beside the profile must be what it was measured with."""

    profile: str = Field(min_length=1, description="a shipped profile's name, or the path of a profile file")
    dtype: str | None = Field(None, min_length=1, description="refuse a profile of another type of weights")
    tensor_parallel: int | None = Field(None, ge=1, le=1024, description="refuse a profile of another number of GPUs")
    attention: str | None = Field(None, min_length=1, description="refuse a profile of another attention kernel")


class OperatorsStepTimeConfig(Strict):
    """Step times summed from operators that a profiler measured (LLMServingSim's or Vidur's tables)."""

    operators: str = Field(min_length=1, description="the folder of the tables")
    tensor_parallel: int = Field(1, ge=1, le=1024, description="GPUs that share each layer: which tables to take")
    host_overhead_s: float = Field(
        0.0, ge=0, le=3600, allow_inf_nan=False, description="the engine's own work per step, seconds; comes on top"
    )


class RooflineStepTimeConfig(Strict):
    """Step times estimated from a datasheet, for what was never measured."""

    roofline: str = Field(min_length=1, description="hardware name, such as h100-sxm")
    tensor_parallel: int = Field(1, ge=1, le=1024, description="GPUs that share each layer")
    dtype: Dtype = Field("bf16", description="type of weights and activations")


STEP_TIMES = Choice(
    {"profile": ProfileStepTimeConfig, "operators": OperatorsStepTimeConfig, "roofline": RooflineStepTimeConfig}
)
StepTimeConfig = Annotated[
    Annotated[ProfileStepTimeConfig, Tag("<profile>")]
    | Annotated[OperatorsStepTimeConfig, Tag("<operators>")]
    | Annotated[RooflineStepTimeConfig, Tag("<roofline>")],
    Discriminator(STEP_TIMES.tag),
]
