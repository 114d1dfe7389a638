"""A calibration in several processes, one after the other: the medians over them are no single process's luck."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from calibrate.contention import Contention
from calibrate.engines.setup import set_up_engine
from calibrate.estimate import estimate_s, words
from calibrate.forward import is_out_of_memory
from calibrate.fresh import Tell, in_fresh_process
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.model import find_model
from calibrate.options import CalibrateOptions
from calibrate.partial import require_writable, write_atomically
from calibrate.plan import make_plan
from calibrate.profile_file import assemble
from calibrate.reference import reference_s
from calibrate.show import show
from simserve.step_time.profile_schema import KvBytes, Provenance, Sample

LEAST_SESSIONS, MOST_SESSIONS = 2, 5
_BUDGET_S = 150.0  # for all sessions, by how long the first one took
_TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class Session:
    """What one process measured, on what."""

    provenance: Provenance
    kv_bytes: KvBytes
    samples: list[Sample]
    notes: list[str]
    reference_s: float | None = None


def calibrate_in_sessions(options: CalibrateOptions, path: Path, console: Console) -> Path:
    """Measure as ``measure_sessions`` does, on the device and with the dtype that ``options`` name, and write the
    profile to ``path``. Raises ``InputError``, and writes nothing then."""
    began = time.perf_counter()
    require_writable(path)
    provenance, kv_bytes, measurement = measure_sessions(options, options.device, options.dtype, console)
    profile, text = assemble(path.stem, provenance, kv_bytes, measurement, time.perf_counter() - began)
    write_atomically(path, text)
    show(profile, console)
    console.print(f"wrote {path} in {time.perf_counter() - began:.1f} s")
    return path


def measure_sessions(
    options: CalibrateOptions, device: str, dtype: str, console: Console
) -> tuple[Provenance, KvBytes, Measurement]:
    """Time the steps of ``options.engine`` within ``options.reach``, in fresh processes: two, and up to five as long as
    they are short. Raises ``InputError``."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting the engine", total=None)
        began = time.monotonic()
        sessions = [_run(options, (device, dtype, 0), progress, task)]
        num_sessions = _num_sessions(time.monotonic() - began)
        left_s = (num_sessions - 1) * (time.monotonic() - began)
        progress.console.print(f"{num_sessions} processes in all; the others will take about {words(left_s)}")
        for number in range(1, num_sessions):
            sessions.append(_run(options, (device, dtype, number), progress, task))
    samples = [sample for session in sessions for sample in session.samples]
    samples = [sample.model_copy(update={"order": i}) for i, sample in enumerate(samples)]
    notes = [f"measured in {num_sessions} processes, medians over them", *sessions[0].notes]
    readings = [each.reference_s for each in sessions if each.reference_s is not None]
    made = sessions[0].provenance.model_copy(update={"reference_s": median(readings) if readings else None})
    return made, sessions[0].kv_bytes, Measurement(samples, notes)


def _num_sessions(first_s: float) -> int:
    return max(LEAST_SESSIONS, min(MOST_SESSIONS, int(_BUDGET_S / first_s)))


def _run(options: CalibrateOptions, which: tuple[str, str, int], progress: Progress, task: TaskID) -> Session:
    def tell(done: int, total: int, what: str) -> None:
        if not total:
            progress.console.print(what)
        progress.update(task, completed=done, total=total or None, description=f"process {which[2] + 1}: {what}")
        progress.refresh()

    return in_fresh_process(session, options, *which, on_progress=tell)


def session(tell: Tell, options: CalibrateOptions, device: str, dtype: str, number: int) -> Session:
    """All of it once, in this process. ``tell(0, 0, sentence)`` comes first: how long it will take."""
    setup = set_up_engine(find_model(options.model), device, dtype, options)
    try:
        plan = make_plan(setup.points, options)
        # Another order over the same points; the other processes take each chain again.
        plan = replace(plan, seed=plan.seed + number, chain_visits=1)
        if number == 0:
            seconds = estimate_s(plan, setup.stepper, setup.timer, setup.provenance.dimensions)
            tell(0, 0, f"{len(plan.points)} points, about {words(seconds)} in each process")
        measurement = Measurement(session=number)
        clock = setup.provenance.clock
        instruments = Instruments(setup.timer, clock, Contention(setup.read_machine))
        before_s = reference_s(clock, options.threads)
        told = time.monotonic()

        def on_progress(done: int, total: int, what: str) -> None:
            nonlocal told
            if time.monotonic() - told > _TELL_EVERY_S:
                told = time.monotonic()
                tell(done, total, what)

        Measurer(plan, setup.stepper, instruments, measurement).run(on_progress, is_out_of_memory)
        after_s = reference_s(clock, options.threads)
    finally:
        setup.stop()
    beside_s = None if before_s is None or after_s is None else (before_s + after_s) / 2
    notes = [*setup.notes, *measurement.notes]
    return Session(setup.provenance, setup.kv_bytes, measurement.samples, notes, beside_s)
