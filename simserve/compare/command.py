"""``simserve compare``, from two run folders to a finished comparison."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

import simserve
from simserve.compare.document import KIND, SCHEMA_VERSION, OnPair, compare_runs
from simserve.compare.pairing import pair_variants
from simserve.compare.read import Run, load_run
from simserve.compare.table import print_comparison
from simserve.errors import OutputError
from simserve.manifest import source_revision
from simserve.report import render_comparison
from simserve.run_directory import staged_folder
from simserve.summary import to_json

RESULTS = Path("reports")
FILES = ("compare.html", "compare.json", "manifest.json")


@dataclass(frozen=True)
class CompareOptions:
    """What was asked. ``out`` is by default ``reports/<a>-vs-<b>``; ``command`` is what the user typed."""

    run_a: Path
    run_b: Path
    variant_a: str | None = None
    variant_b: str | None = None
    out: Path | None = None
    json: bool = False
    quiet: bool = False
    command: str = ""


def compare_folders(options: CompareOptions) -> Path:
    """Compare, write ``compare.json``, ``compare.html`` and ``manifest.json``, print; returns the folder.

    Raises InputError, before anything is written: when a folder is no whole run, no variants pair, or the output folder
    holds something else.
    """
    started = datetime.now(UTC)
    a, b = load_run(options.run_a), load_run(options.run_b)
    pairing = pair_variants(a, b, options.variant_a, options.variant_b)
    folder = options.out or RESULTS / default_name(a, b, options)
    messages = Console(stderr=True, quiet=options.quiet)
    with staged_folder(folder, FILES, KIND) as staging:
        with _progress(messages) as on_pair:
            document = compare_runs(a, b, pairing, on_pair)
        manifest = build_manifest(a, b, options.command, started)
        with messages.status("writing the page"):
            _write(document, manifest, staging)
    if options.json:
        sys.stdout.write(to_json(document))
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_comparison(document, console)
        console.print(Text(f"page: {folder / 'compare.html'}"), soft_wrap=True)
    return folder


def default_name(a: Run, b: Run, options: CompareOptions) -> str:
    """``<a>-vs-<b>``, with the variants where they were chosen."""
    sides = ((a, options.variant_a), (b, options.variant_b))
    names = ["-".join(filter(None, (run.name, variant))) for run, variant in sides]
    return re.sub(r"[^\w.=+-]+", "-", "-vs-".join(names)).lstrip(".")


def build_manifest(a: Run, b: Run, command: str, started: datetime) -> dict[str, Any]:
    """The content of the comparison's ``manifest.json``: what made it, and both runs' own manifests."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "simserve_version": simserve.__version__,
        "revision": source_revision(Path(simserve.__file__).parents[1]),
        "command": command,
        "started": started.isoformat(timespec="seconds"),
        "a": dict(a.manifest),
        "b": dict(b.manifest),
    }


def _write(document: dict[str, Any], manifest: dict[str, Any], folder: Path) -> None:
    try:
        (folder / "compare.json").write_text(to_json(document), encoding="utf-8")
        (folder / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        render_comparison(document, manifest, folder / "compare.html")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"results: cannot be written ({reason}); choose another --out") from None


@contextmanager
def _progress(console: Console) -> Iterator[OnPair | None]:
    """A line that says which pair is being resampled; nothing without a terminal."""
    if not console.is_terminal:
        yield None
        return
    with console.status("reading the runs") as status:

        def on_pair(name: str, done: int, total: int) -> None:
            status.update(f"resampling {escape(name)} ({done + 1} of {total})")

        yield on_pair
