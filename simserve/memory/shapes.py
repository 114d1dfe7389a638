"""The few dimensions that memory follows from, from whichever source a user has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from simserve.errors import ModelError
from simserve.memory.schemes import WeightScheme, weight_bytes
from simserve.model_spec import MAX_DIMENSION, ModelSpec, load_model_spec

MAX_PARAMETERS = 10**16
_COUNT = re.compile(r"(\d{1,20}(?:\.\d{1,12})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}


@dataclass(frozen=True)
class Shape:
    """A model as far as memory goes.

    ``num_attention_heads`` and ``max_context``: ``None`` where the source does not say. ``stored_bytes``: what the
    weights take as the file keeps them (GGUF), ``stored_as`` in words. ``spec``: the whole architecture where it is
    known, so that parameters follow the KV heads. ``notes``: what a reader of the figures must know.
    """

    name: str
    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_attention_heads: int | None = None
    max_context: int | None = None
    stored_bytes: int | None = None
    stored_as: str | None = None
    spec: ModelSpec | None = None
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> str | None:
        """``mha``, ``mqa``, ``gqa``: every attention head has its own keys and values, all share one pair, or groups
        do. None where the attention heads are not known."""
        if self.num_kv_heads == self.num_attention_heads:
            return "mha"
        if self.num_kv_heads == 1:
            return "mqa"
        return None if self.num_attention_heads is None else "gqa"

    def bytes_in(self, scheme: WeightScheme | None) -> int:
        """Bytes of the weights in a scheme, or as stored where it is None; raises ``ModelError`` if that is unknown."""
        if scheme is not None:
            return weight_bytes(self, scheme)
        if self.stored_bytes is None:
            raise ModelError(
                f"--weights: {self.name} has no stored weights to count; name a scheme such as fp16 or int4"
            )
        return self.stored_bytes


def shape_of(spec: ModelSpec) -> Shape:
    """The shape of a whole architecture."""
    return Shape(
        name=spec.name,
        num_parameters=spec.num_parameters,
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_attention_heads=spec.num_attention_heads,
        max_context=spec.max_position_embeddings,
        spec=spec,
    )


def load_shape(name_or_path: str) -> Shape:
    """The shape of a catalogue or hub name, a ``config.json`` or its folder, or a GGUF file. Raises ``ModelError``."""
    from simserve.memory.gguf import is_gguf
    from simserve.memory.gguf_shape import shape_of_gguf

    path = Path(name_or_path)
    if path.suffix == ".gguf" or (path.is_file() and is_gguf(path)):
        return shape_of_gguf(path)
    return shape_of(load_model_spec(name_or_path))


def with_kv_heads(shape: Shape, num_kv_heads: int) -> Shape:
    """The same model with another number of KV heads; its key and value projections, and so its parameters, follow
    where the whole architecture is known, and are counted as they were where it is not.

    Raises ``ModelError`` unless they divide the attention heads (where those are known).
    """
    heads = shape.num_attention_heads
    if num_kv_heads < 1 or (heads is not None and heads % num_kv_heads):
        rule = "must be ≥ 1" if heads is None else f"must divide the {heads} attention heads of {shape.name}"
        raise ModelError(f"--kv-heads: {rule} (got {num_kv_heads})")
    if shape.spec is not None:
        return shape_of(replace(shape.spec, num_kv_heads=num_kv_heads))
    return replace(shape, num_kv_heads=num_kv_heads)


def shape_from_dimensions(
    params: str | None, layers: int | None, kv_heads: int | None, head_dim: int | None, heads: int | None = None
) -> Shape:
    """A shape from the command line's own numbers. Raises ``ModelError``: one that is missing or impossible."""
    given = {"--params": params, "--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    missing = [option for option, value in given.items() if value is None]
    if params is None or layers is None or kv_heads is None or head_dim is None:
        raise ModelError(
            f"{', '.join(missing)}: must be given too where there is no MODEL, as in "
            "--params 13B --layers 40 --kv-heads 40 --head-dim 128"
        )
    for option, value in (("--layers", layers), ("--kv-heads", kv_heads), ("--head-dim", head_dim), ("--heads", heads)):
        if value is not None and not 1 <= value <= MAX_DIMENSION:
            raise ModelError(f"{option}: must be from 1 to {MAX_DIMENSION} (got {value})")
    if heads is not None and heads % kv_heads:
        raise ModelError(f"--kv-heads: must divide --heads {heads} (got {kv_heads})")
    return Shape(params.upper(), parse_count(params), layers, kv_heads, head_dim, heads)


def parse_count(text: str) -> int:
    """A number of parameters: ``13B`` is 13·10⁹, ``0.5B``, ``350M``, ``494032768``. Raises ``ModelError``."""
    match = _COUNT.fullmatch(text.strip())
    count = Decimal(match[1]) * 10 ** _POWERS[match[2].upper()] if match else Decimal(0)
    if not 1 <= count <= MAX_PARAMETERS or count != int(count):
        raise ModelError(f"--params: must be a number of parameters such as 13B, 350M or 494032768 (got {text!r})")
    return int(count)
