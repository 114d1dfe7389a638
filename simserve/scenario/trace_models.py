"""What a scenario says of a trace file: where it is, and whose columns it has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema


def _named_file(value: object) -> object:
    if value is None or value == "":
        got = "null" if value is None else "empty text"
        raise ValueError(f"must name the trace file (got {got}); give it by --set workload.trace=FILE")
    return value


TracePath = Annotated[str, BeforeValidator(_named_file), WithJsonSchema({"type": ["string", "null"]})]
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
