"""What a scenario says of a trace file: where it is, whose columns it has, and whether it is drawn anew."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from simserve.scenario.fields import MAX_REQUESTS, Strict


def _named_file(value: object) -> object:
    if value is None or value == "":
        raise ValueError(f"must name the trace file (got {'null' if value is None else 'empty text'})")
    return value


def _given_or_set(value: object) -> object:
    try:
        return _named_file(value)
    except ValueError as error:
        raise ValueError(f"{error}; give it by --set workload.trace=FILE") from None


_JSON_SCHEMA = WithJsonSchema({"type": ["string", "null"]})
TenantTracePath = Annotated[str, BeforeValidator(_named_file), _JSON_SCHEMA]
TracePath = Annotated[str, BeforeValidator(_given_or_set), _JSON_SCHEMA]
TraceFormat = Literal[
    "auto",
    "azure",
    "simserve",
    "mooncake",
    "bailian",
    "llmservingsim",
    "burstgpt",
    "vidur",
    "splitwise",
    "tracelab",
    "tracelab_log",
]


class ResampleConfig(Strict):
    """Circular block bootstrap (Politis and Romano 1992): as many requests as the trace has, in blocks of consecutive
    ones from places that the seed draws, each request with its gap and all of its columns. Bursts and other order
    within a block survive, and the mean gap is kept in expectation."""

    block_requests: int = Field(
        ge=1, le=MAX_REQUESTS, description="consecutive requests in a block; about the root of their number is usual"
    )
