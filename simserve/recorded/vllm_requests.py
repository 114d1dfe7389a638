"""Per-request stamps of vLLM's own metrics (``RequestStateStats``), one JSON object per line, ``meta.json`` beside it
and ``timeseries.csv``, what its logger says once a second.

``arrival_time`` is of the wall clock, every other stamp of the monotonic one: a request's arrival is its ``queued_ts``,
when the engine's core got it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.errors import RunError
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.scenario.messages import printable
from simserve.workload.columns import Column
from simserve.workload.trace_file import read_columns

FORMAT = "vllm-requests"
FILE = "requests.jsonl"
META = "meta.json"
SERIES = "timeseries.csv"
_SERIES_NOTE = (
    f"the measured batch size is from {SERIES}: by the second, and as if everyone who runs got a token in every step"
)
_CLOCK_NOTE = "arrivals are queued_ts, when the engine got each request; arrival_time is of another clock and not used"
_TIMES = ("queued_ts", "first_token_ts", "last_token_ts", "scheduled_ts")
_LENGTHS = ("input_toks", "output_toks")
_KEYS = {  # a scenario's key -> where meta.json has it
    "engine.max_num_seqs": "engine_kwargs.max_num_seqs",
    "engine.max_num_batched_tokens": "engine_kwargs.max_num_batched_tokens",
    "engine.max_model_len": "engine_kwargs.max_model_len",
    "engine.kv_cache.block_size": "kv_cache.block_size",
    "engine.kv_cache.num_blocks": "kv_cache.num_gpu_blocks",
    "engine.kv_cache.prefix_caching": "kv_cache.enable_prefix_caching",
    "engine.async_scheduling": "resolved_config.scheduler_config.async_scheduling",
    "step_time.tensor_parallel": "engine_kwargs.tensor_parallel_size",
}


def read(path: Path) -> RecordedRun:
    """The run of a file, or of the folder that holds it. Raises InputError, one sentence."""
    file = path / FILE if path.is_dir() else path
    frame = read_columns(file)
    wanted = [*_LENGTHS, *_TIMES]
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        hint = "; arrival_time is of another clock than the rest" if "queued_ts" in missing else ""
        raise RunError(printable(f"{file.name}: must have {', '.join(missing)} in every line{hint}"))
    columns = {name: Column(file.name, name, frame[name]) for name in wanted}
    for name in _TIMES:
        numbers, lacks = columns[name].numbers(), columns[name].is_missing()
        columns[name].refuse_unless(
            (abs(numbers) < 9e9) | (lacks & (name != "queued_ts")), "must be a number of seconds"
        )
    stamps = Stamps(
        arrival_s=columns["queued_ts"].numbers(),
        first_token_s=columns["first_token_ts"].numbers(),
        last_token_s=columns["last_token_ts"].numbers(),
        num_prompt_tokens=columns["input_toks"].whole_numbers(low=1),
        num_output_tokens=columns["output_toks"].whole_numbers(low=1),
        first_scheduled_s=columns["scheduled_ts"].numbers(),
    )
    meta, batch_size = _meta(file.parent / META), _mean_batch_size(file.parent / SERIES)
    return recorded_run(
        file.name,
        FORMAT,
        stamps,
        mean_batch_size=batch_size,
        notes=(_CLOCK_NOTE,) if batch_size is None else (_CLOCK_NOTE, _SERIES_NOTE),
        settings=_settings(meta),
        engine=_engine(meta),
    )


def _mean_batch_size(path: Path) -> float | None:
    """Sequences in a step, over steps: in a second with R of them running and G tokens generated there were G / R
    steps. None without the file, or where it tells of no step. Raises InputError for one that is no such series."""
    if not path.is_file():
        return None
    frame = read_columns(path)
    wanted = ("gen_throughput", "running")
    if missing := [name for name in wanted if name not in frame.columns]:
        raise RunError(printable(f"{path.name}: must have the column {missing[0]}; leave the file away"))
    tokens, running = (Column(path.name, name, frame[name]).numbers() for name in wanted)
    busy = (running > 0) & (tokens > 0)
    steps = float((tokens[busy] / running[busy]).sum())
    return float(tokens[busy].sum()) / steps if steps else None


def _meta(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(printable(f"{path.name}: must be JSON ({str(error).splitlines()[0]})")) from None
    if not isinstance(content, dict):
        raise RunError(f"{path.name}: must hold a JSON object (got {type(content).__name__})")
    return content


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    found = {ours: _at(meta, theirs) for ours, theirs in _KEYS.items()}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _engine(meta: Mapping[str, Any]) -> str:
    version, device = meta.get("vllm_version"), _at(meta, "hardware.device_name")
    on = f" on {device}" if isinstance(device, str) else ""
    return f"vLLM {version}{on}" if isinstance(version, str) else "vLLM"


def _at(meta: Mapping[str, Any], path: str) -> object:
    value: object = meta
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
