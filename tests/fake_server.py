"""An OpenAI-compatible completions server on loopback whose step times follow a formula, on a clock of its own.

It batches continuously: one prompt per prefill step, TTFT = ``a`` + ``b``·prompt + ``q``·prompt²/2, prefills first;
else one token for each of B streams in ``c`` + ``d``·B + ``e``·Σ context. ``now_s`` is its clock: a client that
reads the same clock sees these times exactly, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

KNOWN = {"model", "prompt", "max_tokens", "temperature", "stream"}
FORCED = {"ignore_eos", "min_tokens"}


@dataclass
class Stream:
    """A request under way."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    num_prompt: int
    num_output: int
    continuous: bool
    done: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: int = 0
    told: int = 0


@dataclass
class FakeServer:
    """``faults`` are taken one per completion: a status (``429``), or ``reset``, ``stall``, ``garbage``, ``cut``,
    ``error``, ``slow``, ``flood``, ``nonsense``; ``None`` is a good answer, and so is whatever comes after the last.
    ``always`` is a fault that never ends."""

    a: float = 0.030
    b: float = 1e-3
    q: float = 0.0
    c: float = 0.010
    d: float = 2e-3
    e: float = 5e-6
    tokens_per_event: int = 1
    accepts: frozenset[str] = frozenset({*FORCED, "stream_options"})
    takes_ids: bool = True
    usage: bool = True
    finish_reason: str = "length"
    greets: bool = False
    max_num_seqs: int = 64
    stalls_from: int = 1000
    max_model_len: int = 100_000
    key: str | None = None
    retry_after: str | None = None
    faults: list[str | int | None] = field(default_factory=list)
    always: str | int | None = None
    models: tuple[str, ...] = ("tiny",)
    now_s: float = 100.0
    port: int = 0
    num_requests: int = 0
    num_connections: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[Stream] = field(default_factory=list)
    running: list[Stream] = field(default_factory=list)

    def perf_counter(self) -> float:
        """The clock, as the client would read it."""
        return self.now_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FakeServer]:
        """Listen on a free port of loopback."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        engine = asyncio.create_task(self._engine())
        try:
            yield self
        finally:
            engine.cancel()
            server.close()

    @contextmanager
    def in_a_thread(self) -> Iterator[FakeServer]:
        """The same, for a client that runs a loop of its own."""
        ready, stop = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def run() -> None:
            async with self.serve():
                ready.set()
                await stop.wait()

        def main() -> None:
            loop.run_until_complete(run())
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

        thread = threading.Thread(target=main)
        thread.start()
        ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    async def _engine(self) -> None:
        while True:
            for _ in range(5):  # whoever waits for the last step's tokens reads the clock now
                await asyncio.sleep(0)
            await asyncio.sleep(0.0005)
            for streams in (self.waiting, self.running):
                streams[:] = [stream for stream in streams if not stream.reader.at_eof()]
            if len(self.waiting) + len(self.running) >= self.stalls_from:
                continue
            if self.waiting and len(self.running) < self.max_num_seqs:
                stream = self.waiting.pop(0)
                self.now_s += self.a + self.b * stream.num_prompt + self.q * stream.num_prompt**2 / 2
                self.running.append(stream)
                self._emit(stream)
            elif self.running:
                context = sum(stream.num_prompt + stream.tokens for stream in self.running)
                self.now_s += self.c + self.d * len(self.running) + self.e * context
                for stream in list(self.running):
                    self._emit(stream)

    def _emit(self, stream: Stream) -> None:
        stream.tokens += 1
        ended = stream.tokens == stream.num_output
        if ended or stream.tokens % self.tokens_per_event == 0:
            choice = {"index": 0, "text": "x" * (stream.tokens - stream.told), "finish_reason": None}
            event: dict[str, Any] = {"choices": [choice]}
            if stream.continuous:
                event["usage"] = self._usage(stream)
            _send(stream.writer, f"data: {json.dumps(event)}\n\n")
            stream.told = stream.tokens
        if ended:
            self.running.remove(stream)
            last: dict[str, Any] = {"choices": [{"index": 0, "text": "", "finish_reason": self.finish_reason}]}
            if self.usage:
                last["usage"] = self._usage(stream)
            _send(stream.writer, f": a comment\ndata: {json.dumps(last)}\r\n\r\ndata: [DONE]\n\n", end=True)
            stream.done.set()

    def _usage(self, stream: Stream) -> dict[str, int]:
        return {"prompt_tokens": stream.num_prompt, "completion_tokens": stream.tokens}

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split()[0])
                body = json.loads(await reader.readexactly(length) or b"null")
                if not await self._answer(head, body, reader, writer):
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(  # noqa: PLR0911 - a way out per kind of answer
        self, head: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection lives on."""
        if self.key and f"bearer {self.key}".lower() not in head:
            said = head.partition("bearer ")[2].partition("\r")[0]
            return _json(writer, 401, {"error": f"wrong key {said}"})
        if "get " in head[:4]:
            return _json(writer, 200, {"data": [{"id": name} for name in self.models]})
        self.num_requests += 1
        fault = self.always or (self.faults.pop(0) if self.faults else None)
        if fault is not None:
            return await self._fail(fault, writer)
        unknown = set(body) - KNOWN - self.accepts
        if unknown:
            return _json(writer, 422, {"detail": f"unexpected fields {sorted(unknown)}"})
        if isinstance(body["prompt"], list) and not self.takes_ids:
            return _json(writer, 400, {"detail": "prompt must be a string"})
        num_prompt = len(body["prompt"]) if isinstance(body["prompt"], list) else len(body["prompt"]) + 1
        if num_prompt + body["max_tokens"] > self.max_model_len:
            return _json(writer, 400, {"detail": "too long"})
        continuous = bool(body.get("stream_options", {}).get("continuous_usage_stats")) and self.usage
        stream = Stream(reader, writer, num_prompt, body["max_tokens"], continuous)
        self.bodies.append(body)
        _head(writer)
        if self.greets:
            _send(writer, 'data: {"choices": [{"index": 0, "text": ""}]}\n\n')
        self.waiting.append(stream)
        await stream.done.wait()
        return True

    async def _fail(self, fault: str | int, writer: asyncio.StreamWriter) -> bool:
        if isinstance(fault, int):
            return _json(writer, fault, {"detail": "no"}, self.retry_after)
        if fault == "nonsense":
            writer.write(b"\x00\xff nonsense\r\n\r\n")
            return False
        _head(writer)
        if fault == "stall":
            await asyncio.sleep(30)
        elif fault == "slow":  # never silent, never done
            while True:
                _send(writer, ": still here\n\n")
                await asyncio.sleep(0.02)
        elif fault == "flood":
            _send(writer, 'data: {"choices": [{"text": "x"}]}\n' * 100)
            await asyncio.sleep(30)
        elif fault == "reset":
            writer.transport.abort()
        else:
            said = {"garbage": "data: {not json\n\n", "error": 'data: {"error": "out of cake"}\n\n', "cut": ""}[fault]
            _send(writer, said, end=True)
        await writer.drain()
        return fault != "reset"


def _head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")


def _send(writer: asyncio.StreamWriter, text: str, end: bool = False) -> None:
    data = text.encode()
    chunk = f"{len(data):x}\r\n".encode() + data + b"\r\n" if data else b""
    writer.write(chunk + (b"0\r\n\r\n" if end else b""))


def _json(writer: asyncio.StreamWriter, status: int, content: object, retry_after: str | None = None) -> bool:
    body = json.dumps(content).encode()
    more = f"Retry-After: {retry_after}\r\n" if retry_after else ""
    writer.write(f"HTTP/1.1 {status} Said\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return True
