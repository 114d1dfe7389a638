"""Which engines there are. A new one is one function here and one line in ``ENGINES``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from calibrate.engines.engine import Engine
from calibrate.engines.generate_engine import GenerateEngine
from calibrate.engines.transformers_engine import TransformersEngine
from calibrate.engines.vllm_engine import VllmEngine, VllmOptions
from calibrate.errors import CalibrationError
from calibrate.model import TORCH_DTYPES, ModelSource, build_model
from calibrate.options import CalibrateOptions

Make = Callable[[ModelSource, str, str, CalibrateOptions], Engine]
"""From model, device, dtype and options to an engine that is not started yet."""


def make_engine(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Engine:
    """The engine that ``options.engine`` names. Raises ``CalibrationError`` for an unknown name."""
    name = options.engine or ""
    if name not in ENGINES:
        close = get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(ENGINES))}"
        raise CalibrationError(f"engine: must be one that can be driven (got {name!r}); {hint}")
    if options.engine_python is not None and name != "vllm":
        raise CalibrationError(f"engine_python: is for engines that run elsewhere (got it with {name}); leave it out")
    if options.kv_cache != "in-place":
        raise CalibrationError(f"kv_cache: an engine has its own (got {options.kv_cache}); leave it out")
    if options.graphs:
        raise CalibrationError(f"graphs: is for bare forwards (got it with {name}); leave it out")
    return ENGINES[name](source, device, dtype, options)


def _transformers(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Engine:
    return TransformersEngine(build_model(source, device, dtype, options.attn, options.seed))


def _generate(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Engine:
    if device != "cpu":
        raise CalibrationError(f"device: generate's steps are timed on a CPU (got {device}); use --device cpu")
    return GenerateEngine(build_model(source, device, dtype, options.attn, options.seed))


def _vllm(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Engine:
    if device != "cpu":
        raise CalibrationError(f"device: vLLM's steps are timed on a CPU (got {device}); use --device cpu")
    if options.engine_python is None:
        raise CalibrationError("engine_python: must name the Python that has vLLM; use --engine-python PATH")
    python = shutil.which(options.engine_python)
    if python is None:
        raise CalibrationError(f"engine_python: must be an interpreter that can be run (got {options.engine_python})")
    kv_bytes = source.spec.kv_bytes_per_token(dtype)
    more = VllmOptions(TORCH_DTYPES[dtype], options.threads, options.seed, kv_bytes)
    return VllmEngine(Path(python), _config(source), more)


def _config(source: ModelSource) -> dict[str, Any]:
    """``config.json`` of the model, with the class that loads it."""
    if source.origin:
        import transformers

        auto: Any = transformers
        config: dict[str, Any] = auto.AutoConfig.from_pretrained(source.origin).to_dict()
    else:
        config = dict(source.spec.to_hf_config())
    if not config.get("architectures"):
        from transformers.models.auto import modeling_auto

        names: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        config["architectures"] = [names[config["model_type"]]]
    plain: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return plain


ENGINES: dict[str, Make] = {"generate": _generate, "transformers": _transformers, "vllm": _vllm}
