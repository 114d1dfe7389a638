"""Operator tables of LLMServingSim's profiler (casys-kaist/LLMServingSim), microseconds of one layer under vLLM.

A folder ``tp<N>`` holds ``dense.csv`` (operators over tokens), ``attention.csv`` (prefill chunk × its cached tokens ×
decodes × their context, one kernel for both), ``per_sequence.csv`` and perhaps ``skew.csv`` (decodes of unequal
context); ``meta.yaml`` lies beside it, and may say that the skew table is not to be used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from simserve.errors import ModelError, ProfileError
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.step_time.operators.attention import AttentionTables, Axis
from simserve.step_time.operators.csv_files import digest_of, find_file, read_operators, read_table, read_text
from simserve.step_time.operators.grid import Values
from simserve.step_time.operators.line import Line
from simserve.step_time.operators.skew import read_skew
from simserve.step_time.operators.splits import unsplit_from
from simserve.step_time.operators.tables import OperatorTables, Origin, require_dimensions

if TYPE_CHECKING:
    import pandas as pd

FILES = ("dense.csv", "attention.csv", "per_sequence.csv")
SHAPE = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
LAYER = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn", "rotary_emb", "layernorm")
STEP = ("embedding", "final_layernorm")
ROWS = ("lm_head", "sampler")
_TWICE = "layernorm"  # before attention and before the MLP
_US = 1e-6
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_OVERRIDES = {
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_kv_heads",
    "vocab_size": "vocab_size",
}
_DIMENSIONS = ("num_layers", "hidden_size", "head_dim", *_OVERRIDES.values())


def read_llmservingsim(folder: Path, spec: ModelSpec) -> OperatorTables:
    """The tables of one tensor-parallel degree, for ``spec``. Raises ``ProfileError`` in one sentence."""
    dense_path, attention_path, rows_path = paths = [_required(folder, name) for name in FILES]
    meta_path = next((p for p in (folder / "meta.yaml", folder.parent / "meta.yaml") if p.is_file()), None)
    meta = _meta(meta_path) if meta_path else {}
    if meta_path:
        _require_model(meta_path, meta, spec)
    dense = read_operators(dense_path, "tokens", (*LAYER, *STEP))
    rows = read_operators(rows_path, "sequences", ROWS)
    skew_path = find_file(folder, "skew.csv")
    read = [path for path in (*paths, meta_path, skew_path) if path]
    return OperatorTables(
        layer=_line(dense, (*LAYER, _TWICE)),
        step=_line(dense, STEP),
        rows=_line(rows, ROWS),
        attention=_attention(attention_path),
        origin=(origin := _origin(meta, digest_of(read))),
        skew=read_skew(skew_path, unsplit_from(origin.device, _kv_heads(folder, spec))) if skew_path else None,
        uses_skew=_uses_skew(meta),
    )


def _required(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise ProfileError(f"{folder}: must hold {', '.join(FILES)} (got no {name})")
    return path


def _uses_skew(meta: dict[str, Any]) -> bool:
    """LLMServingSim leaves a skew table aside whose ``meta.yaml`` says ``skew_fit: {enabled: false}``."""
    fit = meta.get("skew_fit")
    return not (isinstance(fit, dict) and fit.get("enabled") is False)


def _kv_heads(folder: Path, spec: ModelSpec) -> int:
    """Of one device, by the folder's degree; where there are fewer heads than devices each has one."""
    degree = folder.name.removeprefix("tp")
    return max(1, spec.num_kv_heads // int(degree)) if degree.isdecimal() and int(degree) else spec.num_kv_heads


def _line(table: pd.DataFrame, names: tuple[str, ...]) -> Line:
    seconds = _US * np.sum([table[name] for name in names], axis=0)
    return Line(table.index.tolist(), seconds.tolist())


def _attention(path: Path) -> AttentionTables:
    table = read_table(path, (*SHAPE, "time_us"), (*SHAPE, "time_us"))
    seconds = (_US * table.groupby(list(SHAPE)).time_us.median()).reset_index()
    prefill = seconds[(seconds.prefill_chunk > 0) & (seconds.n_decode == 0)]
    decode = seconds[(seconds.prefill_chunk == 0) & (seconds.n_decode > 0)]
    mixed = seconds[(seconds.prefill_chunk > 0) & (seconds.n_decode > 0)]
    for kind, part in (("prefills", prefill), ("decodes", decode), ("mixed steps", mixed)):
        if part.empty:
            raise ProfileError(f"{path}: must hold {kind} (got none)")
    if (seconds.time_us <= 0).any():
        row = seconds[seconds.time_us <= 0].iloc[0]
        shape = ", ".join(f"{name} {row[name]:g}" for name in SHAPE)
        raise ProfileError(f"{path}: time_us: must be > 0 (got 0 for {shape})")
    q, c = (_axis(prefill, name) for name in SHAPE[:2])
    n, k = (_axis(decode, name) for name in SHAPE[2:])
    both = tuple(_axis(mixed, name) for name in SHAPE)
    return AttentionTables(
        tokens=q,
        contexts=c,
        prefill=_placed(prefill, SHAPE[:2], (q, c)),
        decodes=n,
        decode_contexts=k,
        decode=_placed(decode, SHAPE[2:], (n, k)),
        mixed=_placed(mixed, SHAPE, both),
        mixed_axes=(both[0], both[1], both[2], both[3]),
    )


def _axis(part: pd.DataFrame, name: str) -> Axis:
    return tuple(sorted(float(value) for value in part[name].unique()))


def _placed(part: pd.DataFrame, names: tuple[str, ...], axes: tuple[Axis, ...]) -> Values:
    """The rows of ``part`` on a grid, NaN where there is none."""
    values = np.full([len(axis) for axis in axes], np.nan)
    places = [np.searchsorted(axis, part[name]) for name, axis in zip(names, axes, strict=True)]
    values[tuple(places)] = part.time_us
    return values


def _meta(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: is not YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: must hold a mapping (got {type(content).__name__})")
    return content


def _require_model(path: Path, meta: dict[str, Any], spec: ModelSpec) -> None:
    """The model that is named has the dimensions asked for; so have the overrides, whole or one device's share."""
    try:
        measured = load_model_spec(str(meta["model"]).rsplit("/", 1)[-1]) if "model" in meta else None
    except ModelError:
        measured = None  # a model of which only the overrides tell
    if measured is not None:
        require_dimensions(path, spec, {name: getattr(measured, name) for name in _DIMENSIONS})
    effective = meta.get("engine_effective")
    overrides = effective.get("hf_overrides") if isinstance(effective, dict) else None
    if isinstance(overrides, dict):
        degrees = tuple(d for d in meta.get("tp_degrees") or () if isinstance(d, int))
        found = {ours: overrides[name] for name, ours in _OVERRIDES.items() if isinstance(overrides.get(name), int)}
        require_dimensions(path, spec, found, degrees)


def _origin(meta: dict[str, Any], digest: str) -> Origin:
    version = f"vLLM {meta['vllm_version']}" if "vllm_version" in meta else "vLLM"
    effective = meta.get("engine_effective")
    eager = isinstance(effective, dict) and effective.get("enforce_eager") is True
    return Origin(
        profiler=f"LLMServingSim's profiler under {version}" + (" in eager mode" if eager else ""),
        device=str(meta.get("gpu", "unnamed device")),
        dtype=_DTYPES.get(str(meta.get("variant"))),
        date=str(meta["profiled_at"])[:10] if "profiled_at" in meta else None,
        missing="all-reduces and the time between kernels",
        digest=digest,
    )
