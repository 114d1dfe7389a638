"""What an operator profile holds, whichever profiler wrote it: seconds of operators, and who measured what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import ProfileError
from simserve.model_spec import ModelSpec
from simserve.step_time.operators.attention import AttentionTables
from simserve.step_time.operators.line import Line
from simserve.step_time.operators.skew import SkewTable


@dataclass(frozen=True)
class Origin:
    """Who measured on what; ``profiler`` and ``missing`` (what the tables lack) are words for the reader, ``dtype`` and
    ``date`` are None where no file says; ``digest`` is over all files."""

    profiler: str
    device: str
    dtype: str | None
    date: str | None
    missing: str
    digest: str


@dataclass(frozen=True, eq=False)
class OperatorTables:
    """Seconds on each device of a tensor-parallel group: ``layer`` of one layer's operators without attention over the
    tokens of a step, ``step`` of those that run once a step, ``rows`` of those over its sequences; ``skew`` says what
    decodes of unequal context cost, where that was measured. ``uses_skew`` is False where the description that lies
    beside the tables turns it off."""

    layer: Line
    step: Line
    rows: Line
    attention: AttentionTables
    origin: Origin
    skew: SkewTable | None = None
    uses_skew: bool = True


def require_dimensions(where: Path, spec: ModelSpec, found: Mapping[str, int], degrees: tuple[int, ...] = (1,)) -> None:
    """Raise ``ProfileError`` unless each dimension ``found`` beside the tables, by its name in ``ModelSpec``, is that
    of the model or one device's share of it at one of ``degrees``."""
    for name, value in found.items():
        expected = int(getattr(spec, name))
        if all(value * degree != expected for degree in (1, *degrees)):
            raise ProfileError(
                f"{where}: {name}: must be the {expected} of {spec.name} (got {value}); name the one that was measured"
            )
