"""How fast a server works while somebody always waits: its capacity for this traffic, read off one run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simserve.records import FINISHED, Records
from simserve.request import IntColumn
from simserve.step_time.stretch import NS_PER_S

MIN_COMPLETIONS = 20


def backlogged_rps(records: Records) -> float | None:
    """Completions per second between the first and the last completion of the longest stretch of time in which somebody
    waited throughout; null where that holds fewer than ``MIN_COMPLETIONS`` of them.

    From completion to completion, because a stretch that begins or ends anywhere else counts a part of a request.
    Completions at the stretch's first instant are where it starts, and not counted.
    """
    begin_ns, end_ns = _longest_backlog(records.spans.columns())
    requests = records.requests
    ends = np.sort(requests.end_ns[requests.status == FINISHED])
    ends = ends[np.searchsorted(ends, begin_ns) : np.searchsorted(ends, end_ns, side="right")]
    if not len(ends):
        return None
    counted = ends[ends > ends[0]]
    if len(counted) < MIN_COMPLETIONS:
        return None
    return len(counted) * NS_PER_S / float(counted[-1] - ends[0])


def _longest_backlog(spans: Mapping[str, IntColumn]) -> tuple[int, int]:
    """Begin and end of the longest run of neighbouring spans with someone waiting at both ends of each."""
    waiting = (spans["num_waiting_begin"] > 0) & (spans["num_waiting_end"] > 0) & (spans["num_steps"] > 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], waiting, [False]]).astype(np.int8)))
    first, last = edges[::2], edges[1::2] - 1
    if not len(first):
        return 0, 0
    begin_ns, end_ns = spans["begin_ns"][first], spans["end_ns"][last]
    longest = int((end_ns - begin_ns).argmax())
    return int(begin_ns[longest]), int(end_ns[longest])
