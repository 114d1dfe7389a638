"""How many blocks a server's cache has: from its own log, a flag, or vLLM's sum over the device's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simserve.errors import InputError
from simserve.memory.footprint import kv_bytes_per_token
from simserve.memory.schemes import parse_scheme, weight_bytes
from simserve.scenario.messages import printable
from simserve.step_time.hardware import GIB, Hardware, visible_bytes
from simserve.vllm_flags import defaults
from simserve.vllm_flags.devices import CPU
from simserve.vllm_flags.flags import Flags
from simserve.vllm_flags.memory import GRAPH_BYTES, OTHER_BYTES, CacheShape, Room, step_bytes
from simserve.vllm_flags.settings import Setting, Target
from simserve.vllm_flags.values import is_on, share, whole
from simserve.vllm_flags.weights import Weights

_PER_DEVICE = "--kv-cache-memory-bytes, for each device"
_ESTIMATE = "ESTIMATED, see above"


@dataclass(frozen=True)
class CacheSize:
    """Blocks, and how they were arrived at where that is a sum with estimates in it."""

    blocks: Setting
    sum: str | None = None


def cache_size(
    flags: Flags, weights: Weights, target: Target, shape: CacheShape, step: Mapping[str, Setting]
) -> CacheSize:
    """Blocks by what is most sure; ``step`` has the limits of the step that vLLM sizes the cache with. Raises
    InputError: no room for two blocks, or nothing to compute from."""
    told = (
        (target.kv_cache_tokens, "--kv-cache-tokens", "--kv-cache-tokens, from the server's log", shape.block_size),
        (whole(flags, "num-gpu-blocks-override"), "--num-gpu-blocks-override", "--num-gpu-blocks-override", 1),
        (whole(flags, "kv-cache-memory-bytes"), "--kv-cache-memory-bytes", _PER_DEVICE, shape.block_bytes),
    )
    for number, flag, why, unit in told:
        if number is not None:
            return CacheSize(Setting(_at_least_two(number // unit, flag, shape), why))
    if target.is_cpu:
        return _on_cpu(flags, weights, target, shape)
    room = _room(flags, weights, target, shape, step)
    what = f"vllm serve: finds no room for a cache ({room.sentence()}); raise --tensor-parallel-size or --hardware"
    return CacheSize(Setting(_at_least_two(room.left // shape.block_bytes, what, shape), _ESTIMATE), room.sentence())


def roofline_blocks(weights: Weights, hardware: Hardware, shape: CacheShape) -> int:
    """Blocks that the roofline finds room for beside weights in the bits that it times them with, which can be others
    than the checkpoint takes."""
    held = weight_bytes(weights.spec, parse_scheme(weights.bits or weights.dtype))
    free = hardware.memory_bytes * shape.tensor_parallel - held
    return free // (kv_bytes_per_token(weights.spec, shape.kv_dtype, shape.tensor_parallel) * shape.block_size)


def _room(flags: Flags, weights: Weights, target: Target, shape: CacheShape, step: Mapping[str, Setting]) -> Room:
    """The memory of one GPU, and what takes it."""
    if target.hardware is None:
        raise InputError(
            "--hardware: must be given to size the cache, or --kv-cache-tokens with the server's own 'GPU KV cache "
            "size' (the profile's device has no entry here)"
        )
    tokens, seqs = (int(step[key].value) for key in ("max_num_batched_tokens", "max_num_seqs"))
    return Room(
        name=target.hardware.name,
        share=_utilization(flags),
        granted=math.ceil(visible_bytes(target.hardware) * _utilization(flags)),
        weights=weights.num_bytes // shape.tensor_parallel,
        step=step_bytes(weights.spec, tokens, seqs, shape.tensor_parallel),
        other=OTHER_BYTES + _graph_bytes(flags, target),
    )


def _utilization(flags: Flags) -> float:
    given = share(flags, "gpu-memory-utilization", above_zero=True)
    return defaults.gpu_memory_utilization(flags.version) if given is None else given


def _graph_bytes(flags: Flags, target: Target) -> int:
    told = target.environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "")
    counted = told == "1" if told in ("0", "1") else defaults.counts_graph_memory(flags.version)
    return GRAPH_BYTES if counted and not is_on(flags, "enforce-eager", False) else 0


def _on_cpu(flags: Flags, weights: Weights, target: Target, shape: CacheShape) -> CacheSize:
    """What VLLM_CPU_KVCACHE_SPACE says, in GiB; else half of the memory (0.19), or a share of it less what the process
    holds (0.32)."""
    told = target.environment.get("VLLM_CPU_KVCACHE_SPACE")
    if told is not None:
        if not told.isdecimal() or not 1 <= int(told) < 2**20:
            raise InputError(printable(f"VLLM_CPU_KVCACHE_SPACE: must be a whole number of GiB ≥ 1 (got {told!r})"))
        blocks = int(told) * GIB // shape.block_bytes
        return CacheSize(Setting(_at_least_two(blocks, "VLLM_CPU_KVCACHE_SPACE", shape), "VLLM_CPU_KVCACHE_SPACE"))
    if target.hardware is None or target.hardware.name != CPU:
        raise InputError(
            "--kv-cache-tokens: must be given for a server on a CPU whose memory is not known here, or set "
            "VLLM_CPU_KVCACHE_SPACE in front of the command"
        )
    memory, held = target.hardware.memory_bytes, weights.num_bytes // shape.tensor_parallel + GIB
    if flags.version == "0.19":
        size, why = memory // 2, f"half of {memory / GIB:.0f} GiB (platforms/cpu.py)"
    else:
        size = math.ceil(memory * _utilization(flags)) - held
        why = (
            f"{_utilization(flags):g} of {memory / GIB:.0f} GiB, less {held / GIB:.2f} GiB of weights and process "
            "(an estimate; v1/worker/cpu_worker.py)"
        )
    return CacheSize(Setting(_at_least_two(size // shape.block_bytes, "vllm serve", shape), _ESTIMATE), why)


def _at_least_two(blocks: int, what: str, shape: CacheShape) -> int:
    if blocks >= 2:
        return blocks
    if "; " in what:
        raise InputError(what)
    raise InputError(
        f"{what}: must hold two blocks of {shape.block_size} tokens, one of which vLLM keeps empty (got room for "
        f"{max(blocks, 0)})"
    )
