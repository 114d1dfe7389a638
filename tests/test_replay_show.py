"""What is printed: nothing that a server says can break the table, and nothing of interest is left out."""

from __future__ import annotations

import io
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simserve.replay.dialect import Dialect
from simserve.replay.frames import event_frame, request_frame
from simserve.replay.outcome import Outcome
from simserve.replay.show import print_replay, progress_bar
from simserve.replay.summary import Measured, replay_document
from simserve.scenario import SloConfig


def _printed(outcomes, faults=None, notes=(), warnings=(), **changes) -> str:
    measured = Measured(
        request_frame(outcomes), event_frame(outcomes), Counter(faults or {}), 3, 2, 0.1, interrupted=False
    )
    document = replay_document("name", "http://h:1", Dialect("[model]"), measured, SloConfig(ttft_s=1.0))
    document |= {"notes": list(notes), "warnings": list(warnings), **changes}
    console = Console(file=io.StringIO(), width=120)
    print_replay(document, console)
    return console.file.getvalue()


def _finished() -> Outcome:
    return Outcome(
        0, 0.0, 8, 2, "finished", 0.0, 0.0, 1.0, num_attempts=2, token_times_s=[0.25, 0.75], token_counts=[1, 2]
    )


def test_what_happened_is_there():
    """Counts of what occurred, 429s, attempts and kept connections among them; milliseconds in the latency table."""
    text = _printed([_finished()], notes=["a note"], warnings=["a warning"])
    for words in (
        "name on http://h:1 ([model]): 1 requests",
        "finished requests",
        "answers 429",
        "attempts",
        "kept connections found closed",
        "goodput",
        "note: a note",
        "warning: a warning",
    ):
        assert words in text
    assert "250" in text and "500" in text  # TTFT and TPOT in ms
    assert "timed out" not in text


def test_nothing_measured_is_shown_as_such():
    """Dashes where there is no figure."""
    text = _printed([Outcome(0, 0.0, 8, 2)])
    assert "unsent requests" in text and "–" in text and "nan" not in text.lower()


@given(st.dictionaries(st.text(max_size=30), st.integers(1, 9), max_size=30))
def test_whatever_a_server_says_is_printed(faults):
    """Markup, control characters, any number of kinds: printed as text, the most frequent first."""
    text = _printed([_finished()], faults)
    assert ("what went wrong" in text) == bool(faults)
    assert ("more kinds" in text) == (len(faults) > 12)


def test_progress_is_shown_on_a_terminal_alone():
    """A bar with what was sent and what has ended; without a terminal nothing is drawn, and nobody has to ask."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(screen, 8) as on_progress:
        assert on_progress is not None
        on_progress(5, 3)
    assert "5 sent" in screen.file.getvalue() and "3/8" in screen.file.getvalue()
    with progress_bar(Console(file=io.StringIO()), 8) as on_progress:
        assert on_progress is None
