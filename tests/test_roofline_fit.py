"""The stored efficiencies are what the measured data give, and the stated errors are what they leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.model_spec import load_model_spec
from simserve.step_time.hardware import H100, H200, HARDWARE
from simserve.step_time.roofline import RooflineStepTime
from tests.shared_data import needs
from tests.validation import fit_roofline
from tests.validation.roofline_data import closed_loop_points, h200_steps, llmservingsim_steps

pytestmark = needs(fit_roofline.DATA)

FITTED = ("h200-sxm", "h100-sxm", "a100-sxm", "rtx-4090", "laptop-cpu")


@pytest.fixture(scope="module")
def fits() -> dict[str, fit_roofline.Fit]:
    return fit_roofline.fit_all(fit_roofline.DATA)


@pytest.mark.parametrize("name", FITTED)
def test_stored_efficiencies_are_the_refitted_ones(name, fits):
    """Redoing the fit from the raw tables gives the shipped figures, to the digits that they are written with."""
    entry, fitted = HARDWARE[name], fits[name].hardware
    assert entry.compute_efficiency == pytest.approx(fitted.compute_efficiency, rel=2e-3)
    assert entry.memory_efficiency == pytest.approx(fitted.memory_efficiency, rel=2e-3)
    assert entry.overhead_s == pytest.approx(fitted.overhead_s, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("name", ("h200-sxm", "h100-sxm"))
def test_stored_link_is_the_refitted_one(name, fits):
    """So does the all-reduce, whose latency the closed loops determine and whose share of the link they hardly do."""
    assert HARDWARE[name].link_latency_s == pytest.approx(fits[name].hardware.link_latency_s, rel=0.01)
    assert HARDWARE[name].link_efficiency == pytest.approx(fits[name].hardware.link_efficiency, rel=0.02)


@pytest.mark.parametrize("name", ("h200-sxm", "h100-sxm", "a100-sxm", "rtx-4090"))
def test_stated_error_is_the_measured_one(name, fits):
    """The error in the badge is the mean relative error on the points that the entry names and counts."""
    assert HARDWARE[name].mean_error == pytest.approx(fits[name].mean_error, abs=5e-4)
    assert f"{fits[name].num_points:,} " in HARDWARE[name].efficiency_source


def test_the_request_constant_of_the_h200_is_the_stated_one(fits):
    """The part of a measured time to first token that no step explains is said in the entry, in milliseconds."""
    assert f"{1e3 * fits['h200-sxm'].outside_s:.1f} ms" in H200.efficiency_source


def test_bare_peaks_flatter_on_the_h200():
    """DESIGN: bare peaks give 0.38 of the measured prefill and 0.4 to 0.65 of the decode."""
    steps = h200_steps(fit_roofline.DATA)
    bare = replace(H200, compute_efficiency=1.0, memory_efficiency=1.0, overhead_s=0.0)
    model = RooflineStepTime(steps.model, bare, dtype=steps.dtype, kv_dtype=steps.kv_dtype)
    ratio = fit_roofline.step_seconds(model, steps.batches) / steps.seconds
    is_prefill = [bool(b.chunks) for b in steps.batches]
    assert ratio[is_prefill].mean() == pytest.approx(0.38, abs=0.04)
    assert 0.4 < ratio[[not p for p in is_prefill]].mean() < 0.65


def test_rounding_the_ridge_pays(fits, monkeypatch):
    """With the bare maximum of arithmetic and memory in place of the root of their squares' sum, the best fit leaves
    6.8 % on the A100's tables and 10.1 % on the RTX 4090's: what ``roofline``'s docstring says it spares."""
    monkeypatch.setattr("simserve.step_time.roofline.rounded_ridge", max)
    bare = fit_roofline.fit_all(fit_roofline.DATA)
    assert bare["a100-sxm"].mean_error == pytest.approx(0.068, abs=1.5e-3)
    assert bare["rtx-4090"].mean_error == pytest.approx(0.101, abs=1.5e-3)
    assert all(fits[name].mean_error < bare[name].mean_error for name in ("a100-sxm", "rtx-4090", "h200-sxm"))


def test_one_device_of_another_model_is_predicted_within_a_tenth():
    """Fitted on an 8B model, the H200 entry meets real servers of a 70B model on one device (no all-reduce, so nothing
    of these points was fitted) with a mean error under 10 %."""
    alone = [p for p in closed_loop_points(fit_roofline.DATA, "h200_sxm") if p.tensor_parallel == 1]
    assert len(alone) == 15
    assert fit_roofline.closed_loop_error(load_model_spec("llama-3.1-70b"), H200, alone) < 0.1


def test_the_request_constant_belongs_to_no_step():
    """Short answers after prompts of 1,024 tokens (Qwen3-32B on 2 to 8 H100) show what a prefill costs the engine: left
    outside the step, the 15 ms cost nothing; counted in each prefill, they would double the error."""
    points = closed_loop_points(fit_roofline.DATA, "h100_sxm", "Qwen/Qwen3-32B")
    points = [p for p in points if (p.num_prompt_tokens, p.num_output_tokens) == (1_024, 128)]
    spec, measured = load_model_spec("qwen3-32b"), np.array([p.busy_s for p in points])
    busy = np.array([fit_roofline.busy_seconds(spec, H100, p) for p in points])
    assert len(points) == 15
    assert fit_roofline.relative_error(busy, measured) < 0.1
    assert fit_roofline.relative_error(busy + 0.0151, measured) > 2 * fit_roofline.relative_error(busy, measured)


def test_borrowed_efficiencies_cost_what_the_l40s_entry_says():
    """The RTX 4090's efficiencies on the RTX PRO 6000 (bf16 503.8 TFLOP/s, 1.792 TB/s) are wrong by 26 % on average."""
    steps = llmservingsim_steps(fit_roofline.DATA, "RTXPRO6000", 480_000)
    card = replace(HARDWARE["rtx-4090"], peak_flops={"bf16": 503.8e12}, bandwidth_bytes_per_s=1.792e12)
    seconds = fit_roofline.step_seconds(RooflineStepTime(steps.model, card), steps.batches)
    assert fit_roofline.relative_error(seconds, steps.seconds) == pytest.approx(0.26, abs=0.005)
    assert "26 %" in HARDWARE["l40s"].efficiency_source
