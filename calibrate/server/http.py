"""One HTTP/1.1 connection on asyncio streams, as little of it as timing needs.

A client library would hide when bytes arrive and when a connection is opened: both decide what TTFT means here. So the
connection is open before the clock starts, lines are handed out as they arrive, and every read has a time limit.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from calibrate.server.address import Address

_MAX_CHUNK_BYTES = 1 << 24
_MAX_BODY_BYTES = 1 << 22
_MAX_HEADERS = 200


class BrokenAnswer(Exception):
    """The connection failed, fell silent, or what came over it is no HTTP answer; another try may work."""


class Silence(BrokenAnswer):
    """Nothing came for as long as we wait; another try would mostly wait as long again."""


@dataclass
class Response:
    """Status, headers (names in lower case) and the body's lines still to come."""

    status: int
    headers: dict[str, str]
    lines: AsyncIterator[bytes] = field(repr=False)

    async def text(self) -> str:
        """The whole body, up to 4 MiB of it."""
        parts, size = [], 0
        async for line in self.lines:
            size += len(line) + 1
            if size > _MAX_BODY_BYTES:
                raise BrokenAnswer("an answer of more than 4 MiB")
            parts.append(line)
        return b"\n".join(parts).decode("utf-8", "replace")


class Connection:
    """A connection that is kept alive over requests while the server lets it."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        """Connect, unless a connection is there that the server has not closed. Raises ``BrokenAnswer``."""
        if self._streams is not None and not self._streams[0].at_eof():
            return
        self.close()
        secure = ssl.create_default_context() if self._address.scheme == "https" else None
        try:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_connection(self._address.host, self._address.port, ssl=secure)
        except TimeoutError:
            raise BrokenAnswer(f"no connection within {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise BrokenAnswer(f"no connection ({_reason(error)})") from None

    async def request(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Response:  # noqa: ANN401 - JSON
        """Send a request on the open connection and read the answer's head. Raises ``BrokenAnswer``."""
        if self._streams is None:
            await self.open()
        assert self._streams is not None
        reader, writer = self._streams
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {self._address.base_path}{path} HTTP/1.1", f"Host: {self._address}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Type: application/json"] * (body is not None) + [f"Content-Length: {len(payload)}", "", ""]
        try:
            writer.write("\r\n".join(lines).encode("latin-1", "replace") + payload)
            async with asyncio.timeout(self._timeout_s):
                await writer.drain()
            status, found = await self._head(reader)
            while status // 100 == 1:
                status, found = await self._head(reader)
        except BaseException as error:
            self.close()
            raise _translated(error, self._timeout_s) from None
        return Response(status, found, self._lines(reader, found))

    def close(self) -> None:
        """Let go of the connection; a server that notices stops generating."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(self._timeout_s):
            start = (await reader.readuntil(b"\n")).decode("latin-1").split(maxsplit=2)
            if len(start) < 2 or not start[0].startswith("HTTP/1.") or not start[1].isdigit():
                raise BrokenAnswer("something that is not HTTP")
            headers: dict[str, str] = {}
            for _ in range(_MAX_HEADERS):
                line = (await reader.readuntil(b"\n")).decode("latin-1").strip()
                if not line:
                    return int(start[1]), headers
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
        raise BrokenAnswer(f"more than {_MAX_HEADERS} headers")

    async def _lines(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """Lines of the body without their ends. The connection lives on only if the body was read to its end."""
        rest, whole, streams = b"", False, self._streams
        try:
            async for data in self._body(reader, headers):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _MAX_CHUNK_BYTES:
                    raise BrokenAnswer("a line of more than 16 MiB")
                for line in lines:
                    yield line.rstrip(b"\r")
            whole = headers.get("connection", "").lower() != "close" and _has_an_end(headers)
            if rest:
                yield rest
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise _translated(error, self._timeout_s) from None
        finally:
            # An abandoned reader is finalised late, when the connection may already be another one.
            if not whole and self._streams is streams:
                self.close()

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, by whichever framing the headers tell."""
        if headers.get("transfer-encoding", "").lower().endswith("chunked"):
            while True:
                async with asyncio.timeout(self._timeout_s):
                    size = int((await reader.readuntil(b"\n")).split(b";")[0], 16)
                    if not 0 <= size <= _MAX_CHUNK_BYTES:
                        raise BrokenAnswer("a chunk of more than 16 MiB")
                    data = await reader.readexactly(size)
                    await reader.readuntil(b"\n")
                if not size:
                    return
                yield data
        left = int(headers["content-length"]) if "content-length" in headers else None
        while left is None or left > 0:
            async with asyncio.timeout(self._timeout_s):
                data = await reader.read(1 << 16 if left is None else min(left, 1 << 16))
            if not data and left is not None:
                raise BrokenAnswer("an answer that ends too early")
            if not data:
                return
            left = None if left is None else left - len(data)
            yield data


def _has_an_end(headers: dict[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers


def _translated(error: BaseException, timeout_s: float) -> BaseException:
    if isinstance(error, TimeoutError):
        return Silence(f"silence for {timeout_s:g} s")
    if isinstance(error, EOFError):
        return BrokenAnswer("a connection closed in the middle of an answer")
    if isinstance(error, ValueError | asyncio.LimitOverrunError):
        return BrokenAnswer("something that is not HTTP")
    return BrokenAnswer(f"a broken connection ({_reason(error)})") if isinstance(error, OSError) else error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
