"""Several attention kernels in one run, round by round in turn, so that the machine's drift falls on all of them alike:
one profile for each, and one table that compares them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from calibrate.again import measure_again
from calibrate.contention import Contention
from calibrate.errors import CalibrationError
from calibrate.fit import point_medians
from calibrate.forward import is_out_of_memory
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.model import ModelSource
from calibrate.options import CalibrateOptions
from calibrate.partial import PartialFile, require_writable, write_atomically
from calibrate.plan import make_plan
from calibrate.profile_file import assemble
from calibrate.provenance import identity
from calibrate.setup import Setup, set_up
from simserve.step_time.profile_schema import Profile


@dataclass(frozen=True)
class Run:
    """One kernel's part of the run."""

    options: CalibrateOptions
    setup: Setup
    path: Path
    partial: PartialFile
    measurement: Measurement


def kernels_of(attn: str) -> list[str]:
    """The kernels named in ``attn``, separated by commas. Raises ``CalibrationError``."""
    names = [name.strip() for name in attn.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise CalibrationError(f"attn: must name each kernel once, separated by commas (got {attn!r})")
    return names


def calibrate_kernels(
    source: ModelSource, target: tuple[str, str, Path], options: CalibrateOptions, console: Console
) -> list[Path]:
    """Measure every kernel that ``options.attn`` names; ``target`` is device, dtype and the path whose name gets each
    kernel's as a suffix. Returns the profiles written. Errors and interruption as in ``calibrate``."""
    began = time.perf_counter()
    runs = [_prepare(source, target, replace(options, attn=name), console) for name in kernels_of(options.attn)]
    try:
        _measure_in_turn(runs)
    except BaseException:
        for run in runs:
            if run.measurement.samples:
                run.partial.save(run.measurement.samples)
        console.print("kept the samples of every kernel; run the same command to continue")
        raise
    profiles = []
    for run in runs:
        measure_again(run.setup, run.options, run.measurement)
        others = ", ".join(other.options.attn for other in runs if other is not run)
        run.measurement.notes.append(f"measured in turn with {others}, round by round")
        made = run.setup.provenance
        duration_s = time.perf_counter() - began
        profile, text = assemble(run.path.stem, made, run.setup.kv_bytes, run.measurement, duration_s)
        write_atomically(run.path, text)
        run.partial.remove()
        profiles.append(profile)
        console.print(f"wrote {run.path}")
    console.print(comparison(profiles))
    return [run.path for run in runs]


def comparison(profiles: Sequence[Profile]) -> RichTable:
    """Milliseconds per step of each kernel, and how many times those of the first: every point that all measured."""
    columns = [point_medians(profile.samples, profile.provenance.clock) for profile in profiles]
    names = [profile.provenance.attention or profile.name for profile in profiles]
    out = RichTable(title="Attention kernels, ms a step", title_justify="left")
    out.add_column("step")
    for name in names:
        out.add_column(name, justify="right")
    for name in names[1:]:
        out.add_column(f"{name} / {names[0]}", justify="right")
    for point in sorted(columns[0], key=lambda point: (point.phase, *point[1:])):
        if not point.held_out and all(point in column for column in columns):
            seconds = [column[point] for column in columns]
            ratios = [f"{s / seconds[0]:.2f}×" for s in seconds[1:]]
            out.add_row(str(point), *(f"{s * 1e3:,.2f}" for s in seconds), *ratios)
    return out


def _prepare(source: ModelSource, target: tuple[str, str, Path], options: CalibrateOptions, console: Console) -> Run:
    device, dtype, base = target
    path = base.with_name(f"{base.stem}-{options.attn.replace('/', '-')}{base.suffix}")
    require_writable(path)
    console.print(f"building {source.spec.name} with {options.attn} attention ({dtype}, {device})")
    setup = set_up(source, device, dtype, options)
    partial = PartialFile(path, identity(setup.provenance, setup.points, options))
    measurement = Measurement(partial.load() if options.resume else [], list(setup.notes))
    return Run(options, setup, path, partial, measurement)


def _measure_in_turn(runs: Sequence[Run]) -> None:
    """A round of the first kernel, a round of the second, and so on until all are done."""
    going = []
    for run in runs:
        setup = run.setup
        instruments = Instruments(setup.timer, setup.provenance.clock, Contention(setup.read_machine))
        measurer = Measurer(make_plan(setup.points, run.options), setup.stepper, instruments, run.measurement)
        going.append(measurer.rounds(lambda _done, _total, _what: None, is_out_of_memory))
    while going:
        going = [rounds for rounds in going if next(rounds, StopIteration) is not StopIteration]
