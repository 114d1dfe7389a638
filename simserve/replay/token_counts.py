"""How many tokens each event of a stream brought.

Several tokens can share an event, so events are never taken for tokens unless usage confirms it. What counts, in this
order: the usage told with each event; events, where the request's usage says that there were as many; else the
request's tokens spread evenly over its events. Without any usage an event is taken for a token, and said to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Counting = Literal[
    "usage of each event",
    "one token an event, as usage confirms",
    "one token an event, after one that usage does not count",
    "usage spread over events",
    "one token an event, assumed",
]


_AFTER_AN_ECHO: Counting = "one token an event, after one that usage does not count"


class TokenTimes(NamedTuple):
    """``times_s`` of the events that brought tokens, the ``counts`` of output tokens there were by then, and how that
    is known. Counts rise strictly."""

    times_s: list[float]
    counts: list[int]
    counting: Counting


def count_tokens(
    times_s: Sequence[float],
    told_counts: Sequence[int],
    has_text: Sequence[int],
    is_last: Sequence[int],
    num_output: int | None,
) -> TokenTimes:
    """Columns with an entry per event: time, output tokens by then (negative where the event does not tell), whether it
    has text, whether it says why the stream ended. ``num_output``: tokens in all, if usage tells."""
    if any(count >= 0 for count in told_counts) and not any(
        count < 0 and text for count, text in zip(told_counts, has_text, strict=True)
    ):
        return _rising(list(times_s), [max(0, count) for count in told_counts], "usage of each event")
    expected = sum(map(bool, has_text)) if num_output is None else num_output
    first, last = _bounds(has_text, is_last, max(1, expected))
    times = list(times_s[first:last])
    if num_output is None:
        return _rising(times, list(range(1, len(times) + 1)), "one token an event, assumed")
    if len(times) == num_output + 1 > 1:  # transformers' chat begins with an echo of the prompt
        return TokenTimes(times[1:], list(range(1, num_output + 1)), _AFTER_AN_ECHO)
    if len(times) == num_output:
        return TokenTimes(times, list(range(1, num_output + 1)), "one token an event, as usage confirms")
    return _rising(times, _spread(len(times), num_output), "usage spread over events")


def _bounds(has_text: Sequence[int], is_last: Sequence[int], expected: int) -> tuple[int, int]:
    """The events, half open, that are tokens: without greetings (leading ones without text) and farewell (a last one
    that only says why it ended) as far as ``expected`` fits, and without any of them where nothing fits."""
    num_events = len(has_text)
    greetings = next((i for i, text in enumerate(has_text) if text), 0)
    farewell = int(num_events > 1 and bool(is_last[-1]) and not has_text[-1])
    surplus = num_events - expected
    if 0 <= surplus <= greetings:
        return surplus, num_events
    if farewell and 0 <= surplus - 1 <= greetings:
        return surplus - 1, num_events - 1
    return greetings, num_events - farewell


def _rising(times_s: list[float], counts: list[int], counting: Counting) -> TokenTimes:
    """Only the events that raised the count."""
    kept_times, kept_counts, so_far = [], [], 0
    for time_s, count in zip(times_s, counts, strict=True):
        if count > so_far:
            so_far = count
            kept_times.append(time_s)
            kept_counts.append(count)
    return TokenTimes(kept_times, kept_counts, counting)


def _spread(num_events: int, num_output: int) -> list[int]:
    """Output tokens at each event: as many per event as fill them all, else equal shares."""
    each = -(-num_output // max(1, num_events))
    if each and -(-num_output // each) == num_events:
        return [min(num_output, each * (i + 1)) for i in range(num_events)]
    return [round(num_output * (i + 1) / num_events) for i in range(num_events)]
