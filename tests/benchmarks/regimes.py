"""Five kinds of traffic that load the engine in different ways, and two loads of ordinary chat beside them.

Rates are shares of what Llama-3.1-8B on the H100 roofline serves of such requests with ``chunked`` over paged blocks,
requests/s that were read from runs of 4,000 requests that came all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simserve.model_spec import load_model_spec
from simserve.request import RequestTable
from simserve.scenario import parse_scenario
from simserve.step_time.hardware import load_hardware
from simserve.step_time.roofline import RooflineStepTime
from simserve.step_time.stretch import NS_PER_S
from simserve.workload import build_workload
from tests.reference_types import Settings

ROOT = Path(__file__).parents[2]
CONVERSATION = ROOT / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"
NO_CONVERSATION = f"the Mooncake conversation trace is not at {CONVERSATION.relative_to(ROOT)}"
NUM_CONVERSATION = 12_031
MAX_MODEL_LEN = 16_384
SERVER = Settings("chunked", "paged", 256, 2048, MAX_MODEL_LEN, num_blocks=25_000, block_size=16, watermark=0.01)


@dataclass(frozen=True)
class Regime:
    """What it is called, what it is about, its requests (their number given) and the server's settings."""

    name: str
    about: str
    table: Callable[[int], RequestTable]
    settings: Settings = SERVER
    max_requests: int = 1_000_000

    @property
    def missing(self) -> str:
        """Why this machine cannot run it; empty if it can."""
        return NO_CONVERSATION if self.settings.prefix_caching and not CONVERSATION.exists() else ""


def lognormal(num_requests: int, *, prompt: float, output: float, rate_rps: float, sigma: float = 0.8) -> RequestTable:
    """Poisson arrivals of lognormal prompts and outputs with these means, clipped at what the server takes; seed 0."""
    rng = np.random.default_rng(0)
    arrival_ns = np.cumsum(rng.exponential(NS_PER_S / rate_rps, num_requests)).astype(np.int64)
    prompts = _lengths(rng, prompt, sigma, num_requests, MAX_MODEL_LEN // 2)
    outputs = _lengths(rng, output, sigma, num_requests, MAX_MODEL_LEN // 4)
    declared = np.full(num_requests, outputs.max())
    return RequestTable(arrival_ns, prompts, outputs, declared, np.zeros(num_requests, np.int64))


def conversation(num_requests: int) -> RequestTable:
    """The first requests of Mooncake's conversation trace: 12,000 prompt tokens each, shared in blocks of 512."""
    workload: dict[str, Any] = {"trace": str(CONVERSATION), "format": "mooncake", "limit": num_requests}
    engine = {"policy": "chunked", "max_model_len": 200_000, "kv_cache": {"allocator": "paged", "num_blocks": 25_000}}
    roofline = {"roofline": "h100-sxm"}
    scenario = parse_scenario(
        {"name": "bench", "model": "llama-3.1-8b", "step_time": roofline, "workload": workload, "engine": engine}
    )
    return build_workload(scenario.workload, 0, ROOT).table


def roofline() -> RooflineStepTime:
    """Step times of Llama-3.1-8B on an H100."""
    return RooflineStepTime(load_model_spec("llama-3.1-8b"), load_hardware("h100-sxm"))


def _lengths(
    rng: np.random.Generator, mean: float, sigma: float, size: int, highest: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    return np.clip(np.rint(drawn), 1, highest).astype(np.int64)


def _mixed(load: float, served_rps: float, prompt: float, output: float) -> Callable[[int], RequestTable]:
    return partial(lognormal, prompt=prompt, output=output, rate_rps=load * served_rps)


FEW_BLOCKS = replace(SERVER, num_blocks=1500)
SHARING = replace(
    SERVER, prefix_caching=True, max_model_len=200_000, max_num_batched_tokens=8192, num_blocks=25_000, block_size=512
)
SHARING_16 = replace(SHARING, block_size=16)  # 48 GiB, what an H100 has left
REGIMES = (
    Regime("quarter load", "chat of 1,000 + 200 tokens, a quarter of what is served", _mixed(0.25, 19.2, 1000, 200)),
    Regime("near saturation", "the same at 90 %", _mixed(0.9, 19.2, 1000, 200)),
    Regime("overload", "the same at twice: the queue grows for as long as it runs", _mixed(2.0, 19.2, 1000, 200)),
    Regime("decode-heavy", "100 + 800 tokens at 90 %", _mixed(0.9, 14.4, 100, 800)),
    Regime("prefill-heavy", "4,000 + 20 tokens at 90 %", _mixed(0.9, 8.3, 4000, 20)),
    Regime("memory-bound", "500 + 500 tokens, a cache for 24,000", _mixed(0.95, 4.7, 500, 500), FEW_BLOCKS),
    Regime("vidur", "Vidur's 987 + 196 tokens at 6/s", partial(lognormal, prompt=987, output=196, rate_rps=6.0)),
    Regime("prefix-heavy", "Mooncake conversation, its blocks of 512", conversation, SHARING, NUM_CONVERSATION),
    Regime("prefix-heavy, 16", "the same, blocks of 16", conversation, SHARING_16, NUM_CONVERSATION),
)
