"""Profiles whose step times follow a formula that a test chooses, made by the code that makes measured ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from calibrate.chains import chain_points
from calibrate.grid import Axes, Point
from calibrate.measure import Measurement
from calibrate.profile_file import assemble
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.step_time.profile_schema import KvBytes, ModelDimensions, Profile, Provenance, Sample, Table, TableRow

Formula = Callable[[int, int], float]  # (row, context) -> seconds


def affine(row: int, context: int) -> float:
    """A launch, a cost per row, and attention over the context."""
    return 1e-3 + 1e-4 * row + 1e-7 * row * context


def make_point(phase: str, row: int, context: int, held_out: bool = False) -> Point:
    """A point by the row and context of its table."""
    if phase == "prefill":
        return Point("prefill", 1, row, context, held_out)
    return Point("decode", row, 1, context, held_out)


def make_sample(point: Point, seconds: float, dirty: bool = False, order: int = 0) -> Sample:
    """One sample on a quiet CPU."""
    return Sample(
        phase=point.phase,
        batch_size=point.batch_size,
        num_new_tokens=point.num_new_tokens,
        num_context_tokens=point.num_context_tokens,
        wall_s=seconds * 1.5,
        cpu_s=seconds,
        cuda_s=None,
        other_cpus=1.0 if dirty else 0.0,
        order=order,
        held_out=point.held_out,
        dirty=dirty,
        num_repeats=point.num_repeats,
    )


def make_provenance(spec: ModelSpec) -> Provenance:
    """Provenance of a measurement that nobody made, on one thread."""
    dimensions = ModelDimensions.of(spec)
    return Provenance(
        model=spec.name,
        dimensions=dimensions,
        config_hash=dimensions.config_hash,
        weights="random",
        device="cpu",
        device_name="A formula",
        driver="none",
        num_cpus=1,
        threads=1,
        dtype="fp32",
        attention="sdpa",
        kv_cache="in-place",
        clock="process_cpu",
        clock_reason="one thread",
        torch_version="0",
        transformers_version="0",
        python_version="3",
        platform="test",
        date="2025-01-01",
        command="pytest",
        duration_s=0.0,
    )


def make_profile_text(
    prefill: Formula = affine,
    decode: Formula = affine,
    model: str = "tiny",
    prefill_rows: Sequence[int] = (1, 8, 64, 512),
    batches: Sequence[int] = (1, 2, 4, 8, 16),
    chained: Callable[[int], float] | None = None,
) -> tuple[Profile, str]:
    """A profile over contexts 0, 256, 1,024 (prefill) and 1, 128, 1,024 (decode), and the text of its file. With
    ``chained`` chains of decodes were measured too, whose later steps take that ratio at their batch size."""
    points = [make_point("prefill", row, context) for row in prefill_rows for context in (0, 256, 1024)]
    points += [make_point("decode", row, context) for row in batches for context in (1, 128, 1024)]
    points += [make_point("prefill", 32, 256, True), make_point("decode", 12, 128, True)]
    formulas = {"prefill": prefill, "decode": decode}
    samples = [
        make_sample(point, formulas[point.phase](point.row, point.num_context_tokens), order=order)
        for order, point in enumerate(points)
    ]
    for chain in chain_points(Axes(tuple(batches), (1, 128, 1024)), 0) if chained is not None else ():
        for back in range(chain.num_repeats):
            step = chain._replace(
                num_context_tokens=chain.num_context_tokens - back, num_repeats=chain.num_repeats - back
            )
            seconds = chained(step.row) * decode(step.row, step.num_context_tokens)
            samples.append(make_sample(step, seconds, order=len(samples)))
    spec = load_model_spec(model)
    kv_bytes = spec.kv_bytes_per_token("fp32")
    kv = KvBytes(measured=kv_bytes, formula=kv_bytes)
    return assemble(f"{model}-formula", make_provenance(spec), kv, Measurement(samples), 1.0)


def make_profile(prefill: Formula = affine, decode: Formula = affine, model: str = "tiny", **more: Any) -> Profile:
    """As ``make_profile_text``, without the text."""
    return make_profile_text(prefill, decode, model, **more)[0]


def make_content() -> dict[str, Any]:
    """The JSON of a good profile file."""
    content: dict[str, Any] = json.loads(make_profile_text()[1])
    return content


def make_table(cells: dict[int, dict[int, float]]) -> Table:
    """A table from {row: {context: seconds}}."""
    rows = [
        TableRow(row=row, contexts=tuple(sorted(at)), seconds=tuple(at[c] for c in sorted(at)))
        for row, at in sorted(cells.items())
    ]
    return Table(rows=tuple(rows))
