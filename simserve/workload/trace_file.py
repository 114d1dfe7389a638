"""The bytes of a trace file to a table of columns: csv, jsonl or parquet, gzipped or not, told by content, not by name.

Text columns stay text (``columns`` and ``timestamps`` read the numbers), so nothing is rounded or guessed on the way.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path

import pandas as pd

from simserve.errors import NoTrace
from simserve.scenario.messages import printable
from simserve.workload.json_lines import json_rows
from simserve.workload.refusal import refusal

MAX_BYTES = 2 * 2**30  # unpacked; an hour of the largest public traces is under 100 MB
_PACKED = {b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd-compressed", b"BZh": "bzip2-compressed"}


def read_columns(path: Path) -> pd.DataFrame:
    """Every column of a trace, a row per request in the file's order. Raises TraceError, one sentence, when the file
    cannot be read or is not one of the three forms."""
    raw = _read_bytes(path)
    packed = next((kind for magic, kind in _PACKED.items() if raw.startswith(magic)), None)
    if packed:
        raise refusal(path.name, f"is {packed}; unpack it, or use gzip")
    if raw[257:262] == b"ustar":  # where the POSIX tar header names itself; the gzip around it is opened already
        of_clients = "or for ServeGen's clients: simserve trace servegen"
        raise refusal(path.name, f"is a tar archive; unpack it and name one of its files, {of_clients}")
    if raw.startswith(b"PAR1"):
        return _parquet(raw, path.name)
    try:
        text = raw.decode("utf-8-sig").lstrip()
    except UnicodeDecodeError as error:
        raise refusal(path.name, f"must be csv, jsonl or parquet (byte {error.start:,} is no text)") from None
    del raw  # a trace with token ids is a GiB, once as bytes and once as text
    if not text:
        raise refusal(path.name, "is empty; a trace needs at least one request")
    if text.startswith("["):
        raise refusal(path.name, "must hold one JSON object per line (got a JSON array)")
    return json_rows(text, path.name) if text.startswith("{") else _csv(text.rstrip(), path.name)


def _read_bytes(path: Path) -> bytes:
    """The file's bytes, unpacked if it is gzip."""
    try:
        if path.exists() and not path.is_file():
            raise refusal(path, f"must be a file (got a {'folder' if path.is_dir() else 'device or pipe'})")
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzip else path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NoTrace(printable(f"{path}: no such file")) from None
    except EOFError:
        raise refusal(path.name, "is a truncated gzip file; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise refusal(path.name, f"is a damaged gzip file ({error})") from None
    except OSError as error:
        raise refusal(path, f"cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise refusal(path, "cannot be a file's name") from None
    if len(raw) > MAX_BYTES:
        raise refusal(path.name, f"must be at most {MAX_BYTES // 2**30} GiB, unpacked; split it")
    return raw


def _csv(text: str, where: str) -> pd.DataFrame:
    """A header and comma-separated rows. pandas would take surplus fields for an index, and rename a column that comes
    twice: both are refused instead."""
    try:
        header = next(csv.reader(io.StringIO(text[:100_000], newline="")))
        frame = pd.read_csv(io.BytesIO(text.encode()), dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        raise refusal(where, f"is not valid csv ({_short(error)})") from None
    if not isinstance(frame.index, pd.RangeIndex) or len(header) != len(frame.columns):
        raise refusal(where, f"rows must have as many fields as the header's {len(header)} (got more)")
    return frame.set_axis([name.strip() for name in header], axis="columns")


def _parquet(raw: bytes, where: str) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(io.BytesIO(raw), engine="pyarrow")
        return frame.reset_index(drop=frame.index.names == [None]).rename(columns=str)
    except Exception as error:  # pyarrow raises a dozen kinds on damaged bytes, OSError and TypeError among them
        raise refusal(where, f"is not a readable parquet file ({_short(error)})") from None


def _short(error: Exception) -> str:
    """The first line of another library's message."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text.removeprefix("Error tokenizing data. ")[:120]
