"""Connections to one server, opened before they are needed and kept while the server lets them.

A request leases its connection a little before it is due, so that TTFT has no handshake in it and a slow ``accept`` is
not mistaken for a slow first token; what it still waited for a connection when it was due is recorded apart.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from simserve.replay.address import Address
from simserve.replay.connection import Connection
from simserve.replay.errors import BrokenAnswer
from simserve.replay.exchange import reason_of

CONNECT_WITHIN_S = 30.0
Lease = Connection | asyncio.Task[Connection]


class Pool:
    """Idle connections are leased last in, first out; there is no upper limit but the system's."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: dict[Connection, None] = {}
        self._all: set[Connection] = set()
        self._opening: set[asyncio.Task[Connection]] = set()
        self._hosts: list[str] = []
        self._secure = ssl.create_default_context() if address.scheme == "https" else None

    def lease(self) -> Lease:
        """A connection, or one that is being opened."""
        return self._idle.popitem()[0] if self._idle else self.fresh()

    def fresh(self) -> asyncio.Task[Connection]:
        """A new connection that is being opened."""
        task = asyncio.create_task(self.open())
        self._opening.add(task)
        task.add_done_callback(self._opened)
        return task

    async def take(self, lease: Lease) -> Connection:
        """The leased connection, or a new one if it was lost meanwhile. Raises BrokenAnswer."""
        connection = lease if isinstance(lease, Connection) else await lease
        return connection if connection.is_open else await self.open()

    async def open(self) -> Connection:
        """A new connection. Raises BrokenAnswer in the system's words."""
        error: Exception | None = None
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                for host in await self._resolved():
                    try:
                        return await self._open_to(host)
                    except OSError as failed:
                        error = failed
        except TimeoutError:
            raise BrokenAnswer(f"no connection within {CONNECT_WITHIN_S:g} s") from None
        except (OSError, UnicodeError) as failed:
            error = failed
        assert error is not None
        raise BrokenAnswer(f"no connection ({reason_of(error)})")

    def close(self) -> None:
        """Close every connection and stop opening more."""
        for task in self._opening:
            task.cancel()
        for connection in list(self._all):
            connection.close()

    async def _open_to(self, host: str) -> Connection:
        loop = asyncio.get_running_loop()
        name = self._address.host if self._secure else None
        _, connection = await loop.create_connection(
            lambda: Connection(self._keep, self._forget),
            host,
            self._address.port,
            ssl=self._secure,
            server_hostname=name,
        )
        self._all.add(connection)
        self._hosts = [host]  # the one that answers: later ones need no second guess
        return connection

    async def _resolved(self) -> list[str]:
        """The server's addresses, looked up once: a look-up per connection would take a thread each."""
        if not self._hosts:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
            self._hosts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        return self._hosts

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # whoever holds the lease hears of it; nobody else needs to

    def _keep(self, connection: Connection) -> None:
        self._idle[connection] = None

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._all.discard(connection)
