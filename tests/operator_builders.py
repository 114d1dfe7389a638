"""Operator profiles of devices that do not exist, whose times are formulas, written as the two profilers write theirs.

``Device`` is linear: tokens, (query, key) pairs, decodes and their context each cost a constant. So whatever the tables
say between their points, and beyond them, has a closed form.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from simserve.model_spec import ModelSpec, load_model_spec
from simserve.request import Batch
from simserve.step_time.operators import OperatorStepTime, load_operators

MODEL = "tiny"
SPEC: ModelSpec = load_model_spec(MODEL)
TOKENS = (4, 8, 16, 32, 64)
CONTEXTS = (0, 16, 32, 64, 128)
DECODES = (1, 2, 4, 8)
DECODE_CONTEXTS = (8, 16, 32, 64, 128)
SIZES = (1, 2, 3, 8, 16, 64, 80)

LLMSERVINGSIM_LAYER = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn", "rotary_emb", "layernorm")
VIDUR_LAYER = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)


@dataclass(frozen=True)
class Device:
    """Microseconds. Every operator of a layer takes ``operator_us`` and ``token_us`` per token."""

    operator_us: float = 3.0
    token_us: float = 0.25
    row_us: float = 2.0
    launch_us: float = 5.0
    pair_us: float = 0.01
    decode_us: float = 0.5
    cached_us: float = 0.02

    def operator(self, tokens: float) -> float:
        return self.operator_us + self.token_us * tokens

    def attention(self, pairs: float, decodes: float = 0, cached: float = 0) -> float:
        return self.launch_us + self.pair_us * pairs + self.decode_us * decodes + self.cached_us * cached

    def batch(self, batch: Batch) -> float:
        """One layer's attention of a step, prefills and decodes in one kernel."""
        pairs = sum(new * context + new * new / 2 for new, context in batch.chunks)
        return self.attention(pairs, batch.num_decodes, batch.decode_context_tokens)


DEVICE = Device()


def write_llmservingsim(folder: Path, device: Device = DEVICE, meta: Mapping[str, object] | None = None) -> Path:
    """``tp1`` in ``folder``, with a ``meta.yaml`` beside it; returns ``folder``."""
    tables = folder / "tp1"
    tables.mkdir(parents=True)
    names = (*LLMSERVINGSIM_LAYER, "embedding", "final_layernorm")
    _write(
        tables / "dense.csv", ("layer", "tokens", "time_us"), ((o, t, device.operator(t)) for o in names for t in SIZES)
    )
    rows = ((o, n, device.row_us * n) for o in ("lm_head", "sampler") for n in (1, 2, 4, 8, 16))
    _write(tables / "per_sequence.csv", ("layer", "sequences", "time_us"), rows)
    shape = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    _write(tables / "attention.csv", shape, _attention_rows(device))
    about = {"model": MODEL, "gpu": "A Formula", "vllm_version": "0.0", "variant": "bf16", "profiled_at": "2026-01-02"}
    (folder / "meta.yaml").write_text(yaml.safe_dump({**about, **(meta or {})}))
    return folder


def _attention_rows(device: Device) -> Iterable[tuple[float, ...]]:
    for q in (0, *TOKENS):
        for c in CONTEXTS if q else (0,):
            for n in (0, *DECODES):
                for k in DECODE_CONTEXTS if n else (0,):
                    if q or n:
                        yield q, c, n, k, device.attention(q * (c + q / 2), n, n * k)


def write_vidur(folder: Path, device: Device = DEVICE, tensor_parallel: int = 2, spec: ModelSpec = SPEC) -> Path:
    """``mlp.csv`` and ``attention.csv`` in ``folder``, of the degree and of another one."""
    folder.mkdir(parents=True)
    shape = {"n_head": spec.num_attention_heads, "n_kv_head": spec.num_kv_heads, "n_embd": spec.hidden_size}
    names = [f"time_stats.{name}.median" for name in (*VIDUR_LAYER, "emb")]
    mlp = (
        (*[device.operator(t) * share / 1e3] * len(names), t, workers, *shape.values(), spec.intermediate_size)
        for workers, share in ((tensor_parallel, 1), (4 * tensor_parallel, 9))
        for t in SIZES
    )
    header = (*names, "num_tokens", "num_tensor_parallel_workers", *shape, "n_expanded_embd")
    _write(folder / "mlp.csv", header, mlp)
    parts = [f"time_stats.{name}.median" for name in ("attn_prefill", "attn_decode")]
    reshapes = [f"time_stats.{name}.median" for name in ("attn_input_reshape", "attn_output_reshape")]
    kind = ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size", "num_tensor_parallel_workers")
    tail = (tensor_parallel, shape["n_head"], shape["n_embd"])
    prefills = (
        (device.attention(q * (c + q / 2)) / 1e3, "", 0.0, 0.0, True, 1, q, c, *tail) for q in TOKENS for c in CONTEXTS
    )
    decodes = (
        ("", device.attention(0, n, n * k) / 1e3, 0.0, 0.0, False, n, 0, k, *tail)
        for n in DECODES
        for k in DECODE_CONTEXTS
    )
    _write(folder / "attention.csv", (*parts, *reshapes, *kind, "n_q_head", "n_embd"), (*prefills, *decodes))
    return folder


def write_skew(folder: Path, alphas: Mapping[tuple[int, int, int], float]) -> Path:
    """``skew.csv`` beside the other tables, by (decodes, new tokens, context): decodes that take 100 µs at their mean
    context and 200 at the longest take 100 (1 + alpha); returns ``folder``."""
    shape = ("n", "pc", "kp", "t_mean_us", "t_max_us", "t_skew_us", "alpha")
    rows = ((*cell, 100, 200, 100 * (1 + alpha), alpha) for cell, alpha in alphas.items())
    _write(folder / "tp1" / "skew.csv", shape, rows)
    return folder


def step_time(
    folder: Path, tensor_parallel: int = 1, host_overhead_s: float = 0.0, unequal_contexts: bool = True
) -> OperatorStepTime:
    """The model over a folder's tables."""
    tables = load_operators(folder, SPEC, tensor_parallel)
    return OperatorStepTime(tables, SPEC, tensor_parallel, host_overhead_s, unequal_contexts)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
