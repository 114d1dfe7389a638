"""The steady part of a load: the time in which exactly B streams decode and nothing is prefilled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.server.client import Answer


@dataclass(frozen=True)
class Window:
    """``itl_s`` is seconds per token of a stream; ``num_tokens`` tokens of the stream that had the fewest in it;
    ``lead`` tokens that the streams had on average when it began (the first of them waits for the last one's prefill);
    ``mean_generated`` tokens that they had on average in its middle: context less the prompt."""

    itl_s: float
    num_tokens: int
    lead: float
    mean_generated: float


def steady_window(answers: Sequence[Answer]) -> Window | None:
    """The window from the last stream's first token to the first stream's last token, and the gaps wholly inside it;
    ``None`` if some stream has no gap there, so that all were never at it together.

    Gaps are taken per stream, last event less first event over the tokens between, and pooled: a step emits one token
    of each stream, and one step's tokens arrive one after another.
    """
    start_s = max(answer.times[0] for answer in answers)
    end_s = min(answer.times[-1] for answer in answers)
    seconds, tokens, least, leads, middles = 0.0, 0, None, 0, 0.0
    for answer in answers:
        first, last = answer.between(start_s, end_s)
        if last <= first:
            return None
        gained = answer.counts[last] - answer.counts[first]
        seconds += answer.times[last] - answer.times[first]
        tokens += gained
        least = gained if least is None else min(least, gained)
        leads += answer.counts[first]
        middles += (answer.counts[first] + answer.counts[last]) / 2
    if not least or seconds <= 0:
        return None
    return Window(seconds / tokens, least, leads / len(answers), middles / len(answers))


def lead_of(answers: Sequence[Answer]) -> int:
    """Tokens that the first stream had when the last one got its first."""
    start_s = max(answer.times[0] for answer in answers)
    leads = []
    for answer in answers:
        first, _ = answer.between(start_s, start_s)
        leads.append(answer.counts[min(first, len(answer.counts) - 1)])
    return max(leads)
