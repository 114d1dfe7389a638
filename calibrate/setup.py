"""The model, its caches and the instruments, ready to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from calibrate.clock import Timer, time_on_cpu, time_on_cuda
from calibrate.contention import Reading, read_machine
from calibrate.errors import CalibrationError
from calibrate.fit import require_fittable
from calibrate.forward import OnGpu, Stepper, is_out_of_memory
from calibrate.gpu_clocks import ClockWatch, gpu_name, read_clocks
from calibrate.graphs import DecodeGraphs, make_eviction
from calibrate.grid import Limits, Point, make_axes, make_grid
from calibrate.held_out import held_out_points
from calibrate.kv_cache import InPlaceCaches, check_kv_bytes, make_caches
from calibrate.measure import Steps
from calibrate.memory import fit_points, free_bytes
from calibrate.model import ModelSource, build_model
from calibrate.options import CalibrateOptions
from calibrate.packed import PackedSteps
from calibrate.provenance import make_provenance
from calibrate.quantize.kernels import METHODS, quantized
from simserve.step_time.profile_schema import KvBytes, Provenance

_NOT_PACKED = "mixed steps need the in-place cache and were not measured: they are compositions"


@dataclass(frozen=True)
class Setup:
    """What a measurement needs: the points that memory leaves, and how to run and time their steps."""

    provenance: Provenance
    kv_bytes: KvBytes
    points: tuple[Point, ...]
    stepper: Steps
    timer: Timer
    notes: tuple[str, ...]
    watch: ClockWatch | None = None
    read_machine: Callable[[], Reading | None] = read_machine
    stop: Callable[[], None] = lambda: None


def set_up(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Setup:
    """Build everything and check the bytes of the KV cache against the formula. Raises ``CalibrationError``."""
    limits = Limits(options.max_batch_size, options.max_context, options.max_prefill_tokens)
    on_gpu = device == "cuda"
    grid = make_grid(options.grid, on_gpu, limits)
    require_fittable(grid)
    grid += held_out_points(options.grid, make_axes(options.grid, on_gpu, limits), options.seed)
    packs = options.kv_cache == "in-place"
    if not packs:
        grid = [point for point in grid if point.in_table or point.phase == "no_cache"]
    torch.set_num_threads(options.threads)
    model = build_model(source, device, dtype, options.attn, options.seed)
    widths = []
    if options.weights is not None:
        model = quantized(model, options.weights)
        widths = [f"weights: {METHODS[options.weights.partition(':')[0]]}"]
    measured = check_kv_bytes(model, source.spec, dtype)
    points, notes = fit_points(grid, measured, free_bytes(device))
    points, stepper, more = _make_stepper(model, source, points, options)
    require_fittable(points)
    return Setup(
        provenance=make_provenance(source, device, dtype, options),
        kv_bytes=KvBytes(measured=measured, formula=source.spec.kv_bytes_per_token(dtype)),
        points=tuple(points),
        stepper=stepper,
        timer=time_on_cuda if device == "cuda" else time_on_cpu,
        watch=_watch() if on_gpu else None,
        notes=tuple(widths + ([] if packs else [_NOT_PACKED]) + notes + more),
    )


def _watch() -> ClockWatch:
    gpu = gpu_name(torch.cuda.get_device_properties(0))
    return ClockWatch(lambda: read_clocks(gpu))


def _on_gpu(model: Any, options: CalibrateOptions) -> OnGpu | None:  # noqa: ANN401 - a torch module
    if model.device.type != "cuda":
        return None
    return OnGpu(make_eviction("cuda"), DecodeGraphs() if options.graphs else None)


def _make_stepper(
    model: Any,  # noqa: ANN401 - a torch module
    source: ModelSource,
    points: list[Point],
    options: CalibrateOptions,
) -> tuple[list[Point], Stepper, list[str]]:
    """A stepper for the points, or for the smaller half of them as often as memory runs out, and notes that say so."""
    notes: list[str] = []
    while points:
        num_tokens = max(point.cache_tokens for point in points)
        max_context = max(1, *(point.num_context_tokens for point in points))
        try:
            caches = make_caches(options.kv_cache, source.spec, model, num_tokens, max_context)
            packed = PackedSteps(model, caches.memory, options.attn) if isinstance(caches, InPlaceCaches) else None
            return points, Stepper(model, caches, options.seed, packed, _on_gpu(model, options)), notes
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        notes.append(f"out of memory for {num_tokens:,} cached tokens: points of more than half of that were left out")
        points = [point for point in points if point.cache_tokens <= num_tokens // 2]
    raise CalibrationError("memory: must hold the cache of at least one point; use a smaller model or grid")
