"""From what an importer read to a profile: provenance, fit, and the errors on points left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.batch_curve import make_batch_curve
from calibrate.fit import make_validity
from calibrate.importers.fitting import Fitted, fit_points
from calibrate.importers.mixed_steps import fit_mixed_steps
from calibrate.importers.reading import ImportOptions, Reading
from calibrate.profile_file import layout
from simserve.errors import ProfileError
from simserve.model_spec import DTYPE_BYTES, ModelSpec, load_model_spec
from simserve.step_time.profile_schema import (
    SCHEMA_VERSION,
    HeldOut,
    HeldOutError,
    ModelDimensions,
    Profile,
    Provenance,
    Sample,
    content_digest,
    parse_profile,
)
from simserve.step_time.source import MeasuredPoint

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def make_profile(reading: Reading, options: ImportOptions) -> tuple[Profile, str]:
    """The profile of a reading, and the text of its file. Raises ``ProfileError`` or ``ModelError`` in one sentence."""
    if not _NAME.fullmatch(options.name):
        raise ProfileError(f"name: must be letters, digits, dots and dashes (got {options.name!r})")
    told = _merge(reading, options)
    spec = load_model_spec(told.model or "")
    fitted = fit_points(reading.points, options.prefill_times)
    mixed = fit_mixed_steps(reading.mixed, fitted.prefill, fitted.decode, len(reading.points))
    notes = (*told.notes, *reading.notes, *fitted.notes, *mixed.words)
    samples = [*(_sample(order, point) for order, point in enumerate(reading.points)), *mixed.samples]
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": options.name,
        "provenance": _provenance(told, spec, notes).model_dump(mode="json"),
        "held_out": _held_out(fitted, mixed.errors).model_dump(mode="json"),
        "validity": make_validity(fitted.prefill, fitted.decode).model_dump(mode="json"),
        "kv_bytes_per_token": None,
        "batch_curve": make_batch_curve(fitted.decode).model_dump(mode="json"),
        "prefill": fitted.prefill.model_dump(mode="json"),
        "decode": fitted.decode.model_dump(mode="json"),
        "mixed": mixed.correction.model_dump(mode="json") if mixed.correction else None,
        "samples": [sample.model_dump(mode="json") for sample in samples],
    }
    content["digest"] = content_digest(content)
    return parse_profile(content, options.name), layout(content) + "\n"


def _merge(reading: Reading, options: ImportOptions) -> ImportOptions:
    """The options, completed by what the files say. Raises ``ProfileError`` where neither says what must be known, or
    they disagree."""
    asked = options.tensor_parallel
    if asked is not None and reading.tensor_parallel is not None and asked != reading.tensor_parallel:
        raise ProfileError(f"tensor_parallel: must be {reading.tensor_parallel}, as the files say (got {asked})")
    told = replace(
        options,
        model=options.model or reading.model,
        device_name=options.device_name or reading.device_name,
        dtype=options.dtype or reading.dtype,
        tensor_parallel=asked or reading.tensor_parallel or 1,
        source="; ".join(part for part in (options.source, reading.source) if part) or None,
        date=options.date or reading.date or datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    for field in ("model", "device_name", "dtype"):
        if not getattr(told, field):
            raise ProfileError(f"{field}: must be given, since the files do not tell; add --{field.replace('_', '-')}")
    if told.dtype not in DTYPE_BYTES:
        raise ProfileError(f"dtype: must be one of {', '.join(DTYPE_BYTES)} (got {told.dtype!r})")
    if (told.tensor_parallel or 0) < 1:
        raise ProfileError(f"tensor_parallel: must be ≥ 1 (got {told.tensor_parallel})")
    return told


def _provenance(told: ImportOptions, spec: ModelSpec, notes: tuple[str, ...]) -> Provenance:
    dimensions = ModelDimensions.of(spec)
    return Provenance(
        origin="imported",
        source=told.source,
        model=spec.name,
        dimensions=dimensions,
        config_hash=dimensions.config_hash,
        weights=None,
        device=told.device,
        device_name=told.device_name or "",
        tensor_parallel=told.tensor_parallel or 1,
        driver=None,
        num_cpus=None,
        threads=None,
        dtype=told.dtype or "",
        attention=None,
        kv_cache=None,
        clock="wall",
        clock_reason="as the source measured",
        torch_version=None,
        transformers_version=None,
        python_version=None,
        platform=None,
        date=told.date or "",
        command=told.command or "simserve profile import",
        duration_s=0.0,
        notes=notes,
    )


def _sample(order: int, point: MeasuredPoint) -> Sample:
    return Sample(
        phase=point.phase,
        batch_size=point.batch_size,
        num_new_tokens=point.num_new_tokens,
        num_context_tokens=point.num_context_tokens,
        wall_s=point.seconds,
        cpu_s=None,
        cuda_s=None,
        other_cpus=None,
        order=order,
        held_out=False,
        dirty=False,
    )


def _held_out(fitted: Fitted, mixed: list[float]) -> HeldOut:
    prefill = [each.error for each in fitted.prefill_left_out]
    decode = [each.error for each in fitted.decode_left_out]
    return HeldOut(
        prefill=_error(prefill),
        decode=_error(decode),
        all=_error([*prefill, *decode, *mixed]),
        mixed=_error(mixed) if mixed else None,
    )


def _error(errors: Sequence[float]) -> HeldOutError:
    if not errors:
        return HeldOutError(num_points=0, mean=None, p95=None, max=None)
    mean, p95 = float(np.mean(errors)), float(np.percentile(errors, 95))
    return HeldOutError(num_points=len(errors), mean=mean, p95=p95, max=max(errors))


def default_name(options: ImportOptions, reading: Reading) -> str:
    """``<model>-<device>-<dtype>``, as calibrations are called."""
    parts = options.model or reading.model, options.device_name or reading.device_name, options.dtype or reading.dtype
    words = "-".join(Path(part).name if "/" in part else part for part in parts if part)
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-") or "imported"
