"""``simserve calibrate``: check what was asked, build, measure, fit, write, show."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from calibrate.errors import CalibrationError
from calibrate.measure import Measurement
from calibrate.model import ModelSource, find_model, with_kv_heads
from calibrate.options import CalibrateOptions
from calibrate.partial import PartialFile, require_writable, write_atomically
from calibrate.profile_file import assemble
from calibrate.show import show

if TYPE_CHECKING:
    from calibrate.setup import Setup


def calibrate(options: CalibrateOptions, console: Console | None = None) -> Path:
    """Measure the steps of a model on this machine and write the profile; returns its path.

    What can be refused is refused before anything is measured: ``ModelError``, ``OutputError``, ``CalibrationError``.
    ``KeyboardInterrupt`` passes through after the samples so far were kept beside the profile; the same options then
    continue where it stopped.
    """
    console = console or Console()
    began = time.perf_counter()
    device, dtype, options = _check(options)
    source = with_kv_heads(find_model(options.model), options.kv_heads)
    if options.overhead_for is not None:
        from calibrate.engines.add_overhead import calibrate_overhead

        return calibrate_overhead(source, device, dtype, options, console)
    path = options.out or default_path(source, device, dtype, options)
    require_writable(path)

    if "," in options.attn and not options.engine:
        from calibrate.attention import calibrate_kernels

        return calibrate_kernels(source, (device, dtype, path), options, console)[0]

    from calibrate.engines.setup import set_up_engine
    from calibrate.setup import set_up

    widths = f"{options.weights} weights, {dtype}" if options.weights else dtype
    console.print(f"building {source.spec.name} ({source.spec.num_parameters:,} parameters, {widths}, {device})")
    setup = (set_up_engine if options.engine else set_up)(source, device, dtype, options)
    try:
        measurement, partial = measure(setup, path, options, console)
    finally:
        setup.stop()

    duration_s = time.perf_counter() - began
    profile, text = assemble(path.stem, setup.provenance, setup.kv_bytes, measurement, duration_s)
    write_atomically(path, text)
    partial.remove()
    show(profile, console)
    console.print(f"wrote {path} in {time.perf_counter() - began:.1f} s")
    return path


def measure(setup: Setup, path: Path, options: CalibrateOptions, console: Console) -> tuple[Measurement, PartialFile]:
    """Time the steps of ``setup``, continuing what an interrupted run left beside ``path``."""
    from calibrate.provenance import identity
    from calibrate.rounds import measure_rounds

    partial = PartialFile(path, identity(setup.provenance, setup.points, options))
    measurement = Measurement(partial.load() if options.resume else [], list(setup.notes))
    if measurement.samples:
        console.print(f"continuing {partial.path}: {len(measurement.samples)} samples are there")
        measurement.notes.append(f"the first {len(measurement.samples)} samples are from an interrupted run")
    measure_rounds(setup, options, measurement, partial, console)
    return measurement, partial


def default_path(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Path:
    """The profile's name where none is given: ``25m-cpu-fp32.json``, ``25m-cpu-bf16-int4.json``."""
    widths = f"{dtype}-{options.weights.replace(':', '-')}" if options.weights else dtype
    return Path(f"{source.spec.name}-{device}-{widths}.json")


def _check(options: CalibrateOptions) -> tuple[str, str, CalibrateOptions]:
    """Device and dtype in full, and the options with the canonical name of their weights, none if that is the dtype.
    Raises ``CalibrationError`` for what cannot be had here."""
    for name in ("threads", "repeats", "max_batch_size", "max_context", "max_prefill_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise CalibrationError(f"{name}: must be ≥ 1 (got {value})")
    _check_engine(options)
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise CalibrationError(
                f"calibrate: needs {package}, which is not installed; pip install 'simserve[calibrate]'"
            )
    import torch

    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise CalibrationError("device: must be one that torch can use (got cuda, and torch sees no GPU); use cpu")
    device = "cuda" if has_gpu and options.device != "cpu" else "cpu"
    if options.graphs and (device != "cuda" or options.kv_cache != "in-place"):
        got = device if device != "cuda" else f"{options.kv_cache} cache"
        raise CalibrationError(f"graphs: needs a GPU and the in-place cache (got {got}); leave it out")
    weights, dtype = _widths(options, device)
    return device, dtype, replace(options, weights=weights)


def _check_engine(options: CalibrateOptions) -> None:
    if options.engine is None and options.engine_python is not None:
        raise CalibrationError(f"engine_python: is for --engine vllm (got {options.engine_python} without it)")
    if options.engine is None and options.overhead_for is not None:
        raise CalibrationError(f"overhead_for: needs --engine (got {options.overhead_for} without it)")
    if options.engine is not None and options.weights is not None:
        raise CalibrationError(f"weights: are quantized for bare forwards only (got --engine {options.engine} too)")


def _widths(options: CalibrateOptions, device: str) -> tuple[str | None, str]:
    """Scheme of the linear layers, none if that is the dtype, and the dtype in full."""
    if options.weights is None:
        return None, options.dtype if options.dtype != "auto" else ("bf16" if device == "cuda" else "fp32")
    from calibrate.quantize.kernels import check_kernel

    return check_kernel(options.weights, options.dtype, device)
