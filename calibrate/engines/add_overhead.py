"""``simserve calibrate --engine … --overhead-for PROFILE``: a profile of bare forwards gets what an engine's steps take
beyond them, fitted on a run of that engine, and says so."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrate.batch_curve import make_batch_curve
from calibrate.command import measure
from calibrate.engines.overhead import Overhead, add_to_decode, add_to_prefill, fit_overhead
from calibrate.engines.setup import set_up_engine
from calibrate.errors import CalibrationError
from calibrate.fit import point_medians
from calibrate.grid import Point
from calibrate.held_out_error import compare
from calibrate.measure import Measurement
from calibrate.model import ModelSource
from calibrate.options import CalibrateOptions
from calibrate.partial import require_writable, write_atomically
from calibrate.profile_file import layout
from calibrate.show import show
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import (
    HeldOutError,
    Profile,
    Provenance,
    StepOverhead,
    content_digest,
    load_profile,
    parse_profile,
)

_SAME = ("config_hash", "device_name", "dtype", "attention", "threads", "clock")


def calibrate_overhead(
    source: ModelSource, device: str, dtype: str, options: CalibrateOptions, console: Console
) -> Path:
    """Measure the engine's steps inside the ranges of ``options.overhead_for``, fit, judge on the steps held out, and
    write a new profile; returns its path. Raises ``ProfileError`` and ``CalibrationError`` in one sentence."""
    began = time.perf_counter()
    assert options.overhead_for is not None
    bare = load_profile(options.overhead_for, source.spec)
    _require_bare(bare, options)
    path = options.out or Path(f"{bare.name}-{options.engine}.json")
    require_writable(path)
    setup = set_up_engine(source, device, dtype, _inside(bare, options))
    try:
        _require_same(bare.provenance, setup.provenance, str(options.overhead_for))
        measurement, partial = measure(setup, path, options, console)
    finally:
        setup.stop()
    profile, text = with_overhead(bare, path.stem, setup.provenance, measurement)
    write_atomically(path, text)
    partial.remove()
    show(profile, console)
    console.print(f"wrote {path} in {time.perf_counter() - began:.1f} s")
    return path


def with_overhead(bare: Profile, name: str, made: Provenance, measurement: Measurement) -> tuple[Profile, str]:
    """``bare`` with the overhead that ``measurement`` of the engine of ``made`` supports, and the text of its file.
    ``held_out`` is then the error against the engine's steps that were not fitted."""
    runs = [[s for s in measurement.samples if (s.session > 0) == later] for later in (False, True)]
    medians, again = (point_medians(samples, made.clock) for samples in runs)
    before = ComposedSteps(bare.prefill, bare.decode, bare.mixed, one_mask=bare.one_mask)
    overhead = fit_overhead(medians, before)
    prefill, decode = add_to_prefill(bare.prefill, overhead), add_to_decode(bare.decode, overhead)
    held_out = compare(ComposedSteps(prefill, decode, bare.mixed, one_mask=bare.one_mask), medians, again)
    told = compare(before, medians, again).all
    about = StepOverhead(
        source=made.source or "an engine",
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=made.command,
        **asdict(overhead),
        before=told,
        after=held_out.all,
        samples=tuple(measurement.samples),
    )
    content: dict[str, Any] = bare.model_dump(mode="json")
    content |= {
        "name": name,
        "held_out": held_out.model_dump(mode="json"),
        "batch_curve": make_batch_curve(decode).model_dump(mode="json"),
        "prefill": prefill.model_dump(mode="json"),
        "decode": decode.model_dump(mode="json"),
        "samples": [sample.model_dump(mode="json", exclude_defaults=True) for sample in bare.samples],
        "overhead": about.model_dump(mode="json"),
    }
    content["overhead"]["samples"] = [s.model_dump(mode="json", exclude_defaults=True) for s in measurement.samples]
    content["provenance"]["notes"] = [*bare.provenance.notes, _note(about, overhead, medians), *measurement.notes]
    content["digest"] = content_digest(content)
    return parse_profile(content, name), layout(content) + "\n"


def _note(about: StepOverhead, overhead: Overhead, medians: dict[Point, float]) -> str:
    num_fitted = sum(not point.held_out for point in medians)
    parts = [f"{overhead.constant_s * 1e3:.2f} ms per step"]
    if overhead.per_sequence_s:
        parts.append(f"{overhead.per_sequence_s * 1e3:.3f} ms per sequence")
    if overhead.per_foreign_pair_s:
        parts.append(f"{overhead.per_foreign_pair_s * 1e9:.2f} ns per (query, key) pair of different sequences")
    return (
        f"step times are bare forwards plus {' plus '.join(parts)}, fitted on {num_fitted} steps of {about.source}; "
        f"error on {about.after.num_points} other steps of it: {_mean(about.before)} before, {_mean(about.after)} after"
    )


def _mean(error: HeldOutError) -> str:
    return "unknown" if error.mean is None else f"{error.mean:.1%}"


def _require_bare(bare: Profile, options: CalibrateOptions) -> None:
    where = str(options.overhead_for)
    if bare.provenance.origin != "forward" or bare.overhead is not None:
        what = "one with an overhead" if bare.overhead else f"origin {bare.provenance.origin}"
        raise CalibrationError(f"overhead_for: {where}: must be a profile of bare forwards (got {what})")
    if options.engine != "transformers":
        rule = "needs an engine that runs the same forwards"
        raise CalibrationError(f"overhead_for: {rule} (got {options.engine}); use --engine transformers")


def _require_same(bare: Provenance, engine: Provenance, where: str) -> None:
    for name in _SAME:
        if (want := getattr(bare, name)) != (got := getattr(engine, name)):
            raise CalibrationError(f"overhead_for: {where}: {name} must be that of this run, {got} (got {want})")


def _inside(bare: Profile, options: CalibrateOptions) -> CalibrateOptions:
    """``options`` with limits that keep the engine's steps where the profile interpolates."""
    reach = bare.validity
    return replace(
        options,
        max_batch_size=min(options.max_batch_size or reach.max_batch_size, reach.max_batch_size),
        max_context=min(
            options.max_context or reach.max_decode_context, reach.max_decode_context, reach.max_prefill_context
        ),
        max_prefill_tokens=min(options.max_prefill_tokens or reach.max_prefill_tokens, reach.max_prefill_tokens),
    )
