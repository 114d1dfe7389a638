"""``weights:`` and ``attention:`` of a scenario: the model as it is, with its weights or its heads kept otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from simserve.errors import FootprintError
from simserve.memory.schemes import parse_scheme
from simserve.scenario.choice import Choice
from simserve.scenario.fields import Strict

NAMED_SHAPES = ("mha", "gqa", "mqa")


def _scheme_name(value: object) -> object:
    """The canonical name of a scheme; a number is bits per weight."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return parse_scheme(value if isinstance(value, str) else f"{value:.12g}").name
    except FootprintError as error:
        rule = str(error).removeprefix("weights: ")
        if rule.startswith("unknown scheme"):
            rule = f"must be a weight scheme (got {str(value)[:60]!r});{rule.partition(';')[2]}"
        raise ValueError(rule) from None


def _shape_name(value: object) -> object:
    if value not in NAMED_SHAPES:
        raise ValueError("must be mha, gqa, mqa or a number of KV heads such as {kv_heads: 8}")
    return value


class KvHeads(Strict):
    """Grouped-query attention with heads of one's own choice."""

    kv_heads: int = Field(
        ge=1, le=65_536, description="heads of keys (and of values) in each layer; must divide the attention heads"
    )


ATTENTION = Choice({"kv_heads": KvHeads}, otherwise="kv_heads")


def _shape_tag(value: object) -> str | None:
    return ATTENTION.tag(value) if isinstance(value, Mapping | KvHeads) else "<named>"


SchemeName = Annotated[
    str, BeforeValidator(_scheme_name), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]
ShapeName = Annotated[str, BeforeValidator(_shape_name), WithJsonSchema({"enum": list(NAMED_SHAPES)})]
AttentionConfig = Annotated[
    Annotated[ShapeName, Tag("<named>")] | Annotated[KvHeads, Tag("<kv_heads>")], Discriminator(_shape_tag)
]
