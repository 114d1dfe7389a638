"""Accelerators for the roofline: what their datasheets promise, and the shares of it that were measured.

Peaks are dense (no sparsity) and bandwidths are of one device, links of one direction. Memory sizes are the datasheets'
figures read as GiB, which is what these boards carry. The efficiencies are fitted on measured steps by
``tests/validation/fit_roofline.py``, which refits them and recomputes the stated errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from simserve.errors import ScenarioError

GIB = 1024**3
TERA = 1e12


@dataclass(frozen=True)
class Hardware:
    """One kind of device.

    ``peak_flops``: FLOP/s by dtype. ``compute_efficiency`` and ``memory_efficiency`` are the shares of the peak and of
    ``bandwidth_bytes_per_s`` that whole steps reach; ``overhead_s`` is what each step takes beside. An all-reduce takes
    ``link_latency_s`` per doubling of the group and moves bytes at ``link_efficiency`` of ``link_bytes_per_s`` (one
    direction; ``None`` where devices cannot be joined).

    ``mean_error`` (a share): the roofline's mean relative error on the measured steps that ``efficiency_source`` names,
    or ``None`` where no step was ever compared.
    """

    name: str
    title: str
    peak_flops: Mapping[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: int
    link_bytes_per_s: float | None
    datasheet: str
    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    efficiency_source: str
    mean_error: float | None
    link_latency_s: float = 7.43e-6
    link_efficiency: float = 0.966


def _tera(**peaks: float) -> dict[str, float]:
    return {dtype: peak * TERA for dtype, peak in peaks.items()}


HOPPER_PEAKS = _tera(fp32=66.9, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9)

H200 = Hardware(
    name="h200-sxm",
    title="NVIDIA H200 SXM 141 GB",
    peak_flops=HOPPER_PEAKS,
    bandwidth_bytes_per_s=4.8 * TERA,
    memory_bytes=141 * GIB,
    link_bytes_per_s=450e9,
    datasheet="NVIDIA H200 Tensor Core GPU datasheet (half of the figures with sparsity); NVLink 900 GB/s both ways",
    compute_efficiency=0.5021,
    memory_efficiency=0.7919,
    overhead_s=2.478e-3,
    efficiency_source=(
        "fitted on 55 steps of Llama-3.1-8B in fp8 under vLLM (ai-dynamo 1.6.1's H200 profile); its prefill times are "
        "times to first token, and the 15.1 ms in them that do not grow with the prompt are left out of the step; "
        "all-reduces fitted on 45 closed-loop points of Llama-3.1-70B in fp8 under vLLM (aiconfigurator), which tell "
        "the latency well and the share of the link badly (0.7 to 1 fit alike)"
    ),
    mean_error=0.0592,
)

H100 = Hardware(
    name="h100-sxm",
    title="NVIDIA H100 SXM 80 GB",
    peak_flops=HOPPER_PEAKS,
    bandwidth_bytes_per_s=3.35 * TERA,
    memory_bytes=80 * GIB,
    link_bytes_per_s=450e9,
    datasheet="NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture white paper; NVLink 900 GB/s both ways",
    compute_efficiency=H200.compute_efficiency,
    memory_efficiency=H200.memory_efficiency,
    overhead_s=H200.overhead_s,
    efficiency_source=(
        "taken from the H200's fit (same silicon, other memory); the error is on 45 closed-loop points of "
        "Llama-3.1-70B in fp8 under vLLM on 2 to 8 H100 (aiconfigurator), which no fit has seen"
    ),
    mean_error=0.0370,
)

A100 = Hardware(
    name="a100-sxm",
    title="NVIDIA A100 SXM 80 GB",
    peak_flops=_tera(fp32=19.5, fp16=312.0, bf16=312.0, int8=624.0),
    bandwidth_bytes_per_s=2.039 * TERA,
    memory_bytes=80 * GIB,
    link_bytes_per_s=300e9,
    datasheet="NVIDIA A100 Tensor Core GPU datasheet (A100 80GB SXM); NVLink 600 GB/s both ways",
    compute_efficiency=0.6436,
    memory_efficiency=0.8245,
    overhead_s=7.906e-3,
    efficiency_source=(
        "fitted on 14,318 whole steps of Llama-2-70B in fp16 on two A100, composed of Vidur's operator tables without "
        "all-reduce and output head; all-reduces as fitted for the H200"
    ),
    mean_error=0.027,
)

RTX_4090 = Hardware(
    name="rtx-4090",
    title="NVIDIA GeForce RTX 4090 24 GB",
    peak_flops=_tera(fp32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6),
    bandwidth_bytes_per_s=1.008 * TERA,
    memory_bytes=24 * GIB,
    link_bytes_per_s=32e9,
    datasheet="NVIDIA Ada GPU architecture white paper, tensor peaks with fp32 accumulation; PCIe 4.0 x16",
    compute_efficiency=0.8797,
    memory_efficiency=0.7853,
    overhead_s=0.0,
    efficiency_source=(
        "fitted on 5,732 whole steps of Llama-3.1-8B in bf16, composed of LLMServingSim's operator tables under vLLM "
        "0.19, which hold no time between kernels; all-reduces as fitted for the H200, never measured on this link"
    ),
    mean_error=0.0848,
)

L40S = Hardware(
    name="l40s",
    title="NVIDIA L40S 48 GB",
    peak_flops=_tera(fp32=91.6, fp16=362.05, bf16=362.05, fp8=733.0, int8=733.0),
    bandwidth_bytes_per_s=0.864 * TERA,
    memory_bytes=48 * GIB,
    link_bytes_per_s=32e9,
    datasheet="NVIDIA L40S datasheet (dense figures); PCIe 4.0 x16, 64 GB/s both ways",
    compute_efficiency=RTX_4090.compute_efficiency,
    memory_efficiency=RTX_4090.memory_efficiency,
    overhead_s=RTX_4090.overhead_s,
    efficiency_source=(
        "never measured: taken from the RTX 4090's fit (the same silicon at other clocks, other memory); borrowed for "
        "the RTX PRO 6000, whose steps were measured, they leave an error of 26 % on average"
    ),
    mean_error=None,
)

LAPTOP_CPU = Hardware(
    name="laptop-cpu",
    title="laptop CPU, 4 cores with AVX2 at 2.6 GHz, two channels of DDR4-3200, 16 GiB",
    peak_flops=_tera(fp32=0.3328, bf16=0.3328),
    bandwidth_bytes_per_s=51.2e9,
    memory_bytes=16 * GIB,
    link_bytes_per_s=None,
    datasheet="arithmetic: 4 cores × 2 FMA × 8 lanes × 2 FLOP × 2.6 GHz; 2 × 8 bytes × 3.2 GT/s (JEDEC DDR4-3200)",
    compute_efficiency=0.0864,
    memory_efficiency=0.2378,
    overhead_s=0.0,
    efficiency_source=(
        "two published steps of Qwen2.5-0.5B in fp32 on a laptop (prefill of 40 tokens 1.02 s, decode 166 ms) fix the "
        "two efficiencies exactly, so nothing is left to measure an error with"
    ),
    mean_error=None,
)

HARDWARE: dict[str, Hardware] = {entry.name: entry for entry in (A100, H100, H200, L40S, RTX_4090, LAPTOP_CPU)}


VISIBLE_BYTES: dict[str, int] = {
    "a100-sxm": round(79.25 * GIB),
    "h100-sxm": round(79.19 * GIB),
    "h200-sxm": round(139.80 * GIB),
    "l40s": round(44.40 * GIB),
    "rtx-4090": 25_250_627_584,
}
"""How much memory a GPU shows to CUDA, by its entry's name. The RTX 4090's is from a recorded run
(``device_total_memory_bytes`` of a vLLM 0.19 run); the others are the ``total capacity of … GiB`` in PyTorch's
out-of-memory messages as people report them, where drivers differ by ± 0.1 GiB."""


def load_hardware(name: str) -> Hardware:
    """The entry called ``name`` (any case); raises ``ScenarioError`` with the nearest known name."""
    key = name.lower()
    if key in HARDWARE:
        return HARDWARE[key]
    close = get_close_matches(key, HARDWARE, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(HARDWARE)}"
    raise ScenarioError(f"step_time.roofline: unknown hardware {name!r}; {hint}")


def visible_bytes(hardware: Hardware) -> int:
    """Bytes of one device that CUDA shows: its driver keeps the rest."""
    return VISIBLE_BYTES.get(hardware.name, hardware.memory_bytes)
