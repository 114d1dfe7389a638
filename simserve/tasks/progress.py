"""A progress bar of tasks: what runs, how many are done, how long the rest will take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def task_bar(console: Console, what: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Yields what to call after each task; shows nothing without a terminal, or when nothing is left to do."""
    if not console.is_terminal or total == done:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(escape(what), total=total, completed=done)

        def advance() -> None:
            progress.update(bar, advance=1)

        yield advance
