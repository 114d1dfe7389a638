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
    "usage spread over events",
    "one token an event, assumed",
]


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
        return _rising([t for t in times_s], [max(0, count) for count in told_counts], "usage of each event")
    first, last = 0, len(times_s)
    expected = max(1, num_output) if num_output is not None else sum(map(bool, has_text))
    while last - first > expected and not has_text[first]:
        first += 1  # a greeting before the first token
    if last - first > 1 and last - first != expected and is_last[last - 1] and not has_text[last - 1]:
        last -= 1  # a farewell: why it ended, and no token
    times = list(times_s[first:last])
    if num_output is None:
        return _rising(times, list(range(1, len(times) + 1)), "one token an event, assumed")
    if len(times) == num_output:
        return TokenTimes(times, list(range(1, num_output + 1)), "one token an event, as usage confirms")
    return _rising(times, _spread(len(times), num_output), "usage spread over events")


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
