"""HTTP answers: every framing, any cut, and what is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.replay.errors import BrokenAnswer
from simserve.replay.http_parser import ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FRAMINGS = {
    "a length": OK + b"Content-Length: 5\r\n\r\nhello",
    "until it closes": OK + b"\r\nhello",
    "chunks": CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "chunks with extensions and trailers": CHUNKED + b"5;name=value\r\nhello\r\n0\r\nDigest: x\r\n\r\n",
    "after a continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 5\r\n\r\nhello",
    "lines of the old kind": b"HTTP/1.0 200\nContent-Length: 5\n\nhello",
    "a chunk size with a leading zero": CHUNKED + b"005\r\nhello\r\n000\r\n\r\n",
}


def _read(*pieces: bytes) -> tuple[int, bytes, ResponseParser]:
    parser = ResponseParser()
    body = b"".join(parser.feed(piece) for piece in pieces)
    parser.end()
    return parser.status, body, parser


@pytest.mark.parametrize("answer", FRAMINGS.values(), ids=FRAMINGS)
def test_framings(answer):
    """The same body, however it is framed."""
    assert _read(answer)[:2] == (200, b"hello")


@given(st.sampled_from(sorted(FRAMINGS)), st.lists(st.integers(0, 120), max_size=6))
def test_any_cut_gives_the_same_body(name, cuts):
    """How the network cuts an answer changes nothing in it."""
    answer = FRAMINGS[name]
    places = sorted({min(cut, len(answer)) for cut in cuts} | {0, len(answer)})
    pieces = [answer[begin:end] for begin, end in pairwise(places)]
    assert _read(*pieces)[:2] == (200, b"hello")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6))
def test_chunks_of_any_bytes(parts):
    """Bodies are not looked into: line ends and sizes inside a chunk are its content."""
    chunks = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    assert _read(CHUNKED + chunks + b"0\r\n\r\n")[1] == b"".join(parts)


@given(st.binary(max_size=200), st.sampled_from([b"", OK, CHUNKED, OK + b"Content-Length: 9\r\n\r\n"]))
def test_noise_ends_in_words(noise, start):
    """Whatever comes, either it is an answer or a ``BrokenAnswer`` says what is wrong with it."""
    try:
        _read(start + noise)
    except BrokenAnswer as error:
        assert str(error)


def test_half_a_chunk_is_handed_on():
    """Bytes are due when they arrive, not when their chunk is whole."""
    parser = ResponseParser()
    assert parser.feed(CHUNKED + b"a\r\n01234") == b"01234"
    assert not parser.complete
    assert parser.feed(b"56789\r\n0\r\n\r\n") == b"56789"
    assert parser.complete


BROKEN = {
    "cut in the length": (OK + b"Content-Length: 9\r\n\r\nhello", "closed in the middle"),
    "cut in a chunk": (CHUNKED + b"9\r\nhello", "closed in the middle"),
    "cut between chunks": (CHUNKED + b"5\r\nhello\r\n", "closed in the middle"),
    "cut before the last line": (CHUNKED + b"5\r\nhello\r\n0\r\n", "closed in the middle"),
    "no number": (CHUNKED + b"five\r\nhello\r\n", "not HTTP"),
    "a negative chunk": (CHUNKED + b"-5\r\nhello\r\n", "not HTTP"),
    "a longer chunk than said": (CHUNKED + b"2\r\nhello\r\n", "not HTTP"),
    "no length": (OK + b"Content-Length: many\r\n\r\n", "not HTTP"),
    "a negative length": (OK + b"Content-Length: -1\r\n\r\n", "not HTTP"),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
    "a status of letters": (b"HTTP/1.1 two OK\r\n\r\n", "not HTTP"),
    "headers without end": (OK + b"a: b\r\n" * 20_000, "headers of more than 64 KiB"),
    "an endless chunk size": (CHUNKED + b"0" * 5000, "not HTTP"),
    "nothing": (b"", "closed without an answer"),
    "half a head": (OK, "closed in the middle"),
}


@pytest.mark.parametrize(("answer", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_answers(answer, said):
    """Every cut and every excess is said in words."""
    with pytest.raises(BrokenAnswer, match=said):
        _read(answer)


def test_what_came_before_a_break_is_handed_on():
    """Garbage in the same packet takes nothing from the chunk before it."""
    parser = ResponseParser()
    assert parser.feed(CHUNKED + b"5\r\nhello\r\nwhat\r\n") == b"hello"
    assert parser.broken is not None and parser.feed(b"more") == b""


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (FRAMINGS["a length"], True),
        (FRAMINGS["chunks"], True),
        (FRAMINGS["chunks"] + b"more", False),
        (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
    ],
)
def test_when_a_connection_can_go_on(answer, kept):
    """Only after a whole answer, on HTTP/1.1, unless the server says otherwise or spoke out of turn."""
    assert _read(answer)[2].keeps_alive is kept
