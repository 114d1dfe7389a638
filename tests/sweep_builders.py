"""A scenario that simulates in milliseconds, as plain data, and tasks of it."""

from __future__ import annotations

import copy
from typing import Any

from simserve.request import Batch, Chunk
from simserve.scenario import parse_scenario
from simserve.simulate import prepare
from simserve.step_time.stretch import NS_PER_S, Stretch
from simserve.tasks.task import Task

QUEUE: dict[str, Any] = {
    "name": "queue",
    "model": "qwen2.5-0.5b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate_rps": 100.0},
        "prompt_tokens": {"fixed": 512},
        "output_tokens": {"fixed": 1},
    },
    "engine": {
        "policy": "continuous",
        "max_num_seqs": 1,
        "kv_cache": {"allocator": "paged", "num_blocks": 640},
    },
}


def queue(utilization: float, num_requests: int = 40, **workload: object) -> dict[str, Any]:
    """One server and one token per answer: an M/D/1 queue of the given utilization."""
    data = copy.deepcopy(QUEUE)
    rate = utilization / service_s()
    data["workload"].update(num_requests=num_requests, arrivals={"process": "poisson", "rate_rps": rate}, **workload)
    return data


def service_s() -> float:
    """Seconds that the server of ``queue`` works on a request: one prefill."""
    step_time = prepare(parse_scenario(QUEUE)).parts["continuous-paged"].step_time
    return Stretch(step_time, Batch(chunks=(Chunk(512, 0),))).end_ns(1) / NS_PER_S


def task(data: dict[str, Any], seed: int = 0, **options: Any) -> Task:
    """A task of plain data."""
    return Task(data=data, source="queue.yaml", base_dir=".", seed=seed, **options)
