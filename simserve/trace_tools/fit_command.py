"""``simserve trace fit``: read, fit, write the scenario's section, and show how well it fits."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from simserve.errors import TraceError
from simserve.scenario.messages import printable
from simserve.trace_tools.fit import Fit, fit
from simserve.trace_tools.picture import columns
from simserve.workload.trace import read_trace

SCHEMA_VERSION = 1
_LABELS = {"gap_s": "gaps between arrivals", "prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


def fit_trace(path: Path, out: Path | None, format_name: str, num_windows: int | None, as_json: bool) -> None:
    """Fit a generator to a trace; write its ``workload:`` to ``out`` where given. Raises TraceError, one sentence."""
    if out is not None and out.exists():
        raise TraceError(printable(f"{out}: must not exist yet; remove it, or choose another --out"))
    with Console(stderr=True).status(printable(f"fitting {path.name}")):
        trace = read_trace(path, format_name)
        if not trace.has_times:
            raise TraceError(printable(f"{path.name}: must have times to be fitted (it has none)"))
        found = fit(trace, num_windows)
    text = as_yaml(found, path.name)
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TraceError(
                printable(f"{out}: cannot be written ({(error.strerror or str(error)).lower()})")
            ) from None
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "trace": path.name, **found._asdict()}
        sys.stdout.write(jsonlib.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return
    show(found, path.name, Console())
    sys.stdout.write(printable(f"wrote {out}: put it in place of a scenario's workload") + "\n" if out else f"\n{text}")


def as_yaml(found: Fit, name: str) -> str:
    """The section as text, with a line that says where it comes from; windows and values a line each."""
    told = ", ".join(f"{key} {each['trace']:.3f}" for key, each in found.quality["distances"].items())
    head = printable(f"# fitted to {name}; Kolmogorov–Smirnov distances: {told or 'none'}")
    body = yaml.safe_dump({"workload": found.workload}, sort_keys=False, default_flow_style=None, width=110)
    return f"{head}\n{body}"


def show(found: Fit, name: str, console: Console) -> None:
    """How far the generator is from the trace, and what it leaves out."""
    quality: dict[str, Any] = found.quality
    table = Table(title=printable(f"{name}: fit"), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in ("", "from the trace", "between two draws"):
        table.add_column(heading, justify="right" if heading else "left")
    for key, each in quality["distances"].items():
        table.add_row(f"KS distance, {_LABELS[key]}", f"{each['trace']:.3f}", f"{each['chance']:.3f}")
    curve = quality["rate_curve"]
    misplaced = (f"{curve[key]:.1%}" for key in ("misplaced_share", "misplaced_by_chance"))
    table.add_row("requests at another time", *misplaced)
    console.print(table)
    peak = max(*curve["trace"], *curve["generator"], 1)
    for label in ("trace", "generator"):
        drawn = columns([*curve[label], peak])[:-1]  # both on one scale
        console.print(f"  {label:>9} {drawn}", highlight=False, soft_wrap=True)
    cv = quality["gap_cv"]
    console.print(f"  gaps' cv {cv['trace']:.3g} in the trace, {cv['generator']:.3g} generated", highlight=False)
    if quality["clock_is_coarse"]:
        console.print(
            f"  the trace's clock steps by {quality['clock_tick_s']:g} s: gaps are compared so", highlight=False
        )
    correlation = quality["prompt_output_rank_correlation"]
    if correlation is not None:
        console.print(
            f"  not in the generator: rank correlation of prompt and output, {correlation:+.2f}", highlight=False
        )
    if quality["left_out"]:
        console.print(f"  not in the generator: {', '.join(quality['left_out'])}", highlight=False)
