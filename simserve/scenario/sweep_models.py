"""``sweep:`` of a scenario: what ``simserve sweep`` varies, and how often it repeats each point.

``simserve run`` leaves it aside.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from simserve.scenario.axis_values import parse_values
from simserve.scenario.fields import Strict

DEFAULT_METRIC = "e2e_s.mean"
_SCALAR = {"type": ["string", "number", "boolean", "null"]}


def _axis(spec: object) -> object:
    parse_values(spec)
    return spec


def _warmup(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 0.5:
        raise ValueError("must be auto, or a share of the requests from 0 to 0.5")
    return value


AxisSpec = Annotated[
    Any,
    AfterValidator(_axis),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _SCALAR}]}),
]
Warmup = Annotated[
    Any,
    AfterValidator(_warmup),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 0, "maximum": 0.5}]}),
]


class SweepConfig(Strict):
    """A grid of settings, each simulated several times."""

    over: dict[str, AxisSpec] = Field(
        default_factory=dict,
        description='by dotted key its values: a list, or a range in quotes such as "1:40:16" or "1:40:16:log"',
    )
    replications: int = Field(5, ge=1, le=10_000, description="simulations of each point, each on other requests")
    warmup: Warmup = Field(
        "auto", description="share of the requests to leave out first; auto: a tenth of a long generated run"
    )
    metric: str = Field(
        DEFAULT_METRIC, min_length=1, description="latency that the knee and the Pareto front are taken on"
    )
    early_stop: bool = Field(True, description="end a simulation once its backlog is proved to grow")
    calibration_noise: bool = Field(True, description="count the noise of measured step times in the intervals")
    reports: Literal["all", "some", "none"] = Field("some", description="points that get a report of their own")
