"""One answer read token by token, loads that fail, and addresses without their secrets."""

from __future__ import annotations

import asyncio
import time

import pytest

from calibrate.errors import CalibrationError
from calibrate.server.address import parse_address
from calibrate.server.client import Answer, Refused, complete
from calibrate.server.dialect import Dialect
from calibrate.server.http import BrokenAnswer, Connection
from calibrate.server.load import MAX_TRIES, Client, GaveUp, OutOfTime
from tests.fake_server import FakeServer

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 10, "temperature": 0, "stream": True}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def _ask(server: FakeServer, body: dict[str, object], timeout_s: float = 5.0) -> Answer:
    async def run() -> Answer:
        async with asyncio.timeout(10), server.serve():
            return await complete(Connection(parse_address(server.url), timeout_s), {}, body)

    return asyncio.run(run())


def _load(server: FakeServer, number: int = 1, limit_s: float = 30.0, timeout_s: float = 5.0) -> tuple[Client, object]:
    """A load of ``number`` requests: the client, and its answers or the error it ended in."""

    async def run() -> tuple[Client, object]:
        async with asyncio.timeout(20), server.serve():
            client = Client(parse_address(server.url), server.key, timeout_s, time.monotonic() + limit_s)
            try:
                return client, await client.together([BODY] * number)
            except (Refused, GaveUp, OutOfTime) as error:
                return client, error

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("server", "more", "counts", "counting"),
    [
        (FakeServer(tokens_per_event=4), CONTINUOUS, (4, 8, 10), "usage of each event"),
        (FakeServer(tokens_per_event=4), {}, (4, 8, 10), "usage spread over events"),
        (FakeServer(), {}, tuple(range(1, 11)), "one token an event, as usage confirms"),
        (FakeServer(greets=True), {}, tuple(range(1, 11)), "one token an event, as usage confirms"),
        (FakeServer(usage=False), {}, tuple(range(1, 11)), "one token an event, as usage confirms"),
    ],
    ids=["told", "spread", "one each", "greeting", "by length"],
)
def test_events_are_not_tokens(
    server: FakeServer, more: dict[str, object], counts: tuple[int, ...], counting: str
) -> None:
    """Ten tokens are ten, in three events or in ten, and the answer says how it knows."""
    answer = _ask(server, BODY | more)
    assert (answer.counts, answer.counting) == (counts, counting)
    assert len(answer.times) == len(counts)
    assert answer.num_prompt_tokens == (3 if server.usage else None)
    assert answer.ttft_s > 0


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (FakeServer(always="garbage"), "an event that is not JSON"),
        (FakeServer(always="cut"), r"a stream that ends without \[DONE\]"),
        (FakeServer(always="error"), "out of cake"),
        (FakeServer(always="flood"), "more events than the tokens"),
        (FakeServer(always="nonsense"), "something that is not HTTP"),
        (FakeServer(always="reset"), "closed in the middle of an answer|broken connection"),
        (FakeServer(always="stall"), "silence for 0.3 s"),
        (FakeServer(usage=False, finish_reason="stop"), "without usage"),
    ],
    ids=["garbage", "cut", "error", "flood", "no HTTP", "reset", "stall", "no usage"],
)
def test_hostile_answers_end_in_a_sentence(server: FakeServer, said: str) -> None:
    """Every way of not answering raises, in words, within the time-out."""
    began = time.monotonic()
    with pytest.raises(BrokenAnswer, match=said):
        _ask(server, BODY, timeout_s=0.3)
    assert time.monotonic() - began < 3


def test_tries_are_bounded_and_counted() -> None:
    """A server that always fails is asked five times, and the error names it and what it said."""
    server = FakeServer(always=500)
    client, error = _load(server)
    assert isinstance(error, GaveUp) and not error.busy
    assert (
        str(error) == f'127.0.0.1:{server.port}/v1/completions: must answer (got HTTP 500: {{"detail": "no"}}; 5 tries)'
    )
    assert server.num_requests == MAX_TRIES == client.failures["answers of 500"]


def test_what_another_try_cannot_change_is_not_tried_again() -> None:
    """A 400 ends at once."""
    server = FakeServer(always=400)
    _, error = _load(server)
    assert isinstance(error, Refused) and error.status == 400
    assert server.num_requests == 1


def test_retry_after_is_honoured() -> None:
    """429 with Retry-After: 1 waits a second, then all is well; the wait is counted."""
    server = FakeServer(faults=[429], retry_after="1")
    began = time.monotonic()
    client, answers = _load(server)
    assert time.monotonic() - began >= 1
    assert isinstance(answers, list) and len(answers) == 1
    assert client.failures == {"answers of 429 (busy)": 1}


@pytest.mark.parametrize(
    ("wait", "kind"), [("5", OutOfTime), ("86400", GaveUp), ("Fri, 01 Jan 2100 00:00:00 GMT", GaveUp)]
)
def test_a_wait_beyond_the_limit_is_not_begun(wait: str, kind: type[Exception]) -> None:
    """A Retry-After beyond the time left, or of a day, or a date: the answer is immediate."""
    began = time.monotonic()
    _, error = _load(FakeServer(always=429, retry_after=wait), limit_s=3.0)
    assert isinstance(error, kind)
    assert time.monotonic() - began < 3


def test_a_wait_that_means_nothing_is_none() -> None:
    """Words in Retry-After leave our own pause."""
    _, answers = _load(FakeServer(faults=[429], retry_after="soon"))
    assert isinstance(answers, list)


def test_connections_are_kept_alive() -> None:
    """Four requests one after another take one connection; three at once take three."""
    server = FakeServer()

    async def run() -> None:
        async with asyncio.timeout(20), server.serve():
            client = Client(parse_address(server.url), None, 5.0, time.monotonic() + 30)
            for _ in range(4):
                await client.together([BODY])
            assert server.num_connections == 1
            await client.together([BODY] * 3)
            assert server.num_connections == 3

    asyncio.run(run())


def test_nobody_there_is_a_sentence() -> None:
    """A port where nothing listens: counted, bounded, said."""
    server = FakeServer()

    async def run() -> None:
        async with server.serve():
            pass
        await Client(parse_address(server.url), None, 1.0, time.monotonic() + 30).together([BODY])

    with pytest.raises(GaveUp, match=r"127\.0\.0\.1:\d+/v1/completions: must answer \(got no connection"):
        asyncio.run(run())


def test_the_key_is_nowhere_in_what_is_said() -> None:
    """A server that repeats the key in its refusal does not make us repeat it."""
    server = FakeServer(key="sk-secret")

    async def run() -> None:
        async with asyncio.timeout(10), server.serve():
            client = Client(parse_address(server.url), "sk-wrong", 5.0, time.monotonic() + 9)
            with pytest.raises(Refused) as refused:
                await client.together([BODY])
            assert "sk-wrong" in str(refused.value)
            assert "sk-wrong" not in client.scrub(str(refused.value))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "shown", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("http://user:pa55@host:80/v1/", "host:80", ""),
        ("https://host/base/v1?api_key=pa55", "host:443", "/base"),
        ("http://[::1]:8000", "[::1]:8000", ""),
    ],
)
def test_addresses(url: str, shown: str, path: str) -> None:
    """Host and port are kept, a path before /v1 is used; user, password and query are gone."""
    address = parse_address(url)
    assert (str(address), address.base_path) == (shown, path)
    assert "pa55" not in repr(address)


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://host", "http://", "http://host:eighty", "http://u:pa55@host:99999"]
)
def test_addresses_that_are_none(url: str) -> None:
    """One sentence, without the password."""
    with pytest.raises(CalibrationError, match="url: must be http://HOST:PORT") as caught:
        parse_address(url)
    assert "pa55" not in str(caught.value) and "\n" not in str(caught.value)


def test_units_make_the_nearest_length() -> None:
    """With two tokens a letter and one in front, 16 becomes 15 or 17, and a prompt is never empty."""
    dialect = Dialect("tiny", tokens_per_unit=2.0, offset=1.0)
    import random

    body = dialect.body(16, 1, random.Random(0))
    assert len(body["prompt"]) in (14, 16)
    assert body["prompt"].count(" ") == len(body["prompt"]) // 2
    assert dialect.body(0, 1, random.Random(0))["prompt"]
