"""The header of a GGUF file (llama.cpp's format): metadata and the list of tensors, without their data.

The layout is ggml's ``docs/gguf.md``, versions 2 and 3, either byte order. A parser of our own and not the package
``gguf``, because that one maps every tensor, so that the beginning of a file is not enough; reads a vocabulary of
152,000 words element by element (5.8 s and 520 MiB for a header of 6 MB, here 0.2 s); and believes every length it
reads. Here nothing is believed: each length is held against the bytes that are left before it is used.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from simserve.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**28  # fifteen times that of a vocabulary of 256,000 words
MAX_TEXT, MAX_NUMBERS, MAX_DIMENSIONS, MAX_NESTING = 2**16, 4_096, 4, 4
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
LEAST_TENSOR_BYTES, LEAST_KEY_BYTES = 24, 13  # a tensor or a key with an empty name

Value = int | float | bool | str | tuple[int | float | bool, ...] | None
"""``None`` stands for what is passed over: texts and arrays that are long, and arrays of texts."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its name, its dimensions (row width first) and the number of its ggml type."""

    name: str
    dimensions: tuple[int, ...]
    ggml_type: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, and every tensor that the file lists."""

    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do, or is called like one; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC or path.suffix == ".gguf"
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Read the header of ``path``; its data may be missing, so the first few MB of a file are enough.

    Raises ``ModelError`` in one sentence: unreadable, not GGUF, another version, or a header that ends early or makes
    no sense, with the byte where.
    """
    try:
        with path.open("rb") as file:
            reader = _Reader(file, printable_path(path))
            num_tensors, num_keys = reader.begin()
            metadata = dict(_key(reader) for _ in range(num_keys))
            return GgufHeader(metadata, tuple(_tensor(reader) for _ in range(num_tensors)))
    except OSError as error:
        raise ModelError(f"{printable_path(path)}: cannot be read ({error.strerror})") from error


def printable_path(path: Path) -> str:
    """A path for a message or a title: quoted where it would not stay on its line."""
    return str(path) if str(path).isprintable() else repr(str(path))


class _Reader:
    """The bytes of a header, in order, never past the end of the file or ``MAX_HEADER_BYTES``."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where, self._order = file, where, "<"
        self._at, self._size = 0, os.fstat(file.fileno()).st_size

    def begin(self) -> tuple[int, int]:
        """Magic, version and byte order; how many tensors and keys follow."""
        if self._size < len(MAGIC) or self._take(4) != MAGIC:
            raise ModelError(f"{self._where}: is not a GGUF file (does not begin with 'GGUF')")
        raw = self._take(4)
        if raw[:2] == b"\0\0":  # the version is small, so its lower half is empty only in the other order
            self._order = ">"
        version = struct.unpack(f"{self._order}I", raw)[0]
        if version not in VERSIONS:
            raise ModelError(f"{self._where}: GGUF version: must be 2 or 3 (got {version})")
        num_tensors, num_keys = self.number("Q"), self.number("Q")
        self.require(num_tensors * LEAST_TENSOR_BYTES + num_keys * LEAST_KEY_BYTES)
        return num_tensors, num_keys

    def wrong(self, what: str) -> ModelError:
        """An error that says where in the file."""
        return ModelError(f"{self._where}: byte {self._at}: {what}; the file is damaged or no GGUF")

    def require(self, num_bytes: int) -> None:
        """Refuse to go on unless so many bytes are left."""
        if num_bytes > self._size - self._at:
            raise ModelError(
                f"{self._where}: byte {self._at}: the header needs {num_bytes} bytes more and the file has "
                f"{self._size - self._at}; it is damaged, or give more of its beginning"
            )
        if self._at + num_bytes > MAX_HEADER_BYTES:
            raise self.wrong(f"the header is longer than {MAX_HEADER_BYTES} bytes")

    def number(self, code: str) -> int:
        """One whole number of a struct code."""
        return int(self.numbers(code, 1)[0])

    def numbers(self, code: str, count: int) -> tuple[int | float | bool, ...]:
        """``count`` numbers of a struct code."""
        layout = f"{self._order}{count}{code}"
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def text(self, longest: int = MAX_TEXT) -> str | None:
        """A string, or None where it is longer than ``longest`` bytes."""
        length = self.number("Q")
        if length > longest:
            self.skip(length)
            return None
        return self._take(length).decode("utf-8", errors="replace")

    def skip(self, num_bytes: int) -> None:
        """Pass over bytes that nobody asked for."""
        self.require(num_bytes)
        self._file.seek(num_bytes, os.SEEK_CUR)
        self._at += num_bytes

    def _take(self, num_bytes: int) -> bytes:
        self.require(num_bytes)
        taken = self._file.read(num_bytes)
        if len(taken) < num_bytes:
            raise self.wrong("the file became shorter while it was read")
        self._at += num_bytes
        return taken


def _key(reader: _Reader) -> tuple[str, Value]:
    name = _name(reader)
    return name, _value(reader, reader.number("I"))


def _name(reader: _Reader) -> str:
    name = reader.text()
    if name is None:
        raise reader.wrong(f"a name is longer than {MAX_TEXT} bytes")
    return name


def _value(reader: _Reader, kind: int, depth: int = 0) -> Value:
    if kind == STRING:
        return reader.text()
    if kind in NUMBERS:
        return reader.numbers(NUMBERS[kind], 1)[0]
    if kind != ARRAY:
        raise reader.wrong(f"a value's type must be from 0 to 12 (got {kind})")
    if depth == MAX_NESTING:
        raise reader.wrong(f"arrays are nested more than {MAX_NESTING} deep")
    return _array(reader, depth + 1)


def _array(reader: _Reader, depth: int) -> Value:
    kind, count = reader.number("I"), reader.number("Q")
    if kind in NUMBERS:
        if count <= MAX_NUMBERS:
            return reader.numbers(NUMBERS[kind], count)
        reader.skip(count * struct.calcsize(f"={NUMBERS[kind]}"))
        return None
    reader.require(count * 8)  # a text or an array takes as much at least
    for _ in range(count):
        if kind == STRING:
            reader.skip(reader.number("Q"))
        else:
            _value(reader, kind, depth)
    return None


def _tensor(reader: _Reader) -> TensorInfo:
    name, num_dimensions = _name(reader), reader.number("I")
    if num_dimensions > MAX_DIMENSIONS:
        raise reader.wrong(f"a tensor has {num_dimensions} dimensions, at most {MAX_DIMENSIONS} are known")
    dimensions = tuple(int(size) for size in reader.numbers("Q", num_dimensions))
    info = TensorInfo(name, dimensions, reader.number("I"))
    reader.skip(8)  # where its data is
    return info
