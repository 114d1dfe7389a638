"""Closed-loop measurements of real servers: a csv of TTFT and TPOT at fixed concurrency, in AIConfigurator's columns.

A loop of B equal requests always has work, so by Little's law one request takes the engine its latency over B. In that
time its prompt must be computed, and its share of the decode steps must read weights and cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from simserve.errors import ModelError
from simserve.model_spec import ModelSpec, causal_pairs, load_model_spec
from simserve.step_time.hardware import HARDWARE, Hardware
from simserve.step_time.operators.csv_files import read_table, read_text

_SHAPE = ("isl", "osl", "batch_size", "tp_size")
_TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
_GROUP = ("system", "backend", "model_path")
COLUMNS = (*_GROUP, "mode", "precision", *_SHAPE, *_TIMES)
_CHIPS = {"a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm"}
_SUFFIXES = ("-fp8", "-instruct")
_STEADY = 1.5  # TTFT may vary by this factor over output lengths


def is_closed_loop(path: Path) -> bool:
    """Whether a csv has these columns and not those of step times. Raises ``ProfileError``."""
    head = read_text(path).split("\n", 1)[0]
    return all(column in head for column in _TIMES)


def screen_closed_loop(path: Path) -> list[str]:
    """One line per finding. Raises ``ProfileError`` for a file without the columns."""
    table = read_table(path, COLUMNS, _TIMES)
    found = list(_repeated(table))
    loops = table[table["mode"] == "agg"].drop_duplicates([*_GROUP, *_SHAPE, *_TIMES])
    loops = loops.assign(**{c: pd.to_numeric(loops[c], errors="coerce") for c in _SHAPE})
    loops = loops[((loops[list(_SHAPE)] >= 1) & (loops[list(_SHAPE)] < 1e9)).all(axis=1)]
    return [*found, *_moving_ttft(loops), *_faster_than_the_chip(loops)]


def _repeated(table: pd.DataFrame) -> Iterator[str]:
    count = int(table.duplicated([*_GROUP, "mode", *_SHAPE, *_TIMES]).sum())
    if count:
        yield f"{count:,} of {len(table):,} rows repeat an earlier one in configuration and in both times"


def _moving_ttft(loops: pd.DataFrame) -> Iterator[str]:
    """Servers whose TTFT depends on how long the answer will be, which no first token can know."""
    for names, group in loops.groupby(list(_GROUP)):
        shapes = group.groupby(["isl", "batch_size", "tp_size", "precision"], dropna=False)
        several = shapes.filter(lambda shape: shape.osl.nunique() > 1).groupby(["isl", "batch_size", "tp_size"])
        ratios = several.silicon_ttft_ms.max() / several.silicon_ttft_ms.min()
        share = float((ratios > _STEADY).mean()) if len(ratios) else 0.0
        if share > 0.5:
            yield (
                f"{' '.join(map(str, names))}: {len(group)} rows whose TTFT cannot be used: over output lengths it "
                f"changes by more than {_STEADY}× in {share:.0%} of {len(ratios)} shapes"
            )


def _faster_than_the_chip(loops: pd.DataFrame) -> Iterator[str]:
    """Rows that leave less engine time per request than its own prefill at the peak and its share of reading weights
    and cache (one byte a number) need, one after the other."""
    rows: list[Any] = list(loops.itertuples())
    for row in rows:
        hardware, spec = HARDWARE.get(_CHIPS.get(str(row.system), "")), _spec(str(row.model_path))
        if hardware is None or spec is None or row.precision != "fp8":
            continue
        has_s = (row.silicon_ttft_ms + row.silicon_tpot_ms * (row.osl - 1)) / 1e3 / row.batch_size
        needs_s = _needs_s(row, spec, hardware)
        if needs_s > has_s:
            name = f"{row.system} {row.backend} {row.model_path}"
            shape = f"{row.batch_size:.0f} × ({row.isl:.0f} + {row.osl:.0f}) tokens on {row.tp_size:.0f}"
            yield f"{name}, {shape}: {1e3 * has_s:.2f} ms a request, and the chip needs {1e3 * needs_s:.2f}"


def _needs_s(row: Any, spec: ModelSpec, hardware: Hardware) -> float:  # noqa: ANN401 - a row of a data frame
    prompt, answer, batch = int(row.isl), int(row.osl), int(row.batch_size)
    flops = spec.matmul_flops(prompt, 1) + spec.attention_flops(causal_pairs(prompt, 0))
    cached = batch * (prompt + answer / 2) * spec.kv_bytes_per_token("fp8")
    read = (spec.matmul_parameters + spec.lm_head_parameters + cached) * answer / batch
    return float(flops / hardware.peak_flops["fp8"] + read / hardware.bandwidth_bytes_per_s) / float(row.tp_size)


def _spec(model_path: str) -> ModelSpec | None:
    name = model_path.lower().rsplit("/", 1)[-1]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    try:
        return load_model_spec(name)
    except ModelError:
        return None
