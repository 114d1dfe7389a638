"""``workload.sessions`` to requests: how many turns each session has, what each adds to its context, and how long it
comes after the answer before it.

Each thing drawn has a stream of its own. Rows come session by session; of the last session as many turns as are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simserve.clients.plan import NOBODY
from simserve.errors import ScenarioError
from simserve.request import Content, IntColumn, Ranges
from simserve.scenario.client_models import FixedThinkTime, ThinkTimeConfig
from simserve.scenario.fields import MAX_REQUESTS, MAX_SECONDS, MAX_TOKENS
from simserve.scenario.session_models import SessionsConfig
from simserve.scenario.workload_models import GeneratedWorkload
from simserve.workload.content import taken
from simserve.workload.generate import lengths
from simserve.workload.kept import session_content
from simserve.workload.prefixes import drawn_prefixes
from simserve.workload.sessions import OWN_TIME, before_in_session
from simserve.workload.streams import stream
from simserve.workload.timestamps import NS_PER_S

_MOST_DRAWN = 256  # turns per turn that is kept …
_MOST_TURNS = 2 * MAX_REQUESTS  # … and in all: some 2 GB


@dataclass(frozen=True)
class DrawnSessions:
    """Turns in columns, session by session: tokens, nanoseconds from the answer before (OWN_TIME for first turns), what
    they hold, and notes."""

    session: IntColumn
    num_prompt_tokens: IntColumn
    num_output_tokens: IntColumn
    wait_ns: IntColumn
    content: Content | Ranges
    notes: tuple[str, ...]

    @property
    def num_sessions(self) -> int:
        """How many there are, the last one cut short as it may be."""
        return int(self.session[-1]) + 1


@dataclass(frozen=True)
class _Turns:
    """The first turns as they were drawn, before any session ends early."""

    session: IntColumn
    prompts: IntColumn
    outputs: IntColumn
    prefixes: Ranges  # of each session
    cut: dict[str, int]


def drawn_sessions(config: GeneratedWorkload, sessions: SessionsConfig, seed: int) -> DrawnSessions:
    """The first ``num_requests`` turns. Raises ScenarioError for sessions that take decades, and for contexts beyond
    what a request may have."""
    n, limit = config.num_requests, sessions.max_prompt_tokens or MAX_TOKENS
    drawn, rows = _within(config, sessions, limit, seed)
    session = np.unique(drawn.session[rows], return_inverse=True)[1].astype(np.int64)
    prompts, outputs, before = drawn.prompts[rows], drawn.outputs[rows], before_in_session(session)
    waits_ns = _waits_ns(sessions.think_time_s, n, seed)
    _refuse_decades(before, waits_ns)
    notes = [f"sessions: {count:,} {what} cut to the distribution's max" for what, count in drawn.cut.items() if count]
    notes += _over(drawn, int(rows[-1]) + 1, limit)
    kept = np.where(before == NOBODY, 0, (prompts + outputs)[before])
    content = session_content(before, kept, prompts, outputs, taken(drawn.prefixes, session))
    return DrawnSessions(
        session, prompts, outputs, np.where(before == NOBODY, OWN_TIME, waits_ns), content, tuple(notes)
    )


def _within(config: GeneratedWorkload, sessions: SessionsConfig, limit: int, seed: int) -> tuple[_Turns, IntColumn]:
    """Turns, and the rows of the first ``num_requests`` whose contexts stay within the limit. Where sessions end early
    more are drawn, whose first ones are the same."""
    n = num_drawn = config.num_requests
    while num_drawn <= min(_MOST_DRAWN * n, _MOST_TURNS):
        drawn = _turns(config, sessions, num_drawn, seed)
        rows = np.flatnonzero((drawn.prompts <= limit) | (before_in_session(drawn.session) == NOBODY))
        if len(rows) >= n:
            return drawn, rows[:n]
        num_drawn *= 2
    raise ScenarioError(
        f"workload.sessions.max_prompt_tokens: must leave sessions more of their turns (got {limit:,}); raise it, or "
        "lower workload.sessions.turns"
    )


def _turns(config: GeneratedWorkload, sessions: SessionsConfig, num_turns: int, seed: int) -> _Turns:
    """The first turns of all sessions; a prompt is the one before, its answer, and the new tokens."""
    counts, _ = lengths(sessions.turns, num_turns, stream(seed, "session_turns"))
    ends = np.cumsum(counts)
    num_sessions = int(np.searchsorted(ends, num_turns)) + 1
    begins = (ends - counts)[:num_sessions]
    session = np.repeat(np.arange(num_sessions), np.diff(begins, append=num_turns))
    first, first_cut = lengths(config.prompt_tokens, num_sessions, stream(seed, "prompt_tokens"))
    prefixes = drawn_prefixes(config.shared_prefixes, num_sessions, stream(seed, "shared_prefixes"))
    new, new_cut = lengths(sessions.new_tokens or config.prompt_tokens, num_turns, stream(seed, "session_new_tokens"))
    outputs, outputs_cut = lengths(config.output_tokens, num_turns, stream(seed, "output_tokens"))
    added = new + np.append(0, outputs[:-1])
    added[begins] = first + prefixes.num_tokens
    total = np.cumsum(added)
    prompts = total - np.repeat(total[begins] - added[begins], np.diff(begins, append=num_turns))
    cut = {"first prompts": first_cut, "turns' new tokens": new_cut, "answers": outputs_cut}
    return _Turns(session, prompts, outputs, prefixes, cut)


def _over(drawn: _Turns, num_rows: int, limit: int) -> list[str]:
    """Notes of the sessions that the limit ends early, and of those whose first prompt is beyond it."""
    session, is_over = drawn.session[:num_rows], drawn.prompts[:num_rows] > limit
    is_first = before_in_session(session) == NOBODY
    counts = {
        "end before": len(np.unique(session[is_over & ~is_first])),
        "begin with": int((is_over & is_first).sum()),
    }
    of_all = f"of {session[-1] + 1:,} sessions"
    beyond = f"a prompt of more than {limit:,} tokens"
    told = {"end before": beyond, "begin with": f"{beyond}, and end with it"}
    return [f"{count:,} {of_all} {what} {told[what]}" for what, count in counts.items() if count]


def _waits_ns(config: ThinkTimeConfig | None, num_turns: int, seed: int) -> IntColumn:
    if config is None:
        return np.zeros(num_turns, np.int64)
    waits_s: npt.NDArray[np.float64]
    if isinstance(config, FixedThinkTime):
        waits_s = np.full(num_turns, config.fixed)
    else:
        waits_s = stream(seed, "session_think_time").exponential(config.exponential.mean, num_turns)
    waits_ns: IntColumn = np.rint(np.minimum(waits_s, MAX_SECONDS) * NS_PER_S).astype(np.int64)
    return waits_ns


def _refuse_decades(before: IntColumn, waits_ns: IntColumn) -> None:
    total_s = np.where(before == NOBODY, 0, waits_ns / NS_PER_S).cumsum()
    begins = np.flatnonzero(before == NOBODY)
    longest_s = float(np.diff(total_s[begins], append=total_s[-1]).max())
    if longest_s > MAX_SECONDS:
        raise ScenarioError(
            f"workload.sessions.think_time_s: must add up to at most {MAX_SECONDS:.0e} seconds in a session (got "
            f"{longest_s:.3g}); shorten it"
        )
