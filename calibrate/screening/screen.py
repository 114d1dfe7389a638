"""Everything that is checked of a profile or of a csv of step times."""

from __future__ import annotations

from pathlib import Path

from calibrate.importers.step_csv import read_step_csv
from calibrate.screening.closed_loop import is_closed_loop, screen_closed_loop
from calibrate.screening.steps import beyond_the_chip, hardware_of, not_growing, outliers, repeated
from simserve.model_spec import load_model_spec
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import Profile, load_profile
from simserve.step_time.source import MeasuredPoint


def screen(
    name_or_file: str, model: str | None = None, device_name: str | None = None, dtype: str | None = None
) -> list[str]:
    """The findings on a profile, on closed loops of servers, or on a csv of step times; of the last, FLOP/s and
    bandwidth are checked where model, device and dtype are given and the device is known. Raises ``InputError`` for
    what cannot be read."""
    if Path(name_or_file).suffix in (".csv", ".gz"):
        if is_closed_loop(Path(name_or_file)):
            return screen_closed_loop(Path(name_or_file))
        points = read_step_csv(Path(name_or_file)).points
        return [*repeated(points), *_physics(points, model, device_name, dtype, 1), *_shape(points)]
    profile = load_profile(name_or_file)
    made = profile.provenance
    points = _samples(profile)
    told = model or made.model, device_name or made.device_name, dtype or made.dtype
    found = [*_physics(points, *told, made.tensor_parallel), *_shape(points)]
    tables = not_growing(ProfileStepTime(profile).source.points)
    return [*found, *(f"table: {line}" for line in tables if line not in found)]


def _samples(profile: Profile) -> tuple[MeasuredPoint, ...]:
    """What was measured, as far as it is a plain prefill or decode of equal contexts."""
    column = {"process_cpu": "cpu_s", "wall": "wall_s", "cuda_events": "cuda_s"}[profile.provenance.clock]
    found = []
    for s in profile.samples:
        seconds = getattr(s, column) or s.wall_s
        if (s.phase == "prefill" or s.phase == "decode") and not s.context_spread and not s.dirty:  # noqa: PLR1714
            found.append(MeasuredPoint(s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens, seconds))
    return tuple(found)


def _physics(
    points: tuple[MeasuredPoint, ...], model: str | None, device_name: str | None, dtype: str | None, parallel: int
) -> list[str]:
    hardware = hardware_of(device_name or "")
    if hardware is None or model is None or dtype is None:
        return []
    return list(beyond_the_chip(points, load_model_spec(model), hardware, dtype, parallel))


def _shape(points: tuple[MeasuredPoint, ...]) -> list[str]:
    return [*not_growing(points), *outliers(points)]
