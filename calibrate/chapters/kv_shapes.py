"""What caches really hold, for several shapes and for every way of sharing keys and values between heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch

from calibrate.kv_cache import InPlaceCaches, measured_kv_bytes_per_token
from calibrate.memory import free_bytes
from calibrate.model import TORCH_DTYPES, ModelSource, build_model
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.step_time.chapters_schema import KvShape, Residents

REFERENCE = "qwen2.5-0.5b"  # 24 layers, 14 heads, 2 of them with keys and values, 64 numbers each
DTYPE = "fp16"
OTHERS = ("tiny", "25m", "qwen2.5-7b", "llama-3.1-8b", "llama-2-7b", "llama-2-13b")
PARTITIONS = ((32, 2048), (64, 1024), (128, 512))  # 65,536 tokens each


def measure_kv_shapes(model: ModelSpec, device: str) -> tuple[KvShape, ...]:
    """Bytes per token of real caches: the reference model with all, two and one of its heads keeping keys and values,
    the model that is being measured, and other published shapes. Raises ``CalibrationError`` where a cache does not
    hold a whole number of bytes per token, ``ValidationError`` where the formula disagrees."""
    reference = load_model_spec(REFERENCE)
    variants = {
        f"{REFERENCE}, all {reference.num_attention_heads} heads": replace(
            reference, num_kv_heads=reference.num_attention_heads
        ),
        REFERENCE: reference,
        f"{REFERENCE}, one head": replace(reference, num_kv_heads=1),
    }
    others = {name: load_model_spec(name) for name in OTHERS} | {model.name: model}
    return tuple(_measure(name, spec, device) for name, spec in (variants | others).items())


def measure_residents(device: str) -> tuple[Residents, ...]:
    """Bytes of the reference model's cache filled by 65,536 tokens, shared among sequences in three ways; none where
    memory is short."""
    spec = load_model_spec(REFERENCE)
    return tuple(_residents(spec, device))


def _measure(name: str, spec: ModelSpec, device: str) -> KvShape:
    source = ModelSource(_slim(spec), None, False)
    measured = measured_kv_bytes_per_token(build_model(source, device, DTYPE, "eager", seed=0))
    return KvShape(
        name=name,
        attention=_attention(spec),
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=DTYPE,
        measured=measured,
        formula=spec.kv_bytes_per_token(DTYPE),
    )


def _slim(spec: ModelSpec) -> ModelSpec:
    """The same attention in a model that is narrow elsewhere: keys and values have the same shape, and a 13B fits."""
    return replace(spec, hidden_size=2 * spec.num_attention_heads, intermediate_size=64, vocab_size=128)


def _attention(spec: ModelSpec) -> Literal["multi-head", "grouped-query", "multi-query"]:
    if spec.num_kv_heads == 1:
        return "multi-query"
    return "multi-head" if spec.num_kv_heads == spec.num_attention_heads else "grouped-query"


def _residents(spec: ModelSpec, device: str) -> Iterator[Residents]:
    num_tokens = PARTITIONS[0][0] * PARTITIONS[0][1]
    free = free_bytes(device)
    if free is not None and free < 2 * num_tokens * spec.kv_bytes_per_token(DTYPE):
        return
    dtype = getattr(torch, TORCH_DTYPES[DTYPE])
    caches = InPlaceCaches(spec, num_tokens, dtype, torch.device(device))
    for rows, each in PARTITIONS:
        cache: Any = caches.shape(rows, each, 0)
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        yield Residents(num_sequences=rows, num_tokens_each=each, num_bytes=num_bytes)
