"""A server that misbehaves in every way we know of: each request ends, counted under what became of it, and nobody
else's answer suffers."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from email.utils import formatdate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.replay.pool import Pool
from simserve.replay.words import kind_of, one_line, reason_in, retry_after_s
from tests.replay_builders import AGAIN, PLAN, load_on, outcomes_on, plan, requests
from tests.replay_server import ReplayServer

IMPATIENT = plan(timeout_s=1.5, ttft_timeout_s=0.8)
FAULTS = {
    "silent": ("timed_out", "no first token within 0.8 s"),
    "headers only": ("timed_out", "no first token within 0.8 s"),
    "endless comments": ("timed_out", "no first token within 0.8 s"),
    "stall": ("timed_out", "silence for 0.5 s"),
    "reset": ("failed", "a broken connection"),
    "close": ("failed", "a connection closed without an answer"),
    "reset in stream": ("failed", "a broken connection"),
    "not http": ("failed", "something that is not HTTP"),
    "html": ("failed", "text/html instead of a stream"),
    "no stream": ("failed", "application/json instead of a stream"),
    "gzip": ("failed", "compressed"),
    "endless tokens": ("failed", "more events than the tokens"),
    "huge line": ("failed", "an event of more than 1 MiB"),
    "garbage": ("failed", "an event that is not JSON"),
    "error": ("failed", "an error in its stream: out of cake"),
    "no end": ("failed", r"ends without \[DONE\]"),
    "half a chunk": ("failed", "closed in the middle"),
    "bad chunk": ("failed", "something that is not HTTP"),
    "half close": ("failed", "closed in the middle"),
    "talks on": ("finished", ""),
    "half a refusal": ("rejected", "HTTP 503: busy"),
    429: ("rejected", "HTTP 429: no"),
    400: ("rejected", "HTTP 400"),
    500: ("rejected", "HTTP 500"),
    204: ("rejected", "HTTP 204"),
}


@pytest.fixture(scope="module")
def ended():
    """All the faults in one load, an honest answer after each; what became of whom, and how long it took."""
    faults = [fault for each in FAULTS for fault in (each, None)]
    server = ReplayServer(ttft_s=0.02, itl_s=0.01, faults=faults, retry_after="7")
    began = time.perf_counter()
    outcomes, senders = outcomes_on(server, requests(np.arange(len(faults)) * 0.05), clients=IMPATIENT, stall_s=0.5)
    took_s = time.perf_counter() - began
    return dict(zip(FAULTS, outcomes[::2], strict=True)), outcomes[1::2], senders, took_s


@pytest.mark.parametrize(("fault", "status", "said"), [(f, *ends) for f, ends in FAULTS.items()], ids=map(str, FAULTS))
def test_each_fault_ends_its_request(ended, fault, status, said):
    """Its status, and in words why. Nothing is tried again that nobody asked to try again."""
    outcome = ended[0][fault]
    assert outcome.status == status
    assert outcome.error == "" if not said else re.search(said, outcome.error)
    assert outcome.num_attempts == 1
    assert outcome.end_s >= outcome.sent_s >= outcome.due_s


def test_the_others_are_answered(ended):
    """An honest answer between two faults is whole."""
    assert {(each.status, each.num_emitted_tokens) for each in ended[1]} == {("finished", 5)}


def test_it_is_over_in_time(ended):
    """The last request is due after 2.5 s and gives up 1.5 s after that; a refusal's text is waited for 5 s at most."""
    assert ended[3] < 15


def test_tokens_before_a_break_are_kept(ended):
    """What came before a stream broke is there, with its time."""
    for fault in ("reset in stream", "stall", "half a chunk", "half close", "bad chunk"):
        assert ended[0][fault].num_emitted_tokens == 1, fault
        assert ended[0][fault].counting == "one token an event, assumed"


def test_every_fault_is_counted(ended):
    """One count per attempt that brought no whole answer."""
    assert sum(ended[2].faults.values()) == sum(status != "finished" for status, _ in FAULTS.values())


def test_http_statuses_are_kept(ended):
    """What the server answered with, 0 where no answer began."""
    statuses = {
        fault: ended[0][fault].http_status for fault in (429, 400, 500, 204, "stall", "silent", "half a refusal")
    }
    assert statuses == {429: 429, 400: 400, 500: 500, 204: 204, "stall": 200, "silent": 0, "half a refusal": 503}


def _again(**more):
    return replace(PLAN, retry=replace(AGAIN, **more))


def test_turned_away_and_sent_again():
    """429 twice, then an answer: three attempts, latencies from the first one, Retry-After kept each time."""
    server = ReplayServer(faults=[429, 429], retry_after="1")
    [outcome], senders = outcomes_on(server, requests([0.0]), clients=_again())
    assert (outcome.status, outcome.num_attempts, outcome.num_turned_away) == ("finished", 3, 2)
    assert 2.0 <= outcome.away_s < 4.0
    assert outcome.sent_s - outcome.arrival_s >= 2.0
    assert outcome.error == "" and senders.faults == {"HTTP 429: no": 2}


@pytest.mark.parametrize("header", ["61", "999999999", "Fri, 31 Dec 2999 23:59:59 GMT"])
def test_nobody_waits_for_years(header):
    """A Retry-After of more than a minute ends the request instead of the replay."""
    [outcome], _ = outcomes_on(ReplayServer(faults=[429], retry_after=header), requests([0.0]), clients=_again())
    assert (outcome.status, outcome.num_attempts) == ("rejected", 1)


def test_attempts_come_to_an_end():
    """A server that is always busy: as many attempts as the plan allows, doubling pauses of 20 and 40 ms between."""
    [outcome], _ = outcomes_on(ReplayServer(always=503), requests([0.0]), clients=_again())
    assert (outcome.status, outcome.num_attempts, outcome.http_status) == ("rejected", 3, 503)
    assert outcome.away_s >= 0.06


@pytest.mark.parametrize("fault", ["reset", "close", "not http", 500, 502, 408, "silent", "half a refusal"])
def test_what_is_tried_again(fault):
    """Broken before the first token, busy, timed out: the next attempt may do better, and does."""
    clients = replace(_again(), ttft_timeout_ns=300_000_000)
    [outcome], _ = outcomes_on(ReplayServer(faults=[fault]), requests([0.0]), clients=clients)
    assert (outcome.status, outcome.num_attempts) == ("finished", 2)


@pytest.mark.parametrize("fault", [400, 422, 404, "reset in stream", "half a chunk"])
def test_what_is_not_tried_again(fault):
    """A request that is wrong stays wrong, and half an answer was read already."""
    [outcome], _ = outcomes_on(ReplayServer(faults=[fault]), requests([0.0]), clients=_again())
    assert outcome.status in ("rejected", "failed") and outcome.num_attempts == 1


def test_only_what_the_plan_names_is_tried_again():
    """``after: [timed_out]`` leaves a 429 alone, ``after: [rejected]`` a time-out."""
    [turned_away], _ = outcomes_on(ReplayServer(faults=[429]), requests([0.0]), clients=_again(after_rejection=False))
    clients = replace(_again(after_timeout=False), timeout_ns=200_000_000)
    [timed_out], _ = outcomes_on(ReplayServer(faults=["silent"]), requests([0.0]), clients=clients)
    assert (turned_away.status, timed_out.status) == ("rejected", "timed_out")
    assert turned_away.num_attempts == timed_out.num_attempts == 1


def test_users_leave():
    """A request whose user leaves after 0.2 s is cancelled then, also while it waits to be sent again."""
    column = np.array([200_000_000, -1])
    outcomes, _ = outcomes_on(
        ReplayServer(ttft_s=0.6), requests([0.0, 0.0]), clients=replace(PLAN, cancel_after_ns=column)
    )
    assert [each.status for each in outcomes] == ["cancelled", "finished"]
    assert outcomes[0].end_s > 0.19 and outcomes[0].error == "its user left"
    server = ReplayServer(always=429, retry_after="5")
    [away], _ = outcomes_on(server, requests([0.0]), clients=replace(_again(), cancel_after_ns=column[:1]))
    assert away.status == "cancelled" and 0.19 < away.end_s < 2.0 and away.num_attempts == 1


def test_nobody_there():
    """A port where nobody listens: every request fails with the system's words, at once."""

    async def run():
        async with ReplayServer().serve() as server:
            url = server.url
        return await load_on(url, requests([0.0, 0.1, 1.3]))

    load, _ = asyncio.run(run())
    assert {each.status for each in load.outcomes} == {"failed"}
    assert all("no connection" in each.error for each in load.outcomes)
    assert all(each.end_s - each.due_s < 1.0 for each in load.outcomes)


def test_a_server_that_accepts_nobody_is_waited_for_apart(monkeypatch):
    """What a request waits for its connection is no lateness of ours: it is recorded apart."""

    original = Pool._open_to

    async def slow(self, host):
        await asyncio.sleep(1.5)
        return await original(self, host)

    monkeypatch.setattr(Pool, "_open_to", slow)
    outcomes, _ = outcomes_on(ReplayServer(), requests([2.0]))
    assert outcomes[0].status == "finished"
    assert 0.3 < outcomes[0].connect_wait_s < 1.4
    assert outcomes[0].arrival_s - outcomes[0].due_s == pytest.approx(outcomes[0].connect_wait_s, abs=0.3)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), (" 3 ", 3.0), ("-1", 0.0), ("soon", 0.0), ("", 0.0), (None, 0.0), ("1e9", 0.0)],
)
def test_retry_after_in_seconds(header, seconds):
    """RFC 9110: a whole number of seconds; what is none asks for nothing."""
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date():
    """RFC 9110: or a date; one that is past asks for nothing."""
    assert retry_after_s(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_what_a_server_says_is_made_fit_for_a_line():
    """Control characters and length are cut from what ends up in a table."""
    assert one_line("a\x1b[31m\n\tb") == "a [31m b"
    assert len(one_line("x" * 1000)) == 160


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"object": "error", "message": "no such\\nmodel"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "busy"}', "busy"),
        (b'{"detail": [{"loc": ["body"]}]}', '{"detail": [{"loc": ["body"]}]}'),
        (b"upstream\nrequest timeout", "upstream request timeout"),
        (b'{"error": {"message": "cut in the mid', '{"error": {"message": "cut in the mid'),
        (b"17", "17"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_reasons_are_found(body, reason):
    """The message inside vLLM's, OpenAI's, FastAPI's and a proxy's refusals; else the text itself."""
    assert reason_in(body) == reason


def test_refusals_that_differ_in_numbers_are_one_kind():
    """A thousand prompts that are too long are one line of the table, not a thousand."""
    said = [f"HTTP 400: your prompt has {n} tokens" for n in (2221, 17)]
    assert {kind_of(words) for words in said} == {"HTTP 400: your prompt has N tokens"}
    assert kind_of("silence for 0.5 s") == "silence for 0.5 s"
    assert kind_of("HTTP 503") == "HTTP 503"


HEADS = st.sampled_from(
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n",
        b"HTTP/1.1 429 No\r\nRetry-After: soon\r\nContent-Length: 3\r\n\r\n",
    ]
)
WORDS = st.sampled_from(
    [
        b"data: [DONE]\n\n",
        b'data: {"choices": [{"text": "x"}]}\n\n',
        b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 2}}\n\n',
        b'data: {"choices": [], "usage": {"completion_tokens": -1}}\n\n',
        b'data: {"choices": [7]}\n\n',
        b"data: null\n\n",
        b"10\r\n",
        b"0\r\n\r\n",
        b"\r\n",
    ]
)
ANSWERS = st.tuples(HEADS, st.lists(WORDS | st.binary(max_size=12), max_size=6)).map(lambda a: [a[0], *a[1]])


@settings(deadline=None, max_examples=25)  # each waits for a time-out or two
@given(st.lists(ANSWERS, min_size=1, max_size=4), st.booleans())
def test_any_bytes_at_all_end_the_requests(answers, holds):
    """Whatever bytes come, in whatever pieces, and whether or not the server then hangs up: every request ends with a
    status that says so, its tokens rising in number and time, and there is no exception."""

    async def answer(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for piece in left.pop(0) if left else []:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if not holds:
                    writer.close()
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, asyncio.CancelledError):
            writer.close()

    left = [list(pieces) for pieces in answers]

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        try:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return (await load_on(url, requests([0.0] * len(answers)), plan(timeout_s=0.05)))[0].outcomes
        finally:
            server.close()

    for outcome in asyncio.run(run()):
        assert outcome.status in ("finished", "failed", "rejected", "timed_out")
        assert (outcome.status == "finished") == (outcome.error == "")
        assert outcome.token_counts == sorted(set(outcome.token_counts))
        assert outcome.token_times_s == sorted(outcome.token_times_s)
        assert len(outcome.token_counts) == len(outcome.token_times_s)
