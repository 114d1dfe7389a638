"""Connections: kept, replaced, given up, and their failures in words."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from simserve.replay.address import parse_address
from simserve.replay.connection import Connection
from simserve.replay.errors import BrokenAnswer, Refused
from simserve.replay.exchange import Exchange, GaveUp, Limits, Stale
from simserve.replay.fetch import fetch_json
from simserve.replay.pool import Pool
from simserve.replay.server import Server

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Heard:
    """A sink that is done when it has heard ``stop``."""

    def __init__(self, stop: bytes = b"nothing") -> None:
        self.body = b""
        self.stop = stop
        self.has_begun = False

    def head(self, headers: dict[str, str]) -> None:
        pass

    def take(self, body: bytes, now_s: float) -> bool:
        self.body += body
        self.has_begun = True
        return self.stop in self.body

    def end(self, now_s: float) -> None:
        pass


@asynccontextmanager
async def _pool(handler: Handler, url: str = "http://127.0.0.1", **options) -> AsyncIterator[Pool]:
    """A pool to a server that gives every connection to ``handler`` once a request's head is there."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    pool = Pool(parse_address(f"{url}:{server.sockets[0].getsockname()[1]}"))
    try:
        async with asyncio.timeout(20):
            yield pool
    finally:
        pool.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(pool: Pool, sink: Heard | None = None, limits: Limits = Limits(10.0)) -> Connection:  # noqa: B008
    connection = await pool.take(pool.lease())
    await Exchange(connection, sink or Heard(), limits).run(b"GET / HTTP/1.1\r\n\r\n")
    return connection


def _run(coroutine):
    return asyncio.run(coroutine)


async def _hello(reader, writer):
    writer.write(OK + b"hi")


def test_a_connection_carries_one_answer_after_another():
    """The same one, while the server lets it."""

    async def run():
        async with _pool(_hello) as pool:
            first, second = await _ask(pool), await _ask(pool)
            assert first is second and first.num_answers == 2

    _run(run())


def test_two_at_once_have_two():
    """Nobody waits for a connection that another holds."""

    async def run():
        async with _pool(_hello) as pool:
            first, second = await asyncio.gather(_ask(pool), _ask(pool))
            assert first is not second

    _run(run())


def test_an_idle_one_that_the_server_closed_is_not_leased():
    """Closed while idle: the next lease opens another, and nothing is called stale."""

    async def once(reader, writer):
        writer.write(OK + b"hi")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    async def run():
        async with _pool(once) as pool:
            first = await _ask(pool)
            await asyncio.sleep(0.3)
            second = await _ask(pool)
            assert first is not second and not first.is_open

    _run(run())


def test_one_that_is_lost_between_lease_and_sending_is_replaced():
    """Leased a second before it is due, closed meanwhile."""

    async def run():
        async with _pool(_hello) as pool:
            first = await _ask(pool)
            lease = pool.lease()
            assert lease is first
            first.close()
            assert await pool.take(lease) is not first

    _run(run())


def test_a_kept_one_that_closes_instead_of_answering_is_stale():
    """Only one that has carried an answer: a fresh one that closes is broken."""
    carried = 0

    async def fickle(reader, writer):
        nonlocal carried
        carried += 1
        if carried == 2:
            writer.close()
        writer.write(OK + b"hi")

    async def run():
        async with _pool(fickle) as pool:
            await _ask(pool)
            with pytest.raises(Stale):
                await _ask(pool)

    async def gone(reader, writer):
        writer.close()

    async def run_fresh():
        async with _pool(gone) as pool:
            with pytest.raises(BrokenAnswer, match="closed without an answer") as error:
                await _ask(pool)
            assert not isinstance(error.value, Stale)

    _run(run())
    _run(run_fresh())


def test_what_is_said_unasked_closes_it():
    """Bytes on an idle connection belong to no answer of ours: it is not used again."""

    async def chatty(reader, writer):
        writer.write(OK + b"hi")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    async def run():
        async with _pool(chatty) as pool:
            first = await _ask(pool)
            await asyncio.sleep(0.3)
            assert not first.is_open

    _run(run())


@pytest.mark.parametrize(("after", "kept"), [(b"0\r\n\r\n", True), (b"4\r\nmore\r\n", False), (b"what\r\n", False)])
def test_after_the_last_word_the_framing_is_heard_out(after, kept):
    """A sink that is done is done at once; its connection is kept if only the end of the framing follows."""

    async def late(reader, writer):
        writer.write(CHUNKED + b"4\r\nstop\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(after)

    async def run():
        async with _pool(late) as pool:
            connection = await _ask(pool, Heard(b"stop"))
            assert connection.num_answers == 0
            await asyncio.sleep(0.3)
            assert connection.is_open is kept and connection.num_answers == 1

    _run(run())


def test_a_framing_that_never_ends_is_not_waited_for_long(monkeypatch):
    """The connection is closed after its time, so that nothing leaks."""
    monkeypatch.setattr("simserve.replay.exchange._END_WITHIN_S", 0.2)

    async def never(reader, writer):
        writer.write(CHUNKED + b"4\r\nstop\r\n")

    async def run():
        async with _pool(never) as pool:
            connection = await _ask(pool, Heard(b"stop"))
            assert connection.is_open
            await asyncio.sleep(0.5)
            assert not connection.is_open

    _run(run())


async def _begins(reader, writer):
    writer.write(CHUNKED + b"4\r\nmore\r\n")


async def _silent(reader, writer):
    await asyncio.sleep(10)


LIMITS = {
    "whole answer": (_begins, Limits(0.3), "no whole answer within 0.3 s"),
    "first token": (_silent, Limits(5.0, ttft_timeout_s=0.3), "no first token within 0.3 s"),
    "silence": (_begins, Limits(5.0, stall_timeout_s=0.3), "silence for 0.3 s"),
    "both, the earlier": (_silent, Limits(0.3, ttft_timeout_s=0.4), "no whole answer within 0.3 s"),
}


@pytest.mark.parametrize(("handler", "limits", "said"), LIMITS.values(), ids=LIMITS)
def test_limits(handler, limits, said):
    """Each ends the attempt when it is due and not before, and closes the connection."""

    async def run():
        async with _pool(handler) as pool:
            connection = await pool.take(pool.lease())
            exchange = Exchange(connection, Heard(), limits)
            with pytest.raises(GaveUp, match=said) as error:
                await exchange.run(b"GET / HTTP/1.1\r\n\r\n")
            assert error.value.status == "timed_out" and not connection.is_open
            assert 0.29 < exchange.end_s - exchange.sent_s < 1.5

    _run(run())


def test_silence_before_the_first_token_is_a_queue():
    """A server may be silent for as long as it likes before an answer begins: that is queueing, not a stall."""

    async def queued(reader, writer):
        await asyncio.sleep(0.8)
        writer.write(OK + b"hi")

    async def run():
        async with _pool(queued) as pool:
            assert (await _ask(pool, limits=Limits(5.0, stall_timeout_s=0.2))).num_answers == 1

    _run(run())


def test_a_slow_stream_is_no_stall():
    """Bytes every 0.1 s against a limit of 0.3 s: the whole of it is heard."""

    async def slow(reader, writer):
        writer.write(CHUNKED)
        for _ in range(10):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")

    async def run():
        async with _pool(slow) as pool:
            sink = Heard()
            await _ask(pool, sink, Limits(10.0, stall_timeout_s=0.3))
            assert sink.body == b"x" * 10

    _run(run())


def test_a_long_refusal_is_cut_short():
    """An endless page behind a 500 is not read to its end: its beginning is reason enough."""

    async def endless(reader, writer):
        writer.write(b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await writer.drain()

    async def run():
        async with _pool(endless) as pool:
            with pytest.raises(Refused) as error:
                await _ask(pool)
            assert error.value.status == 500 and len(str(error.value)) < 200

    _run(run())


def test_a_document_by_get():
    """JSON is returned, what is none is said, and so is what is too large."""

    async def run(body: bytes):
        async def document(reader, writer):
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

        async with _pool(document) as pool:
            return await fetch_json(pool, Server(parse_address("http://h")), "/v1/models")

    assert _run(run(b'{"data": []}')) == {"data": []}
    with pytest.raises(BrokenAnswer, match="not JSON"):
        _run(run(b"<html>"))
    with pytest.raises(BrokenAnswer, match="more than 4 MiB"):
        _run(run(b" " * (1 << 23)))


def test_plain_http_where_tls_was_asked_for():
    """``https://`` to a server that speaks none: it answers the handshake with text, and that is said."""

    async def run():
        server = await asyncio.start_server(
            lambda reader, writer: writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "127.0.0.1", 0
        )
        pool = Pool(parse_address(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        try:
            with pytest.raises(BrokenAnswer, match=r"^no connection \(.*ssl"):
                await pool.open()
        finally:
            server.close()

    _run(run())


def test_a_handshake_that_does_not_come_about(monkeypatch):
    """A server that accepts and then says nothing of TLS is given up."""
    monkeypatch.setattr("simserve.replay.pool.CONNECT_WITHIN_S", 0.3)

    async def run():
        async with _pool(_silent, "https://127.0.0.1") as pool:
            with pytest.raises(BrokenAnswer, match=r"^no connection within 0.3 s$"):
                await pool.open()

    _run(run())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for ``localhost`` that signed itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls(certificate, monkeypatch):
    """A certificate that nobody vouches for is refused, in words; one that the system trusts is not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def run():
        async with _pool(_hello, "https://localhost", ssl=context) as pool:
            return (await _ask(pool)).num_answers

    with pytest.raises(BrokenAnswer, match="certificate verify failed"):
        _run(run())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert _run(run()) == 1


def test_a_name_that_is_looked_up():
    """``localhost`` may mean ::1 first, where nobody listens: the other address is tried, and remembered."""

    async def run():
        async with _pool(_hello, "http://localhost") as pool:
            await _ask(pool)
            assert pool._hosts == ["127.0.0.1"]

    _run(run())


def test_closing_the_pool_leaves_nothing():
    """Idle, held and opening ones are all closed."""

    async def run():
        async with _pool(_hello) as pool:
            idle = await _ask(pool)
            held = await pool.take(pool.fresh())
            opening = pool.fresh()
            pool.close()
            await asyncio.sleep(0.1)
            assert not idle.is_open and not held.is_open and opening.cancelled()

    _run(run())
