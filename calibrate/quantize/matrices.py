"""The projection matrices of a decoder: which they are, how far rounding moves each, and a model with all of them
rounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from calibrate.errors import CalibrationError
from calibrate.quantize.rounding import round_weight
from simserve.memory.schemes import WeightScheme

Model = Any


@dataclass(frozen=True)
class MatrixError:
    """``error`` is ‖W − Ŵ‖ / ‖W‖ in the Frobenius norm; ``num_bits`` are those of ``num_weights`` levels and their
    scales."""

    name: str
    error: float
    num_weights: int
    num_bits: int


def projections(model: Model) -> dict[str, nn.Linear]:
    """Query, key, value, output and MLP matrices of all layers, by name. Embedding and output head are none of them:
    4-bit checkpoints keep both in 16 bits. Raises ``CalibrationError`` for a model without any."""
    head = model.get_output_embeddings()
    found = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    if not found:
        raise CalibrationError(f"model: must have linear layers to round (got {type(model).__name__} without any)")
    return found


def require_finite(model: Model) -> None:
    """Raise ``CalibrationError`` where weights are no numbers, as in a damaged file: nothing can be said of it."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise CalibrationError(f"weights: must be finite numbers (got NaN or infinity in {name})")


@contextmanager
def rounded(model: Model, scheme: WeightScheme) -> Iterator[list[MatrixError]]:
    """``model`` with every projection rounded as ``scheme`` keeps it, and computing in its own dtype as weight-only
    kernels do; yields the error of each matrix. Afterwards the weights are what they were."""
    matrices = projections(model)
    kept = {name: linear.weight.data for name, linear in matrices.items()}
    errors: list[MatrixError] = []
    try:
        for name, linear in matrices.items():
            result = round_weight(kept[name], scheme)
            errors.append(_error(name, kept[name], result.weight, result.num_bits))
            linear.weight.data = result.weight.to(kept[name].dtype)
        yield errors
    finally:
        for name, linear in matrices.items():
            linear.weight.data = kept[name]


def _error(name: str, weight: torch.Tensor, restored: torch.Tensor, num_bits: int) -> MatrixError:
    whole = float(torch.linalg.vector_norm(weight, dtype=torch.float64))
    moved = float(torch.linalg.vector_norm(weight.float() - restored, dtype=torch.float64))
    return MatrixError(name, moved / whole if whole else 0.0, weight.numel(), num_bits)
