"""Who held which slot when, as a Chrome trace that Perfetto and chrome://tracing open.

Format: "Trace Event Format" (Google, 2016), complete events ``"ph": "X"`` with times in microseconds.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.records import NEVER, OccupancyRecords

if TYPE_CHECKING:
    from simserve.simulate import RunResult

NS_PER_US = 1000
Event = dict[str, Any]


def write_trace(result: RunResult, path: Path) -> None:
    """Write one process per variant and one thread per slot, gzipped, an event at a time.

    The file depends on nothing but the records: no name or time stands in the gzip header.
    """
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as text,
    ):
        text.write('{"displayTimeUnit":"ms","traceEvents":[')
        for i, event in enumerate(_events(result)):
            text.write(("," if i else "") + "\n" + json.dumps(event, separators=(",", ":")))
        text.write("\n]}\n")


def _events(result: RunResult) -> Iterator[Event]:
    for process, (name, variant) in enumerate(result.variants.items(), 1):
        yield _name("process_name", name, pid=process)
        yield from occupancy_events(variant.records.occupancy, process)


def occupancy_events(occupancy: OccupancyRecords, process: int) -> Iterator[Event]:
    """Phases prefill, decode and idle-held of every admission; each slot is named when it is first used."""
    columns = occupancy.columns()
    seen: set[int] = set()
    for row in zip(*(columns[name].tolist() for name in OccupancyRecords.COLUMNS), strict=True):
        request, slot, admitted, decoding, idle, released = row
        if slot not in seen:
            seen.add(slot)
            yield _name("thread_name", f"slot {slot}", pid=process, tid=slot)
        for phase, begin, end in phases(admitted, decoding, idle, released):
            yield {
                "name": f"request {request}",
                "cat": phase,
                "ph": "X",
                "ts": begin / NS_PER_US,
                "dur": (end - begin) / NS_PER_US,
                "pid": process,
                "tid": slot,
                "args": {"request_id": request, "phase": phase},
            }


def phases(admitted_ns: int, decoding_ns: int, idle_ns: int, released_ns: int) -> list[tuple[str, int, int]]:
    """The phases of one admission that took time, as (name, begin, end) in ns; they cover it without a gap."""
    decode_end = released_ns if idle_ns == NEVER else idle_ns
    prefill_end = decode_end if decoding_ns == NEVER else decoding_ns
    cuts = (("prefill", admitted_ns, prefill_end), ("decode", prefill_end, decode_end))
    return [cut for cut in (*cuts, ("idle-held", decode_end, released_ns)) if cut[2] > cut[1]]


def _name(kind: str, name: str, **place: int) -> Event:
    return {"name": kind, "ph": "M", **place, "args": {"name": name}}
