"""The verbs of ``simserve trace``: read, do, print or write."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from simserve.errors import TraceError
from simserve.scenario.messages import did_you_mean, printable
from simserve.trace_tools.amounts import ratio, seconds
from simserve.trace_tools.change import scaled, sliced
from simserve.trace_tools.export import require_writable, write_trace
from simserve.trace_tools.findings import findings
from simserve.trace_tools.profile import profile
from simserve.trace_tools.show import show_profile
from simserve.workload.dialects import DIALECTS
from simserve.workload.trace import Trace, read_trace

SCHEMA_VERSION = 1


class Part(NamedTuple):
    """What of a trace to keep: times as typed, from the first arrival, and how many requests of these."""

    begin: str = "0"
    end: str | None = None
    head: int | None = None


class Scaling(NamedTuple):
    """How much of a trace to offer, as typed."""

    rate: str
    seed: int = 0
    shift: str | None = None
    same_prompts: bool = False


def known_format(name: str) -> str:
    """The name of a format, as scenarios call it. Raises TraceError for another."""
    if name not in (known := ("auto", *DIALECTS)):
        raise TraceError(printable(f"--format: must be a known format (got {name!r}; {did_you_mean(name, known)})"))
    return name


def info(path: Path, format_name: str, as_json: bool, console: Console | None = None) -> None:
    """Print what is in a trace. Raises TraceError, one sentence, for what is none."""
    trace = _read(path, format_name)
    found = profile(trace)
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "trace": path.name, **found}
        sys.stdout.write(jsonlib.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        show_profile(printable(path.name), found, trace, console or Console())


def check(path: Path, format_name: str, max_model_len: int | None) -> int:
    """Print a line per finding and, on standard error, how many there are; returns that number."""
    trace = _read(path, format_name)
    found = findings(trace, path.name, max_model_len)
    for finding in found:
        sys.stdout.write(printable(f"{path.name}: {finding}") + "\n")
    count = f"{len(found) or 'no'} finding{'s' * (len(found) != 1)}"
    sys.stderr.write(printable(f"{path.name}: {len(trace):,} requests, {count}") + "\n")
    return len(found)


def convert(path: Path, out: Path, format_name: str, overwrite: bool) -> None:
    """Write a trace in our own format."""
    require_writable(out, path, overwrite)
    _write(_read(path, format_name), out)


def slice_(path: Path, out: Path, format_name: str, overwrite: bool, part: Part) -> None:
    """Write a part of a trace in our own format."""
    from_s, to_s = seconds("--from", part.begin), math.inf if part.end is None else seconds("--to", part.end)
    if not from_s < to_s:
        raise TraceError(f"--to: must be later than --from (got {from_s:g} to {to_s:g} s)")
    require_writable(out, path, overwrite)
    trace = _read(path, format_name)
    _write(sliced(trace, from_s, to_s, part.head), out, len(trace))


def scale(path: Path, out: Path, format_name: str, overwrite: bool, scaling: Scaling) -> None:
    """Write a trace with more or fewer requests in our own format."""
    rate = ratio(scaling.rate)
    shift_s = None if scaling.shift is None else seconds("--shift", scaling.shift)
    require_writable(out, path, overwrite)
    trace = _read(path, format_name)
    _write(scaled(trace, rate, scaling.seed, shift_s, scaling.same_prompts), out, len(trace))


def _read(path: Path, format_name: str) -> Trace:
    with Console(stderr=True).status(printable(f"reading {path.name}")):
        return read_trace(path, format_name)


def _write(trace: Trace, out: Path, num_read: int | None = None) -> None:
    messages = Console(stderr=True)
    with messages.status(printable(f"writing {out.name}")):
        write_trace(trace, out)
    for note in trace.notes:
        sys.stderr.write(printable(f"note: {note}") + "\n")
    of_all = "" if num_read is None else f" from {num_read:,}"
    sys.stdout.write(printable(f"wrote {out} ({len(trace):,} requests{of_all})") + "\n")
