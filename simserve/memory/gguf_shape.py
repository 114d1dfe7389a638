"""From the header of a GGUF file to what memory follows from; weights are counted tensor by tensor, as stored."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from simserve.errors import ModelError
from simserve.memory.gguf import GgufHeader, TensorInfo, Value, printable_path, read_header
from simserve.memory.shapes import MAX_PARAMETERS, Shape
from simserve.model_spec import MAX_DIMENSION

GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""ggml's types by number: name, weights of a block, bytes of a block."""

_PART = re.compile(r"(?P<name>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)
NOT_PARAMETERS = "rope_"  # tables of frequencies, which training never sees


def shape_of_gguf(path: Path) -> Shape:
    """The shape of a GGUF file. Raises ``ModelError`` in one sentence: see ``read_header``; a missing or impossible
    dimension, KV heads that differ between layers, latent attention, or a split file whose parts are not all there."""
    header, where = read_header(path), printable_path(path)
    family = header.metadata.get("general.architecture")
    if not isinstance(family, str) or not family.isprintable() or not 1 <= len(family) <= 64:
        raise ModelError(f"{where}: general.architecture: is missing or no plain name; give a language model's file")
    header = _with_other_parts(header, path)
    _refuse_other_attention(header, family, where)
    heads = _dimension(header, f"{family}.attention.head_count", where)
    kv_heads = _dimension(header, f"{family}.attention.head_count_kv", where, heads)
    if heads % kv_heads:
        raise ModelError(f"{where}: {family}.attention.head_count_kv: must divide head_count {heads} (got {kv_heads})")
    stored = _stored_bytes(header.tensors)
    return Shape(
        name=_PART.sub(r"\g<name>", path.name).removesuffix(".gguf") if path.name.isprintable() else repr(path.stem),
        num_parameters=_num_parameters(header.tensors, where),
        num_layers=_dimension(header, f"{family}.block_count", where),
        num_kv_heads=kv_heads,
        head_dim=_head_dim(header, family, heads, where),
        num_attention_heads=heads,
        max_context=_maybe(header, f"{family}.context_length"),
        stored_bytes=stored,
        stored_as=None if stored is None else _main_type(header.tensors),
        notes=_notes(header, family, stored),
    )


def _with_other_parts(header: GgufHeader, path: Path) -> GgufHeader:
    """The header of a whole model: a split file's first part says what it is, and every part lists its own tensors."""
    count, where = header.metadata.get("split.count"), printable_path(path)
    if not isinstance(count, int) or count <= 1:
        return header
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{where}: split.count: is one of {count} parts; parts must be named NAME-00001-of-{count:05}.gguf"
        )
    if int(match["part"]) != 1:
        raise ModelError(f"{where}: split.no: is not the first part of the model; give {match['name']}-00001-of-…")
    tensors = list(header.tensors)
    for part in range(2, count + 1):
        tensors += read_header(path.with_name(f"{match['name']}-{part:05}-of-{count:05}.gguf")).tensors
    return GgufHeader(header.metadata, tuple(tensors))


def _refuse_other_attention(header: GgufHeader, family: str, where: str) -> None:
    for key in (f"{family}.attention.kv_lora_rank", f"{family}.ssm.state_size", f"{family}.wkv.head_size"):
        if header.metadata.get(key):
            what = "only models that keep keys and values of every head are supported"
            raise ModelError(f"{where}: {key}: {what} (got {header.metadata[key]})")


def _head_dim(header: GgufHeader, family: str, heads: int, where: str) -> int:
    keys, values = (_maybe(header, f"{family}.attention.{name}_length") for name in ("key", "value"))
    if keys is None:
        hidden = _dimension(header, f"{family}.embedding_length", where)
        if hidden % heads:
            raise ModelError(f"{where}: {family}.embedding_length: must be divisible by {heads} heads (got {hidden})")
        keys = hidden // heads
    if values is not None and values != keys:
        raise ModelError(f"{where}: {family}.attention.value_length: must be key_length {keys} (got {values})")
    return keys


def _dimension(header: GgufHeader, key: str, where: str, default: int | None = None) -> int:
    value: Value = header.metadata.get(key, default)
    if isinstance(value, tuple) and value and len(set(value)) == 1:
        value = value[0]  # one number for each layer, all the same
    if value is None:
        raise ModelError(f"{where}: {key}: is missing; give a language model's file")
    if isinstance(value, tuple):
        raise ModelError(f"{where}: {key}: must be the same in every layer (got {_shortly(value)})")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DIMENSION:
        raise ModelError(f"{where}: {key}: must be a whole number from 1 to {MAX_DIMENSION} (got {value!r:.40})")
    return value


def _shortly(values: tuple[int | float | bool, ...]) -> str:
    distinct = list(dict.fromkeys(values))
    return ", ".join(map(str, distinct[:4])) + (", …" if len(distinct) > 4 else "") if distinct else "no number"


def _maybe(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**40 else None


def _num_parameters(tensors: tuple[TensorInfo, ...], where: str) -> int:
    count = sum(math.prod(t.dimensions) for t in tensors if not t.name.startswith(NOT_PARAMETERS))
    if not 1 <= count <= MAX_PARAMETERS:
        raise ModelError(f"{where}: tensors: must hold from 1 to 10¹⁶ parameters (got {count:.4g})")
    return count


def _stored_bytes(tensors: tuple[TensorInfo, ...]) -> int | None:
    """Bytes of all tensors; None where a type is not known."""
    total = 0
    for tensor in tensors:
        if tensor.ggml_type not in GGML_TYPES:
            return None
        _, block, num_bytes = GGML_TYPES[tensor.ggml_type]
        row, *rest = tensor.dimensions or (1,)
        total += math.ceil(row / block) * num_bytes * math.prod(rest)
    return total


def _main_type(tensors: tuple[TensorInfo, ...]) -> str:
    """The type that most weights are in, as llama.cpp names files."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[GGML_TYPES[tensor.ggml_type][0]] += math.prod(tensor.dimensions)
    return f"mostly {weights.most_common(1)[0][0]}" if len(weights) > 1 else next(iter(weights))


def _notes(header: GgufHeader, family: str, stored: int | None) -> tuple[str, ...]:
    notes = []
    window = _maybe(header, f"{family}.attention.sliding_window")
    if window is not None:
        notes.append(f"a sliding window of {window:,} tokens is counted as full attention: more may fit")
    if stored is None:
        notes.append("the file has tensors of a type that is not known here, so its weights are not counted as stored")
    return tuple(notes)
