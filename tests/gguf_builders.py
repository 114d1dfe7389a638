"""GGUF headers, byte by byte as ggml's ``docs/gguf.md`` lays them out, for tests of their reader."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10

LLAMA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "made for a test",
    "llama.block_count": 4,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 4_096,
    "llama.rope.freq_base": 10_000.0,
    "tokenizer.ggml.tokens": ["<s>", "a", "b"],
}
F16, Q4_K, Q8_0 = 1, 12, 8
TENSORS = [("token_embd.weight", (256, 1_000), Q8_0), ("blk.0.attn_q.weight", (256, 256), Q4_K)]


def gguf(
    metadata: Mapping[str, object],
    tensors: Sequence[tuple[str, tuple[int, ...], int]] = TENSORS,
    version: int = 3,
    order: str = "<",
) -> bytes:
    """A header; texts, whole numbers (32 bits), numbers with a point, booleans and lists of one of them."""
    out = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key, order) + _typed(value, order)
    for name, dimensions, kind in tensors:
        out += text(name, order) + struct.pack(f"{order}I{len(dimensions)}Q", len(dimensions), *dimensions)
        out += struct.pack(f"{order}IQ", kind, 0)
    return out


def llama(**changes: object) -> dict[str, object]:
    """``LLAMA`` with other values for keys whose dots are written ``__``; ``...`` leaves one out."""
    merged = LLAMA | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in merged.items() if value is not ...}


def text(value: str, order: str = "<") -> bytes:
    """A string with its length before it."""
    raw = value.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def _typed(value: object, order: str) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0]) if value else UINT32
        head = struct.pack(f"{order}IIQ", ARRAY, kind, len(value))
        return head + b"".join(_plain(item, order) for item in value)
    return struct.pack(f"{order}I", _kind(value)) + _plain(value, order)


def _kind(value: object) -> int:
    if isinstance(value, list):
        return ARRAY
    kinds = {str: STRING, bool: BOOL, int: UINT32, float: FLOAT32}
    return kinds[type(value)]


def _plain(value: object, order: str) -> bytes:
    if isinstance(value, str):
        return text(value, order)
    if isinstance(value, list):
        return _typed(value, order)[4:]
    code = {bool: "?", int: "I", float: "f"}[type(value)]
    return struct.pack(order + code, value)
