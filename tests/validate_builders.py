"""Recorded runs made by hand or by our own engine, in the forms in which people have them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.records import Records
from simserve.scenario import parse_scenario
from simserve.simulate import simulate

SCENARIO: dict[str, Any] = {
    "name": "served",
    "model": "qwen2.5-0.5b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate_rps": 200.0},
        "prompt_tokens": {"uniform": {"low": 10, "high": 400}},
        "output_tokens": {"uniform": {"low": 1, "high": 60}},
    },
    "engine": {
        "policy": "chunked",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": 1024,
        "kv_cache": {"allocator": "paged", "block_size": 16, "num_blocks": 400},
    },
    "seed": 3,
}
MONOTONIC_S, WALL_S = 27536.25, 1787267980.0
NS = 1e9


def scenario_file(folder: Path, **changes: Any) -> Path:
    """SCENARIO with top-level sections replaced, as a file."""
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, **changes}, sort_keys=False), encoding="utf-8")
    return path


@cache
def own_run(policy: str = "chunked") -> Records:
    """What our own engine does with SCENARIO."""
    engine = {**SCENARIO["engine"], "policy": policy, "max_num_batched_tokens": 2048}
    data = SCENARIO if policy == "chunked" else {**SCENARIO, "engine": engine}
    (variant,) = simulate(parse_scenario(data)).variants.values()
    return variant.records


def rows(records: Records) -> list[dict[str, Any]]:
    """Each request's lengths and moments, seconds from the first arrival."""
    requests, table = records.requests, records.requests.table
    columns = {
        "num_prompt_tokens": table.num_prompt_tokens,
        "num_output_tokens": table.num_output_tokens,
        "arrival_s": requests.arrival_ns / NS,
        "first_scheduled_s": requests.first_scheduled_ns / NS,
        "first_token_s": requests.first_token_ns / NS,
        "last_token_s": requests.last_token_ns / NS,
        "end_s": requests.end_ns / NS,
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def vllm_line(i: int, row: dict[str, Any]) -> dict[str, Any]:
    """A request as vLLM's per-request stamps tell it: two clocks."""
    return {
        "request_id": f"bench-{i}",
        "input_toks": row["num_prompt_tokens"],
        "output_toks": row["num_output_tokens"],
        "arrival_time": WALL_S + row["arrival_s"],
        "queued_ts": MONOTONIC_S + row["arrival_s"],
        "scheduled_ts": MONOTONIC_S + row["first_scheduled_s"],
        "first_token_ts": MONOTONIC_S + row["first_token_s"],
        "last_token_ts": MONOTONIC_S + row["last_token_s"],
    }


def write_vllm(folder: Path, records: Records, meta: dict[str, Any] | None = None) -> Path:
    """``requests.jsonl``, and ``meta.json`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(vllm_line(i, row)) for i, row in enumerate(rows(records))]
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    if meta is not None:
        (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "requests.jsonl"


def frame(records: Records) -> pd.DataFrame:
    """A row per request in simserve's own words."""
    return pd.DataFrame(rows(records))


def run_of(arrivals: Any, firsts: Any, lasts: Any, outputs: Any, prompts: Any = None, **known: Any) -> RecordedRun:
    """A recorded run from plain lists of seconds and tokens."""
    stamps = Stamps(
        np.array(arrivals, np.float64),
        np.array(firsts, np.float64),
        np.array(lasts, np.float64),
        np.array(prompts if prompts is not None else [10] * len(arrivals), np.int64),
        np.array(outputs, np.int64),
    )
    return recorded_run("run.csv", "requests", stamps, **known)
