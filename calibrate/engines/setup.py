"""A real engine, started and ready to be measured as bare forwards are."""

from __future__ import annotations

import torch

from calibrate.chains import chain_points
from calibrate.engines.choose import make_engine
from calibrate.engines.engine import Engine, EngineFacts, EngineSteps, shape_of
from calibrate.errors import CalibrationError
from calibrate.fit import require_fittable
from calibrate.grid import Limits, Point, make_axes, make_grid
from calibrate.held_out import held_out_points
from calibrate.memory import fit_points, free_bytes
from calibrate.model import ModelSource
from calibrate.options import CalibrateOptions
from calibrate.provenance import make_provenance
from calibrate.reach import reach_points
from calibrate.setup import Setup
from simserve.step_time.profile_schema import KvBytes, Provenance

_DECLARED = (
    "contexts were declared to the engine, not computed: their blocks hold whatever the memory held, "
    "on which timing does not depend"
)


def set_up_engine(source: ModelSource, device: str, dtype: str, options: CalibrateOptions) -> Setup:
    """Start the engine, large enough for the grid that memory leaves, and check the bytes of its KV cache against the
    formula. Raises ``CalibrationError``; the engine is stopped then."""
    if options.reach is not None:
        return start_engine(source, device, dtype, options, _within(options))
    on_gpu = device == "cuda"
    limits = Limits(options.max_batch_size, options.max_context, options.max_prefill_tokens)
    grid = [point for point in make_grid(options.grid, on_gpu, limits) if point.phase != "no_cache"]
    require_fittable(grid)
    axes = make_axes(options.grid, on_gpu, limits)
    grid += [point for point in held_out_points(options.grid, axes, options.seed) if point.phase != "no_cache"]
    if options.overhead_for is None:  # what a bare forward took follows its own kind already
        grid += chain_points(axes[1], options.seed, sparse=True)
    if not _mixes(options):
        grid = [point for point in grid if point.phase != "mixed" and not point.context_spread]
    return start_engine(source, device, dtype, options, grid)


def _within(options: CalibrateOptions) -> list[Point]:
    """The points of ``options.reach``, for the engine that is asked for."""
    assert options.reach is not None
    one_row = options.engine == "transformers"
    points = reach_points(options.reach, options.seed, one_row=one_row, mixes=_mixes(options))
    require_fittable(points)
    return points


def _mixes(options: CalibrateOptions) -> bool:
    """Whether the engine's steps can hold sequences that differ; ``generate`` pads them to be alike."""
    return options.engine != "generate"


def start_engine(source: ModelSource, device: str, dtype: str, options: CalibrateOptions, grid: list[Point]) -> Setup:
    """As ``set_up_engine``, for the points of ``grid``."""
    torch.set_num_threads(options.threads)
    engine = make_engine(source, device, dtype, options)
    formula = source.spec.kv_bytes_per_token(dtype)
    per_token = formula + engine.extra_bytes_per_token([shape_of(point) for point in grid])
    points, notes = fit_points(grid, per_token, free_bytes(device))
    if not points:
        raise CalibrationError("memory: must hold the cache of at least one point; use a smaller model or grid")
    try:
        facts = engine.start([shape_of(point) for point in points])
        if facts.kv_bytes_per_token != formula:
            told = f"must be {formula} by the formula (got {facts.kv_bytes_per_token} in the engine's cache)"
            raise CalibrationError(f"model: KV bytes per token {told}")
    except BaseException:
        engine.stop()
        raise
    return _setup(engine, facts, make_provenance(source, device, dtype, options), points, notes)


def _setup(engine: Engine, facts: EngineFacts, made: Provenance, points: list[Point], notes: list[str]) -> Setup:
    steps = EngineSteps(engine)
    told = {name: getattr(facts, name) for name in ("source", "attention", "kv_cache")}
    versions = {name: getattr(facts, name) for name in ("torch_version", "transformers_version", "python_version")}
    return Setup(
        provenance=made.model_copy(update={"origin": "engine", **told, **versions}),
        kv_bytes=KvBytes(measured=facts.kv_bytes_per_token, formula=facts.kv_bytes_per_token),
        points=tuple(points),
        stepper=steps,
        timer=steps.timer,
        notes=(_DECLARED, *notes),
        read_machine=engine.read_machine,
        stop=engine.stop,
    )
