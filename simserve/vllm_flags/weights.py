"""Which model a server loads, in which type its weights are kept, and what they take."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import InputError
from simserve.model_spec import ModelSpec, dtype_bytes, load_model_spec
from simserve.scenario.messages import printable
from simserve.step_time.hardware import Hardware
from simserve.vllm_flags.flags import Flags
from simserve.vllm_flags.values import text

DTYPES = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
}
_FOUR_BITS = 0.53  # 4.25 bits: four and a scale of 8 bits or more for each group of at most 128
_SUFFIX = re.compile(
    r"[-.](?P<kind>fp8([-_]dynamic|[-_]kv)?|awq([-_]int4)?|gptq([-_]int[48])?|(quantized\.)?w8a8|(quantized\.)?w4a16|int4|"
    r"nvfp4|fp4|bnb-4bit|unsloth-bnb-4bit|gguf|int8)$",
    re.IGNORECASE,
)
_FOUR_BIT_METHODS = ("awq", "gptq", "bitsandbytes", "gguf", "fp4", "mxfp4", "w4a16", "int4", "bnb", "auto-round", "inc")


@dataclass(frozen=True)
class Weights:
    """A model as it is loaded. ``dtype`` is the one to simulate with, ``activations`` that of activations and of a
    cache that is not told otherwise; ``problem`` says what of it could not be translated."""

    spec: ModelSpec
    model: str
    dtype: str
    activations: str
    num_bytes: int
    why: str
    problem: str | None = None


def find_weights(flags: Flags, hardware: Hardware | None, folder: Path) -> Weights:
    """The model of the flags; ``folder`` is where the scenario will be. Raises InputError for an unknown model."""
    if flags.model is None:
        raise InputError("vllm serve: names no model; write it after `serve`, or as --model")
    spec, name, suffix = _spec(flags.model, folder)
    activations, why = _activations(flags, spec)
    method = text(flags, "quantization", "none")
    method = suffix if method in ("none", "compressed-tensors", "modelopt") and suffix else method
    if method == "none":
        return Weights(spec, name, activations, activations, spec.weight_bytes(activations), why)
    return _quantized(Weights(spec, name, activations, activations, 0, f"{method} weights"), method, hardware)


def _quantized(plain: Weights, method: str, hardware: Hardware | None) -> Weights:
    spec, act = plain.spec, plain.activations
    where = f"{hardware.name} has" if hardware is not None else "the profile decides"
    if any(word in method for word in _FOUR_BIT_METHODS):
        body = round(spec.matmul_parameters * _FOUR_BITS)
        size = body + (spec.num_parameters - spec.matmul_parameters) * dtype_bytes(act)
        problem = f"4-bit weights: counted with 4.25 bits in memory, but steps are timed with {act}"
        return Weights(spec, plain.model, act, act, size, plain.why, problem)
    for dtype in ("fp8", "int8"):
        if dtype in method or (dtype == "int8" and "w8a8" in method):
            size = spec.matmul_parameters + (spec.num_parameters - spec.matmul_parameters) * dtype_bytes(act)
            if hardware is None or dtype in hardware.peak_flops:
                return Weights(spec, plain.model, dtype, act, size, plain.why)
            problem = f"{dtype} weights: {where} no {dtype} arithmetic, so steps are timed with {act}"
            return Weights(spec, plain.model, act, act, size, plain.why, problem)
    problem = f"its effect is not known here: weights are counted and timed with {act}"
    return Weights(spec, plain.model, act, act, spec.weight_bytes(act), plain.why, problem)


def _activations(flags: Flags, spec: ModelSpec) -> tuple[str, str]:
    asked = text(flags, "dtype", "auto")
    if asked in DTYPES:
        return DTYPES[asked], f"--dtype {asked}"
    if asked != "auto":
        raise InputError(printable(f"--dtype: must be one of auto, {', '.join(DTYPES)} (got {asked!r})"))
    dtype = "fp16" if spec.name.startswith("llama-2") else "bf16"
    return dtype, "the checkpoint's own type, taken to be that (--dtype auto)"


def _spec(model: str, folder: Path) -> tuple[ModelSpec, str, str]:
    """Dimensions, what the scenario calls the model, and how its name says that the weights are quantized."""
    path = Path(os.path.expanduser(model))
    try:
        is_path = path.exists() and ("/" in model or path.is_dir() or model.endswith(".json"))
    except (OSError, ValueError):
        is_path = False
    match = _SUFFIX.search(model)
    suffix = match["kind"].lower() if match else ""
    if is_path:
        relative = os.path.relpath(path.resolve(), folder.resolve())
        return load_model_spec(path), relative if "/" in relative else f"./{relative}", suffix
    spec = load_model_spec(_SUFFIX.sub("", model))
    return spec, spec.name, suffix
