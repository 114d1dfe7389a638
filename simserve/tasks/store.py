"""Results as they come: one JSON line each, on disk before the next is waited for, found again by key.

A run that is killed loses at most the line it was writing: a torn last line is cut off when the file is next opened. A
line whose checksum is not that of its result (edited, or half of it lost) counts as not there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from simserve.errors import OutputError

HEADER = {"kind": "simserve points", "schema_version": 1}


class PointStore:
    """A context manager over one append-only file of results by key. Only one process may have it open.

    Results are JSON values; what ``get`` returns is equal whether it was put in this run or read from disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results: dict[str, dict[str, Any]] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Open or create the file and read what it holds. Raises OutputError: unwritable, in use, or not a store."""
        try:
            self._file = self.path.open("a+b")
            _lock(self._file, self.path)
            self._load(self._file)
        except OSError as error:
            self._close()
            raise OutputError(f"{self.path}: cannot be written ({(error.strerror or str(error)).lower()})") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: str) -> dict[str, Any]:
        """The result of a key. Raises KeyError."""
        return self._results[key]

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a result: it is on the disk when this returns. Raises ValueError when it is not strict JSON, OutputError
        when the disk refuses."""
        assert self._file is not None, "the store is open"
        value = json.loads(_line(result))
        line = _line({"key": key, "result": value, "crc32": _checksum(value)})
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written ({(error.strerror or str(error)).lower()})") from None
        self._results[key] = value

    def _load(self, file: BinaryIO) -> None:
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines and not _is_header(lines[0]):
            raise OutputError(f"{self.path}: holds something else than results; choose another --out")
        for line in lines[1:]:
            entry = _entry(line)
            if entry is not None:
                self._results[entry[0]] = entry[1]
        if not lines and content and not _line(HEADER).startswith(content):
            raise OutputError(f"{self.path}: holds something else than results; choose another --out")
        if len(whole) < len(content):
            file.truncate(len(whole))
        if not lines:
            file.write(_line(HEADER))
            file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _checksum(result: Mapping[str, Any]) -> int:
    return zlib.crc32(_line(result))


def _entry(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """Key and result of a line; None unless it is what was put there, whole."""
    match _parsed(line):
        case {"key": str(key), "result": dict(result), "crc32": int(checksum)} if checksum == _checksum(result):
            return key, result
    return None


def _parsed(line: bytes) -> object:
    """The value of a line; None where a crash left rubbish in the middle of the file."""
    try:
        value: object = json.loads(line)
        return value
    except ValueError:
        return None


def _is_header(line: bytes) -> bool:
    return _parsed(line) == HEADER


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep a second process out of the file, on systems that have advisory locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(f"{path}: another simserve is writing it; wait for it, or choose another --out") from None
