"""What is odd about a trace that reads: a sentence for each thing that would make its replay mean something else."""

from __future__ import annotations

import re

import numpy as np

from simserve.scenario.messages import printable
from simserve.trace_tools.show import duration
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import UNDECLARED, Trace

IDLE_SHARE = 0.5  # of the whole span, in one gap
COARSE_SHARE = 0.5  # at the very time of the one before
MAX_PLAUSIBLE_TOKENS = 10_000_000  # no served model reads so many
MIN_ROWS_TO_JUDGE_TIMES = 20
_COUNTED_ROWS = re.compile(r"[\d,]+ rows? ")


def findings(trace: Trace, name: str, max_model_len: int | None = None) -> list[str]:
    """Every finding, none when all is well: odd rows that the reader counted, odd times, odd lengths, and with
    ``max_model_len`` the requests that an engine of that limit would reject at arrival. ``name`` is the file's, which
    begins the trace's notes."""
    notes = [note.removeprefix(f"{printable(name)}: ") for note in trace.notes]
    found = [note for note in notes if _COUNTED_ROWS.match(note)]
    found += _times(trace) if trace.has_times else ["has no times: it replays with workload.concurrency alone"]
    return [*found, *_lengths(trace, max_model_len)]


def _times(trace: Trace) -> list[str]:
    times = trace.arrival_ns
    span_ns, n = int(times[-1]), len(times)
    if n < MIN_ROWS_TO_JUDGE_TIMES:
        return []
    if not span_ns:
        return ["all requests arrive at one time: is its column of times in another unit, or empty?"]
    found = []
    gaps = np.diff(times)
    longest = int(gaps.argmax())
    if gaps[longest] > IDLE_SHARE * span_ns:
        where = f"after request {longest + 1:,} of {n:,}"
        found.append(
            f"one gap takes {duration(gaps[longest] / NS_PER_S)} of {_span(span_ns)}, {where}: is a date wrong?"
        )
    tied, is_whole = float((gaps == 0).mean()), not (times % NS_PER_S).any()
    if tied > COARSE_SHARE or (tied and is_whole):
        kind = "whole seconds" if is_whole else "coarse"
        found.append(f"times are {kind}: {100 * tied:.3g} % share theirs with the one before; bursts within are lost")
    rate = (n - 1) * NS_PER_S / span_ns
    if rate > 100_000:
        found.append(f"{rate:,.0f} requests/s: is the unit of its times larger than was read?")
    if rate < 1 / 86_400:
        found.append(f"a request in {duration(1 / rate)}: is the unit of its times smaller than was read?")
    return found


def _span(span_ns: int) -> str:
    return duration(span_ns / NS_PER_S)


def _lengths(trace: Trace, max_model_len: int | None) -> list[str]:
    found = []
    both = trace.num_prompt_tokens + trace.num_output_tokens
    if (huge := int((both > MAX_PLAUSIBLE_TOKENS).sum())) > 0:
        found.append(f"{_requests(huge)} of more than {MAX_PLAUSIBLE_TOKENS:,} tokens: are these bytes or characters?")
    declared = trace.max_output_tokens
    if (short := int(((declared != UNDECLARED) & (declared < trace.num_output_tokens)).sum())) > 0:
        found.append(f"{_requests(short)} got more tokens than their max_output_tokens: the maximum will be raised")
    if max_model_len is not None and (long := int((both > max_model_len).sum())) > 0:
        share = f"{100 * long / len(both):.3g} %"
        found.append(f"{_requests(long)} ({share}) beyond {max_model_len:,} tokens: an engine would reject them")
    return found


def _requests(count: int) -> str:
    return f"{count:,} {'request' if count == 1 else 'requests'}"
