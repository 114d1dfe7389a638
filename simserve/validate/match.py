"""The requests that are simulated: the scenario's, at the times at which the recorded ones came."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from simserve.errors import RunError
from simserve.recorded.run import RecordedRun, table_of
from simserve.request import IntColumn, RequestTable
from simserve.scenario.messages import printable
from simserve.step_time.stretch import NS_PER_S
from simserve.workload import Workload

RequestsOf = Literal["matched", "scenario", "recorded"]
_REMEDY = "give the workload that it was made with, or take the run's own by --requests recorded"


def matched(workload: Workload, run: RecordedRun, requests: RequestsOf) -> tuple[RequestTable, list[str]]:
    """The requests to simulate, row by row those of the run, and in words where each column is from.

    ``matched``: lengths (and contents) of the scenario, arrivals as recorded; ``scenario``: its arrivals too;
    ``recorded``: lengths and arrivals of the run, whatever the scenario has. A closed loop's clients decide when they
    send, in every case. Raises RunError, one sentence, when the two are not the same requests.
    """
    table, closed = workload.table, workload.clients.concurrency is not None
    if requests == "recorded":
        return _recorded(run), ["the requests' arrivals and lengths are the recorded run's"]
    rows = _same_requests(table, run)
    if rows is not None:
        if table.content is not None:
            raise RunError(
                printable(f"{run.source}: must have its requests in the order of the trace, which has contents")
            )
        table = _reordered(table, rows)
    lengths = "the requests' lengths are the scenario's, and the recorded ones are the same"
    if not run.has_lengths:
        lengths = "the requests' lengths are the scenario's: the run does not tell them"
    if closed:
        return table, [lengths, "the scenario's clients send when they have their last answer, as in the run"]
    if requests == "scenario":
        return table, [lengths, f"arrivals are the scenario's ({_shift(table.arrival_ns, run.table.arrival_ns)})"]
    arrivals = f"arrivals are as recorded ({_shift(table.arrival_ns, run.table.arrival_ns)})"
    return replace(table, arrival_ns=run.table.arrival_ns), [lengths, arrivals]


def _recorded(run: RecordedRun) -> RequestTable:
    if not run.has_lengths:
        raise RunError(
            printable(f"{run.source}: must tell every request's prompt and output tokens for --requests recorded")
        )
    return table_of(run.table.arrival_ns, run.table.num_prompt_tokens, run.table.num_output_tokens)


def _same_requests(table: RequestTable, run: RecordedRun) -> IntColumn | None:
    """The scenario's row of each request of the run; None where they stand in the same order. By order of arrival, or
    of the run's file where only that one fits."""
    if len(run) != len(table):
        raise RunError(
            printable(
                f"{run.source}: must have as many requests as the scenario's workload, {len(table):,} "
                f"(got {len(run):,}); {_REMEDY}"
            )
        )
    straight = np.arange(len(table))
    for rows in (straight, run.file_rows):
        if _mismatch(table, run, rows) is None:
            return None if rows is straight or np.array_equal(rows, straight) else rows
    row, what, theirs, ours = _mismatch(table, run, straight) or (0, "", 0, 0)
    raise RunError(
        printable(
            f"{run.source}: request {row + 1:,} must have the scenario's {ours:,} {what} tokens (got {theirs:,}), "
            f"for both must be of the same requests; {_REMEDY}"
        )
    )


def _mismatch(table: RequestTable, run: RecordedRun, rows: IntColumn) -> tuple[int, str, int, int] | None:
    """The first request whose told length is another: its row, which length, the run's and the scenario's."""
    for what in ("prompt", "output"):
        theirs, ours = (getattr(each, f"num_{what}_tokens") for each in (run.table, table))
        differs = (theirs > 0) & (theirs != ours[rows])
        if differs.any():
            row = int(np.argmax(differs))
            return row, what, int(theirs[row]), int(ours[rows][row])
    return None


def _reordered(table: RequestTable, rows: IntColumn) -> RequestTable:
    names = ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
    return replace(table, **{name: getattr(table, name)[rows] for name in names})


def _shift(ours: IntColumn, theirs: IntColumn) -> str:
    furthest = float(np.abs((ours - ours[0]) - (theirs - theirs[0])).max()) / NS_PER_S
    return f"they differ by {furthest:.3g} s at most"
