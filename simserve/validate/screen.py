"""Does a recorded run make sense at all? Each problem in one sentence; a run with any is not scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simserve.recorded.run import RecordedRun
from simserve.records import NEVER
from simserve.request import IntColumn
from simserve.scenario.messages import printable, shown
from simserve.step_time.stretch import NS_PER_S

SLACK_S = 3600.0  # an answer may wait so long beyond twice the run's own length before its clock is doubted
FASTEST_TOKEN_S = 2e-5  # 50,000 tokens/s in one answer
SLOWEST_TOKEN_S = 100.0
MOST_TOKENS_PER_S = 1e8


def problems(run: RecordedRun) -> list[str]:
    """Why the run cannot be scored, a sentence each; empty for a sound one."""
    finished = run.finished
    if not finished.any():
        return [_say(run, "must have a request that finished (none has a last token)")]
    clocks = list(_clocks(run))
    return [_say(run, text) for text in clocks or [*_order(run), *_rates(run)]]


def remarks(run: RecordedRun, scenario: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the figures: settings that the run and the (resolved) scenario do not share, what
    the run does not tell, and requests that it left unfinished."""
    found = []
    for key, theirs in run.settings.items():
        ours = _at(scenario, key)
        if ours != theirs and ours is not None:
            found.append(f"the run was made with {key} {shown(theirs)}, and the scenario says {shown(ours)}")
    cache = "engine.kv_cache.num_blocks"
    if run.settings and cache not in run.settings:
        found.append(f"the run does not tell {cache}: the scenario's is an assumption")
    unfinished = int((~run.finished).sum())
    if unfinished:
        found.append(
            f"{unfinished:,} of {len(run):,} requests have no last token in the run: they load the simulated engine "
            "too, and no figure counts them"
        )
    return [printable(f"{run.source}: {text}") for text in found]


def _clocks(run: RecordedRun) -> Iterator[str]:
    """Stamps of clocks with different origins: the usual first token comes before its request, or ages after it."""
    finished = run.finished
    arrival_s, first_s, last_s = (
        column[finished] / NS_PER_S for column in (run.table.arrival_ns, run.first_token_ns, run.last_token_ns)
    )
    length_s = max(float(np.ptp(arrival_s)), float(np.ptp(last_s)))
    pairs = (("first token", "arrival", first_s - arrival_s), ("last token", "first token", last_s - first_s))
    for later, earlier, delays in pairs:
        usual = float(np.median(delays))
        if usual < 0 or usual > 2 * length_s + SLACK_S:
            side = "before" if usual < 0 else "after"
            yield (
                f"{earlier} and {later} must be of one clock (the usual {later} comes {abs(usual):,.6g} s {side} its "
                f"{earlier}, in a run of {length_s:,.4g} s)"
            )


def _order(run: RecordedRun) -> Iterator[str]:
    finished = run.finished
    yield from _each(finished & (run.first_token_ns == NEVER), run, "must have a first token where there is a last one")
    known = finished & (run.first_token_ns != NEVER)
    early = known & (run.first_token_ns < run.table.arrival_ns)
    yield from _each(
        early, run, "must have its first token after its arrival", run.first_token_ns - run.table.arrival_ns
    )
    turned = known & (run.last_token_ns < run.first_token_ns)
    yield from _each(turned, run, "must have its last token after its first", run.last_token_ns - run.first_token_ns)


def _each(
    wrong: np.typing.NDArray[np.bool_], run: RecordedRun, rule: str, by: IntColumn | None = None
) -> Iterator[str]:
    """The first request that breaks a rule, and how many do."""
    count = int(wrong.sum())
    if count:
        i = int(np.argmax(wrong))
        got = "" if by is None else f"it comes {abs(int(by[i])) / NS_PER_S:.6g} s before; "
        yield f"row {int(run.file_rows[i]) + 1:,} {rule} ({got}{count:,} of {len(run):,} requests break this)"


def _rates(run: RecordedRun) -> Iterator[str]:
    """Rates that no server has: a time in another unit than its column says."""
    outputs = run.table.num_output_tokens
    counted = run.finished & (outputs > 1)
    if counted.any():
        tpot_s = float(np.median((run.last_token_ns - run.first_token_ns)[counted] / (outputs[counted] - 1))) / NS_PER_S
        if not FASTEST_TOKEN_S <= tpot_s <= SLOWEST_TOKEN_S:
            yield f"its usual answer takes {tpot_s:.3g} s a token, which no server does; give times in seconds"
    span_s = float(run.end_ns.max() - run.table.arrival_ns.min()) / NS_PER_S
    tokens = int(outputs[run.finished & (outputs > 0)].sum())
    if tokens and tokens > MOST_TOKENS_PER_S * span_s:
        yield f"must give less than {MOST_TOKENS_PER_S:,.0f} tokens/s (got {tokens:,} tokens in {span_s:.3g} s)"


def _at(scenario: Mapping[str, Any], path: str) -> object:
    value: object = scenario
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _say(run: RecordedRun, text: str) -> str:
    return printable(f"{run.source}: {text}")
