"""The flags of a vLLM server to a scenario's keys, each with where its value comes from."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import InputError
from simserve.scenario.messages import printable
from simserve.vllm_flags import defaults
from simserve.vllm_flags.cache import cache_size, roofline_blocks
from simserve.vllm_flags.flags import Flags
from simserve.vllm_flags.memory import CacheShape
from simserve.vllm_flags.settings import Setting, Target
from simserve.vllm_flags.values import AUTO, is_on, length, share, text, whole
from simserve.vllm_flags.weights import DTYPES, Weights

_KV_DTYPES = {**DTYPES, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8"}
_KV_DTYPES |= {"fp8_per_token_head": "fp8", "int8_per_token_head": "int8"}


@dataclass(frozen=True)
class Engine:
    """Everything under ``engine:``, how the cache was sized where that is an estimate, flags that could not be
    translated with the reason, and what vLLM itself would object to."""

    limits: dict[str, Setting]
    cache: dict[str, Setting]
    tensor_parallel: int
    cache_sum: str | None
    problems: dict[str, str]
    warnings: tuple[str, ...] = ()


def translate(flags: Flags, weights: Weights, target: Target) -> Engine:
    """The engine that the flags mean. Raises InputError, one sentence: no such value, or no room for a cache."""
    parallel = whole(flags, "tensor-parallel-size") or 1
    stages = whole(flags, "pipeline-parallel-size") or 1
    limits = _step_limits(flags, weights, target, parallel * stages)
    kv_dtype, problems = _kv_dtype(flags, weights)
    block_size = _block_size(flags, target)
    shape = CacheShape(weights.spec, str(kv_dtype.value), int(block_size.value), parallel)
    size = cache_size(flags, weights, target, shape, limits)
    blocks, beyond = _roofline_fits(size.blocks, weights, target, shape)
    problems |= beyond
    cached = int(blocks.value) * shape.block_size
    limits, warnings = _admitting(flags, limits, cached)
    cache = {
        "block_size": block_size,
        "num_blocks": blocks,
        "null_blocks": Setting(1, "vLLM keeps block 0 empty"),
        "watermark": _watermark(flags),
        "dtype": kv_dtype,
        "prefix_caching": _given_or(flags, "enable-prefix-caching", is_on(flags, "enable-prefix-caching", True)),
    }
    return Engine(limits, cache, parallel, size.sum, problems, warnings)


def _roofline_fits(
    blocks: Setting, weights: Weights, target: Target, shape: CacheShape
) -> tuple[Setting, dict[str, str]]:
    """As many blocks as a roofline has room for, which keeps all weights in the bits that it times them with."""
    if not target.roofline or target.hardware is None or weights.problem is None:
        return blocks, {}
    most = roofline_blocks(weights, target.hardware, shape)
    if int(blocks.value) <= most or most < 2:  # with less, the scenario's own check says so
        return blocks, {}
    kept = f"{weights.bits} bits" if weights.bits else weights.dtype
    why = f"cut from {blocks.value} blocks, for the roofline keeps all weights in {kept}"
    return Setting(most, f"{why}, see above"), {"the size of the cache": f"{why}; a measured --profile does not"}


def _step_limits(flags: Flags, weights: Weights, target: Target, num_devices: int) -> dict[str, Setting]:
    """``max_num_seqs``, ``max_num_batched_tokens``, ``max_model_len``, ``queue_order``: as vLLM settles them."""
    usual = defaults.batch_defaults(flags.version, target.device, num_devices)
    double = 2 if text(flags, "performance-mode", "balanced") == "throughput" else 1
    longest = _max_model_len(flags, weights)
    why = f"vLLM {flags.version}'s default for {usual.case} ({defaults.BATCH_SOURCE})"
    why += ", doubled by --performance-mode throughput" if double == 2 else ""
    tokens, seqs = whole(flags, "max-num-batched-tokens"), whole(flags, "max-num-seqs")
    num_seqs = seqs or usual.seqs * double
    if tokens is None:
        num_tokens = usual.tokens * double
        if not is_on(flags, "enable-chunked-prefill", True):
            num_tokens = max(num_tokens, int(longest.value))
        num_tokens = min(num_tokens, num_seqs * int(longest.value))
    else:
        num_tokens = tokens
    if seqs is None:
        num_seqs = min(num_seqs, num_tokens)
    chunked = is_on(flags, "enable-chunked-prefill", True)
    _require_room_in_a_step(num_tokens, num_seqs, int(longest.value), chunked)
    policy = text(flags, "scheduling-policy", "fcfs")
    if policy not in ("fcfs", "priority"):
        raise InputError(printable(f"--scheduling-policy: must be fcfs or priority (got {policy!r})"))
    return {
        "max_num_seqs": Setting(num_seqs, "--max-num-seqs" if seqs else why),
        "max_num_batched_tokens": Setting(num_tokens, "--max-num-batched-tokens" if tokens else why),
        "max_model_len": longest,
        "queue_order": _given_or(flags, "scheduling-policy", policy),
        "async_scheduling": _asynchronous(flags, target),
    }


def _asynchronous(flags: Flags, target: Target) -> Setting:
    """On, unless the platform or what decides the drafts cannot (``platforms/cpu.py``, ``config/vllm.py``)."""
    if target.is_cpu:
        return Setting(False, "vLLM has none on a CPU (platforms/cpu.py)")
    if "async-scheduling" in flags.given:
        return _given_or(flags, "async-scheduling", is_on(flags, "async-scheduling", True))
    speculation = text(flags, "speculative-config", text(flags, "spec-method", ""))
    guesses = any(word in speculation for word in ("ngram", "suffix", "medusa", "mlp_speculator"))
    if guesses and "ngram_gpu" not in speculation:
        return Setting(False, "vLLM turns it off with this kind of speculative decoding (config/vllm.py)")
    if flags.version == "0.19" and text(flags, "distributed-executor-backend", "") == "ray":
        return Setting(False, "vLLM 0.19 turns it off under Ray (v1/executor/ray_executor.py)")
    return _given_or(flags, "async-scheduling", True)


def _require_room_in_a_step(num_tokens: int, num_seqs: int, longest: int, chunked: bool) -> None:
    """What vLLM refuses to start with (``config/scheduler.py``)."""
    if num_tokens < num_seqs:
        raise InputError(f"--max-num-seqs: must be ≤ max_num_batched_tokens {num_tokens} (got {num_seqs})")
    if num_tokens < longest and not chunked:
        rule = f"must be ≥ max_model_len {longest} without chunked prefill (got {num_tokens})"
        raise InputError(f"--max-num-batched-tokens: {rule}; lower --max-model-len")


def _max_model_len(flags: Flags, weights: Weights) -> Setting:
    asked, longest = length(flags), weights.spec.max_position_embeddings
    if asked is None or asked == AUTO:
        return Setting(longest, "the model's own longest context (config.json, max_position_embeddings)")
    beyond = f"; the model's own is {longest:,}, and vLLM refuses more unless told otherwise" if asked > longest else ""
    return Setting(asked, f"--max-model-len{beyond}")


def _admitting(flags: Flags, limits: dict[str, Setting], cached: int) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """What limits admission alone (the step that sized the cache was the larger one), and what vLLM would say."""
    limits, warnings = dict(limits), []
    for flag, key in (("max-num-active-seqs", "max_num_seqs"), ("max-num-scheduled-tokens", "max_num_batched_tokens")):
        number = whole(flags, flag)
        if number is not None and number < int(limits[key].value):
            limits[key] = Setting(number, f"--{flag}, below --{key.replace('_', '-')} {limits[key].value}")
    longest = int(limits["max_model_len"].value)
    if length(flags) == AUTO and cached < longest:
        limits["max_model_len"] = Setting(cached, "--max-model-len auto: what the cache holds")
    elif cached < longest:
        warnings.append(
            f"the cache of {cached:,} tokens is smaller than max_model_len {longest:,}: vLLM would refuse to start "
            "unless --max-model-len is lowered, while simserve rejects only requests that do not fit"
        )
    return limits, tuple(warnings)


def _kv_dtype(flags: Flags, weights: Weights) -> tuple[Setting, dict[str, str]]:
    asked = text(flags, "kv-cache-dtype", "auto")
    if asked == "auto":
        return Setting(weights.activations, f"--kv-cache-dtype auto, {weights.why}"), {}
    if asked in _KV_DTYPES:
        return Setting(_KV_DTYPES[asked], f"--kv-cache-dtype {asked}"), {}
    flag = printable(f"--kv-cache-dtype {asked[:40]}")
    return Setting(weights.activations, "see above"), {flag: f"no such type here; {weights.activations} is taken"}


def _block_size(flags: Flags, target: Target) -> Setting:
    asked = whole(flags, "block-size")
    if asked is not None:
        return Setting(asked, "--block-size")
    if target.is_cpu:
        return Setting(defaults.CPU_BLOCK_SIZE, "vLLM's default on a CPU (platforms/cpu.py)")
    return Setting(defaults.GPU_BLOCK_SIZE, f"vLLM's default on most GPUs ({defaults.CACHE_SOURCE})")


def _watermark(flags: Flags) -> Setting:
    asked = share(flags, "watermark", above_zero=False)
    if asked is not None:
        return Setting(asked, "--watermark")
    return Setting(0.0, "vLLM keeps no blocks back at admission, but wants room for the whole prompt")


def _given_or(flags: Flags, flag: str, value: str | bool) -> Setting:
    off = flags.given.get(flag) is False
    return Setting(value, f"--{'no-' * off}{flag}" if flag in flags.given else f"vLLM {flags.version}'s default")
