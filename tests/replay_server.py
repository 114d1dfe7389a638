"""An OpenAI-compatible server on loopback whose delays are known, and which can misbehave in every way it is told to.

Honest: the first token ``ttft_s`` after the request was read, each later event ``itl_s`` after the one before, by a
timetable, so that delays do not add up. ``python -m tests.replay_server PORT`` runs one for measurements by hand.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

KNOWN = {"model", "max_tokens", "temperature", "stream"}
FORCED = {"ignore_eos", "min_tokens"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "text": "x", "finish_reason": null}]}\n\n'
Fault = str | int | None


@dataclass
class ReplayServer:
    """``faults`` are taken one per request that the load sends (probes have none); ``always`` is one that never ends.
    ``arrived_s`` has the ``perf_counter`` at which each request of the load was read."""

    ttft_s: float = 0.05
    itl_s: float = 0.01
    tokens_per_event: int = 1
    accepts: frozenset[str] = frozenset({*FORCED, "stream_options"})
    takes_ids: bool = True
    usage: bool = True
    usage_of_each_event: bool = True
    only_chat: bool = False
    stops_after: int | None = None
    tokens_per_word: float = 1.0
    extra_prompt_tokens: int = 0
    greets: bool = False  # whose turn it is, before there is a token
    echoes: bool = False  # the prompt, as transformers' chat does
    usage_in_last: bool = False  # in the event that says why it ended, instead of one of its own
    says_done: bool = True
    closes: bool = False
    drops_kept: bool = False
    key: str | None = None
    retry_after: str | None = None
    faults: list[Fault] = field(default_factory=list)
    always: Fault = None
    faulty_probes: bool = False
    models: tuple[str, ...] = ("tiny",)
    num_probes: int = 5  # requests of 16 tokens with a prompt of 16, 64 or 128 units before the load
    port: int = 0
    arrived_s: list[float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[ReplayServer]:
        """Listen on loopback."""
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=4096, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def in_a_thread(self) -> Iterator[ReplayServer]:
        """The same, for a client that runs a loop of its own."""
        ready, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run() -> None:
            async with self.serve():
                ready.set()
                await stop.wait()

        def main() -> None:
            loop.run_until_complete(run())
            loop.close()

        thread = threading.Thread(target=main)
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        self.num_open += 1
        try:
            carried = 0
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split()[0]) if "content-length:" in head else 0
                body = json.loads(await reader.readexactly(length) or b"null")
                if self.drops_kept and carried and body is not None:
                    return  # as a server whose keep-alive time has just run out
                if not await self._answer(head, body, writer):
                    return
                carried += body is not None
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            self.num_open -= 1
            writer.close()

    async def _answer(self, head: str, body: Any, writer: asyncio.StreamWriter) -> bool:  # noqa: PLR0911
        """Whether the connection lives on."""
        arrived_s = time.perf_counter()
        if self.key and f"bearer {self.key}".lower() not in head:
            return _json(writer, 401, {"error": f"wrong key {head.partition('bearer ')[2].partition(chr(13))[0]}"})
        if head.startswith("get "):
            return _json(writer, 200, {"data": [{"id": name} for name in self.models]})
        is_chat = "/chat/" in head.partition("\r\n")[0]
        if self.only_chat and not is_chat:
            return _json(writer, 404, {"detail": "Not Found"})
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        is_probe = body["max_tokens"] == 16 and self._units(prompt) in (16, 64, 128)
        self.bodies.append(body)
        if not is_probe or self.faulty_probes:
            fault = self.always or (self.faults.pop(0) if self.faults else None)
            if not is_probe:
                self.arrived_s.append(arrived_s)
            if fault is not None:
                return await self._fail(fault, writer)
        unknown = set(body) - KNOWN - {"messages" if is_chat else "prompt"} - self.accepts
        if unknown:
            return _json(writer, 422, {"detail": f"unexpected fields {sorted(unknown)}"})
        if isinstance(prompt, list) and not self.takes_ids:
            return _json(writer, 400, {"detail": "prompt must be a string"})
        await self._stream(body, self._units(prompt), is_chat, arrived_s, writer)
        return not self.closes

    def _units(self, prompt: Any) -> int:
        return len(prompt) if isinstance(prompt, list) else len(prompt.split())

    async def _stream(
        self, body: dict[str, Any], units: int, is_chat: bool, arrived_s: float, writer: asyncio.StreamWriter
    ) -> None:
        num_output = min(body["max_tokens"], self.stops_after or body["max_tokens"])
        by_words = not isinstance(body.get("prompt"), list)
        num_prompt = round(units * self.tokens_per_word) + self.extra_prompt_tokens if by_words else units
        options = body.get("stream_options", {})
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if self.closes else HEAD)
        if self.greets:
            role = {"choices": [{"index": 0, "text": "", "delta": {"role": "assistant"}}]}
            send(writer, f"data: {json.dumps(role)}\n\n".encode())
        if self.echoes:
            send(writer, TOKEN)
        done, number = 0, 0
        while done < num_output:
            await asyncio.sleep(arrived_s + self.ttft_s + number * self.itl_s - time.perf_counter())
            done, number = min(num_output, done + self.tokens_per_event), number + 1
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            choice |= {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            event: dict[str, Any] = {"choices": [choice]}
            usage = {"prompt_tokens": num_prompt, "completion_tokens": done}
            if self.usage and self.usage_of_each_event and options.get("continuous_usage_stats"):
                event["usage"] = usage
            send(writer, f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        reason = "length" if num_output == body["max_tokens"] else "stop"
        last: dict[str, Any] = {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": reason}]}
        if self.usage and self.usage_in_last:
            last["usage"] = usage
        send(writer, f"data: {json.dumps(last)}\n\n".encode())
        if self.usage and not self.usage_in_last and options.get("include_usage"):
            send(writer, f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        if self.says_done:
            send(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    async def _fail(self, fault: str | int, writer: asyncio.StreamWriter) -> bool:
        if isinstance(fault, int):
            return _json(writer, fault, {"detail": "no"}, self.retry_after)
        if fault == "silent":
            await asyncio.sleep(60)
        elif fault == "reset":
            _reset(writer)
        elif fault == "close":
            return False
        elif fault == "not http":
            writer.write(b"\x00\xff nonsense\r\n\r\n")
        elif fault == "html":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")
        elif fault == "no stream":
            _json(writer, 200, {"choices": [{"text": "all at once"}]})
        elif fault == "gzip":
            writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        elif fault == "half a refusal":
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nbusy")
            await asyncio.sleep(60)
        else:
            writer.write(HEAD)
            await self._fail_in_stream(fault, writer)
        await writer.drain()
        return False

    async def _fail_in_stream(self, fault: str, writer: asyncio.StreamWriter) -> None:  # noqa: C901, PLR0912
        if fault == "headers only":
            await asyncio.sleep(60)
        elif fault == "endless comments":
            while True:
                send(writer, b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        elif fault == "endless tokens":
            while True:
                send(writer, TOKEN)
                await writer.drain()
                await asyncio.sleep(0.0005)
        elif fault == "huge line":
            for _ in range(64):
                send(writer, b"data: " + b"x" * (1 << 16))
                await writer.drain()
            await asyncio.sleep(60)
        elif fault == "garbage":
            send(writer, b"data: {not json\n\n")
        elif fault == "error":
            send(writer, b'data: {"error": {"message": "out of cake", "code": 500}}\n\n')
        elif fault == "no end":
            send(writer, TOKEN)
            writer.write(b"0\r\n\r\n")
        else:
            send(writer, TOKEN)
            await writer.drain()
            if fault == "reset in stream":
                _reset(writer)
            elif fault == "half a chunk":
                writer.write(b"100\r\ndata: {")
            elif fault == "bad chunk":
                writer.write(b"what\r\n")
            elif fault == "stall":
                await asyncio.sleep(60)
            elif fault == "half close":
                writer.write_eof()
                await asyncio.sleep(60)
            elif fault == "talks on":
                send(writer, b"data: [DONE]\n\n")
                while True:
                    send(writer, TOKEN)
                    await writer.drain()
                    await asyncio.sleep(0.01)
            else:
                raise AssertionError(fault)


def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close by RST instead of FIN, as a server that crashed does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _json(writer: asyncio.StreamWriter, status: int, content: object, retry_after: str | None = None) -> bool:
    body = json.dumps(content).encode()
    more = f"Retry-After: {retry_after}\r\n" if retry_after else ""
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return True


async def _by_hand(port: int, ttft_s: float, itl_s: float) -> None:
    async with ReplayServer(ttft_s=ttft_s, itl_s=itl_s).serve(port) as server:
        print(server.url, flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(_by_hand(int(sys.argv[1]), *map(float, sys.argv[2:4])))
