"""Run tasks wherever an executor runs them, keep each result at once, and skip those that are kept already."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, as_completed
from types import TracebackType
from typing import Self

from rich.console import Console

from simserve.tasks.progress import task_bar
from simserve.tasks.store import PointStore
from simserve.tasks.task import Measures, Task, run_task

Results = dict[str, Measures]


class Runner:
    """Runs tasks on an executor. Every result goes to the store before the next is waited for."""

    def __init__(self, executor: Executor, store: PointStore, console: Console | None = None) -> None:
        self._executor = executor
        self._store = store
        self._console = console or Console(stderr=True, quiet=True)
        self._pending: dict[Future[Results], str] = {}
        self.num_run = 0  # tasks that this runner simulated, rather than found in the store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop what was not started; the executor is its maker's to close."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Results]:
        """Measures by variant of every task, in the order of ``tasks`` whatever order they finish in.

        ``what`` names them beside the progress bar. Raises whatever a task raised, first of all InputError; what was
        finished by then is kept.
        """
        keys = [task.key() for task in tasks]
        todo = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._store}
        num_keys = len(set(keys))
        with task_bar(self._console, what or "simulating", num_keys, num_keys - len(todo)) as advance:
            for key, task in todo.items():
                future = self._executor.submit(run_task, task)
                self._pending[future] = key
                if future.done():
                    self._keep(future)
                    advance()
            for future in as_completed(list(self._pending)):
                self._keep(future)
                advance()
        return [self._store.get(key) for key in keys]

    def _keep(self, future: Future[Results]) -> None:
        key = self._pending.pop(future)
        self._store.put(key, future.result())
        self.num_run += 1
