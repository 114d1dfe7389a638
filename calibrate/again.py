"""The held-out points once more, in a process of its own: how far a measurement lies from itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from calibrate.contention import Contention
from calibrate.grid import Point
from calibrate.measure import Instruments, Measurement, Measurer
from calibrate.model import find_model
from calibrate.options import CalibrateOptions
from calibrate.plan import make_plan
from calibrate.setup import Setup, set_up
from simserve.step_time.profile_schema import Sample

_MOST_REPEATS = 3


def measure_again(setup: Setup, options: CalibrateOptions, measurement: Measurement) -> None:
    """Add a second session of the held-out points to ``measurement``, and a note that says how it was made.

    It runs in a new process, which has other memory, other caches and another moment, as another run would; but for the
    quick grid, and for an engine, which would have to be started anew, in this one.
    """
    points = tuple(point for point in setup.points if point.held_out and measurement.of(point))
    if not points:
        return
    if options.grid == "quick" or options.engine:
        samples, where = _session(setup, options, points), "this process"
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            made = setup.provenance
            samples = pool.submit(_in_new_process, options, made.device, made.dtype, points).result()
        where = "a second process"
    first = len(measurement.samples)
    measurement.samples += [sample.model_copy(update={"order": first + i}) for i, sample in enumerate(samples)]
    measurement.notes.append(f"the {len(points)} points held out were measured again in {where}")


def _in_new_process(options: CalibrateOptions, device: str, dtype: str, points: Sequence[Point]) -> list[Sample]:
    return _session(set_up(find_model(options.model), device, dtype, options), options, points)


def _session(setup: Setup, options: CalibrateOptions, points: Sequence[Point]) -> list[Sample]:
    from calibrate.forward import is_out_of_memory

    plan = make_plan(points, options)
    plan = replace(plan, repeats=min(_MOST_REPEATS, plan.repeats), seed=options.seed + 1, anchor=None)
    measurement = Measurement(session=1)
    instruments = Instruments(setup.timer, setup.provenance.clock, Contention(setup.read_machine))
    Measurer(plan, setup.stepper, instruments, measurement).run(lambda _done, _total, _what: None, is_out_of_memory)
    return measurement.samples
