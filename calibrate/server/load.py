"""Requests that start together, again and again until they all came through, within limits.

A load in which one stream broke measures nothing, so it is repeated as a whole: at most ``MAX_TRIES`` times, with the
wait that a 429 asks for or a growing pause. Everything that went wrong is counted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from calibrate.errors import CalibrationError
from calibrate.server.address import Address
from calibrate.server.client import COMPLETIONS, Answer, Refused, complete, one_line
from calibrate.server.http import BrokenAnswer, Connection, Silence

MAX_TRIES = 5
MAX_SILENT_TRIES = 2
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 60.0
_LAG_EVERY_S = 0.005


class OutOfTime(Exception):
    """The time limit of the whole calibration is reached."""


class GaveUp(CalibrationError):
    """Every try failed; ``busy`` if the server said 429 to the last, or nothing: less of a load may succeed."""

    def __init__(self, message: str, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


class Client:
    """Connections to one server, what went wrong on them, and how late this process itself was.

    ``lags_s``: by how much the event loop overslept, sampled while loads ran: the error of an arrival time that is this
    client's own. The key goes into the header of requests and nowhere else.
    """

    def __init__(self, address: Address, api_key: str | None, timeout_s: float, deadline_s: float) -> None:
        self.address = address
        self.failures: Counter[str] = Counter()
        self.lags_s: list[float] = []
        self._key = api_key
        self._headers = {"Accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._idle: list[Connection] = []

    async def get(self, path: str) -> tuple[Any, float]:
        """The JSON of a GET and the seconds it took on an open connection. Raises ``GaveUp`` or ``Refused``."""

        async def once(connection: Connection) -> tuple[Any, float]:
            await connection.open()
            began = time.perf_counter()
            response = await connection.request("GET", path, self._headers)
            text = await response.text()
            took_s = time.perf_counter() - began
            if response.status != 200:
                raise Refused(response.status, one_line(text), response.headers.get("retry-after"))
            try:
                return json.loads(text), took_s
            except (ValueError, RecursionError):
                raise BrokenAnswer("something that is not JSON") from None

        for number in range(MAX_TRIES):
            async with self._limit():
                [connection] = self._take(1)
                try:
                    return await once(connection)
                except (Refused, BrokenAnswer) as error:
                    connection.close()
                    await self._pause(error, number, path)
                finally:
                    self._idle.append(connection)
        raise AssertionError("the last pause raises")

    async def together(self, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """The answers to all ``bodies``, sent at once. Raises ``Refused`` (a status that another try will not change),
        ``GaveUp`` or ``OutOfTime``."""
        for number in range(MAX_TRIES):
            async with self._limit():
                connections = self._take(len(bodies))
                try:
                    return await self._once(connections, bodies)
                except (Refused, BrokenAnswer) as error:
                    await self._pause(error, number, COMPLETIONS)
                finally:
                    self._idle += connections
        raise AssertionError("the last pause raises")

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._idle:
            connection.close()

    def scrub(self, text: str) -> str:
        """``text`` without the key, which some servers repeat in what they answer."""
        return text.replace(self._key, "…") if self._key else text

    async def _once(self, connections: list[Connection], bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        for connection in connections:
            await connection.open()
        watch = asyncio.create_task(self._watch())
        pairs = zip(connections, bodies, strict=True)
        tasks = [asyncio.create_task(complete(connection, self._headers, body)) for connection, body in pairs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in (watch, *tasks):
                task.cancel()
            await asyncio.gather(watch, *tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LAG_EVERY_S)
            self.lags_s.append(time.perf_counter() - before - _LAG_EVERY_S)

    def _take(self, count: int) -> list[Connection]:
        while len(self._idle) < count:
            self._idle.append(Connection(self.address, self._timeout_s))
        taken, self._idle = self._idle[:count], self._idle[count:]
        return taken

    def _limit(self) -> _Limit:
        return _Limit(self._deadline_s)

    async def _pause(self, error: Refused | BrokenAnswer, number: int, path: str) -> None:
        """Count a failure, and wait if another try may help; else raise."""
        busy = isinstance(error, Refused) and error.status == 429
        pause_s = _FIRST_PAUSE_S * 2**number
        if isinstance(error, Refused):
            if not busy and error.status not in (408, 425) and error.status < 500:
                raise error
            self.failures["answers of 429 (busy)" if busy else f"answers of {error.status}"] += 1
            pause_s = max(pause_s, _seconds(error.retry_after))
        else:
            self.failures[self.scrub(str(error))] += 1
        silent = isinstance(error, Silence)
        if number + 1 >= (MAX_SILENT_TRIES if silent else MAX_TRIES) or pause_s > _MAX_PAUSE_S:
            what = self.scrub(str(error))
            tries = f"{number + 1} tries" if number else "1 try, and a wish to be left alone for a while"
            raise GaveUp(f"{self.address}{path}: must answer (got {what}; {tries})", busy or silent)
        if time.monotonic() + pause_s > self._deadline_s:
            raise OutOfTime
        await asyncio.sleep(pause_s)


class _Limit:
    """``asyncio.timeout`` up to a time of ``monotonic``, as ``OutOfTime``."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(max(0.0, self._deadline_s - time.monotonic()))
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:  # noqa: ANN401
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise OutOfTime from None


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header, seconds or a date, in seconds from now; 0 if there is none or it means nothing."""
    if not retry_after:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
