"""One model in one memory: every figure of ``simserve memory``, as a plain document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from simserve.errors import FootprintError
from simserve.memory.devices import Memory
from simserve.memory.footprint import (
    DEFAULT_OVERHEAD_BYTES,
    cache_bytes,
    context_for,
    kv_bytes_per_token,
    resident_tokens,
    users_at,
)
from simserve.memory.schemes import WeightScheme
from simserve.memory.shapes import Shape, with_kv_heads
from simserve.memory.sizes import is_decimal, size_text

STORED = "stored"
USUAL_GROUPS = 8  # KV heads of most models with grouped queries


@dataclass(frozen=True)
class Question:
    """What is the same for every model and memory: how it is shared out and kept, and for whom it is counted.

    ``together``: also what each of ``users`` with each of ``contexts`` needs.
    """

    kv_dtype: str = "fp16"
    overhead_bytes: int = DEFAULT_OVERHEAD_BYTES
    tensor_parallel: int = 1
    contexts: Sequence[int] = ()
    users: Sequence[int] = ()
    together: bool = False


class Demand(TypedDict):
    """So many users with so long a context each: their cache, and whether it fits (null: no memory was given)."""

    users: int
    context: int
    tokens: int
    cache_bytes: int
    fits: bool | None


class WhatIf(TypedDict):
    """The same model with other KV heads."""

    attention: str | None
    num_kv_heads: int
    is_model: bool
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    resident_tokens: int | None


class Answer(TypedDict):
    """All of it; bytes are of all devices together unless they say otherwise; null where no memory was given."""

    model: str
    num_parameters: int
    num_layers: int
    num_attention_heads: int | None
    num_kv_heads: int
    head_dim: int
    attention: str | None
    max_context: int | None
    weights: str
    bits_per_weight: float
    weight_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int
    kv_bytes_per_token_with_copies: int
    memory: str | None
    memory_bytes_per_device: int | None
    overhead_bytes_per_device: int
    tensor_parallel: int
    cache_bytes: int | None
    fits: bool | None
    missing_bytes: int | None
    resident_tokens: int | None
    users_at_context: dict[str, int] | None
    context_at_users: dict[str, int] | None
    demands: list[Demand]
    what_if: list[WhatIf]
    notes: list[str]


def answer(shape: Shape, scheme: WeightScheme | None, memory: Memory | None, asked: Question) -> Answer:
    """Count everything for one model, one way to keep its weights (None: as its file does) and one memory.

    Raises ``ModelError`` or ``FootprintError``: an unknown dtype, devices that cannot share the heads.
    """
    _check_division(shape, asked.tensor_parallel)
    weights, held = shape.bytes_in(scheme), kv_bytes_per_token(shape, asked.kv_dtype, asked.tensor_parallel)
    left = None if memory is None else _left(memory, weights, asked)
    tokens = None if left is None else resident_tokens(left, held)
    return {
        "model": shape.name,
        "num_parameters": shape.num_parameters,
        "num_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "attention": shape.attention,
        "max_context": shape.max_context,
        "weights": STORED if scheme is None else scheme.name,
        "bits_per_weight": 8 * weights / shape.num_parameters if scheme is None else scheme.bits_per_weight,
        "weight_bytes": weights,
        "kv_dtype": asked.kv_dtype,
        "kv_bytes_per_token": kv_bytes_per_token(shape, asked.kv_dtype),
        "kv_bytes_per_token_with_copies": held,
        "memory": None if memory is None else memory.name,
        "memory_bytes_per_device": None if memory is None else memory.num_bytes,
        "overhead_bytes_per_device": asked.overhead_bytes,
        "tensor_parallel": asked.tensor_parallel,
        "cache_bytes": None if left is None else max(0, left),
        "fits": None if tokens is None else tokens > 0,
        "missing_bytes": None if left is None else max(0, held - left),
        "resident_tokens": tokens,
        "users_at_context": None if tokens is None else {str(n): users_at(tokens, n) for n in asked.contexts},
        "context_at_users": None if tokens is None else {str(n): context_for(tokens, n) for n in asked.users},
        "demands": _demands(held, tokens, asked),
        "what_if": _what_ifs(shape, scheme, memory, asked),
        "notes": _notes(shape, memory),
    }


def require_fit(found: Answer) -> None:
    """Raise ``FootprintError`` unless at least one token fits (or no memory was given)."""
    missing, memory = found["missing_bytes"], found["memory_bytes_per_device"]
    if not missing or memory is None:
        return
    devices = found["tensor_parallel"]
    sizes = (found["weight_bytes"], devices * found["overhead_bytes_per_device"], devices * memory, missing)
    weights, overhead, has, lack = (size_text(size, is_decimal(str(found["memory"]))) for size in sizes)
    name = found["memory"] if devices == 1 else f"{devices} × {found['memory']}"
    raise FootprintError(
        f"--memory: {name} holds {has}, but the weights of {found['model']} in {_words(found)} take {weights} and the "
        f"overhead {overhead}: {lack} are missing for a single token; take smaller --weights, more --memory or more "
        "--tensor-parallel"
    )


def _words(found: Answer) -> str:
    return f"{found['bits_per_weight']:.5g} bits" if found["weights"][0].isdigit() else found["weights"]


def _notes(shape: Shape, memory: Memory | None) -> list[str]:
    notes = list(shape.notes)
    if shape.spec is None:
        notes.append("with other KV heads the weights are counted as they are: the projections' width is not known")
    if memory is not None and memory.note is not None:
        notes.append(memory.note)
    return notes


def _left(memory: Memory, weights: int, asked: Question) -> int:
    return cache_bytes(memory.num_bytes, weights, asked.overhead_bytes, asked.tensor_parallel)


def _check_division(shape: Shape, devices: int) -> None:
    """Each device takes whole heads; KV heads may be copied, but evenly, as in vLLM."""
    heads, kv_heads = shape.num_attention_heads, shape.num_kv_heads
    if heads is not None and heads % devices:
        rule = f"must divide the {heads} attention heads of {shape.name}"
        raise FootprintError(f"--tensor-parallel: {rule} (got {devices})")
    if kv_heads % devices and devices % kv_heads:
        rule = f"must divide the {kv_heads} KV heads of {shape.name} or be a multiple of them"
        raise FootprintError(f"--tensor-parallel: {rule} (got {devices})")


def _demands(held: int, tokens: int | None, asked: Question) -> list[Demand]:
    return [
        {
            "users": users,
            "context": context,
            "tokens": users * context,
            "cache_bytes": users * context * held,
            "fits": None if tokens is None else users * context <= tokens,
        }
        for users in (asked.users if asked.together else ())
        for context in asked.contexts
    ]


def _what_ifs(shape: Shape, scheme: WeightScheme | None, memory: Memory | None, asked: Question) -> list[WhatIf]:
    """Multi-head, grouped (by eight, and the model's own) and multi-query, from most KV heads to fewest."""
    heads = shape.num_attention_heads
    wanted = {shape.num_kv_heads, 1, *((heads,) if heads is not None else ())}
    if heads is not None and heads > USUAL_GROUPS and heads % USUAL_GROUPS == 0:
        wanted.add(USUAL_GROUPS)
    return [_what_if(with_kv_heads(shape, n), shape, scheme, memory, asked) for n in sorted(wanted, reverse=True)]


def _what_if(other: Shape, model: Shape, scheme: WeightScheme | None, memory: Memory | None, asked: Question) -> WhatIf:
    weights = other.bytes_in(scheme)
    held = kv_bytes_per_token(other, asked.kv_dtype, asked.tensor_parallel)
    return {
        "attention": other.attention,
        "num_kv_heads": other.num_kv_heads,
        "is_model": other.num_kv_heads == model.num_kv_heads,
        "num_parameters": other.num_parameters,
        "weight_bytes": weights,
        "kv_bytes_per_token": kv_bytes_per_token(other, asked.kv_dtype),
        "resident_tokens": None if memory is None else resident_tokens(_left(memory, weights, asked), held),
    }
