"""``simserve trace fit``: read, fit, write the scenario's section, and show how well it fits."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console

from simserve.errors import TraceError
from simserve.scenario.messages import printable
from simserve.trace_tools.clients import MAX_CLIENTS, clients_of, may_tell_clients
from simserve.trace_tools.fit import Fit, fit
from simserve.trace_tools.fit_show import show_fit
from simserve.workload.trace import Trace, read_trace

SCHEMA_VERSION = 2
MOST_CLIENTS = 20


class Asked(NamedTuple):
    """What to fit: how many windows, whose requests (by columns), and how many of them apart."""

    num_windows: int | None = None
    by: Sequence[str] = ()
    most: int = MOST_CLIENTS


def fit_trace(path: Path, out: Path | None, format_name: str, asked: Asked, as_json: bool) -> None:
    """Fit a generator to a trace; write its ``workload:`` to ``out`` where given. Raises TraceError, one sentence."""
    require_new(out)
    with Console(stderr=True).status(printable(f"fitting {path.name}")):
        trace = read_trace(path, format_name)
        if not trace.has_times:
            raise TraceError(printable(f"{path.name}: must have times to be fitted (it has none)"))
        most = min(asked.most, MAX_CLIENTS - 1)
        found = fit(trace, asked.num_windows, clients_of(path, trace, asked.by, most) if asked.by else None)
        others = [] if as_json or asked.by else may_tell_clients(path, trace)
    text = as_yaml(found, path.name)
    if out is not None:
        write_section(text, out)
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "trace": path.name, **found._asdict()}
        sys.stdout.write(jsonlib.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return
    show_fit(found.quality, path.name, Console())
    _show_hints(trace, others)
    sys.stdout.write(printable(f"wrote {out}: put it in place of a scenario's workload") + "\n" if out else f"\n{text}")


def require_new(out: Path | None) -> None:
    """Pass where nothing would be replaced. Raises TraceError."""
    if out is not None and out.exists():
        raise TraceError(printable(f"{out}: must not exist yet; remove it, or choose another --out"))


def write_section(text: str, out: Path) -> None:
    """Write a scenario's section. Raises TraceError where it cannot be written."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError(printable(f"{out}: cannot be written ({(error.strerror or str(error)).lower()})")) from None


def as_yaml(found: Fit, name: str) -> str:
    """The section as text, with a line that says where it comes from; windows and values a line each."""
    told = ", ".join(f"{key} {each['trace']:.3f}" for key, each in found.quality["distances"].items())
    head = printable(f"# fitted to {name}; Kolmogorov–Smirnov distances: {told or 'none'}")
    body = yaml.safe_dump(
        {"workload": found.workload}, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )
    return f"{head}\n{body}"


def _show_hints(trace: Trace, others: Sequence[tuple[str, int]]) -> None:
    """What the reader counted, and by which columns clients could be fitted apart."""
    for note in trace.notes:
        sys.stderr.write(printable(f"note: {note}") + "\n")
    if others:
        told = ", ".join(f"--by {name!r} ({num} values)" for name, num in others)
        sys.stderr.write(printable(f"note: fits a tenant for each client: {told}") + "\n")
