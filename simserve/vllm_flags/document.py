"""A commented scenario file from what the flags were found to mean."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from simserve.scenario.engine_models import ChunkedEngineConfig, PagedCacheConfig
from simserve.scenario.messages import printable
from simserve.vllm_flags.quoting import quoted
from simserve.vllm_flags.settings import Setting
from simserve.vllm_flags.translate import Engine
from simserve.vllm_flags.weights import Weights

WIDTH = 112
_LOG_LINE = (
    'The server\'s own log line "GPU KV cache size: … tokens" is better: give it as --kv-cache-tokens, or write '
    "num_blocks = tokens / block_size below."
)


@dataclass(frozen=True)
class Findings:
    """What is said about flags in the file and on the terminal."""

    version: str
    translated: tuple[str, ...]
    untranslated: Mapping[str, str]
    immaterial: tuple[str, ...]
    warnings: tuple[str, ...]
    model: str


def vllm_scenario(weights: Weights, engine: Engine, step_time: tuple[str, str], findings: Findings) -> str:
    """The file's text; ``step_time`` is that section's YAML and what to say about it. Same meaning, same bytes."""
    spec = weights.spec
    return "".join(
        [
            _head(engine, findings),
            f"name: vllm-{spec.name}\n",
            _line(0, "model", quoted(weights.model), f"{spec.num_parameters / 1e9:.2f} billion parameters"),
            _line(0, "weights", weights.bits, "bits of each that a step reads, see above") if weights.bits else "",
            _line(0, "step_time", *step_time),
            default_workload(int(engine.limits["max_model_len"].value)),
            "engine:\n  policy: chunked  # vLLM's v1 scheduler: one token budget per step, running sequences first\n",
            *(
                _setting(2, key, setting)
                for key, setting in engine.limits.items()
                if key in ChunkedEngineConfig.model_fields
            ),
            "  kv_cache:\n    allocator: paged\n",
            *(
                _setting(4, key, setting)
                for key, setting in engine.cache.items()
                if key in PagedCacheConfig.model_fields
            ),
            "slo: {ttft_s: 1.0, tpot_s: 0.05}  # what counts as goodput; edit it\nseed: 0\n",
        ]
    )


def default_workload(max_model_len: int) -> str:
    """A workload to edit, in which every request fits the context."""
    longest = max(1, min(4096, 3 * max_model_len // 4))
    answer = max(1, min(1024, max_model_len - longest))
    return (
        "workload:  # flags do not tell the traffic: edit this, or replay yours with {trace: FILE, format: auto}\n"
        "  num_requests: 300\n"
        "  arrivals: {process: poisson, rate_rps: 4.0}  # requests per second; or concurrency: 64\n"
        f"  prompt_tokens: {{lognormal: {{mean: {min(600, longest)}, sigma: 1.0, max: {longest}}}}}\n"
        f"  output_tokens: {{lognormal: {{mean: {min(250, answer)}, sigma: 0.8, max: {answer}}}}}\n"
    )


def comment(text: str, indent: str = "") -> str:
    """Lines of comment, wrapped; ``indent`` is for what follows the first."""
    wrapped = textwrap.wrap(
        printable(text), WIDTH, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False
    )
    return "".join(f"# {line}\n" for line in wrapped)


def _head(engine: Engine, findings: Findings) -> str:
    flags = " ".join(("vllm serve", findings.model, *findings.translated))
    parts = [
        comment(f"What this server would do, by the rules and defaults of vLLM {findings.version}:"),
        comment(f"    {flags}", "        "),
    ]
    if findings.untranslated:
        parts += ["#\n", comment("Not translated; these may matter to timing:")]
        parts += [comment(f"    {flag}: {why}", "        ") for flag, why in findings.untranslated.items()]
    if findings.warnings:
        parts += ["#\n", *(comment(f"Beware: {warning}.") for warning in findings.warnings)]
    if findings.immaterial:
        parts += ["#\n", comment(f"Left out, for they do not matter to timing: {', '.join(findings.immaterial)}")]
    if engine.cache_sum:
        parts += ["#\n", comment(f"The size of the cache is an estimate: {engine.cache_sum}. {_LOG_LINE}")]
    return "".join(parts)


def _setting(indent: int, key: str, setting: Setting) -> str:
    return _line(indent, key, _yaml(setting.value), setting.why)


def _line(indent: int, key: str, value: str, why: str) -> str:
    return f"{' ' * indent}{key}: {value}  # {printable(why)}\n"


def _yaml(value: float | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
