"""Search over many settings: optuna's TPE asks which to try next, its storage keeps what was tried.

Every trial's sampler is seeded by the number of trials that were completed before it, so that a search that was killed
and resumed tries what the uninterrupted one would have tried.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simserve.capacity.find import capacity_document, rank
from simserve.capacity.row import Asked, capacity_row
from simserve.errors import InputError
from simserve.knee.probe import Probe
from simserve.knee.study import Study
from simserve.scenario.axis_values import Scalar
from simserve.scenario.load import set_key
from simserve.scenario.messages import printable
from simserve.tasks.axes import Axis
from simserve.tasks.runner import Runner
from simserve.tasks.task import Task

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna import Trial

EXTRA = "--search: needs optuna; install it with: pip install 'simserve[search]'"
VARIANT = "variant"
MAX_REPEATS, MAX_REPEATS_OF_TPE = 60, 5
SEEDS_APART = 1_000_003  # between the seeds of repeated suggestions
NO_CAPACITY = 1e12  # what a setting without capacity scores: worse than any that has one


@dataclass(frozen=True)
class Search:
    """How many settings to try, over which axes, and the address of optuna's storage."""

    num_trials: int
    axes: tuple[Axis, ...]
    storage: str


def search_capacities(study: Study, runner: Runner, asked: Asked, search: Search) -> dict[str, Any]:
    """The content of ``capacity.json`` for the settings that the search tried, all of them; the best comes first.

    Cost per million output tokens is minimised where there is a price, else capacity is maximised. Trials that the
    storage holds already count. Raises InputError: optuna is missing, its storage cannot be opened, or a setting is
    wrong.
    """
    optuna_study = _open(study, asked, search)
    while len(_completed(optuna_study)) < search.num_trials:
        trial = _untried(optuna_study, study, search.axes)
        if trial is None:
            break
        variant, settings = _suggested(trial, study, search.axes)
        changed = study.with_settings(settings)
        row, found = capacity_row(Probe(changed, variant, runner), settings, asked)
        trial.set_user_attr("row", json.dumps(row))
        trial.set_user_attr("notes", json.dumps(found))
        optuna_study.tell(trial, _score(row))
    completed = _completed(optuna_study)[: search.num_trials]
    rows = [json.loads(trial.user_attrs["row"]) for trial in completed]
    notes = [note for trial in completed for note in json.loads(trial.user_attrs["notes"])]
    notes.append(f"{len(rows)} settings tried of a search by optuna's TPE")
    if len(rows) < search.num_trials:
        notes.append(f"--search {search.num_trials}: no further settings were found that had not been tried")
    return capacity_document(study, asked, rows, notes)


def _untried(optuna_study: OptunaStudy, study: Study, axes: Sequence[Axis]) -> Trial | None:
    """The next trial whose settings are new; None after ``MAX_REPEATS`` that were not, which are marked as failed.

    A sampler repeats itself where it is sure of the best, so it is followed by one that draws at random.
    """
    from optuna.samplers import RandomSampler, TPESampler
    from optuna.trial import TrialState

    completed = _completed(optuna_study)
    tried = [each.params for each in completed]
    for repeats in range(MAX_REPEATS):
        seed = (study.scenario.seed + len(completed) + SEEDS_APART * repeats) % 2**32
        is_random = repeats >= MAX_REPEATS_OF_TPE
        optuna_study.sampler = RandomSampler(seed=seed) if is_random else TPESampler(seed=seed)
        trial = optuna_study.ask()
        _suggested(trial, study, axes)
        if trial.params not in tried:
            return trial
        optuna_study.tell(trial, state=TrialState.FAIL)
    return None


def _suggested(trial: Trial, study: Study, axes: Sequence[Axis]) -> tuple[str, dict[str, Any]]:
    """A variant and a value for every axis. Ranges of numbers are searched between their ends, on a log scale where
    the axis has one; lists, and whatever is no number, are choices."""
    names = list(study.variants)
    variant = trial.suggest_categorical(VARIANT, names) if len(names) > 1 else names[0]
    return str(variant), {axis.key: _value(trial, axis) for axis in axes}


def _value(trial: Trial, axis: Axis) -> Scalar:
    ends = axis.values[0], axis.values[-1]
    is_range = axis.scale != "list" and all(type(end) in (int, float) for end in ends) and len(axis.values) > 1
    if not is_range:
        return trial.suggest_categorical(axis.key, list(axis.values))
    low, high = sorted(float(end) for end in ends if end is not None)
    log = axis.scale == "log"
    if all(type(value) is int for value in axis.values):
        return trial.suggest_int(axis.key, int(low), int(high), log=log)
    return trial.suggest_float(axis.key, low, high, log=log)


def _score(row: Mapping[str, Any]) -> float:
    """Lower is better."""
    cost, capacity = rank(row)
    if row["capacity"]["value"] is None:
        return NO_CAPACITY
    return cost if row["cost_per_million_output_tokens"] is not None else capacity


def _open(study: Study, asked: Asked, search: Search) -> OptunaStudy:
    """The stored study of exactly this question, new or resumed."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise InputError(EXTRA) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    inputs = list(_inputs(study, search.axes))
    question = [inputs, search.axes, asked.slos, asked.question, asked.effort, study.calibration_noise]
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:12]
    name = f"{study.scenario.name}-{digest}"
    try:
        return optuna.create_study(storage=search.storage, study_name=name, load_if_exists=True)
    except Exception as error:  # whatever database it is: SQLAlchemy, its drivers and optuna each raise their own
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        where = printable(f"--storage {search.storage}")
        rule = f"must be a storage that optuna can open, such as sqlite:///search.db ({printable(reason)})"
        raise InputError(f"{where}: {rule}") from None


def _inputs(study: Study, axes: Sequence[Axis]) -> Iterator[str]:
    """Keys of tasks, which know the content of every file that the scenario or a value of an axis names, and the
    version of simserve."""
    scenario = study.scenario
    task = Task(study.data, scenario.source, str(scenario.base_dir.resolve()), scenario.seed)
    yield task.key()
    for axis in axes:
        for value in axis.values:
            if isinstance(value, str):
                yield replace(task, data=set_key(study.data, axis.key, value, typed=True)).key()


def _completed(optuna_study: OptunaStudy) -> list[Any]:
    """Trials with a result, in the order in which they were tried; one that was killed has none."""
    from optuna.trial import TrialState

    return optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
