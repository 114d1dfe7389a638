"""One request on one connection and the answer that comes back, under time limits; it always ends."""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass
from typing import Literal, Protocol

from simserve.replay.connection import Connection
from simserve.replay.errors import BrokenAnswer, Refused
from simserve.replay.http_parser import ResponseParser
from simserve.replay.words import one_line, reason_in, retry_after_s

_REASON_BYTES = 1 << 12  # of a refusal's text
_REASON_WITHIN_S = 5.0
_STALE_WITHIN_S = 1.0  # of sending: a connection lost later had taken the request
_END_WITHIN_S = 1.0  # of the last bytes of an answer that has said it is done


class GaveUp(Exception):
    """This client let the attempt go: out of patience, or because its user left."""

    def __init__(self, status: Literal["timed_out", "cancelled"], reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Stale(BrokenAnswer):
    """A connection that had carried an answer before was closed instead of carrying this one: the server's right."""


@dataclass(frozen=True)
class Limits:
    """Seconds from sending to the whole answer, to its first token, and of silence; ``leaves_s``: the clock's time at
    which the user leaves."""

    timeout_s: float
    ttft_timeout_s: float = float("inf")
    stall_timeout_s: float = float("inf")
    leaves_s: float = float("inf")


class Sink(Protocol):
    """Where the body of a good answer goes."""

    @property
    def has_begun(self) -> bool: ...
    def head(self, headers: dict[str, str]) -> None: ...
    def take(self, body: bytes, now_s: float) -> bool: ...
    def end(self, now_s: float) -> None: ...


class Exchange:
    """``sent_s`` and ``end_s`` are seconds of ``perf_counter``; ``status`` is HTTP's, 0 until an answer begins."""

    def __init__(self, connection: Connection, sink: Sink, limits: Limits) -> None:
        self.status = 0
        self.sent_s = self.end_s = float("nan")
        self._connection = connection
        self._sink = sink
        self._limits = limits
        self._parser = ResponseParser()
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._reason = b""
        self._refused_s = float("inf")
        self._heard_s = 0.0
        self._said_done = False

    async def run(self, request: bytes) -> None:
        """Send the request's bytes and wait for the end of its answer. Raises BrokenAnswer, Refused or GaveUp; on
        cancellation the connection is closed, so that the server can stop."""
        self.sent_s = self._heard_s = time.perf_counter()
        self._connection.receiver = self
        self._connection.write(request)
        self._check_limits()
        try:
            await self._done
        finally:
            if math.isnan(self.end_s):
                self.end_s = time.perf_counter()
            if self._timer is not None:
                self._timer.cancel()
            self._settle_connection()

    def data_received(self, data: bytes) -> None:
        """Bytes from the connection, the moment they arrive."""
        now_s = self._heard_s = time.perf_counter()
        try:
            body = self._parser.feed(data)
            if not self.status and self._parser.status:
                self._head(now_s)
            self._body(body, now_s)
            if self._parser.broken:
                raise self._parser.broken
        except (BrokenAnswer, Refused) as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The server (or the network) closed the connection, in the middle or not."""
        try:
            at_once = time.perf_counter() - self.sent_s < _STALE_WITHIN_S
            if not self.status and self._connection.num_answers and at_once:
                raise Stale("a kept connection closed without an answer")
            if error is not None and not self._parser.complete:
                raise BrokenAnswer(f"a broken connection ({reason_of(error)})")
            self._parser.end()
            self._body(b"", time.perf_counter())
        except (BrokenAnswer, Refused) as broken:
            self._end(broken)

    def _head(self, now_s: float) -> None:
        self.status = self._parser.status
        if self.status == 200:
            self._sink.head(self._parser.headers)
        else:
            self._refused_s = now_s + _REASON_WITHIN_S
            self._check_limits()

    def _body(self, body: bytes, now_s: float) -> None:
        if self.status not in (0, 200):
            self._reason += body[:_REASON_BYTES]
            if self._parser.complete or len(self._reason) >= _REASON_BYTES:
                raise self._refusal()
        elif body and self._sink.take(body, now_s):
            self._said_done = True
            self._end(None)
        elif self._parser.complete:
            self._sink.end(now_s)
            self._end(None)

    def _refusal(self) -> Refused:
        return Refused(self.status, reason_in(self._reason), retry_after_s(self._parser.headers.get("retry-after")))

    def _check_limits(self) -> None:
        """Give up if it is time to, else look again when it may be. Bytes that arrive move no timer."""
        if self._timer is not None:
            self._timer.cancel()
        now_s, limits = time.perf_counter(), self._limits
        due = {
            limits.leaves_s: GaveUp("cancelled", "its user left"),
            self.sent_s + limits.timeout_s: GaveUp("timed_out", f"no whole answer within {limits.timeout_s:g} s"),
        }
        if self._sink.has_begun:
            silent = GaveUp("timed_out", f"silence for {limits.stall_timeout_s:g} s")
            due[self._heard_s + limits.stall_timeout_s] = silent
        else:
            late = GaveUp("timed_out", f"no first token within {limits.ttft_timeout_s:g} s")
            due[self.sent_s + limits.ttft_timeout_s] = late
        first_s = min(*due, self._refused_s)
        if first_s <= now_s:
            was_refused = self.status not in (0, 200)  # and the rest of its reasons is not worth the wait
            self._end(self._refusal() if was_refused else due[first_s])
        elif first_s < float("inf"):  # a stream may begin before that, and then fall silent
            self._timer = self._loop.call_later(min(first_s - now_s, limits.stall_timeout_s), self._check_limits)

    def _end(self, error: Exception | None) -> None:
        if self._done.done():
            return
        self.end_s = time.perf_counter()
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _settle_connection(self) -> None:
        """Keep the connection if its answer is whole (or about to be: ``[DONE]`` comes before the last chunk)."""
        whole = self._done.done() and not self._done.cancelled() and self._parser.status != 0
        if whole and self._parser.complete:
            self._connection.settle(self._parser.keeps_alive)
        elif whole and self._said_done:
            self._connection.drain(self._parser, _END_WITHIN_S)
        else:
            self._connection.close()


def reason_of(error: Exception) -> str:
    """Why a connection failed, in the system's words."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno).lower()  # asyncio's own text repeats the address
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
