"""The vocabulary of a scenario's values: strict models, bounded numbers, sizes with a unit.

Strict means: unknown keys fail, text is never read as a number, true is not 1, NaN and infinity are not numbers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from simserve.memory.sizes import SIZE_PATTERN, parse_size

MAX_TOKENS = 2**31 - 1  # longest prompt, answer or context: sums over ten million requests still fit 64 bits
MAX_REQUESTS = 10_000_000
MAX_SECONDS = 1e9  # 32 years: nanoseconds still fit 64 bits with room to spare


class Strict(BaseModel):
    """Base of every section of a scenario: frozen, strict, no unknown keys, finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _plain_name(value: str) -> str:
    if not value.strip() or value != value.strip() or not value.isprintable():
        raise ValueError("must be printable text without spaces around it")
    return value


def _folder_name(value: str) -> str:
    if "/" in value or "\\" in value or value.startswith("."):
        raise ValueError("must be usable as a folder's name: no slashes, no dot in front")
    return value


Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Bytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=1, le=2**60),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE_PATTERN}]}),
]
Room = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=0, le=2**60),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}),
]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_plain_name)]
FolderName = Annotated[Name, AfterValidator(_folder_name)]
