"""What vLLM does where a flag is absent, by version and device.

Read in vLLM 0.19.0 and 0.32.0: ``engine/arg_utils.py`` (``get_batch_defaults`` and
``_set_default_max_num_seqs_and_batched_tokens_args``, for an OpenAI server), ``config/cache.py``,
``config/scheduler.py``, ``platforms/cpu.py``, ``envs.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.step_time.hardware import GIB

BATCH_SOURCE = "engine/arg_utils.py"
CACHE_SOURCE = "config/cache.py"
GPU_BLOCK_SIZE, CPU_BLOCK_SIZE = 16, 128
_LARGE, _HUGE = 70 * GIB, 160 * GIB


@dataclass(frozen=True)
class Device:
    """What vLLM asks of the device it starts on: its name, its memory, and whether it is a CPU."""

    name: str
    memory_bytes: int
    is_cpu: bool = False


@dataclass(frozen=True)
class BatchDefaults:
    """``max_num_batched_tokens`` and ``max_num_seqs``, and the case that they are for."""

    tokens: int
    seqs: int
    case: str


def batch_defaults(version: str, device: Device, num_devices: int) -> BatchDefaults:
    """Limits of a step for an OpenAI server, before they are fitted to each other."""
    if device.is_cpu:
        return BatchDefaults(2048 * num_devices, 128 * num_devices, "a CPU")
    if version != "0.19" and device.memory_bytes >= _HUGE:
        return BatchDefaults(16_384, 1024, "a GPU of 160 GiB or more")
    if device.memory_bytes >= _LARGE and "a100" not in device.name.lower():
        return BatchDefaults(8192, 1024, "a GPU of 70 GiB or more that is no A100")
    return BatchDefaults(2048, 256, "a GPU of less than 70 GiB, or an A100")


def gpu_memory_utilization(version: str) -> float:
    """The share of a device's memory that one server takes."""
    return 0.9 if version == "0.19" else 0.92


def counts_graph_memory(version: str) -> bool:
    """Whether CUDA graphs are left room for when the cache is sized (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)."""
    return version != "0.19"
