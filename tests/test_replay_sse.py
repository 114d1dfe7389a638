"""Server-sent events: the standard's examples, and any cut of the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.replay.errors import BrokenAnswer
from simserve.replay.sse import MAX_EVENT_BYTES, EventParser

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data:",
        b"data:  two",
        b": comment",
        b"event: x",
        b"id: 1",
        b"",
        b"",
        b"nonsense",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda lines: b"".join(a + b for a, b in lines))
NOISE = st.binary(max_size=60) | st.text("da:\r\n x", max_size=60).map(str.encode)


def _events(*pieces: bytes) -> list[bytes]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(STREAMS | NOISE, st.lists(st.integers(0, 120), max_size=8))
def test_any_cut_gives_the_same_events(data, cuts):
    """How the network cuts a stream changes nothing in its events."""
    assert _events(*_pieces(data, cuts)) == _events(data)


@given(STREAMS | NOISE)
def test_byte_by_byte_gives_the_same_events(data):
    """The finest cut, in which every ``\\r\\n`` falls apart."""
    assert _events(*(bytes([byte]) for byte in data)) == _events(data)


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b"")), max_size=5), ENDS)
def test_what_was_written_is_read(payloads, end):
    """One event per payload, each in the form that servers write, with any of the three line ends."""
    stream = b"".join(b"data: " + payload + end + end for payload in payloads)
    assert _events(stream) == payloads


@given(STREAMS, ENDS, ENDS)
def test_the_line_end_is_of_no_matter(data, old, new):
    """Streams that differ in their line ends alone have the same events."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert _events(lines.replace(b"\n", old)) == _events(lines.replace(b"\n", new))


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [b"YHOO\n+2\n10"]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [b"first event", b"second event", b" third event"],
        ),
        (b"data\n\ndata\ndata\n\n", [b"", b"\n"]),
        (b"data:test\n\ndata: test\n\n", [b"test", b"test"]),
        (b"\xef\xbb\xbfdata: after a mark\n\n", [b"after a mark"]),
    ],
)
def test_the_standard_s_examples(stream, events):
    """The streams that the HTML standard (9.2.6) works through, and its byte order mark."""
    assert _events(stream) == events


def test_events_come_with_the_bytes_that_complete_them():
    """An event is handed out with its blank line, not with whatever comes later: that moment is its time."""
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
    assert parser.feed(b"data: b\r\n\r") == [b"b"]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: c\n\ndata: d\n\nda") == [b"c", b"d"]


def test_the_last_event_may_lack_its_blank_line():
    """Some servers close right after ``data: [DONE]``."""
    assert _events(b"data: a\n\ndata: [DONE]") == [b"a", b"[DONE]"]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 60000 + b"\n"], ids=["a line", "an event"])
def test_nothing_grows_without_end(piece):
    """A line, or an event of many lines, that never ends is refused after a MiB."""
    parser = EventParser()
    with pytest.raises(BrokenAnswer, match="more than 1 MiB"):
        for _ in range(2 * MAX_EVENT_BYTES // len(piece)):
            parser.feed(piece)
