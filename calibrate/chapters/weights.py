"""One model with its linear layers at 32, 16, 8 and 4 bits, as far as torch has kernels for them on this device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from calibrate.chapters.steps import cached_step
from calibrate.chapters.timing import Case, Watch
from calibrate.model import ModelSource, build_model
from calibrate.quantize.kernels import METHODS, int4_model, int8_model, weight_bytes
from simserve.step_time.chapters_schema import WeightsName, WeightsRow, WeightsTable

_METHODS = {"fp32": "torch.float32", "bf16": "torch.bfloat16", **METHODS}
Model = Any


def measure_weights(source: ModelSource, device: str, attn: str, watch: Watch, shape: tuple[int, int]) -> WeightsTable:
    """Bytes and step times at each width; ``shape`` is (context of the decode, tokens of the prefill). What torch
    cannot run here has a row that says why, and no figure."""
    context, tokens = shape
    base = build_model(source, device, "fp32", attn, watch.seed)
    makers: dict[WeightsName, Callable[[Model], Model]] = {
        "fp32": lambda model: model,
        "bf16": lambda model: copy.deepcopy(model).to(torch.bfloat16),
        "int8": lambda model: int8_model(model, device),
        "int4": lambda model: int4_model(model, device),
    }
    models: dict[str, Model] = {}
    refused: dict[str, str] = {}
    cases: dict[tuple[str, str], Case] = {}
    for name, make in makers.items():
        try:
            models[name] = make(base)
            steps = {"decode": (1, 1, context), "prefill": (1, tokens, 0)}
            tried: dict[tuple[str, str], Case] = {
                (name, step): cached_step(models[name], source.spec, at) for step, at in steps.items()
            }
            watch.time(tried[name, "decode"])  # a kernel that is missing says so here
        except (RuntimeError, ValueError, ImportError) as error:  # a kernel that is missing raises one of these
            models.pop(name, None)
            refused[name] = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        else:
            cases |= tried
    timed = watch.time_all(cases)
    rows = [
        WeightsRow(
            name=name,
            method=_METHODS[name],
            weight_bytes=weight_bytes(models[name]) if name in models else None,
            decode=timed.get((name, "decode")),
            prefill=timed.get((name, "prefill")),
            refused=refused.get(name),
        )
        for name in makers
    ]
    return WeightsTable(num_context_tokens=context, num_new_tokens=tokens, rows=tuple(rows))
