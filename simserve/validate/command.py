"""``simserve validate``, from a scenario and a real run to a finished folder."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from simserve.errors import OutputError, ScenarioError
from simserve.manifest import manifest_head, step_time_entry
from simserve.recorded.aggregates import RecordedAggregates
from simserve.recorded.engine_run import Clock
from simserve.recorded.run import RecordedRun
from simserve.report import render_validation
from simserve.request import RequestTable
from simserve.run_directory import staged_folder
from simserve.scenario import ProfileStepTimeConfig, Scenario, load_scenario
from simserve.scenario.messages import printable
from simserve.simulate import Prepared, prepare
from simserve.summary import to_json
from simserve.terminal import progress_bar
from simserve.validate import real
from simserve.validate.curves import curves
from simserve.validate.document import (
    KIND,
    both_sides,
    compare_run_steps,
    engine_entry,
    scored,
    steps_entry,
    validation_document,
)
from simserve.validate.known import known_beforehand
from simserve.validate.match import RequestsOf, matched
from simserve.validate.observed import Observed, observed_run
from simserve.validate.predict import Prediction, chosen_variant, predict
from simserve.validate.score import exceeding, flat
from simserve.validate.screen import remarks
from simserve.validate.speed import machine_notes
from simserve.validate.table import print_validation
from simserve.validate.totals import NO_CURVES, totals_metrics

RESULTS = Path("reports")
FILES = ("validation.html", "validation.json", "manifest.json", *real.RUN_FILES)
MOST_DRAWN = 20_000  # requests of a run that is simulated again and again
Replay = Callable[[Path], Path]  # an output folder -> the folder that a replay left
Calibrate = Callable[[Scenario, Path, Console], None]  # a scenario, the profile file to write, where to tell


@dataclass(frozen=True)
class ValidateOptions:
    """What was asked: recorded runs (``measured``), or ``num_runs`` of a real engine (``serve``) or server
    (``replay``); with ``calibrate`` a profile is made first, apart from the runs. ``num_draws`` more simulations say
    how far predictions hang on the calibration, where step times are a profile's. Figures beyond ``max_error``
    (``metrics``: only those) are told. ``out`` is by default ``reports/<scenario>-validation``."""

    scenario: Path
    overrides: tuple[str, ...] = ()
    variant: str | None = None
    measured: tuple[Path, ...] = ()
    format: str = "auto"
    requests: RequestsOf = "matched"
    serve: real.ServeOn | None = None
    replay: Replay | None = None
    calibrate: Calibrate | None = None
    num_runs: int = 3
    clock: Clock = "cpu"
    num_draws: int = 20
    max_error: float | None = None
    metrics: tuple[str, ...] = ()
    out: Path | None = None
    json: bool = False
    quiet: bool = False
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    """Where the result is, and the figures that are beyond the limit."""

    folder: Path
    exceeding: list[str]


def validate(options: ValidateOptions) -> Verdict:
    """Get the real runs, simulate, write the folder, print. Raises InputError, before anything is written or served:
    the scenario, a file, an option or the folder is not as it must be."""
    began, started = time.perf_counter(), datetime.now(UTC)
    scenario = load_scenario(options.scenario, options.overrides)
    variant = chosen_variant(scenario, options.variant)
    _check(options)
    folder = options.out or RESULTS / f"{scenario.name}-validation"
    messages = Console(stderr=True, quiet=options.quiet)
    with staged_folder(folder, FILES, KIND) as staging:
        scenario = _calibrated(options, scenario, variant, folder, messages)
        session = _Session(options, scenario, variant, messages)
        document, drawn = session.run(staging, folder)
        manifest = session.manifest(started, time.perf_counter() - began)
        with messages.status("writing the page"):
            _write(document, drawn, manifest, staging)
    if options.json:
        sys.stdout.write(to_json(document))
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_validation(document, console)
        console.print(Text(f"page: {folder / 'validation.html'}"), soft_wrap=True)
    return Verdict(folder, document["limit"]["exceeding"] if document["limit"] else [])


class _Session:
    """One validation under way."""

    def __init__(self, options: ValidateOptions, scenario: Scenario, variant: str, messages: Console) -> None:
        self._options, self._scenario, self._variant, self._messages = options, scenario, variant, messages
        self._resolved = scenario.resolve_variants()[variant]
        self._first = prepare(scenario, only=[variant])
        if self._first.workload.clients.turns is not None:
            raise ScenarioError(
                f"{scenario.source}: workload.trace: must have requests with times of their own for a validation (got "
                "sessions whose turns wait for answers); give another trace"
            )
        self._runs: list[RecordedRun] = []

    def run(self, staging: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The document, and what the page's charts draw."""
        totals = real.recorded_totals(self._options.measured, self._options.format)
        if totals:
            return self._against_totals(totals), NO_CURVES
        kind = self._get_runs(staging, folder)
        real.require_sound(self._runs, self._messages)
        workload, requests = self._first.workload, self._options.requests
        tables, where = zip(*(matched(workload, run, requests) for run in self._runs), strict=True)
        predictions = self._predict(tables)
        measured = [observed_run(run, table.num_output_tokens) for run, table in zip(self._runs, tables, strict=True)]
        sides = both_sides(measured, [one.observed for one in predictions], self._runs[0].source)
        sides = replace(sides, drawn=tuple(self._drawn(tables[0])))
        document = validation_document(self._scenario, engine_entry(kind, self._runs), scored(sides))
        document["steps"] = self._steps(tables)
        self._finish(document, where[0], [*self._run_notes(), *self._notes(predictions, len(self._runs))])
        return document, curves(sides.measured, sides.predicted, sides.counted)

    def _against_totals(self, totals: Sequence[RecordedAggregates]) -> dict[str, Any]:
        """The document of runs of which only sums and quantiles were kept."""
        table = self._first.workload.table
        predictions = self._predict([table])
        metrics = totals_metrics(totals, predictions[0].observed, tuple(self._drawn(table)))
        document = validation_document(self._scenario, engine_entry("recorded", totals), metrics)
        notes = [*(note for one in totals for note in one.notes), *self._notes(predictions, len(totals))]
        self._finish(document, ["the requests' lengths and arrivals are the scenario's: the run kept none"], notes)
        return document

    def _finish(self, document: dict[str, Any], requests: Sequence[str], notes: Sequence[str]) -> None:
        source = self._first.parts[self._variant].step_time.source
        document["known_beforehand"] = known_beforehand(self._resolved, source, requests)
        document["notes"] = list(dict.fromkeys(notes))
        document["limit"] = self._limit(document["metrics"])

    def manifest(self, started: datetime, wall_time_s: float) -> dict[str, Any]:
        """What made the result."""
        parts = self._first.parts[self._variant]
        return {
            **manifest_head(KIND, self._scenario, self._options.command, started, wall_time_s),
            "variant": self._variant,
            "step_time": {**step_time_entry(parts), "digest": parts.step_time.source.digest},
            "measured": {str(path): _digest(path) for path in self._options.measured}
            or {run.source: None for run in self._runs},
        }

    def _get_runs(self, staging: Path, folder: Path) -> str:
        """Fill in the real runs; how they were come by."""
        options, table = self._options, self._first.workload.table
        serve = options.serve
        if serve is not None:
            self._runs = real.engine_runs(
                lambda tell: serve(self._resolved, table, tell),
                options.num_runs,
                options.clock,
                staging,
                self._messages,
            )
            return "in process"
        if options.replay is not None:
            outs = [folder.with_name(f"{folder.name}-replay-{i + 1}") for i in range(options.num_runs)]
            self._runs = real.recorded_runs([options.replay(out) for out in outs], "simserve-replay")
            return "by URL"
        self._runs = real.recorded_runs(options.measured, options.format)
        return "recorded"

    def _predict(self, tables: Sequence[RequestTable]) -> list[Prediction]:
        """A simulation for each run whose requests came at times of its own."""
        alike = all(np.array_equal(table.arrival_ns, tables[0].arrival_ns) for table in tables)
        predictions = []
        with progress_bar(self._messages) as on_progress:
            for i, table in enumerate(tables[:1] if alike else tables):
                prepared: Prepared = self._first if i == 0 else prepare(self._scenario, only=[self._variant])
                predictions.append(predict(prepared, self._variant, table, on_progress))
        return predictions

    def _drawn(self, table: RequestTable) -> Iterable[Observed]:
        """Simulations on draws of the profile; none for other step times, nor where they would take long."""
        if not isinstance(self._resolved.step_time, ProfileStepTimeConfig) or len(table) > MOST_DRAWN:
            return
        for i in range(self._options.num_draws):
            with self._messages.status(f"simulating draw {i + 1} of {self._options.num_draws} of the calibration"):
                prepared = prepare(self._scenario, i, only=[self._variant])
                yield predict(prepared, self._variant, table).observed

    def _steps(self, tables: Sequence[RequestTable]) -> dict[str, Any] | None:
        """Each run's steps against ours."""
        compared = []
        with self._messages.status("comparing steps"):
            for run, table in zip(self._runs, tables, strict=True):
                one = compare_run_steps(self._scenario, self._variant, run, table)
                if one is not None:
                    compared.append((run.source, one))
        return steps_entry(compared)

    def _run_notes(self) -> Iterable[str]:
        resolved = self._resolved.model_dump(mode="json")
        for run in self._runs:
            yield from run.notes
            yield from remarks(run, resolved)
        yield from machine_notes(self._resolved, self._runs)

    def _notes(self, predictions: Sequence[Prediction], num_runs: int) -> Iterable[str]:
        yield from self._first.workload.notes
        share = max(one.extrapolated_step_share for one in predictions)
        if share > 0:
            yield f"{share:.1%} of the simulated steps lie outside what was measured of step times"
        yield from _left_out(predictions[0])
        if num_runs == 1:
            yield "one real run: its noise is not known; give several to see it beside the errors"

    def _limit(self, metrics: dict[str, Any]) -> dict[str, Any] | None:
        options = self._options
        if options.max_error is None:
            return None
        beyond = exceeding(flat(metrics), options.max_error, options.metrics)
        return {"max_error": options.max_error, "metrics": list(options.metrics), "exceeding": beyond}


def _left_out(prediction: Prediction) -> Iterator[str]:
    """Requests that the simulated engine did not finish: no figure counts them."""
    requests = prediction.records.requests
    count = int((~prediction.observed.finished).sum())
    if count:
        reason = next(iter(requests.reject_reason.values()), "their clients left")
        of = f"{count:,} of {len(requests.table):,} requests"
        yield f"{of} do not finish in the simulation ({reason}), and no figure counts them"


def _check(options: ValidateOptions) -> None:
    if options.max_error is not None and not 0 <= options.max_error < 1e6:
        raise ScenarioError(f"--max-error: must be ≥ 0, such as 0.05 for 5 % (got {options.max_error:g})")
    if options.metrics and options.max_error is None:
        raise ScenarioError("--metric: needs --max-error, the limit that these figures are held to")
    if not 1 <= options.num_runs <= real.MAX_RUNS:
        raise ScenarioError(f"--runs: must be from 1 to {real.MAX_RUNS} (got {options.num_runs})")
    if not 0 <= options.num_draws <= 1000:
        raise ScenarioError(f"--draws: must be from 0 to 1,000 (got {options.num_draws})")
    given = [bool(options.measured), options.serve is not None, options.replay is not None]
    if sum(given) != 1:
        got = "none" if not any(given) else "several"
        raise ScenarioError(f"give exactly one of --measured, --engine and --url (got {got})")


def _calibrated(
    options: ValidateOptions, scenario: Scenario, variant: str, folder: Path, messages: Console
) -> Scenario:
    """The scenario, on a profile that is made now, beside the folder, if one is to be."""
    if options.calibrate is None:
        return scenario
    messages.print(Text("calibrating, before and apart from the runs"))
    path = folder.with_name(f"{folder.name}-profile.json")
    options.calibrate(scenario.resolve_variants()[variant], path, messages)
    made = json.dumps({"profile": str(path.absolute())})
    keys = ["step_time"]
    if "step_time" in scenario.variants.get(variant, {}):  # which would lay its own over it
        keys.append(f"variants.{variant}.step_time")
    return load_scenario(options.scenario, (*options.overrides, *(f"{key}={made}" for key in keys)))


def _digest(path: Path) -> str | None:
    """SHA-256 of a file; a folder's own manifest tells what it is."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _write(document: dict[str, Any], drawn: dict[str, Any], manifest: dict[str, Any], folder: Path) -> None:
    try:
        (folder / "validation.json").write_text(to_json(document), encoding="utf-8")
        (folder / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        render_validation(document, drawn, manifest, folder / "validation.html")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(printable(f"results: cannot be written ({reason}); choose another --out")) from None
