"""One TCP (or TLS) connection: bytes go to whoever holds it, and nobody waits for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from simserve.replay.http_parser import ResponseParser


class Receiver(Protocol):
    """Who holds a connection."""

    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


class Connection(asyncio.Protocol):
    """``receiver`` gets what arrives. ``on_idle`` is told when it can carry another request, ``on_closed`` when never
    again. ``num_answers`` counts what it has carried."""

    def __init__(self, on_idle: Callable[[Connection], None], on_closed: Callable[[Connection], None]) -> None:
        self.receiver: Receiver | None = None
        self.is_open = False
        self.num_answers = 0
        self._on_idle, self._on_closed = on_idle, on_closed
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self.receiver is None:
            self.close()  # a server that speaks unasked
        else:
            self.receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.connection_lost(exc)
        self._on_closed(self)

    def write(self, data: bytes) -> None:
        """Send; never waits. On a connection that is gone, ``receiver`` is told later, as for any other loss."""
        assert self._transport is not None
        if self.is_open:
            self._transport.write(data)
        elif self.receiver is not None:
            asyncio.get_running_loop().call_soon(self.receiver.connection_lost, None)

    def settle(self, keeps_alive: bool) -> None:
        """The answer is whole: make room for another, if the server lets it."""
        self.receiver = None
        self.num_answers += 1
        if keeps_alive and self.is_open:
            self._on_idle(self)
        else:
            self.close()

    def drain(self, parser: ResponseParser, within_s: float) -> None:
        """The answer has said all; hear out the last bytes of its framing, for so long."""
        self.receiver = _Drain(self, parser, within_s)

    def close(self) -> None:
        """Let go of it at once; a server that notices stops generating."""
        self.receiver = None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class _Drain:
    """Waits for the end of a body in which nothing more may come."""

    def __init__(self, connection: Connection, parser: ResponseParser, within_s: float) -> None:
        self._connection, self._parser = connection, parser
        self._timer = asyncio.get_running_loop().call_later(within_s, connection.close)

    def data_received(self, data: bytes) -> None:
        spoke_on = bool(self._parser.feed(data).strip()) or self._parser.broken is not None
        if spoke_on or self._parser.complete:
            self._timer.cancel()
            self._connection.settle(self._parser.keeps_alive and not spoke_on)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
