"""The folder that a run leaves: whole or not at all.

Files are written into a hidden sibling, which takes the folder's name at the end. A killed run leaves no half result,
and an earlier result stands until the new one is complete. Only a folder that a run made is ever replaced.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simserve.errors import OutputError
from simserve.manifest import KIND
from simserve.metrics import look_up_columns, request_columns, timeline
from simserve.summary import summary_document, to_json
from simserve.workload.prefix_columns import told_of_prefixes
from simserve.workload.session_table import told_of_sessions

if TYPE_CHECKING:
    from simserve.simulate import RunResult

FILES = ("report.html", "summary.json", "requests.parquet", "timeline.parquet", "manifest.json", "trace.json.gz")
ROWS_PER_GROUP = 1 << 17  # of a parquet file


@dataclass(frozen=True)
class OutputChoices:
    """Which of the optional files to write."""

    report: bool = True
    trace: bool = False


@contextmanager
def staged_folder(folder: Path, files: Collection[str] = FILES, kind: str = KIND) -> Iterator[Path]:
    """An empty folder to write into; it becomes ``folder`` if the block succeeds and vanishes if it does not.

    ``files`` are the names that may stand in an earlier result of the same ``kind`` (the word in its manifest). Raises
    OutputError before the block when ``folder`` cannot be written or holds anything else.
    """
    target = Path(os.path.realpath(folder))
    check_replaceable(target, folder, files, kind)
    missing = _missing_parents(target)
    staging = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
    except OSError as error:
        _remove_empty(missing)
        raise OutputError(f"{folder}: cannot write here ({_reason(error)}); choose another --out") from None
    try:
        yield staging
        check_replaceable(target, folder, files, kind)
        _swap(staging, target, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(missing)
        raise


def check_replaceable(target: Path, shown: Path, files: Collection[str] = FILES, kind: str = KIND) -> None:
    """Pass when nothing of value would be lost: no such folder, an empty one, or one that holds a result of this kind
    and no more."""
    try:
        if not target.exists():
            return
        if not target.is_dir():
            raise OutputError(f"{shown}: must be a folder (it is a file); choose another --out")
        if target.samefile(Path.cwd()):  # their shell would stand in a folder without a name
            raise OutputError(f"{shown}: must not be the working directory; choose another --out")
        names = {entry.name for entry in target.iterdir()}
    except OSError as error:
        raise OutputError(f"{shown}: cannot read it ({_reason(error)}); choose another --out") from None
    foreign = sorted(names - set(files))
    if foreign or (names and not _is_of(kind, target)):
        word = kind.rpartition(" ")[2]
        found = foreign[0] if foreign else f"files that no {word} wrote"
        raise OutputError(
            f"{shown}: must be empty or an earlier {word}'s folder (it has {found}); choose another --out"
        )


def write_files(result: RunResult, manifest: dict[str, Any], folder: Path, choices: OutputChoices) -> None:
    """Write every file of the run directory into an existing folder. Raises OutputError when the disk refuses."""
    try:
        (folder / "summary.json").write_text(to_json(summary_document(result)), encoding="utf-8")
        _write_parquet(folder / "requests.parquet", request_frames(result))
        _write_parquet(folder / "timeline.parquet", timeline_frames(result))
        (folder / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
        if choices.trace:
            from simserve.trace_events import write_trace

            write_trace(result, folder / "trace.json.gz")
        if choices.report:
            from simserve.report import render_report

            render_report(result, manifest, folder / "report.html")
    except OSError as error:
        raise OutputError(f"results: cannot be written ({_reason(error)}); choose another --out") from None


def request_frames(result: RunResult) -> Iterator[pd.DataFrame]:
    """For each variant, one row per request: variant, id, status, the columns of ``request_columns``, why rejected,
    whose it was where there are tenants, of which conversation where there are sessions, and with which shared prefix
    it begins where there are any."""
    for name, variant in result.variants.items():
        requests = variant.records.requests
        ids = np.arange(len(requests.table))
        status = pd.Categorical.from_codes(requests.status, categories=pd.Index(requests.STATUSES))
        reasons = pd.Series(requests.reject_reason, dtype="string").reindex(ids)
        numbers = {**request_columns(requests), **look_up_columns(variant.records)}
        columns = {"request_id": ids, "status": status, **numbers, "reject_reason": reasons}
        table = requests.table
        tenants = table.tenants
        if tenants is not None:
            columns["tenant"] = pd.Categorical.from_codes(
                tenants.of, categories=pd.Index([t.name for t in tenants.each])
            )
        columns |= told_of_sessions(table, result.workload.clients.turns)
        columns |= told_of_prefixes(table.content, table.num_prompt_tokens, keeps_told=table.session is not None)
        yield _named(pd.DataFrame(columns, copy=False), name, result)


def timeline_frames(result: RunResult) -> Iterator[pd.DataFrame]:
    """For each variant its time-weighted bins, ``variant`` first."""
    for name, variant in result.variants.items():
        yield _named(timeline(variant.records), name, result)


def _named(frame: pd.DataFrame, name: str, result: RunResult) -> pd.DataFrame:
    names = list(result.variants)
    variant = pd.Categorical.from_codes(np.full(len(frame), names.index(name)), categories=pd.Index(names))
    frame.insert(0, "variant", pd.Series(variant))
    return frame


def _write_parquet(path: Path, frames: Iterator[pd.DataFrame]) -> None:
    """One file, in groups of rows: neither four variants nor a second copy of one are ever in memory together."""
    tables = (
        pa.Table.from_pandas(frame.iloc[begin : begin + ROWS_PER_GROUP], preserve_index=False)
        for frame in frames
        for begin in range(0, max(1, len(frame)), ROWS_PER_GROUP)
    )
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _is_of(kind: str, folder: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        return bool(json.loads((folder / "manifest.json").read_text(encoding="utf-8")).get("kind") == kind)
    return False


def _swap(staging: Path, target: Path, shown: Path) -> None:
    """Give the staged folder its name; what stood there is removed after that, or stands again if it fails."""
    retired = staging.with_suffix(".old")
    try:
        if target.exists():
            target.rename(retired)
        try:
            staging.rename(target)
        except BaseException:
            if retired.exists():
                retired.rename(target)
            raise
    except OSError as error:
        raise OutputError(f"{shown}: cannot be replaced ({_reason(error)}); choose another --out") from None
    shutil.rmtree(retired, ignore_errors=True)


def _missing_parents(target: Path) -> list[Path]:
    """Parents that do not exist yet, innermost first."""
    return [parent for parent in target.parents if not parent.exists()]


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
