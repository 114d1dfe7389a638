"""The verbs of ``simserve trace``: read, do, print or write."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path

from rich.console import Console

from simserve.errors import TraceError
from simserve.scenario.messages import did_you_mean, printable
from simserve.trace_tools.export import require_writable, write_trace
from simserve.trace_tools.findings import findings
from simserve.trace_tools.profile import profile
from simserve.trace_tools.show import show_profile
from simserve.workload.dialects import DIALECTS
from simserve.workload.trace import Trace, read_trace

SCHEMA_VERSION = 1


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


def _read(path: Path, format_name: str) -> Trace:
    with Console(stderr=True).status(printable(f"reading {path.name}")):
        return read_trace(path, format_name)


def _write(trace: Trace, out: Path, notes: tuple[str, ...] = ()) -> None:
    if not len(trace):
        raise TraceError(printable(f"{out}: no request is left to write"))
    messages = Console(stderr=True)
    with messages.status(printable(f"writing {out.name}")):
        write_trace(trace, out)
    for note in (*trace.notes, *notes):
        sys.stderr.write(printable(f"note: {note}") + "\n")
    sys.stdout.write(printable(f"wrote {out} ({len(trace):,} requests)") + "\n")
