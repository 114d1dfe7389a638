"""Which model a server loads, in which type its weights are kept, and what they take."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
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
_SAYS_NOTHING = ("none", "compressed-tensors", "modelopt")  # formats that hold weights of several widths


@dataclass(frozen=True)
class Weights:
    """A model as it is loaded. ``dtype`` is the one to simulate with, ``activations`` that of activations and of a
    cache that is not told otherwise, for the reason ``why``; ``problem`` says what of it could not be translated.
    ``bits`` are those of each weight that a step reads, on average, where they are not those of ``dtype``."""

    spec: ModelSpec
    model: str
    dtype: str
    activations: str
    num_bytes: int
    why: str
    problem: str | None = None
    bits: str | None = None


@dataclass(frozen=True)
class _Checkpoint:
    """Dimensions, what the scenario calls the model, how its weights are quantized (empty: not), and its type."""

    spec: ModelSpec
    called: str
    quantized: str
    dtype: str | None = None


def find_weights(flags: Flags, hardware: Hardware | None, folder: Path) -> Weights:
    """The model of the flags; ``folder`` is where the scenario will be. Raises InputError for an unknown model."""
    if flags.model is None:
        raise InputError("vllm serve: names no model; write it after `serve`, or as --model")
    checkpoint = _checkpoint(flags.model, folder)
    spec = checkpoint.spec
    activations, why = _activations(flags, checkpoint)
    plain = Weights(spec, checkpoint.called, activations, activations, spec.weight_bytes(activations), why)
    asked = text(flags, "quantization", "none")
    method = checkpoint.quantized if checkpoint.quantized and asked in _SAYS_NOTHING else asked
    return plain if method == "none" else _quantized(plain, method, hardware)


def _quantized(plain: Weights, method: str, hardware: Hardware | None) -> Weights:
    """Weights of the projections in fewer bits; embeddings, head and norms stay as they are."""
    spec, act = plain.spec, plain.activations
    rest = (spec.num_parameters - spec.matmul_parameters) * dtype_bytes(act)
    dtype = "fp8" if "fp8" in method else "int8" if "int8" in method or "w8a8" in method else None
    if any(word in method for word in _FOUR_BIT_METHODS):
        narrow = replace(plain, num_bytes=round(spec.matmul_parameters * _FOUR_BITS) + rest)
        if hardware is None:
            return replace(
                narrow, problem="4-bit weights: counted with 4.25 bits in memory, but timed as the profile's"
            )
        return _unpacked(narrow, 4.25, "4-bit weights: they")
    if dtype is None:
        problem = f"the effect of this is not known here: weights are counted and timed with {act}"
        return replace(plain, problem=problem)
    narrow = replace(plain, num_bytes=spec.matmul_parameters + rest)
    if hardware is None or dtype in hardware.peak_flops:
        return replace(narrow, dtype=dtype)
    return _unpacked(narrow, 8, f"{dtype} weights: {hardware.name} has no {dtype} arithmetic, so they")


def _unpacked(narrow: Weights, bits: float, what: str) -> Weights:
    """Weights that products unpack into the activations' type: a step reads the layers in so many bits, and the head as
    it is."""
    spec, wide = narrow.spec, 8 * dtype_bytes(narrow.activations)
    read = spec.matmul_parameters * bits + spec.lm_head_parameters * wide
    mean = f"{read / (spec.matmul_parameters + spec.lm_head_parameters):.4g}"
    problem = (
        f"{what} are unpacked into {narrow.activations}, which is not counted; a step reads {mean} bits per weight on "
        f"average ({bits:g} in the layers, {wide} in the head)"
    )
    return replace(narrow, problem=problem, bits=mean)


def _activations(flags: Flags, checkpoint: _Checkpoint) -> tuple[str, str]:
    asked = text(flags, "dtype", "auto")
    if asked in DTYPES:
        return DTYPES[asked], f"--dtype {asked}"
    if asked != "auto":
        raise InputError(printable(f"--dtype: must be one of auto, {', '.join(DTYPES)} (got {asked!r})"))
    if checkpoint.dtype is not None:
        return ("bf16" if checkpoint.dtype == "fp32" else checkpoint.dtype), "--dtype auto: by the model's config.json"
    return ("fp16" if checkpoint.spec.name.startswith("llama-2") else "bf16"), "--dtype auto: as it was published"


def _checkpoint(model: str, folder: Path) -> _Checkpoint:
    """What a name or a path tells of a model."""
    path = Path(os.path.expanduser(model))
    match = _SUFFIX.search(model)
    suffix = match["kind"].lower() if match else ""
    if not _is_path(path, model):
        spec = load_model_spec(_SUFFIX.sub("", model))
        return _Checkpoint(spec, spec.name, suffix)
    spec = load_model_spec(path)
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    method = config.get("quantization_config")
    told = str(method.get("quant_method", "")).lower() if isinstance(method, dict) else ""
    dtype = DTYPES.get(str(config.get("dtype", config.get("torch_dtype"))).lower())
    relative = os.path.relpath(path.resolve(), folder.resolve())
    called = relative if "/" in relative else f"./{relative}"
    return _Checkpoint(spec, called, suffix if told in _SAYS_NOTHING and suffix else told or suffix, dtype)


def _is_path(path: Path, model: str) -> bool:
    try:
        return path.exists() and ("/" in model or path.is_dir() or model.endswith(".json"))
    except (OSError, ValueError):
        return False
