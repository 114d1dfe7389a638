"""Run tasks wherever an executor runs them, keep each result at once, and skip those that are kept already."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import closing
from types import TracebackType
from typing import Self

from rich.console import Console

from simserve.tasks.progress import task_bar
from simserve.tasks.store import PointStore
from simserve.tasks.task import Measures, Task, run_keyed
from simserve.tasks.window import in_window

Results = dict[str, Measures]


class Runner:
    """Runs tasks on an executor. Every result goes to the store before the next is waited for."""

    def __init__(self, executor: Executor, store: PointStore, console: Console | None = None) -> None:
        self._executor = executor
        self._store = store
        self._console = console or Console(stderr=True, quiet=True)
        self.num_run = 0  # tasks that this runner simulated, rather than found in the store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to drop: ``run`` does that itself, and the executor is its maker's to close."""

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Results]:
        """Measures by variant of every task, in the order of ``tasks`` whatever order they finish in.

        ``what`` names them beside the progress bar. Raises whatever a task raised, first of all InputError; what was
        finished by then is kept.
        """
        keys = [task.key() for task in tasks]
        todo = {key: (task, key) for key, task in zip(keys, tasks, strict=True) if key not in self._store}
        num_keys = len(set(keys))
        with (
            task_bar(self._console, what or "simulating", num_keys, num_keys - len(todo)) as advance,
            closing(in_window(self._executor, run_keyed, todo)) as finished,
        ):
            for key, results in finished:
                self._store.put(key, results)
                self.num_run += 1
                advance()
        return [self._store.get(key) for key in keys]
