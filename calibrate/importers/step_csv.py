"""A csv of step times: ``phase, batch_size, context_tokens, new_tokens, step_time_ms``, one measured step a row.

``phase`` is prefill or decode, ``context_tokens`` the cached tokens of each sequence, ``new_tokens`` those that the
step computes in all (batch size × 1 for a decode). Prefills are of one sequence.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from calibrate.importers.reading import Reading
from simserve.errors import ProfileError
from simserve.step_time.operators.csv_files import read_bytes, read_text
from simserve.step_time.source import MeasuredPoint

COLUMNS = ("phase", "batch_size", "context_tokens", "new_tokens", "step_time_ms")
MAX_COUNT = 10_000_000


def read_step_csv(path: Path) -> Reading:
    """Read the file. Raises ``ProfileError`` in one sentence for a missing column or a row that breaks a rule."""
    rows = list(read_rows(path, COLUMNS))
    points = tuple(_point(row, f"{path}: line {line}") for line, row in rows)
    return Reading(points, source=file_words(path))


def file_words(path: Path) -> str:
    """A file's name and the beginning of its SHA-256, for the provenance."""
    return f"{path.name}, sha256 {hashlib.sha256(read_bytes(path)).hexdigest()[:16]}"


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a csv that must have ``columns``; others are ignored. Raises ``ProfileError``."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
    try:
        names = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
        missing = [column for column in columns if column not in names]
        if missing:
            found = ", ".join(sorted(names)[:12]) or "nothing"
            raise ProfileError(f"{path}: must have the columns {', '.join(missing)} (got {found})")
        for row in reader:
            yield reader.line_num, {column: (row[names[column]] or "").strip() for column in columns}
    except csv.Error as error:
        raise ProfileError(f"{path}: line {reader.line_num}: is not csv ({error})") from error


def number(row: dict[str, str], column: str, where: str) -> float:
    """A finite number. Raises ``ProfileError``."""
    return _parsed(row, column, where, "a finite number", math.isfinite)


def count(row: dict[str, str], column: str, where: str, least: int = 0) -> int:
    """A whole number from ``least`` on. Raises ``ProfileError``."""
    rule = f"a whole number from {least} to {MAX_COUNT:,}"
    return int(_parsed(row, column, where, rule, lambda v: v.is_integer() and least <= v <= MAX_COUNT))


def _parsed(row: dict[str, str], column: str, where: str, rule: str, good: Callable[[float], bool]) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if math.isnan(value) or not good(value):
        raise ProfileError(f"{where}: {column}: must be {rule} (got {row[column]!r})")
    return value


def _point(row: dict[str, str], where: str) -> MeasuredPoint:
    phase = row["phase"].lower()
    if phase not in ("prefill", "decode"):
        raise ProfileError(f"{where}: phase: must be prefill or decode (got {row['phase']!r})")
    batch, context = count(row, "batch_size", where, 1), count(row, "context_tokens", where)
    new = count(row, "new_tokens", where, 1)
    milliseconds = number(row, "step_time_ms", where)
    if not 0 < milliseconds < 1e9:
        raise ProfileError(f"{where}: step_time_ms: must be positive (got {row['step_time_ms']})")
    if phase == "decode":
        if new not in (1, batch):
            raise ProfileError(f"{where}: new_tokens: must be one per sequence, {batch} in all (got {new})")
        return MeasuredPoint("decode", batch, 1, context, milliseconds / 1e3)
    if batch != 1:
        raise ProfileError(f"{where}: batch_size: must be 1 in a prefill (got {batch}); give each prompt its own row")
    return MeasuredPoint("prefill", 1, new, context, milliseconds / 1e3)
