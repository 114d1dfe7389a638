"""Linear layers at 8 and 4 bits as torch really runs them here, and the bytes that they then take."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from calibrate.errors import CalibrationError
from simserve.memory.schemes import GROUPS as DEFAULT_GROUPS
from simserve.memory.schemes import parse_scheme

GROUPS = (128, 64, 32)  # weights that share a scale, in the order of preference
METHODS = {
    "int8": "torch.ao dynamic quantization of linear layers: int8 weights with a scale per row, int8 activations with "
    "one per tensor",
    "int4": "torch's packed int4 kernel for linear layers: groups of up to 128 weights share a scale; the rest in bf16",
}
COMPUTES_IN = {"int8": "fp32", "int4": "bf16"}
"""The dtype of everything else: what the kernel takes and gives."""

Model = Any


class Int4Linear(nn.Module):
    """A linear layer whose weights are packed as int4, with a scale per group of the inputs: of ``group``, or the
    largest that divides the inputs. Raises ``ValueError`` where there is none."""

    def __init__(self, linear: nn.Linear, group: int | None = None) -> None:
        super().__init__()
        rows, width = linear.weight.shape
        wanted = GROUPS if group is None else (group,)
        self.group = next((group for group in wanted if width % group == 0), 0)
        if not self.group:
            raise ValueError(f"inputs must be a multiple of {wanted[-1]} (got {width})")
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


def int8_model(model: Model, device: str) -> Model:
    """A copy with int8 linear layers, the output head among them. Raises ``ValueError`` off a CPU."""
    if device != "cpu":
        raise ValueError("torch's dynamic quantization of linear layers has kernels for CPUs only")
    quantize: Any = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is to move to torchao; until then this is what torch itself runs
        per_row = {nn.Linear: quantize.per_channel_dynamic_qconfig}
        return quantize.quantize_dynamic(model, per_row, dtype=torch.qint8)


def int4_model(model: Model, device: str, group: int | None = None) -> Model:
    """A copy in bf16 with int4 linear layers, the output head among them. Raises ``ValueError`` off a CPU, and where
    ``group`` does not divide a layer's inputs."""
    if device != "cpu":
        raise ValueError("this kernel is for CPUs; on a GPU torch packs int4 weights differently")
    narrow = copy.deepcopy(model).to(torch.bfloat16)  # in fp32 this kernel is a slow reference
    for module in list(narrow.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int4Linear(child, group))
    return narrow


def weight_bytes(model: Model) -> int:
    """Bytes of every parameter, buffer and packed weight of a model, what is shared counted once."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [tensor for module in model.modules() for tensor in _packed(module)]
    unique = {(tensor.data_ptr(), tensor.numel()): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def check_kernel(text: str, dtype: str, device: str) -> tuple[str | None, str]:
    """(scheme, dtype) in full of ``--weights`` and ``--dtype``; the scheme is ``None`` where weights are just in the
    dtype. Raises ``FootprintError`` for an unknown scheme and ``CalibrationError`` for one that torch has no kernel
    for here, or not with this dtype."""
    scheme = parse_scheme(text)
    kind, _, group = scheme.name.partition(":")
    if scheme.name in ("fp32", "bf16", "fp16"):
        if dtype not in ("auto", scheme.name):
            raise CalibrationError(f"weights: {scheme.name} must be the dtype itself (got dtype {dtype})")
        return None, scheme.name
    groups = [str(size) for size in GROUPS if size != DEFAULT_GROUPS["int4"]]
    if not (scheme.name in COMPUTES_IN or (kind == "int4" and group in groups)):
        known = ", ".join(("int8", "int4", *(f"int4:{size}" for size in groups)))
        raise CalibrationError(f"weights: torch has kernels here for {known} (got {scheme.name})")
    if device != "cpu":
        raise CalibrationError(
            f"weights: {scheme.name} runs on CPUs only (got {device}); leave it out, or --device cpu"
        )
    if dtype not in ("auto", COMPUTES_IN[kind]):
        raise CalibrationError(f"weights: the {kind} kernel computes in {COMPUTES_IN[kind]} (got dtype {dtype})")
    return scheme.name, COMPUTES_IN[kind]


def quantized(model: Model, scheme: str) -> Model:
    """``model`` with its linear layers as ``scheme`` says, one of those that ``check_kernel`` lets through. Raises
    ``CalibrationError`` if its layers cannot be cut into such groups."""
    kind, _, group = scheme.partition(":")
    try:
        if kind == "int8":
            return int8_model(model, "cpu")
        return int4_model(model, "cpu", int(group or DEFAULT_GROUPS["int4"] or 0))
    except ValueError as error:
        raise CalibrationError(
            f"weights: every layer's {error}; use --weights int4:64 or int4:32, or another model"
        ) from error


def _packed(module: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """The tensors that a dynamically quantized layer keeps out of its parameters."""
    packed = getattr(module, "_packed_params", None)
    if packed is None or not hasattr(packed, "_weight_bias"):
        return []
    return [tensor for tensor in packed._weight_bias() if tensor is not None]
