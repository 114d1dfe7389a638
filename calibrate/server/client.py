"""One streaming completion: when its tokens came, and how many there were.

Several tokens can share a server-sent event, so events are never counted as tokens. What counts, in this order: the
usage told with each event; events, where the request's usage says that there were as many; else the request's tokens
spread over its events.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from calibrate.server.http import BrokenAnswer, Connection, Response

COMPLETIONS = "/v1/completions"
_MORE_EVENTS = 16  # greetings, farewells and empty ones, beside twice the tokens
Counting = Literal["usage of each event", "one token an event, as usage confirms", "usage spread over events"]


class Refused(Exception):
    """The server answered with a status other than 200, ``status``; ``retry_after`` as it said, in its own words."""

    def __init__(self, status: int, reason: str, retry_after: str | None = None) -> None:
        super().__init__(f"HTTP {status}" + (f": {reason}" if reason else ""))
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class Answer:
    """What one request brought. Times are seconds of ``perf_counter``; ``counts`` are the output tokens there were at
    each of ``times``; ``num_prompt_tokens`` as the server counted them, ``None`` if it does not tell."""

    sent_s: float
    times: tuple[float, ...]
    counts: tuple[int, ...]
    counting: Counting
    num_prompt_tokens: int | None
    finish_reason: str | None

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first event with tokens."""
        return self.times[0] - self.sent_s

    def between(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Indices of the first and the last event inside [start, end]; the last is below the first if there is none."""
        return bisect_left(self.times, start_s), bisect_right(self.times, end_s) - 1


@dataclass(frozen=True)
class _Event:
    time_s: float
    text: str
    count: int | None  # output tokens so far, where the event tells
    last: bool


async def complete(connection: Connection, headers: dict[str, str], body: dict[str, Any]) -> Answer:
    """Send ``body`` (with ``stream``) and read its stream to the end. Raises ``Refused`` or ``BrokenAnswer``."""
    await connection.open()
    sent_s = time.perf_counter()
    try:
        response = await connection.request("POST", COMPLETIONS, headers, body)
        if response.status != 200:
            reason = one_line(await response.text())
            raise Refused(response.status, reason, response.headers.get("retry-after"))
        events, usage, finish_reason = await _events(response, 2 * int(body["max_tokens"]) + _MORE_EVENTS)
    except BaseException:
        connection.close()  # whatever is still to come on it belongs to nobody
        raise
    num_output = _count_in(usage, "completion_tokens")
    if num_output is None and finish_reason == "length":
        num_output = int(body["max_tokens"])  # it stopped because it had that many
    if num_output is None:
        raise BrokenAnswer("an answer without usage, so that its tokens cannot be counted")
    times, counts, counting = _timed(events, num_output)
    if not times or counts[-1] < 1:
        raise BrokenAnswer("an answer without a token")
    return Answer(sent_s, tuple(times), tuple(counts), counting, _count_in(usage, "prompt_tokens"), finish_reason)


async def _events(response: Response, most: int) -> tuple[list[_Event], dict[str, Any], str | None]:
    """Events with a choice, the last usage that was told, and why it ended. The stream must end in ``[DONE]``, a finish
    reason or both."""
    events: list[_Event] = []
    usage: dict[str, Any] = {}
    reason, done = None, False
    async for line in response.lines:
        now = time.perf_counter()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            done = True
            continue
        event = _parse(data)
        told = event.get("usage") if isinstance(event.get("usage"), dict) else None
        usage = told or usage
        choice = _first_choice(event)
        if choice is not None:
            reason = choice.get("finish_reason") or reason
            count = _count_in(told, "completion_tokens") if told else None
            text = choice.get("text") if isinstance(choice.get("text"), str) else ""
            final = choice.get("finish_reason") is not None
            if len(events) == most:
                raise BrokenAnswer("more events than the tokens that were asked for")
            events.append(_Event(now, text or "", count, final))
    if not done and reason is None:
        raise BrokenAnswer("a stream that ends without [DONE]")
    return events, usage, reason if isinstance(reason, str) else None


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenAnswer("an event that is not JSON") from None
    if not isinstance(event, dict):
        raise BrokenAnswer("an event that is not a JSON object")
    if event.get("error"):
        raise BrokenAnswer(f"an error in its stream ({one_line(json.dumps(event['error']))})")
    return event


def _first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    return choices[0]


def _timed(events: list[_Event], num_output: int) -> tuple[list[float], list[int], Counting]:
    """Times of the events that brought tokens, the tokens there were by then, and how that is known."""
    counted = [event for event in events if event.count is not None]
    if counted and all(event.count is not None for event in events if event.text or not event.last):
        return *_by_usage(counted), "usage of each event"
    while len(events) > max(1, num_output) and not events[0].text:
        events = events[1:]  # a greeting before the first token
    if 1 < len(events) != num_output and events[-1].last and not events[-1].text:
        events = events[:-1]  # a farewell: why it ended, and no token
    times = [event.time_s for event in events]
    if len(events) == num_output:
        return times, list(range(1, num_output + 1)), "one token an event, as usage confirms"
    return times, _spread(len(events), num_output), "usage spread over events"


def _by_usage(events: list[_Event]) -> tuple[list[float], list[int]]:
    """Times and counts of the events that raised the count."""
    counts = list(accumulate((event.count or 0 for event in events), max))
    fresh = [i for i, count in enumerate(counts) if count > (counts[i - 1] if i else 0)]
    return [events[i].time_s for i in fresh], [counts[i] for i in fresh]


def _spread(num_events: int, num_output: int) -> list[int]:
    """Output tokens at each event: as many per event as fill them all, else equal shares."""
    each = -(-num_output // max(1, num_events))
    if -(-num_output // max(1, each)) == num_events:
        return [min(num_output, each * (i + 1)) for i in range(num_events)]
    return [round(num_output * (i + 1) / num_events) for i in range(num_events)]


def _count_in(usage: dict[str, Any], name: str) -> int | None:
    """A count that a usage tells; ``None`` for anything that is none."""
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def one_line(text: str) -> str:
    """What a server said, short and on one line, for a message."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= 160 else words[:157] + "…"
