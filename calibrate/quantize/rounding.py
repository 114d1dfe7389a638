"""Rounding of weights: symmetric absmax per tensor, per row or per group, and NF4; scales are kept in fp16."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from calibrate.errors import CalibrationError
from simserve.memory.schemes import SCALE_BITS, WeightScheme

NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of a normal distribution, one of them exactly zero (appendix E of the QLoRA paper, arXiv:2305.14314)."""

_LARGEST_SCALE = 65_504.0  # of fp16


@dataclass(frozen=True)
class Rounded:
    """``weight`` as a scheme keeps it, turned back to floats; ``num_bits`` are those of its levels and scales."""

    weight: torch.Tensor
    num_bits: int


def round_weight(weight: torch.Tensor, scheme: WeightScheme) -> Rounded:
    """A matrix (rows of outputs, columns of inputs) as ``scheme`` keeps it.

    Symmetric absmax: the largest magnitude of those that share a scale is the outermost level (127 or 7), and every
    weight goes to the nearest level; the level −8 (−128) is not used. NF4: the nearest of sixteen levels, unevenly
    spaced. Those that share a scale are the tensor, a row, or a group of neighbours in a row, of which the last is
    shorter where the row is no multiple. Raises ``CalibrationError`` for a scheme that has no levels, such as fp16.
    """
    if weight.dim() != 2 or not weight.numel():
        raise CalibrationError(f"weights: must be a matrix (got the shape {tuple(weight.shape)})")
    values = weight.detach().float()
    shared = _shared(values, sharing(scheme))
    largest = shared.abs().amax(dim=1, keepdim=True)
    if scheme.name.startswith("nf4"):
        scale = _fp16(largest)
        restored = _nearest_nf4(_divide(shared, scale)) * scale
    else:
        outermost = 2 ** (int(scheme.bits) - 1) - 1
        scale = _fp16(largest / outermost)
        restored = _divide(shared, scale).round().clamp(-outermost, outermost) * scale
    num_bits = int(scheme.bits) * values.numel() + SCALE_BITS * len(scale)
    return Rounded(_unshared(restored, values.shape), num_bits)


def sharing(scheme: WeightScheme) -> int | None:
    """How many weights of a row share a scale: a group, 0 for the whole row, ``None`` for the whole tensor."""
    kind = scheme.name.partition(":")[0]
    if kind not in ("int8", "int4", "nf4"):
        raise CalibrationError(
            "weights: must be a scheme that rounds to levels: int8, int4 or nf4, with :tensor, :row or a group such as "
            f":64 (got {scheme.name})"
        )
    if scheme.group_size is not None:
        return scheme.group_size
    return None if scheme.name.endswith(":tensor") else 0


def _shared(values: torch.Tensor, group: int | None) -> torch.Tensor:
    """One line for each scale, filled up with zeros, which change no largest magnitude."""
    if group is None:
        return values.reshape(1, -1)
    if group == 0:
        return values
    width = values.shape[1]
    size = min(group, width)
    padded = torch.nn.functional.pad(values, (0, -width % size))
    return padded.reshape(-1, size)


def _unshared(shared: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    rows, width = shape
    return shared.reshape(rows, -1)[:, :width].contiguous()


def _divide(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Zero where the scale is zero: weights too small for fp16 to say how small."""
    return torch.where(scale > 0, values / scale.clamp_min(torch.finfo(torch.float16).smallest_normal / 1024), 0.0)


def _fp16(scale: torch.Tensor) -> torch.Tensor:
    return scale.clamp_max(_LARGEST_SCALE).half().float()


def _nearest_nf4(values: torch.Tensor) -> torch.Tensor:
    levels = torch.tensor(NF4_LEVELS, device=values.device)
    between = torch.tensor([(low + high) / 2 for low, high in pairwise(NF4_LEVELS)], device=values.device)
    return levels[torch.bucketize(values, between)]
