"""ServeGen's pools of clients (Xiang et al., NSDI'26): of each client a rate and cv per window of a day, and what its
prompts and answers are long in each part of the day. A folder of ``chunk-N-trace.csv`` (no header: begin in seconds,
rate, cv, law, and the law's two parameters) and ``chunk-N-dataset.json``, or a tar archive that holds one.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.scenario.fields import MAX_TOKENS
from simserve.workload.refusal import refusal

MAX_BYTES = 64 * 2**20  # of one file; the largest published one takes 1.2 MB
_NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)", re.ASCII)
_PAIR = re.compile(r"\s*(\d{1,12})(?:\.0*)?\s*:\s*([0-9.eE+-]+)\s*", re.ASCII)
LENGTHS = ("input_tokens", "output_tokens")

FloatColumn = npt.NDArray[np.float64]


class Window(NamedTuple):
    """A stretch of a client's day."""

    begin_s: float
    rate_rps: float
    cv: float
    law: str  # of its gaps, gamma or weibull; empty where nobody comes


class Shares(NamedTuple):
    """Lengths, each once and in order, and how much there is of each."""

    tokens: IntColumn
    shares: FloatColumn


class PoolClient(NamedTuple):
    """One client: its windows in order of time, and from when on its prompts and answers have which lengths."""

    name: str
    windows: list[Window]
    lengths: dict[float, tuple[Shares, Shares]]


def read_pool(path: Path) -> list[PoolClient]:
    """The clients of a pool, by number. Raises TraceError, one sentence, for what is none, or for several pools."""
    files = {place: text for place, text in (_in_folder(path) if path.is_dir() else _in_archive(path))}
    pools = sorted({str(place.parent) for place in files})
    if not pools:
        raise refusal(path, "must hold ServeGen's clients, chunk-0-trace.csv and chunk-0-dataset.json and so on")
    if len(pools) > 1:
        raise refusal(
            path, f"must hold one pool of clients (got {', '.join(pools[:6])}); unpack it and name one folder"
        )
    numbers = sorted({int(found[1]) for place in files if (found := _NAME.fullmatch(place.name))})
    folder = PurePath(pools[0])
    return [_client(files, folder, number, path.name) for number in numbers]


def _in_folder(path: Path) -> Iterator[tuple[PurePath, str]]:
    for file in sorted(path.rglob("chunk-*")):
        if _NAME.fullmatch(file.name) and file.is_file():
            if file.stat().st_size > MAX_BYTES:
                raise refusal(path.name, f"{file.name} must be at most {MAX_BYTES // 2**20} MiB")
            yield PurePath(file.relative_to(path)), file.read_text(encoding="utf-8", errors="replace")


def _in_archive(path: Path) -> Iterator[tuple[PurePath, str]]:
    rule = "must be a folder or a tar archive of ServeGen's clients"
    if path.exists() and not path.is_file():
        raise refusal(path, f"{rule} (got a device or pipe)")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                place = PurePath(member.name)
                if _NAME.fullmatch(place.name) and member.isfile() and (file := archive.extractfile(member)):
                    if member.size > MAX_BYTES:
                        raise refusal(path.name, f"{place.name} must be at most {MAX_BYTES // 2**20} MiB")
                    yield place, file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise refusal(path, "no such file") from None
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile):
        # their words are of all that they tried
        raise refusal(path, f"{rule} (got another file, or one that is damaged)") from None
    except OSError as error:
        raise refusal(path, f"cannot be read ({(error.strerror or str(error)).lower()})") from None


def _client(files: dict[PurePath, str], folder: PurePath, number: int, where: str) -> PoolClient:
    trace, dataset = folder / f"chunk-{number}-trace.csv", folder / f"chunk-{number}-dataset.json"
    for place in (trace, dataset):
        if place not in files:
            raise refusal(where, f"lacks {place.name}, the other half of client {number}")
    windows = _windows(files[trace], f"{where}: {trace.name}")
    return PoolClient(f"client-{number}", windows, _lengths(files[dataset], f"{where}: {dataset.name}"))


def _windows(text: str, where: str) -> list[Window]:
    windows: list[Window] = []
    for i, line in enumerate(text.split(), 1):
        cells = line.split(",")
        try:
            begin_s, rate, cv, law = float(cells[0]), float(cells[1]), float(cells[2]), cells[3].lower()
        except (IndexError, ValueError):
            raise refusal(where, f"line {i}: must be begin, rate, cv, law … (got {line[:40]!r})") from None
        is_law = law in ("gamma", "weibull") if rate else True
        if not (is_law and math.isfinite(begin_s) and 0 <= rate < 1e9 and 0 <= cv < math.inf):
            raise refusal(where, f"line {i}: must be a rate, a cv and Gamma or Weibull (got {line[:40]!r})")
        if windows and begin_s <= windows[-1].begin_s:
            raise refusal(where, f"line {i}: must begin after the line before (got {line[:40]!r})")
        windows.append(Window(begin_s, rate, cv, law))
    if len(windows) < 2:
        raise refusal(where, "must have two windows or more, whose distance is how long they are")
    return windows


def _lengths(text: str, where: str) -> dict[float, tuple[Shares, Shares]]:
    try:
        parts = json.loads(text)
        found = {float(begin): tuple(_shares(str(of[name]), where) for name in LENGTHS) for begin, of in parts.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refusal(where, f"must be an object of times, and in each {' and '.join(LENGTHS)}") from None
    return {begin: (prompts, outputs) for begin, (prompts, outputs) in sorted(found.items())}


def _shares(text: str, where: str) -> Shares:
    """``{45: 0.25, 46: 0.75}``; lengths of 0 are left out."""
    cells = [cell for cell in text.strip().removeprefix("{").removesuffix("}").split(",") if cell.strip()]
    pairs = [_PAIR.fullmatch(cell) for cell in cells]
    if not all(pairs):
        raise refusal(where, f"must have lengths such as {{45: 0.25, 46: 0.75}} (got {text[:40]!r})")
    shares = {int(pair[1]): float(pair[2]) for pair in pairs if pair}
    kept = sorted((tokens, share) for tokens, share in shares.items() if 1 <= tokens <= MAX_TOKENS and 0 < share < 2)
    return Shares(np.array([t for t, _ in kept], np.int64), np.array([s for _, s in kept], np.float64))
