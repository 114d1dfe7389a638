"""HTTP/1.1 answers from bytes cut anywhere (RFC 9112); no input or output.

A partial chunk's bytes are handed on at once: when they arrived is what is measured.
"""

from __future__ import annotations

import re

from simserve.replay.errors import BrokenAnswer

_MAX_HEAD_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 12
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_NOT_HTTP = "something that is not HTTP"
_CUT = "a connection closed in the middle of an answer"


class ResponseParser:
    """One answer. ``status`` is 0 until its head is there; ``complete`` when its body has ended, after which ``excess``
    tells whether bytes came that belong to nothing. ``broken`` is set when it is no answer, or no longer one: what came
    before that is handed out all the same."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.excess = False
        self.broken: BrokenAnswer | None = None
        self._buffer = b""
        self._left: int | None = None  # of the body or of the present chunk; None: until the connection closes
        self._chunked = False
        self._in_trailer = False

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request when this answer is complete."""
        return self._version_keeps_alive and self.headers.get("connection", "").lower() != "close" and not self.excess

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return what of them (and of those before) is body."""
        if self.complete or self.broken:
            self.excess |= bool(data)
            return b""
        self._buffer += data
        parts: list[bytes] = []
        try:
            if self.status or self._read_head():
                if self._chunked:
                    self._read_chunks(parts)
                else:
                    self._read_plain(parts)
        except BrokenAnswer as error:
            self.broken = error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> None:
        """The server closed the connection. Raises BrokenAnswer if the answer needed more."""
        if self.broken:
            raise self.broken
        if self.complete:
            return
        if not self.status:
            raise BrokenAnswer(_CUT if self._buffer else "a connection closed without an answer")
        if self._chunked or self._left is not None:
            raise BrokenAnswer(_CUT)
        self.complete = True

    def _read_head(self) -> bool:
        """Whether the head is read; heads of 1xx answers are skipped."""
        while not self.status:
            if not b"HTTP/1."[: len(self._buffer)] == self._buffer[:7]:
                raise BrokenAnswer(_NOT_HTTP)
            end = _HEAD_END.search(self._buffer)
            if len(self._buffer if end is None else self._buffer[: end.start()]) > _MAX_HEAD_BYTES:
                raise BrokenAnswer("headers of more than 64 KiB")
            if end is None:
                return False
            head, self._buffer = self._buffer[: end.start()], self._buffer[end.end() :]
            self._parse_head(head.decode("latin-1").splitlines())
        return True

    def _parse_head(self, lines: list[str]) -> None:
        version, status, *_ = [*lines[0].split(maxsplit=2), "", ""]
        if not (status.isascii() and status.isdigit() and len(status) == 3 and status >= "100"):
            raise BrokenAnswer(_NOT_HTTP)
        if status.startswith("1"):
            return
        self.status = int(status)
        self._version_keeps_alive = version != "HTTP/1.0"
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._left, self._chunked = 0, False
        elif self._chunked:
            self._left = 0
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) <= 15):
                raise BrokenAnswer(_NOT_HTTP)
            self._left = int(length)

    def _read_plain(self, parts: list[bytes]) -> None:
        """A body with a length, or one that ends with the connection."""
        body, rest = self._buffer[: self._left], b"" if self._left is None else self._buffer[self._left :]
        parts.append(body)
        self._buffer = b""
        if self._left is not None:
            self._left -= len(body)
            self.complete, self.excess = not self._left, bool(rest)

    def _read_chunks(self, parts: list[bytes]) -> None:
        """Whatever of the body the buffer holds; a line that is not whole yet stays in it."""
        buffer, at = self._buffer, 0
        while not self.complete:
            if self._left:
                part = buffer[at : at + self._left]
                if not part:
                    break
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                continue
            end = buffer.find(b"\n", at)
            if (end if end >= 0 else len(buffer)) - at > _MAX_LINE_BYTES:
                raise BrokenAnswer(_NOT_HTTP)
            if end < 0:
                break
            self._between_chunks(buffer[at:end].strip())
            at = end + 1
        self._buffer = buffer[at:]
        if self.complete:
            self.excess, self._buffer = bool(self._buffer), b""

    def _between_chunks(self, line: bytes) -> None:
        """A line outside the chunks' data: the end of a chunk, a size, or a trailer."""
        if self._in_trailer:
            self.complete = not line
        elif self._left == 0 and self._after_data:
            if line:
                raise BrokenAnswer(_NOT_HTTP)
            self._after_data = False
        else:
            size = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,12}", size):
                raise BrokenAnswer(_NOT_HTTP)
            self._left = int(size, 16)
            self._after_data = bool(self._left)
            self._in_trailer = not self._left

    _after_data = False
    _version_keeps_alive = True
