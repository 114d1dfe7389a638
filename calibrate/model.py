"""From a name to a decoder that can be timed. Random weights do: timing depends on the architecture alone."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.errors import CalibrationError
from simserve.errors import ModelError
from simserve.model_spec import CATALOGUE, ModelSpec, load_model_spec, spec_from_config

TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class ModelSource:
    """A model before it is built: its numbers, and the folder or hub name of its configuration (``None`` if built in)
    and perhaps weights."""

    spec: ModelSpec
    origin: str | None
    has_weights: bool


def find_model(name: str) -> ModelSource:
    """Resolve a built-in name, a folder with ``config.json``, or a hub name, of which only the configuration is taken.
    Raises ``ModelError``."""
    folder = Path(name)
    try:
        spec = load_model_spec(name)
    except ModelError:
        if "/" not in name or folder.exists():
            raise
        return ModelSource(_spec_from_hub(name), name, False)
    if not folder.is_dir() or name.lower() in CATALOGUE:
        return ModelSource(spec, None, False)
    patterns = ("*.safetensors", "pytorch_model*.bin")
    return ModelSource(spec, str(folder), any(any(folder.glob(pattern)) for pattern in patterns))


def with_kv_heads(source: ModelSource, num_kv_heads: int | None) -> ModelSource:
    """The same model with so many KV heads, and so with random weights: trained ones have the heads that they have.
    ``None`` changes nothing. Raises ``ModelError`` for a number that does not divide the attention heads."""
    if num_kv_heads is None or num_kv_heads == source.spec.num_kv_heads:
        return source
    return ModelSource(source.spec.with_kv_heads(num_kv_heads), None, False)


def build_model(source: ModelSource, device: str, dtype: str, attn: str, seed: int) -> Any:  # noqa: ANN401 - a torch module
    """A decoder in evaluation mode on ``device``. Raises ``CalibrationError`` if it cannot be built here with this
    attention kernel and dtype."""
    import torch

    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before)
        torch.set_default_dtype(getattr(torch, TORCH_DTYPES[dtype]))
        if not source.has_weights:  # random ones are made where they are to be; files are read on the host
            stack.enter_context(torch.device(device))
        try:
            return _load(source, attn).to(device=device, dtype=torch.get_default_dtype()).eval()
        except (ValueError, ImportError, OSError) as error:
            what = f"{source.spec.name} with attention {attn!r}"
            raise CalibrationError(f"model: {what} cannot be built here ({_first_line(error)})") from error


def _load(source: ModelSource, attn: str) -> Any:  # noqa: ANN401
    import transformers

    auto: Any = transformers  # untyped in some versions
    if source.origin and source.has_weights:
        return auto.AutoModelForCausalLM.from_pretrained(source.origin, attn_implementation=attn)
    if source.origin:
        config = auto.AutoConfig.from_pretrained(source.origin)
    else:
        shape = source.spec.to_hf_config()
        config = auto.AutoConfig.for_model(shape.pop("model_type"), **shape)
    return auto.AutoModelForCausalLM.from_config(config, attn_implementation=attn)


def _spec_from_hub(name: str) -> ModelSpec:
    import transformers

    auto: Any = transformers
    try:
        config = auto.AutoConfig.from_pretrained(name).to_dict()
    except (OSError, ValueError) as error:
        rule = "is neither built in, nor a folder, nor to be had from the hub"
        raise ModelError(f"model: {name!r} {rule} ({_first_line(error)})") from error
    return spec_from_config(config, name.rstrip("/").rsplit("/", 1)[-1].lower(), name)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
