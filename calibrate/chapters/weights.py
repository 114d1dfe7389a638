"""One model with its linear layers at 32, 16, 8 and 4 bits, as far as torch has kernels for them on this device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from calibrate.chapters.steps import cached_step
from calibrate.chapters.timing import Case, Watch
from calibrate.model import ModelSource, build_model
from simserve.step_time.chapters_schema import WeightsName, WeightsRow, WeightsTable

GROUPS = (128, 64, 32)  # weights that share a scale, in the order of preference
_METHODS = {
    "fp32": "torch.float32",
    "bf16": "torch.bfloat16",
    "int8": "torch.ao dynamic quantization of linear layers: int8 weights and activations, a scale per tensor",
    "int4": "torch's packed int4 kernel for linear layers: groups of up to 128 weights share a scale; the rest in bf16",
}
Model = Any


class Int4Linear(nn.Module):
    """A linear layer whose weights are packed as int4, with a scale per group of the inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, width = linear.weight.shape
        self.group = next((group for group in GROUPS if width % group == 0), 0)
        if not self.group:
            raise ValueError(f"inputs must be a multiple of {GROUPS[-1]} (got {width})")
        grouped = linear.weight.detach().float().reshape(rows, width // self.group, self.group)
        scale = (grouped.abs().amax(dim=2) / 7).clamp_min(1e-8)
        levels = (grouped / scale[:, :, None]).round().clamp(-8, 7).add(8).to(torch.int32).reshape(rows, width)
        scales = torch.stack([scale.t(), torch.zeros_like(scale.t())], dim=2).to(linear.weight.dtype).contiguous()
        self.packed: torch.Tensor
        self.scales: torch.Tensor
        self.register_buffer("packed", torch._convert_weight_to_int4pack_for_cpu(levels, 1))
        self.register_buffer("scales", scales)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As ``nn.Linear``."""
        flat = x.reshape(-1, x.shape[-1])
        out = torch._weight_int4pack_mm_for_cpu(flat, self.packed, self.group, self.scales)
        out = out.reshape(*x.shape[:-1], out.shape[-1])
        return out if self.bias is None else out + self.bias


def measure_weights(source: ModelSource, device: str, attn: str, watch: Watch, shape: tuple[int, int]) -> WeightsTable:
    """Bytes and step times at each width; ``shape`` is (context of the decode, tokens of the prefill). What torch
    cannot run here has a row that says why, and no figure."""
    context, tokens = shape
    base = build_model(source, device, "fp32", attn, watch.seed)
    makers: dict[WeightsName, Callable[[Model], Model]] = {
        "fp32": lambda model: model,
        "bf16": lambda model: copy.deepcopy(model).to(torch.bfloat16),
        "int8": lambda model: _int8(model, device),
        "int4": lambda model: _int4(model, device),
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
        except (RuntimeError, ValueError, ImportError) as error:  # torch's NotImplementedError is a RuntimeError
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


def weight_bytes(model: Model) -> int:
    """Bytes of every parameter, buffer and packed weight of a model, what is shared counted once."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [tensor for module in model.modules() for tensor in _packed(module)]
    unique = {(tensor.data_ptr(), tensor.numel()): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def _packed(module: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """The tensors that a dynamically quantized layer keeps out of its parameters."""
    packed = getattr(module, "_packed_params", None)
    if packed is None or not hasattr(packed, "_weight_bias"):
        return []
    return [tensor for tensor in packed._weight_bias() if tensor is not None]


def _int8(model: Model, device: str) -> Model:
    if device != "cpu":
        raise ValueError("torch's dynamic quantization of linear layers has kernels for CPUs only")
    quantize: Any = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is to move to torchao; until then this is what torch itself runs
        return quantize.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def _int4(model: Model, device: str) -> Model:
    if device != "cpu":
        raise ValueError("this kernel is for CPUs; on a GPU torch packs int4 weights differently")
    narrow = copy.deepcopy(model).to(torch.bfloat16)  # in fp32 this kernel is a slow reference
    for module in list(narrow.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int4Linear(child))
    return narrow
