"""HTTP answers in every framing, cut anywhere, or made of noise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.server.address import Address
from calibrate.server.client import Answer, Refused, complete
from calibrate.server.http import BrokenAnswer, Connection, Silence

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
STREAM = (
    b'data: {"choices": [{"text": "a"}]}\n\n'
    b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)
BODY = {"max_tokens": 1}
NAMES = ["choices", "usage", "text", "finish_reason", "error"]


@asynccontextmanager
async def _serving(*answers: bytes, hold: bool = False) -> AsyncIterator[Address]:
    """A server that sends the next of ``answers`` to each request, whatever it asks, and after the last closes the
    connection (or holds it)."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
                writer.write(left.pop(0))
                await writer.drain()
            if hold:
                await asyncio.sleep(5)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield Address("http", "127.0.0.1", server.sockets[0].getsockname()[1], "")
    finally:
        server.close()


def _get(*answers: bytes, hold: bool = False) -> list[tuple[int, str]]:
    """Status and text of as many requests on one connection as there are answers."""

    async def run() -> list[tuple[int, str]]:
        async with asyncio.timeout(10), _serving(*answers, hold=hold) as address:
            connection = Connection(address, 0.3)
            found = []
            for _ in answers:
                await connection.open()
                response = await connection.request("GET", "/", {})
                found.append((response.status, await response.text()))
            return found

    return asyncio.run(run())


def _complete(answer: bytes) -> Answer:
    async def run() -> Answer:
        async with asyncio.timeout(10), _serving(answer) as address:
            return await complete(Connection(address, 1.0), {}, BODY)

    return asyncio.run(run())


FRAMINGS = {
    "a length": OK + b"Content-Length: 5\r\n\r\nhello",
    "until it closes": OK + b"\r\nhello",
    "chunks": CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "chunks with extensions": CHUNKED + b"5;name=value\r\nhello\r\n0\r\n\r\n",
    "after a continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 5\r\n\r\nhello",
    "lines of the old kind": b"HTTP/1.0 200\nContent-Length: 5\n\nhello",
}


@pytest.mark.parametrize("answer", FRAMINGS.values(), ids=FRAMINGS)
def test_framings(answer: bytes) -> None:
    """The same body, however it is framed."""
    assert _get(answer) == [(200, "hello")]


def test_one_connection_carries_answers_one_after_another() -> None:
    """What one framing leaves behind does not leak into the next answer."""
    answers = FRAMINGS["a length"], FRAMINGS["chunks"], OK + b"Content-Length: 3\r\n\r\nbye"
    assert _get(*answers) == [(200, "hello"), (200, "hello"), (200, "bye")]


BROKEN = {
    "cut in the length": (OK + b"Content-Length: 9\r\n\r\nhello", "an answer that ends too early"),
    "cut in a chunk": (CHUNKED + b"9\r\nhello", "closed in the middle"),
    "cut between chunks": (CHUNKED + b"5\r\nhello\r\n", "closed in the middle"),
    "no number": (CHUNKED + b"five\r\nhello\r\n", "something that is not HTTP"),
    "a vast chunk": (CHUNKED + b"ffffffffff\r\n", "a chunk of more than 16 MiB"),
    "no length": (OK + b"Content-Length: many\r\n\r\n", "something that is not HTTP"),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n", "something that is not HTTP"),
    "a status of letters": (b"HTTP/1.1 two OK\r\n\r\n", "something that is not HTTP"),
    "headers without end": (OK + b"a: b\r\n" * 300, "more than 200 headers"),
    "one endless header": (OK + b"a" * 200_000, "something that is not HTTP"),
    "nothing": (b"", "closed in the middle"),
}


@pytest.mark.parametrize(("answer", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_answers(answer: bytes, said: str) -> None:
    """Every cut and every excess is said in words."""
    with pytest.raises(BrokenAnswer, match=said):
        _get(answer)


def test_silence_is_told_from_breaks() -> None:
    """A server that holds the line and says no more."""
    with pytest.raises(Silence, match=r"silence for 0\.3 s"):
        _get(CHUNKED + b"5\r\nhello\r\n", hold=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, len(STREAM)), max_size=6))
def test_chunks_may_cut_events_anywhere(cuts: list[int]) -> None:
    """Chunk boundaries mean nothing: the events are the same."""
    edges = sorted({0, *cuts, len(STREAM)})
    parts = [STREAM[a:b] for a, b in pairwise(edges)]
    chunks = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    answer = _complete(CHUNKED + chunks + b"0\r\n\r\n")
    assert (answer.counts, answer.finish_reason) == ((1,), "length")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([b"", OK, CHUNKED, OK + b"\r\ndata: ", OK + b"\r\ndata: [DONE]\n"]), st.binary(max_size=200))
def test_noise_ends_in_words(head: bytes, noise: bytes) -> None:
    """Random bytes at any depth raise what callers expect, never anything else, and never hang."""
    with pytest.raises((BrokenAnswer, Refused)) as caught:
        _complete(head + noise)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_in_an_event_is_an_answer_or_words(event: object) -> None:
    """Fields of the wrong type are no defect of ours."""
    try:
        answer = _complete(OK + b"\r\ndata: " + json.dumps(event).encode() + b"\n" + STREAM)
    except BrokenAnswer as error:
        assert "\n" not in str(error)
    else:
        assert answer.times and answer.counts[-1] >= 1
