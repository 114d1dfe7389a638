"""A small valid scenario as plain data, and a way to change one thing in it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from simserve.scenario import Scenario, load_scenario

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "qwen2.5-0.5b",
    "step_time": {"profile": "a-profile"},
    "workload": {
        "num_requests": 4,
        "arrivals": {"process": "poisson", "rate_rps": 1.0},
        "prompt_tokens": {"fixed": 8},
        "output_tokens": {"values": [1, 2, 3, 4]},
    },
    "engine": {
        "policy": "continuous",
        "max_num_seqs": 4,
        "kv_cache": {"allocator": "paged", "num_blocks": 64, "watermark": 0.1},
    },
}


def small(**changes: object) -> dict[str, Any]:
    """SMALL with keys set: ``small(engine__kv_cache__block_size=0)``; a value of ... removes the key."""
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        *parents, key = path.split("__")
        section = data
        for parent in parents:
            section = section[parent]
        if value is ...:
            del section[key]
        else:
            section[key] = value
    return data


def write(folder: Path, data: object, name: str = "small.yaml") -> Path:
    """A scenario file in a folder; ``data`` is a mapping, or the file's text or bytes."""
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def load(folder: Path, data: object, *overrides: str) -> Scenario:
    """The scenario of ``write``'s file."""
    return load_scenario(write(folder, data), overrides)
