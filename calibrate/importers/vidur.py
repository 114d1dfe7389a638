"""Vidur's profiling CSVs: ``mlp.csv`` (operators over tokens) and ``attention.csv`` (prefill chunk × cached tokens, and
decode batch × cached tokens), milliseconds of one layer, statistics of repeats.

A step is the layers times the operators of one layer (its two residual additions both counted). The tables hold no
output head and no all-reduce, so neither is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from calibrate.importers.operators import total_at
from calibrate.importers.reading import Reading
from simserve.errors import ProfileError
from simserve.model_spec import load_model_spec
from simserve.step_time.operators.csv_files import read_table
from simserve.step_time.source import MeasuredPoint

_LAYER = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj"),
)
_ATTENTION = ("attn_input_reshape", "attn_output_reshape", "attn_prefill", "attn_decode")
_SHAPE = ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size")
_WORKERS = "num_tensor_parallel_workers"


def read_vidur(mlp: Path, attention: Path, model: str | None) -> Reading:
    """Compose whole steps of ``model``, at the tensor-parallel degree of the attention table. Raises ``ProfileError``
    or ``ModelError``."""
    if not model:
        raise ProfileError(f"{mlp}: model: must be given, since the tables do not tell; add --model")
    spec = load_model_spec(model)
    degree = tensor_parallel_of(attention)
    steps = compose(mlp, attention, degree, spec.num_layers)
    return Reading(
        tuple(_point(row) for row in steps.itertuples()),
        notes=(
            f"whole steps composed of operator times: {spec.num_layers} times one layer's; the output head, "
            "all-reduces, the time between kernels and the engine's own work are not in them",
        ),
        model=model,
        tensor_parallel=degree,
        source="operator tables of Vidur's profiler",
    )


def tensor_parallel_of(attention: Path) -> int:
    """The degree that the attention table was measured at. Raises ``ProfileError`` unless it is one."""
    degrees = sorted(read_table(attention, (_WORKERS,), (_WORKERS,))[_WORKERS].unique())
    if len(degrees) != 1 or degrees[0] < 1:
        raise ProfileError(f"{attention}: {_WORKERS}: must be one degree (got {', '.join(map(str, degrees))})")
    return int(degrees[0])


def compose(mlp: Path, attention: Path, tensor_parallel: int, num_layers: int) -> pd.DataFrame:
    """Whole steps: is_prefill, batch_size, prefill_chunk_size, kv_cache_size and seconds. Raises ``ProfileError``."""
    medians = {name: f"time_stats.{name}.median" for name in (*_LAYER, "add")}
    columns = ("num_tokens", _WORKERS, *medians.values())
    dense = read_table(mlp, columns, columns)
    dense = dense[dense[_WORKERS] == tensor_parallel]
    if dense.empty:
        raise ProfileError(f"{mlp}: {_WORKERS}: must hold {tensor_parallel}, as attention.csv does (got other degrees)")
    dense = dense.groupby("num_tokens")[list(medians.values())].median()
    dense.columns = pd.Index(medians)
    parts = [f"time_stats.{part}.median" for part in _ATTENTION]
    shapes = read_table(attention, (*_SHAPE, *parts), _SHAPE[1:])
    shapes["is_prefill"] = shapes.is_prefill.astype(str).str.lower() == "true"
    shapes["attention_ms"] = shapes[parts].apply(pd.to_numeric, errors="coerce").fillna(0).sum(axis=1)
    shapes = shapes.groupby(list(_SHAPE), as_index=False)[["attention_ms"]].median()
    tokens = shapes.prefill_chunk_size.where(shapes.is_prefill, shapes.batch_size)
    keep = (tokens >= 1) & (tokens <= dense.index.max()) & (shapes.attention_ms > 0)
    shapes, tokens = shapes[keep], tokens[keep]
    layer_ms = shapes.attention_ms + total_at(dense, _LAYER, tokens) + 2 * total_at(dense, ("add",), tokens)
    steps: pd.DataFrame = shapes.assign(seconds=num_layers * layer_ms / 1e3)[[*_SHAPE, "seconds"]]
    return steps


def _point(row: Any) -> MeasuredPoint:  # noqa: ANN401 - a row of a data frame
    context, seconds = int(row.kv_cache_size), float(row.seconds)
    if row.is_prefill:
        return MeasuredPoint("prefill", 1, int(row.prefill_chunk_size), context, seconds)
    return MeasuredPoint("decode", int(row.batch_size), 1, context, seconds)
