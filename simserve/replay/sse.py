"""Server-sent events from bytes cut anywhere (WHATWG HTML, 9.2); no input or output."""

from __future__ import annotations

from simserve.replay.errors import BrokenAnswer

MAX_EVENT_BYTES = 1 << 20


class EventParser:
    """The ``data`` of each event, as bytes. Comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""  # a line that is not whole yet
        self._data: list[bytes] = []  # of the event that is not whole yet
        self._size = 0
        self._skip_newline = False  # the last line ended in \r: an \n to come belongs to it
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete. Raises BrokenAnswer when one is larger than 1 MiB."""
        if self._skip_newline and data:
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        lines = (self._rest + data).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest = lines.pop()
        elif lines and lines[-1].endswith(b"\r"):
            self._skip_newline = True
        events: list[bytes] = []
        for line in lines:
            self._take(line.rstrip(b"\r\n"), events)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenAnswer("an event of more than 1 MiB")
        return events

    def end(self) -> list[bytes]:
        """The stream has ended: an event without its blank line counts too, since some servers forget the last one."""
        events: list[bytes] = []
        if self._rest:
            self._take(self._rest, events)
            self._rest = b""
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data, self._size = [], 0
            return
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b"data: ") else line[5:]
        elif line == b"data":
            value = b""
        else:
            return
        self._data.append(value)
        self._size += len(value)
        if self._size > MAX_EVENT_BYTES:
            raise BrokenAnswer("an event of more than 1 MiB")
