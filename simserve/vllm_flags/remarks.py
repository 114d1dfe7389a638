"""What becomes of a flag that no key of a scenario stands for: it may matter to timing, or it does not."""

from __future__ import annotations

from collections.abc import Mapping

from simserve.scenario.messages import shown
from simserve.vllm_flags import older
from simserve.vllm_flags.flags import Flags, Value
from simserve.vllm_flags.known import MARKS, SWITCHES, names

TRANSLATED = names(
    """
    model max-num-seqs max-num-active-seqs max-num-batched-tokens max-num-scheduled-tokens max-model-len block-size
    gpu-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override kv-cache-dtype enable-prefix-caching
    tensor-parallel-size dtype quantization scheduling-policy watermark performance-mode async-scheduling
    config
    """
)
"""Flags that the translation reads."""

IMMATERIAL = names(
    """
    host port uds uvicorn-log-level disable-uvicorn-access-log disable-access-log-for-endpoints allow-credentials
    allowed-origins allowed-methods allowed-headers api-key ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs
    ssl-ciphers enable-ssl-refresh root-path middleware enable-request-id-headers disable-fastapi-docs
    enable-offline-docs enable-tokenizer-info-endpoint enable-server-load-tracking h11-max-incomplete-event-size
    h11-max-header-count served-model-name chat-template chat-template-content-format trust-request-chat-template
    default-chat-template-kwargs response-role tool-call-parser tool-parser-plugin tool-server enable-auto-tool-choice
    exclude-tools-when-tool-choice-none reasoning-parser reasoning-parser-plugin return-tokens-as-token-ids
    enable-prompt-tokens-details enable-force-include-usage enable-log-outputs enable-log-deltas log-error-stack
    log-config-file max-log-len enable-log-requests disable-log-stats aggregate-engine-logging tokenizer tokenizer-mode
    tokenizer-revision trust-remote-code seed revision code-revision hf-token hf-config-path config-format
    generation-config override-generation-config max-logprobs logprobs-mode load-format download-dir
    safetensors-load-strategy model-loader-extra-config ignore-patterns use-tqdm-on-load pt-load-map-location
    allowed-local-media-path allowed-media-domains prefix-caching-hash-algo show-hidden-metrics-for-version
    otlp-traces-endpoint collect-detailed-traces kv-cache-metrics kv-cache-metrics-sample cudagraph-metrics
    enable-mfu-metrics fail-on-environ-validation shutdown-timeout headless nnodes node-rank master-addr master-port
    distributed-executor-backend max-parallel-loading-workers distributed-timeout-seconds enable-sleep-mode
    enable-logging-iteration-details allow-deprecated-quantization
    safetensors-prefetch-num-threads safetensors-prefetch-block-size log-level logging-config custom-histogram-buckets
    jit-monitor-mode jit-monitor-verbose sse-keep-alive-interval fingerprint-mode fingerprint-value
    enable-per-request-metrics tool-strict-level trust-request-mm-kwargs enable-fault-tolerance fault-tolerance-config
    """
)
"""Flags that change nothing about when tokens come."""

ON_BY_DEFAULT = names(
    """
    enable-prefix-caching enable-chunked-prefill scheduler-reserve-full-isl async-scheduling use-tqdm-on-load
    enable-flashinfer-autotune swa-bounded-replay fail-on-environ-validation
    """
)
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "pipeline-parallel-size": ("1",),
    "data-parallel-size": ("1",),
    "data-parallel-size-local": ("1",),
    "decode-context-parallel-size": ("1",),
    "prefill-context-parallel-size": ("1",),
    "max-num-partial-prefills": ("1",),
    "max-long-partial-prefills": ("1",),
    "long-prefill-token-threshold": ("0",),
    "prefill-schedule-interval": ("1",),
    "stream-interval": ("1",),
    "cpu-offload-gb": ("0", "0.0"),
    "swap-space": ("0",),
    "api-server-count": ("1",),
}
_WHY: Mapping[str, str] = {
    "enable-chunked-prefill": "prompts that do not fit a step's remaining budget are split here; vLLM makes them wait",
    "scheduler-reserve-full-isl": "admission here always wants room for the whole prompt",
    "max-num-partial-prefills": "vLLM 0.19 itself refuses any value but 1",
    "max-long-partial-prefills": "vLLM 0.19 itself refuses any value but 1",
    "long-prefill-token-threshold": "a chunk is limited here by the step's budget alone",
    "long-prefill-token-threshold-adaptive": "a chunk is limited here by the step's budget alone",
    "max-num-queued-reqs": "engine.max_queued_requests is near it: it counts those who wait, vLLM's also those who run",
    "max-num-queued-tokens": "engine.max_queued_requests is near it: it counts requests, not their tokens",
    "pipeline-parallel-size": "pipeline stages are not simulated: weights and cache are counted on one stage",
    "data-parallel-size": "a scenario is one replica: divide the offered rate by the number of replicas",
    "speculative-config": older.SPECULATION,
    "spec-method": older.SPECULATION,
    "spec-model": older.SPECULATION,
    "spec-tokens": older.SPECULATION,
    "enforce-eager": "steps without CUDA graphs are slower; take a profile that was measured so",
    "compilation-config": "step times are those of the profile or the roofline",
    "cudagraph-capture-sizes": "step times are those of the profile or the roofline",
    "optimization-level": "step times are those of the profile or the roofline",
    "attention-backend": "step times are those of the profile or the roofline",
    "cpu-offload-gb": "weights kept in host memory cross the bus at every step; neither that nor the room is counted",
    "kv-offloading-size": "a second tier of the cache is not simulated",
    "kv-transfer-config": "prefill and decode on separate servers, and caches beyond the device, are not simulated",
    "stream-interval": "clients here see every token when it is computed",
    "enable-lora": "adapters are not simulated",
    "enable-expert-parallel": "mixture-of-experts models are not simulated",
    "disable-sliding-window": "every layer attends to the whole context here",
    "hf-overrides": "dimensions here are the model's own",
    "rope-scaling": older.WHY["rope-scaling"],
    "scheduler-cls": "another scheduler decides otherwise than vLLM's",
}
_GENERIC = "no key of a scenario stands for it"


def untranslated(flags: Flags) -> dict[str, str]:
    """Flags as they would be written, and why no key stands for them; without those that ask for the usual."""
    found = {
        _written(name, value): _WHY.get(name, _GENERIC)
        for name, value in sorted(flags.given.items())
        if name not in TRANSLATED | IMMATERIAL and not _is_usual(name, value)
    }
    for name, value in sorted(flags.foreign.items()):
        if name not in IMMATERIAL and name != "disable-log-requests" and not _is_usual(name, value):
            fallback = f"vLLM {flags.version} has no such flag" + (" any more" if name in older.OLDER else "")
            found[_written(name, value)] = older.WHY.get(name, fallback)
    return found


def immaterial(flags: Flags) -> list[str]:
    """Names of flags that change nothing about when tokens come. Never their values: some are secrets."""
    found = (name for name in (*flags.given, *flags.foreign) if name in IMMATERIAL or name == "disable-log-requests")
    return [f"--{name}" for name in sorted(found)]


def translated(flags: Flags) -> list[str]:
    """Flags that keys stand for, as they would be written."""
    found = sorted(name for name in flags.given if name in TRANSLATED or name == "enable-chunked-prefill")
    return [_written(name, flags.given[name]) for name in found]


def _is_usual(name: str, value: Value) -> bool:
    if isinstance(value, bool) and name in SWITCHES | MARKS:
        return value == (name in ON_BY_DEFAULT)
    return str(value) in _NEUTRAL.get(name, ())


def _written(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    words = " ".join(value) if isinstance(value, tuple) else value
    return f"--{name} {words if words.isprintable() and len(words) <= 40 and ' ' not in words else shown(words)}"
