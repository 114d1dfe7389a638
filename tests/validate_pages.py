"""Documents and curves of validations, from runs made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.recorded.differences import compare_steps
from simserve.recorded.steps import Decode, Prefill, StepRecord
from simserve.scenario import parse_scenario
from simserve.validate.curves import curves
from simserve.validate.document import both_sides, engine_entry, scored, steps_entry, validation_document
from simserve.validate.observed import observed_run
from tests.validate_builders import SCENARIO, run_of

MANIFEST = {
    "kind": "simserve validate",
    "command": "simserve validate served.yaml --measured run.csv",
    "started": "2026-01-01",
    "step_time": {"name": "h100", "calibrated": False},
    "measured": {"run.csv": "0" * 64},
}


def side(n: int = 80, factor: float = 1.0, seed: int = 0, **known: Any) -> Any:
    """A run in which everything takes ``factor`` times as long as in the usual one."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 20, n))
    ttft, per_token, outputs = rng.lognormal(-1, 0.5, n), rng.uniform(0.02, 0.04, n), rng.integers(2, 100, n)
    firsts = arrivals + factor * ttft
    gaps = factor * np.repeat(per_token, 3)
    run = run_of(arrivals, firsts, firsts + factor * per_token * (outputs - 1), outputs, itl_s=gaps, **known)
    return run, observed_run(run, run.table.num_output_tokens)


def document_of(
    factors: tuple[float, ...] = (1.0, 1.02), predicted: float = 1.1, max_error: float | None = None, **known: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Document and curves of real runs of ``factors`` against a simulation of ``predicted``."""
    runs, measured = zip(*(side(factor=factor, **known) for factor in factors), strict=True)
    sides = both_sides(measured, [side(factor=predicted)[1]], "run.csv")
    document = validation_document(parse_scenario(SCENARIO), engine_entry("recorded", runs), scored(sides))
    document["known_beforehand"] = ["step times: a profile on a device (measured, held-out error 3.1%)"]
    document["notes"] = ["run.csv: the run was made with engine.max_num_seqs 9, and the scenario says 8"]
    document["limit"] = None
    if max_error is not None:
        exceeding = ["ttft_s.mean", "e2e_s.p99"] if max_error < abs(predicted - 1) else []
        document["limit"] = {"max_error": max_error, "metrics": [], "exceeding": exceeding}
    return document, curves(sides.measured, sides.predicted, sides.counted)


def differing_steps() -> dict[str, Any]:
    """Three steps of which the second differs, and the third had not come."""
    same = StepRecord((Prefill(0, 8, 0),), (), (0,), (), 8, 60)
    real = StepRecord((Prefill(1, 4, 0),), (Decode(0, 8),), (1,), (), 5, 58)
    ours = StepRecord((), tuple(Decode(i, 8) for i in range(40)), (), (3,), 40, None)
    entry = steps_entry([("run-1.jsonl", compare_steps([same, real, real], [same, ours]))])
    assert entry is not None
    return entry
