"""Refit the roofline's efficiencies on measured data: ``python -m tests.validation.fit_roofline [data folder]``.

The figures in ``simserve/step_time/hardware.py`` come from here, and ``tests/test_roofline_fit.py`` holds the two
together. Each fit is a robust least squares (soft L1, 10 %) on the logarithm of predicted over measured seconds, where
prefill steps, decode steps and mixed steps weigh the same however many of each were measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simserve.model_spec import ModelSpec, load_model_spec
from simserve.request import Batch, Chunk
from simserve.step_time.hardware import H200, HARDWARE, Hardware
from simserve.step_time.roofline import RooflineStepTime
from tests.validation.roofline_data import (
    ClosedLoopPoint,
    MeasuredSteps,
    closed_loop_points,
    h200_steps,
    llmservingsim_steps,
    vidur_steps,
)

Seconds = npt.NDArray[np.float64]
DATA = Path(__file__).resolve().parents[2] / "../shared/data"


@dataclass(frozen=True)
class Fit:
    """Fitted figures of one entry; ``outside_s`` is the part of a measured time to first token that is no step."""

    hardware: Hardware
    mean_error: float
    num_points: int
    outside_s: float = 0.0


def step_seconds(model: RooflineStepTime, batches: list[Batch]) -> Seconds:
    """One step of each batch."""
    return np.array([model.ramp(batch, 0).first_s for batch in batches])


def relative_error(predicted: Seconds, measured: Seconds) -> float:
    """Mean of |predicted / measured − 1|."""
    return float(np.abs(predicted / measured - 1).mean())


def _solve(residual: Callable[[Seconds], Seconds], start: list[float], scale: list[float]) -> list[float]:
    upper = [1.0 if s == 1 else np.inf for s in scale]
    solution = least_squares(
        residual, start, bounds=([0.0] * len(start), upper), x_scale=scale, loss="soft_l1", f_scale=0.1
    )
    return [float(x) for x in solution.x]


def _class_weights(batches: list[Batch]) -> Seconds:
    """Square roots of weights that give prefill, decode and mixed steps the same total."""
    kinds = np.array([2 if b.chunks and b.num_decodes else int(bool(b.chunks)) for b in batches])
    counts = np.bincount(kinds, minlength=3)[kinds]
    weights: Seconds = np.sqrt(len(kinds) / np.count_nonzero(np.bincount(kinds)) / counts)
    return weights


def fit_steps(hardware: Hardware, steps: MeasuredSteps, outside: bool = False) -> Fit:
    """Fit (compute efficiency, memory efficiency, overhead) of ``hardware`` on whole steps; with ``outside`` also a
    constant in the prefills' measured times, which belongs to the request and not to the step."""
    weights, is_prefill = _class_weights(steps.batches), np.array([bool(b.chunks) for b in steps.batches])

    def predict(x: list[float] | Seconds) -> Seconds:
        entry = replace(hardware, compute_efficiency=x[0], memory_efficiency=x[1], overhead_s=x[2])
        model = RooflineStepTime(steps.model, entry, steps.tensor_parallel, steps.dtype, steps.kv_dtype)
        return step_seconds(model, steps.batches) + (is_prefill * x[3] if outside else 0.0)

    size = 4 if outside else 3
    x = _solve(
        lambda x: weights * np.log(predict(x) / steps.seconds), [0.5, 0.7, 1e-3, 1e-3][:size], [1, 1, 1e-3, 1e-3][:size]
    )
    fitted = replace(hardware, compute_efficiency=x[0], memory_efficiency=x[1], overhead_s=x[2])
    error = relative_error(predict(x), steps.seconds)
    return Fit(fitted, error, len(steps.batches), x[3] if outside else 0.0)


def busy_seconds(spec: ModelSpec, hardware: Hardware, point: ClosedLoopPoint) -> float:
    """Engine seconds that one request of a closed loop takes: its own prefill, and its share of each decode step, at
    the context halfway through its output. The loop always has work, so that is its latency over the concurrency."""
    model = RooflineStepTime(spec, hardware, point.tensor_parallel, point.dtype, "bf16")
    size = point.concurrency
    context = point.num_prompt_tokens + point.num_output_tokens // 2
    decode_s = model.ramp(Batch(num_decodes=size, decode_context_tokens=size * context), 0).first_s
    prefill_s = model.ramp(Batch(chunks=(Chunk(point.num_prompt_tokens, 0),)), 0).first_s
    return point.num_output_tokens * decode_s / size + prefill_s


def closed_loop_error(spec: ModelSpec, hardware: Hardware, points: list[ClosedLoopPoint]) -> float:
    """Mean relative error of ``busy_seconds`` against real servers."""
    predicted = np.array([busy_seconds(spec, hardware, point) for point in points])
    return relative_error(predicted, np.array([point.busy_s for point in points]))


def fit_link(spec: ModelSpec, hardware: Hardware, points: list[ClosedLoopPoint]) -> Hardware:
    """Fit the all-reduce (latency per doubling, share of the link) on closed loops over more than one device."""
    joined = [point for point in points if point.tensor_parallel > 1]
    measured = np.array([point.busy_s for point in joined])

    def entry(x: list[float] | Seconds) -> Hardware:
        return replace(hardware, link_latency_s=x[0], link_efficiency=x[1])

    def residual(x: Seconds) -> Seconds:
        return np.log(np.array([busy_seconds(spec, entry(x), point) for point in joined]) / measured)

    return entry(_solve(residual, [6e-6, 0.5], [1e-6, 1]))


def fit_laptop(hardware: Hardware) -> Fit:
    """The two published steps fix the two efficiencies; there is no overhead to tell from them."""
    spec = load_model_spec("qwen2.5-0.5b")
    batches = [Batch(chunks=(Chunk(40, 0),)), Batch(num_decodes=1, decode_context_tokens=40)]
    measured = np.array([1.02, 0.166])

    def entry(x: list[float] | Seconds) -> Hardware:
        return replace(hardware, compute_efficiency=x[0], memory_efficiency=x[1])

    def predict(x: list[float] | Seconds) -> Seconds:
        return step_seconds(RooflineStepTime(spec, entry(x), 1, "fp32"), batches)

    x = _solve(lambda x: np.log(predict(x) / measured), [0.1, 0.3], [1, 1])
    return Fit(entry(x), relative_error(predict(x), measured), 2)


def fit_all(data: Path) -> dict[str, Fit]:
    """Every fit that an entry of ``hardware.py`` rests on, by the entry's name."""
    fits = {
        "h200-sxm": fit_steps(H200, h200_steps(data), outside=True),
        "rtx-4090": fit_steps(HARDWARE["rtx-4090"], llmservingsim_steps(data, "RTX4090", 2_588 * 16)),
        # The tables hold neither all-reduce nor output head: an infinitely fast link and a vocabulary of one.
        "a100-sxm": fit_steps(
            replace(HARDWARE["a100-sxm"], link_latency_s=0.0, link_bytes_per_s=float("inf")), vidur_steps(data)
        ),
        "laptop-cpu": fit_laptop(HARDWARE["laptop-cpu"]),
    }
    llama = load_model_spec("llama-3.1-70b")
    h200 = fits["h200-sxm"]
    joined = fit_link(llama, h200.hardware, closed_loop_points(data, "h200_sxm"))
    fits["h200-sxm"] = replace(h200, hardware=joined)
    h100_points = closed_loop_points(data, "h100_sxm")
    h100 = replace(
        HARDWARE["h100-sxm"],
        compute_efficiency=joined.compute_efficiency,
        memory_efficiency=joined.memory_efficiency,
        overhead_s=joined.overhead_s,
        link_latency_s=joined.link_latency_s,
        link_efficiency=joined.link_efficiency,
    )
    fits["h100-sxm"] = Fit(h100, closed_loop_error(llama, h100, h100_points), len(h100_points))
    return fits


def main() -> None:
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    for name, fit in fit_all(data).items():
        entry = fit.hardware
        print(
            f"{name}: compute {entry.compute_efficiency:.4f}, memory {entry.memory_efficiency:.4f}, "
            f"overhead {1e3 * entry.overhead_s:.3f} ms, link {1e6 * entry.link_latency_s:.2f} µs and "
            f"{entry.link_efficiency:.3f}, outside the step {1e3 * fit.outside_s:.2f} ms; "
            f"mean error {100 * fit.mean_error:.2f} % on {fit.num_points} points"
        )


if __name__ == "__main__":
    main()
