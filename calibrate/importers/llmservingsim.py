"""LLMServingSim's operator tables: a folder ``tp<N>`` with ``dense.csv`` (operators over tokens), ``attention.csv``
(prefill chunk × its cached tokens × decodes × their context) and ``per_sequence.csv``, microseconds of one layer under
vLLM; ``meta.yaml`` beside the folder says of what.

A step is the layers times the operators of one layer (its two norms both counted), and once the embedding, the last
norm, the output head and the sampler. Nothing of what lies between kernels is in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from calibrate.importers.operators import total_at, wide
from calibrate.importers.reading import Reading
from simserve.errors import ProfileError
from simserve.model_spec import load_model_spec
from simserve.request import Batch, Chunk
from simserve.step_time.operators.csv_files import read_table, read_text
from simserve.step_time.source import MeasuredPoint

SHAPE = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_LAYER = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn", "rotary_emb")
_STEP = ("embedding", "final_layernorm")
_ROW = ("lm_head", "sampler")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_llmservingsim(folder: Path, model: str | None = None) -> Reading:
    """Compose whole steps of the tables in ``folder``; ``model`` overrides the one that they name. Raises
    ``ProfileError`` or ``ModelError``."""
    if not folder.is_dir():
        files = "dense.csv, attention.csv and per_sequence.csv"
        raise ProfileError(f"{folder}: must be a folder with {files} (got no folder)")
    meta = _meta(folder.parent / "meta.yaml")
    name = model or meta.get("model")
    if not name:
        raise ProfileError(f"{folder}: model: must be given, since there is no meta.yaml to tell; add --model")
    spec = load_model_spec(str(name))
    steps = compose(folder, spec.num_layers)
    pure = steps[(steps.prefill_chunk == 0) | (steps.n_decode == 0)]
    mixed = steps[(steps.prefill_chunk > 0) & (steps.n_decode > 0)]
    parallel = re.fullmatch(r"tp(\d{1,3})", folder.name)
    variant = str(meta.get("variant", ""))
    version = f"vLLM {meta['vllm_version']}" if "vllm_version" in meta else "vLLM"
    return Reading(
        tuple(_point(row) for row in pure.itertuples()),
        mixed=tuple(_mixed(row) for row in mixed.itertuples()),
        notes=(
            f"whole steps composed of operator times: {spec.num_layers} times one layer's, and those of a step; the "
            "time between kernels and the engine's own work are not in them",
        ),
        model=str(name),
        device_name=str(meta["gpu"]) if "gpu" in meta else None,
        dtype=_DTYPES.get(variant, variant) or None,
        tensor_parallel=int(parallel[1]) if parallel else None,
        source=f"operator tables of LLMServingSim's profiler under {version}",
        date=str(meta["profiled_at"])[:10] if "profiled_at" in meta else None,
    )


def compose(folder: Path, num_layers: int) -> pd.DataFrame:
    """Whole steps: the columns of ``SHAPE`` and ``seconds``, at every measured attention shape whose tokens and rows
    the other tables reach. Raises ``ProfileError``."""
    dense_path, rows_path = folder / "dense.csv", folder / "per_sequence.csv"
    dense = read_table(dense_path, ("layer", "tokens", "time_us"), ("tokens", "time_us"))
    per_row = read_table(rows_path, ("layer", "sequences", "time_us"), ("sequences", "time_us"))
    dense = wide(dense, "tokens", "layer", "time_us", dense_path, (*_LAYER, *_STEP, "layernorm"))
    per_row = wide(per_row, "sequences", "layer", "time_us", rows_path, _ROW)
    shapes = read_table(folder / "attention.csv", (*SHAPE, "time_us"), (*SHAPE, "time_us"))
    tokens = shapes.prefill_chunk + shapes.n_decode
    rows = (shapes.prefill_chunk > 0) + shapes.n_decode
    keep = (tokens >= 1) & (tokens <= dense.index.max()) & (rows <= per_row.index.max())
    shapes, tokens, rows = shapes[keep], tokens[keep], rows[keep]
    layer_us = shapes.time_us + total_at(dense, _LAYER, tokens) + 2 * total_at(dense, ("layernorm",), tokens)
    step_us = num_layers * layer_us + total_at(dense, _STEP, tokens) + total_at(per_row, _ROW, rows)
    steps: pd.DataFrame = shapes.assign(seconds=step_us / 1e6)[[*SHAPE, "seconds"]].astype(dict.fromkeys(SHAPE, int))
    return steps


def _mixed(row: Any) -> tuple[Batch, float]:  # noqa: ANN401 - a row of a data frame
    chunk = Chunk(int(row.prefill_chunk), int(row.kv_prefill))
    return Batch((chunk,), int(row.n_decode), int(row.n_decode * row.kv_decode)), float(row.seconds)


def _point(row: Any) -> MeasuredPoint:  # noqa: ANN401 - a row of a data frame
    if row.prefill_chunk:
        return MeasuredPoint("prefill", 1, int(row.prefill_chunk), int(row.kv_prefill), float(row.seconds))
    return MeasuredPoint("decode", int(row.n_decode), 1, int(row.kv_decode), float(row.seconds))


def _meta(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: is not YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: must hold a mapping (got {type(content).__name__})")
    return content
