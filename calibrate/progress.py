"""Progress of a measurement on a terminal, and the partial file kept up to date on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrate.forward import is_out_of_memory
from calibrate.measure import Measurer
from calibrate.partial import PartialFile

_SAVE_EVERY_S = 5.0
_REFRESH_EVERY_S = 0.2


def measure_with_progress(
    measurer: Measurer, partial: PartialFile, console: Console, between: Callable[[], None] = lambda: None
) -> None:
    """Run ``measurer``; whatever stops it, what it has measured is in ``partial`` afterwards. ``between`` is called
    every few seconds, between two samples."""
    # No refreshing thread: its work would count on the process CPU clock of whatever step is being timed.
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=None)
        shown = saved = time.monotonic()

        def on_progress(done: int, total: int, what: str) -> None:
            nonlocal shown, saved
            now = time.monotonic()
            progress.update(task, completed=done, total=total, description=what)
            if now - shown >= _REFRESH_EVERY_S:
                progress.refresh()
                shown = now
            if now - saved >= _SAVE_EVERY_S:
                partial.save(measurer.measurement.samples)
                between()
                saved = now

        try:
            measurer.run(on_progress, is_out_of_memory)
        except BaseException:
            if measurer.measurement.samples:
                partial.save(measurer.measurement.samples)
                kept = len(measurer.measurement.samples)
                console.print(f"kept {kept} samples in {partial.path}; run the same command to continue")
            raise
