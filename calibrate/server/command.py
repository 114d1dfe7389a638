"""``simserve calibrate --url``: ask what the server understands, estimate, measure, fit, write. Needs no torch."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrate.errors import CalibrationError
from calibrate.grid import Limits
from calibrate.options import CalibrateOptions
from calibrate.partial import PartialFile, require_writable, write_atomically
from calibrate.server.address import Address, parse_address
from calibrate.server.client import Refused
from calibrate.server.dialect import Dialect, negotiate
from calibrate.server.estimate import estimate_s
from calibrate.server.grid import find_grid, make_points
from calibrate.server.load import Client, OutOfTime
from calibrate.server.measure import Findings, ServerMeasurer
from calibrate.server.profile import assemble, describe, notes_of
from calibrate.show import show
from simserve.memory.schemes import parse_scheme
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.step_time.profile_schema import ModelDimensions

KEY_VARIABLE = "SIMSERVE_API_KEY"
_SAVE_EVERY_S = 5.0


def calibrate_server(options: CalibrateOptions, console: Console | None = None) -> Path:
    """Measure the server at ``options.url`` from outside and write its profile; returns the path.

    Raises ``CalibrationError``, ``ModelError`` or ``OutputError`` in one sentence. ``KeyboardInterrupt`` passes through
    after the samples so far were kept beside the profile.
    """
    console = console or Console()
    options = _told(options)
    address, spec = _check(options)
    path = options.out or Path(f"{spec.name}-server-{options.dtype}.json")
    require_writable(path)
    return asyncio.run(_Calibration(options, address, spec, path, console).run())


def _check(options: CalibrateOptions) -> tuple[Address, ModelSpec]:
    if options.url is None:
        raise CalibrationError("url: must be given, as http://HOST:PORT")
    if options.dtype == "auto":
        raise CalibrationError("dtype: must be named for a server, which does not tell it (got auto); add --dtype bf16")
    for name in ("time_limit_s", "timeout_s"):
        if not getattr(options, name) > 0:
            raise CalibrationError(f"{name}: must be > 0 (got {getattr(options, name)})")
    spec = load_model_spec(options.model)
    return parse_address(options.url), spec if options.kv_heads is None else spec.with_kv_heads(options.kv_heads)


def _told(options: CalibrateOptions) -> CalibrateOptions:
    """With the canonical name of the weights that the server is said to run; none if that is the dtype."""
    if options.weights is None:
        return options
    name = parse_scheme(options.weights).name
    return replace(options, weights=None if name == options.dtype else name)


def _key(options: CalibrateOptions) -> str | None:
    key = (options.api_key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not key.isprintable() or " " in key:
        raise CalibrationError("api_key: must be one word on one line (got something else)")
    return key or None


class _Calibration:
    """One calibration under way."""

    def __init__(
        self,
        options: CalibrateOptions,
        address: Address,
        spec: ModelSpec,
        path: Path,
        console: Console,
    ) -> None:
        self._options, self._address, self._spec = options, address, spec
        self._path, self._console = path, console
        self._grid = find_grid(options.grid)
        limits = Limits(options.max_batch_size, options.max_context, options.max_prefill_tokens)
        self._points = make_points(self._grid, limits)
        self._repeats = options.repeats or self._grid.repeats
        self._began = time.perf_counter()
        self._client = Client(address, _key(options), options.timeout_s, time.monotonic() + options.time_limit_s)

    async def run(self) -> Path:
        """Everything from the first question to the written file."""
        try:
            return await self._run()
        except OutOfTime:
            limit = f"{self._options.time_limit_s:g} s"
            raise CalibrationError(
                f"time_limit_s: must allow the first answers of {self._address} (got {limit}); raise --time-limit-s"
            ) from None
        finally:
            await self._client.close()

    async def _run(self) -> Path:
        model_id, round_trip_s = await _ask_model(self._client, self._options)
        _require_model(self._options, model_id)
        self._console.print(f"asking {self._address} for {model_id}")
        rng = random.Random()
        dialect = await negotiate(self._client, model_id, self._spec.vocab_size, rng)
        self._console.print(dialect.note)
        self._points = dialect.reachable(self._points)
        expected_s = await estimate_s(self._client, dialect, self._points, self._repeats, self._grid.window)
        limit = f"stops after {self._options.time_limit_s / 60:.0f} at the latest"
        self._console.print(f"{len(self._points)} points, about {max(1, round(expected_s / 60))} min; {limit}")

        provenance = describe(self._address, dialect, self._spec, self._options)
        partial = PartialFile(self._path, self._identity(dialect))
        findings = Findings(partial.load() if self._options.resume else [])
        notes = []
        if findings.samples:
            self._console.print(f"continuing {partial.path}: {len(findings.samples)} samples are there")
            notes.append(f"the first {len(findings.samples)} samples are from an interrupted run")
        notes += await self._measure(dialect, findings, partial)
        notes = notes_of(self._client, dialect, round_trip_s, findings) + notes
        profile, text = assemble(self._path.stem, provenance, findings, notes, time.perf_counter() - self._began)
        write_atomically(self._path, text)
        partial.remove()
        show(profile, self._console)
        self._console.print(f"wrote {self._path} in {time.perf_counter() - self._began:.1f} s")
        return self._path

    async def _measure(self, dialect: Dialect, findings: Findings, partial: PartialFile) -> list[str]:
        """Fill ``findings``; whatever stops it, they are in ``partial`` afterwards. Notes on how it ended."""
        measurer = ServerMeasurer(self._client, dialect, findings, self._grid.window, self._options.seed)
        what = TextColumn("{task.description}")
        columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), what)
        # No refreshing thread: it would make this client late.
        with Progress(*columns, console=self._console, auto_refresh=False, transient=True) as progress:
            task = progress.add_task("", total=None)
            saved = time.monotonic()

            def on_progress(done: int, total: int, what: str) -> None:
                nonlocal saved
                progress.update(task, completed=done, total=total, description=what, refresh=True)
                if time.monotonic() - saved >= _SAVE_EVERY_S:
                    partial.save(findings.samples)
                    saved = time.monotonic()

            try:
                await measurer.run(self._points, self._repeats, on_progress)
            except OutOfTime:
                partial.save(findings.samples)
                return [self._stopped(findings)]
            except BaseException:
                if findings.samples:
                    partial.save(findings.samples)
                    kept = len(findings.samples)
                    self._console.print(f"kept {kept} samples in {partial.path}; run the same command to continue")
                raise
        return []

    def _stopped(self, findings: Findings) -> str:
        measured = sum(bool(findings.of(point)) for point in self._points)
        share = f"{measured} of {len(self._points)} points have samples"
        return f"stopped by the time limit of {self._options.time_limit_s:g} s: {share}"

    def _identity(self, dialect: Dialect) -> dict[str, Any]:
        """What must be equal for the samples of two runs to belong together."""
        return {
            "server": str(self._address),
            "model_id": dialect.model_id,
            "config_hash": ModelDimensions.of(self._spec).config_hash,
            "dtype": self._options.dtype,
            "weights": self._options.weights,
            "points": [list(point) for point in self._points],
            "window": self._grid.window,
        }


def _require_model(options: CalibrateOptions, model_id: str) -> None:
    """The default model of ``--model`` is no answer to what a server runs, unless the server says the same."""
    default = CalibrateOptions().model
    if options.model == default and default not in model_id.lower():
        rule = "must name the architecture that the server runs, for its memory"
        raise CalibrationError(f"model: {rule} (got {default}, the default, and {model_id!r} there); add --model")


async def _ask_model(client: Client, options: CalibrateOptions) -> tuple[str, float]:
    """The model to ask for, and the least of three round trips. Raises ``CalibrationError``."""
    trips = []
    try:
        for _ in range(3):
            answer, took_s = await client.get("/v1/models")
            trips.append(took_s)
    except Refused as error:
        if error.status in (401, 403):
            rule = "must accept our key; give it with --api-key"
            raise CalibrationError(f"{client.address}/v1/models: {rule} (got {client.scrub(str(error))})") from None
        if options.served_model is None:
            rule = "must list the models, or --served-model name one"
            raise CalibrationError(f"{client.address}/v1/models: {rule} (got {client.scrub(str(error))})") from None
        return options.served_model, min(trips, default=0.0)
    if options.served_model is not None:
        return options.served_model, min(trips)
    try:
        names = [model["id"] for model in answer["data"] if isinstance(model["id"], str)]
    except (TypeError, KeyError):
        names = []
    if len(names) != 1:
        rule = "must list one model, or --served-model name one of them"
        raise CalibrationError(f"{client.address}/v1/models: {rule} (got {len(names)})")
    return names[0], min(trips)
