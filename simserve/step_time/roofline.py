"""Step times from first principles, for what was never measured: arithmetic or memory, whichever is slower.

Of the two halves of a step, products with weights and attention:

- products with weights take √(a² + b²), a = FLOPs / (peak · efficiency), b = weight bytes / (bandwidth · efficiency).
  Near the ridge a kernel is held up by both; the root of the sum of squares instead of the bare maximum brought the
  error on the A100 tables from 6.8 % to 2.7 % and on the RTX 4090's from 10.1 % to 8.5 %, and changes nothing far from
  it;
- attention takes the maximum, separately for the prefill chunks together and for the decodes together, which keeps a
  repeated decision piecewise linear in the number of the step, hence exact as ramps.

Weights of another scheme than the dtype that computes are read at the scheme's bits, scales of groups included, and
unpacked into that dtype, as weight-only quantization does: FLOPs stay, bytes change, unpacking itself is not counted.

Beside them: a constant per step, and two all-reduces per layer under tensor parallelism (Megatron-LM): a tree's
latency, which grows with each doubling of the group, plus a ring's bytes.
"""

from __future__ import annotations

import math

from simserve.errors import ScenarioError
from simserve.memory.footprint import kv_bytes_per_token
from simserve.memory.schemes import WeightScheme, parse_scheme, weight_bytes
from simserve.memory.sizes import size_text
from simserve.model_spec import ModelSpec, dtype_bytes
from simserve.request import Batch
from simserve.step_time.hardware import GIB, Hardware
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import UNBOUNDED, Ramp


class RooflineStepTime:
    """Step times of ``model`` on ``tensor_parallel`` devices of ``hardware``, seconds.

    ``dtype`` is that of products with weights, and of the weights themselves unless ``weights`` says otherwise;
    ``kv_dtype`` that of the cache (default: ``dtype``). Attention computes in 16 bits unless ``dtype`` is fp32, and
    activations travel so, as in serving engines.

    FLOPs are exact: 2 per weight and token, the output head for one row per sequence (and for every verified draft),
    4 · head width per (query, key) pair of a causal mask. Bytes: all weights once per step; keys and values read and
    written. Traffic of activations is not counted apart: the efficiencies were fitted with it inside.

    Raises ``ScenarioError`` for a dtype that the device lacks or a division that cannot be made.
    """

    def __init__(
        self,
        model: ModelSpec,
        hardware: Hardware,
        tensor_parallel: int = 1,
        dtype: str = "bf16",
        kv_dtype: str | None = None,
        weights: WeightScheme | None = None,
    ) -> None:
        _check_division(model, hardware, tensor_parallel)
        flops_per_s = _peak(hardware, dtype) * hardware.compute_efficiency * tensor_parallel
        attention_dtype = "fp32" if dtype == "fp32" else "bf16"
        attention_flops_per_s = _peak(hardware, attention_dtype) * hardware.compute_efficiency * tensor_parallel
        bytes_per_s = hardware.bandwidth_bytes_per_s * hardware.memory_efficiency
        self._token_s = model.matmul_flops(1, 0) / flops_per_s
        self._row_s = model.matmul_flops(0, 1) / flops_per_s
        scheme = weights or parse_scheme(dtype)
        num_read = model.matmul_parameters + model.lm_head_parameters
        self._weights_s = float(num_read * scheme.exact_bits / 8) / tensor_parallel / bytes_per_s
        self._pair_s = model.attention_flops(1) / attention_flops_per_s
        self._cached_s = kv_bytes_per_device(model, tensor_parallel, kv_dtype or dtype) / bytes_per_s
        # Every pair of a decode is a cached token read (or its own, written): one slope, whichever bound it is.
        self._decode_pair_s = max(self._pair_s, self._cached_s)
        reduce_s, reduce_token_s = _all_reduce(model, hardware, tensor_parallel, dtype_bytes(attention_dtype))
        self._token_link_s = reduce_token_s
        self._step_s = hardware.overhead_s + reduce_s
        self.source = _source(model, hardware, tensor_parallel, dtype, scheme)

    @property
    def costs(self) -> tuple[float, ...]:
        """All that ``ramp`` knows, for the compiled engine: seconds per token, per emitting row, of the weights, per
        pair of a prefill, cached token read, pair of a decode, token over the link, and per step."""
        per_token = self._token_s, self._row_s, self._weights_s, self._pair_s, self._cached_s, self._decode_pair_s
        return *per_token, self._token_link_s, self._step_s

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """Durations from step ``step`` of a stretch on: each decode's context grows by one per step, each chunk's by
        its own new tokens. Linear to the step where the chunks' attention changes its bound, for ever without one."""
        num_decodes = batch.num_decodes
        if not batch.chunks:
            first_s = self._fixed_s(num_decodes, num_decodes)
            pairs = batch.decode_context_tokens + num_decodes * (step + 1)
            return Ramp(first_s + pairs * self._decode_pair_s, num_decodes * self._decode_pair_s, UNBOUNDED)
        tokens, pairs, pairs_per_step, cached = num_decodes, 0, 0, 0
        for new, first_context in batch.chunks:
            context = first_context + new * step
            tokens += new
            cached += context + new
            pairs += new * context + new * (new + 1) // 2
            pairs_per_step += new * new
        new_per_step = tokens - num_decodes
        compute_s, compute_slope_s = pairs * self._pair_s, pairs_per_step * self._pair_s
        memory_s, memory_slope_s = cached * self._cached_s, new_per_step * self._cached_s
        decode_pairs = batch.decode_context_tokens + num_decodes * (step + 1)
        rest_s = self._fixed_s(tokens, batch.num_seqs + batch.num_extra_rows) + decode_pairs * self._decode_pair_s
        slope_s = num_decodes * self._decode_pair_s
        if compute_s >= memory_s:
            steps = _steps_above(compute_s - memory_s, compute_slope_s - memory_slope_s)
            return Ramp(rest_s + compute_s, slope_s + compute_slope_s, steps)
        steps = _steps_above(memory_s - compute_s, memory_slope_s - compute_slope_s)
        return Ramp(rest_s + memory_s, slope_s + memory_slope_s, steps)

    def _fixed_s(self, num_tokens: int, num_rows: int) -> float:
        """What does not depend on context: products with weights, all-reduces, the constant."""
        compute_s = num_tokens * self._token_s + num_rows * self._row_s
        products_s = rounded_ridge(compute_s, self._weights_s)
        return products_s + num_tokens * self._token_link_s + self._step_s


def rounded_ridge(compute_s: float, memory_s: float) -> float:
    """Products that arithmetic and memory hold up at once (``math.hypot`` rounds otherwise than compiled code)."""
    return math.sqrt(compute_s * compute_s + memory_s * memory_s)


def check_fits(
    model: ModelSpec,
    hardware: Hardware,
    tensor_parallel: int = 1,
    weights: str = "bf16",
    cache_bytes: int = 0,
    draft_bytes: int = 0,
) -> None:
    """Raise ``ScenarioError`` unless weights in the scheme called ``weights``, those of a draft and ``cache_bytes`` (of
    all devices together) fit their memory."""
    scheme, capacity = parse_scheme(weights), hardware.memory_bytes * tensor_parallel
    held = weight_bytes(model, scheme)
    if held + draft_bytes + cache_bytes <= capacity:
        return
    draft = f", those of its draft {draft_bytes / GIB:.1f} GiB" if draft_bytes else ""
    cache = f" and the cache {cache_bytes / GIB:.1f} GiB" if cache_bytes else ""
    need = f"the weights of {model.name} in {scheme.label} need {held / GIB:.1f} GiB{draft}{cache}"
    has = f"{tensor_parallel} × {hardware.name} has {capacity / GIB:.1f} GiB"
    raise ScenarioError(f"step_time.roofline: {need}, but {has}; raise tensor_parallel or take smaller weights")


def check_holds(hardware: Hardware, tensor_parallel: int, memory_bytes: int, key: str) -> None:
    """Raise ``ScenarioError`` if the memory that ``kv_cache`` says all devices together have, as ``key``, is more than
    they come with."""
    capacity = hardware.memory_bytes * tensor_parallel
    if memory_bytes > capacity:
        rule = f"must be ≤ the {size_text(capacity)} of {tensor_parallel} × {hardware.name}, all devices together"
        raise ScenarioError(f"engine.kv_cache.{key}: {rule} (got {size_text(memory_bytes)})")


def kv_bytes_per_device(model: ModelSpec, tensor_parallel: int, kv_dtype: str) -> int:
    """KV bytes of one token on one device: KV heads are shared out, and repeated where there are fewer than devices."""
    return kv_bytes_per_token(model, kv_dtype, tensor_parallel) // tensor_parallel


def _steps_above(lead_s: float, slope_s: float) -> int:
    """How many steps, the first included, a bound leads that is ahead by ``lead_s`` and gains ``slope_s`` a step."""
    if slope_s >= 0:
        return UNBOUNDED
    return 1 + min(UNBOUNDED, math.floor(lead_s / -slope_s))


def _peak(hardware: Hardware, dtype: str) -> float:
    if dtype not in hardware.peak_flops:
        known = ", ".join(hardware.peak_flops)
        raise ScenarioError(f"step_time.dtype: {hardware.name} cannot compute in {dtype!r}; it knows {known}")
    return hardware.peak_flops[dtype]


def _check_division(model: ModelSpec, hardware: Hardware, tensor_parallel: int) -> None:
    where = "step_time.tensor_parallel"
    if tensor_parallel < 1:
        raise ScenarioError(f"{where}: must be ≥ 1 (got {tensor_parallel})")
    if model.num_attention_heads % tensor_parallel:
        rule = f"must divide the {model.num_attention_heads} attention heads of {model.name}"
        raise ScenarioError(f"{where}: {rule} (got {tensor_parallel})")
    if tensor_parallel > 1 and hardware.link_bytes_per_s is None:
        raise ScenarioError(f"{where}: must be 1 on {hardware.name}, which has no link (got {tensor_parallel})")


def _all_reduce(
    model: ModelSpec, hardware: Hardware, tensor_parallel: int, activation_bytes: int
) -> tuple[float, float]:
    """All-reduces of one step: (seconds whatever the tokens, seconds per token)."""
    if tensor_parallel == 1 or hardware.link_bytes_per_s is None:
        return 0.0, 0.0
    num_reduces = 2 * model.num_layers
    rounds = math.ceil(math.log2(tensor_parallel))
    token_bytes = model.hidden_size * activation_bytes * 2 * (tensor_parallel - 1) / tensor_parallel
    bytes_per_s = hardware.link_bytes_per_s * hardware.link_efficiency
    return num_reduces * rounds * hardware.link_latency_s, num_reduces * token_bytes / bytes_per_s


def _source(
    model: ModelSpec, hardware: Hardware, tensor_parallel: int, dtype: str, weights: WeightScheme
) -> StepTimeSource:
    """Provenance: always uncalibrated, with the error that the fit had where it was made."""
    error = "no measured error" if hardware.mean_error is None else f"mean error {100 * hardware.mean_error:.1f} %"
    devices = hardware.title if tensor_parallel == 1 else f"{tensor_parallel} × {hardware.title}"
    kept = "" if weights.name == dtype else f"{weights.name}-"
    return StepTimeSource(
        name=f"{model.name}-{hardware.name}-tp{tensor_parallel}-{kept}{dtype}-roofline",
        kind="roofline",
        device=devices,
        calibrated=False,
        holdout_mape=None,
        note=f"Estimated, not measured on this model: {error}; efficiencies {hardware.efficiency_source}.",
    )
