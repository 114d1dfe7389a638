"""Operator tables of Vidur's profiler (microsoft/vidur), milliseconds of one layer on each device of a group.

``mlp.csv`` has operators over tokens for several tensor-parallel degrees; ``attention*.csv`` prefills (chunk × cached
tokens) and decodes (batch × cached tokens), which run one after another there, never in one kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simserve.errors import ProfileError
from simserve.model_spec import ModelSpec
from simserve.step_time.operators.attention import AttentionTables, Axis
from simserve.step_time.operators.csv_files import digest_of, find_file, read_table
from simserve.step_time.operators.grid import Values
from simserve.step_time.operators.line import NO_TIME, Line
from simserve.step_time.operators.tables import OperatorTables, Origin, require_dimensions

if TYPE_CHECKING:
    import pandas as pd

LAYER = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)
ATTENTION = ("attn_input_reshape", "attn_output_reshape", "attn_prefill", "attn_decode")
_TWICE = "add"  # the residual, after attention and after the MLP
_EMBEDDING = "emb"
_WORKERS = "num_tensor_parallel_workers"
_SHAPE = ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size")
_MLP_DIMENSIONS = {
    **{"n_head": "num_attention_heads", "n_kv_head": "num_kv_heads"},
    **{"n_embd": "hidden_size", "n_expanded_embd": "intermediate_size"},
}
_ATTENTION_DIMENSIONS = {"n_q_head": "num_attention_heads", "n_kv_head": "num_kv_heads", "n_embd": "hidden_size"}
_MS = 1e-3


def read_vidur(folder: Path, spec: ModelSpec, tensor_parallel: int) -> OperatorTables:
    """The tables of one tensor-parallel degree, for ``spec``. Raises ``ProfileError`` in one sentence."""
    mlp_path = find_file(folder, "mlp.csv")
    attention_paths = sorted(folder.glob("attention*.csv*"))
    if mlp_path is None or not attention_paths:
        raise ProfileError(f"{folder}: must hold mlp.csv and attention.csv (got only one of them)")
    mlp = _of_degree(mlp_path, tensor_parallel, (*map(_median, LAYER), "num_tokens"))
    found = [_of_degree(path, tensor_parallel, _SHAPE[1:], False) for path in attention_paths]
    path, shapes = next(
        ((p, t) for p, t in zip(attention_paths, found, strict=True) if len(t)), (attention_paths[0], found[0])
    )
    if shapes.empty:
        raise ProfileError(
            f"{path}: {_WORKERS}: must be {tensor_parallel} as step_time.tensor_parallel says (got others)"
        )
    for where, table, names in ((mlp_path, mlp, _MLP_DIMENSIONS), (path, shapes, _ATTENTION_DIMENSIONS)):
        require_dimensions(
            where, spec, {ours: int(table[name].iloc[0]) for name, ours in names.items() if name in table}
        )
    embedding = [_EMBEDDING] if _median(_EMBEDDING) in mlp else []
    return OperatorTables(
        layer=_line(mlp, (*LAYER, _TWICE)),
        step=_line(mlp, embedding) if embedding else NO_TIME,
        rows=NO_TIME,
        attention=_attention(path, shapes),
        origin=_origin(folder, digest_of([mlp_path, path])),
    )


def _median(name: str) -> str:
    return f"time_stats.{name}.median"


def _of_degree(path: Path, tensor_parallel: int, numeric: tuple[str, ...], needed: bool = True) -> pd.DataFrame:
    """The rows of a file that were measured at a degree. Raises ``ProfileError`` if there must be some."""
    table = read_table(path, (_WORKERS, *numeric), (_WORKERS, *numeric))
    rows = table[table[_WORKERS] == tensor_parallel]
    if needed and rows.empty:
        degrees = ", ".join(str(int(d)) for d in sorted(table[_WORKERS].unique()))
        raise ProfileError(
            f"{path}: {_WORKERS}: must be {tensor_parallel} as step_time.tensor_parallel says (got {degrees})"
        )
    return rows


def _line(table: pd.DataFrame, names: tuple[str, ...] | list[str]) -> Line:
    medians = table.groupby("num_tokens")[[_median(name) for name in dict.fromkeys(names)]].median()
    seconds = _MS * np.sum([medians[_median(name)] for name in names], axis=0)
    return Line(medians.index.tolist(), seconds.tolist())


def _attention(path: Path, table: pd.DataFrame) -> AttentionTables:
    import pandas as pd

    missing = [name for name in (*map(_median, ATTENTION), _SHAPE[0]) if name not in table]
    if missing:
        raise ProfileError(f"{path}: must have the columns {', '.join(missing)} (got others)")
    parts = table[[_median(name) for name in ATTENTION]].apply(pd.to_numeric, errors="coerce").fillna(0)
    table = table.assign(seconds=_MS * parts.sum(axis=1), prefilling=table.is_prefill.astype(str).str.lower() == "true")
    table = table[table.seconds > 0]
    prefill = table[table.prefilling & (table.batch_size == 1) & (table.prefill_chunk_size > 0)]
    decode = table[~table.prefilling & (table.batch_size > 0)]
    for kind, part in (("prefills", prefill), ("decodes", decode)):
        if part.empty:
            raise ProfileError(f"{path}: must hold {kind} of a time > 0 (got none)")
    tokens, contexts, prefills = _placed(prefill, "prefill_chunk_size")
    decodes, decode_contexts, seconds = _placed(decode, "batch_size")
    return AttentionTables(tokens, contexts, prefills, decodes, decode_contexts, seconds)


def _placed(part: pd.DataFrame, row: str) -> tuple[Axis, Axis, Values]:
    grid = part.pivot_table(index=row, columns="kv_cache_size", values="seconds", aggfunc="median")
    return tuple(map(float, grid.index)), tuple(map(float, grid.columns)), np.array(grid, float)


def _origin(folder: Path, digest: str) -> Origin:
    device = folder.resolve().parent.name  # <device>/<model>/ is how that profiler lays out its results
    return Origin(
        profiler="Vidur's profiler",
        device=device or "unnamed device",
        dtype=None,
        date=None,
        missing="output head, sampler, all-reduces and the time between kernels",
        digest=digest,
    )
