"""From errors and readings to the document that is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

import simserve
from calibrate.quantize.matrices import MatrixError
from calibrate.quantize.rounding import sharing
from simserve.memory.schemes import WeightScheme
from simserve.step_time.profile_schema import content_digest
from simserve.step_time.quality_schema import Quality, Quantization, SchemeRow, Software


def scheme_row(scheme: WeightScheme, errors: Sequence[MatrixError], quality: Quality | None) -> SchemeRow:
    """One line of the table. A mean is over the matrices, each counted once."""
    worst = max(errors, key=lambda matrix: matrix.error)
    return SchemeRow(
        scheme=scheme.name,
        method=method_of(scheme),
        bits_per_weight=sum(matrix.num_bits for matrix in errors) / sum(matrix.num_weights for matrix in errors),
        mean_error=sum(matrix.error for matrix in errors) / len(errors),
        worst_error=worst.error,
        worst_matrix=worst.name,
        quality=quality,
    )


def method_of(scheme: WeightScheme) -> str:
    """In words: how levels are spaced and which weights share a scale."""
    group = sharing(scheme)
    shared = {None: "tensor", 0: "row"}.get(group, f"group of {group}")
    if scheme.name.startswith("nf4"):
        return f"NF4, 16 levels spaced as a normal distribution, a scale per {shared}"
    return f"symmetric absmax, {2 ** int(scheme.bits) - 1} levels, a scale per {shared}"


def assemble(made: dict[str, Any]) -> Quantization:
    """The document, digest and all."""
    document = Quantization(schema_version=1, kind="simserve quantization", **made, digest="")
    return document.model_copy(update={"digest": content_digest(document.model_dump(mode="json"))})


def software(command: str) -> Software:
    """Versions of what is loaded here."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return Software(simserve=simserve.__version__, command=command, **versions)
