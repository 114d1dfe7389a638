"""The measurement from beginning to end: estimate, grid, refinement, and the held-out points once more."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from calibrate.again import measure_again
from calibrate.contention import Contention
from calibrate.estimate import estimate_s, words
from calibrate.fit import point_medians
from calibrate.gpu_clocks import note_slowed, summarize_clocks
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.options import CalibrateOptions
from calibrate.partial import PartialFile
from calibrate.plan import Plan, make_plan
from calibrate.progress import measure_with_progress
from calibrate.refine import refine
from calibrate.setup import Setup


def measure_rounds(
    setup: Setup, options: CalibrateOptions, measurement: Measurement, partial: PartialFile, console: Console
) -> None:
    """Fill ``measurement``. Interrupted at any time, ``partial`` holds what the same options continue from."""
    plan = make_plan(setup.points, options)
    seconds = estimate_s(plan, setup.stepper, setup.timer, setup.provenance.dimensions)
    samples = f"{len(plan.points)} points, up to {plan.repeats} samples of each"
    console.print(f"this will take about {words(seconds)}: {samples}; more where others disturb them")
    _measure(setup, plan, measurement, partial, console)

    new, note = refine(point_medians(measurement.samples, setup.provenance.clock), options.grid, plan.repeats)
    new = [point for point in new if all(point.shape != known.shape for known in plan.points)]
    if note and new:
        measurement.notes.append(note)
        more = replace(plan, points=tuple(new), anchor=None)
        _measure(setup, more, measurement, partial, console)

    if setup.watch is not None:
        setup.watch.look()
        measurement.gpu_clocks = summarize_clocks(setup.watch.readings)
        measurement.notes += note_slowed(measurement.gpu_clocks)
    partial.save(measurement.samples)
    measure_again(setup, options, measurement)


def _measure(setup: Setup, plan: Plan, measurement: Measurement, partial: PartialFile, console: Console) -> None:
    instruments = Instruments(setup.timer, setup.provenance.clock, Contention(setup.read_machine))
    measurer = Measurer(plan, setup.stepper, instruments, measurement)
    measure_with_progress(measurer, partial, console, setup.watch.look if setup.watch else lambda: None)
