"""Outcomes as tables: a row per request, in the words of a run's ``requests.parquet``, and a row per event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simserve.distributions import FloatColumn
from simserve.replay.outcome import NEVER, STATUSES, Outcome


def request_frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row per request. Times are seconds since the replay began, NaN for what never happened.

    As in a run: ``arrival_s`` is when the first attempt was sent, TTFT, TPOT, E2E (to the last token, as the client
    sees it) and normalized latency are of finished requests, ``num_output_tokens`` what a finished request got.
    Others keep what was asked for there, and have what came in ``num_emitted_tokens``. ``num_prompt_tokens`` is the
    server's count where it told.
    """
    frame = pd.DataFrame(
        {
            "request_id": [each.request_id for each in outcomes],
            "status": pd.Categorical([each.status for each in outcomes], categories=list(STATUSES)),
            **{
                name: np.array([getattr(each, name) for each in outcomes], np.float64)
                for name in ("due_s", "arrival_s")
            },
            "sent_s": np.array([each.sent_s for each in outcomes], np.float64),
            "first_token_s": np.array([_at(each.token_times_s, 0) for each in outcomes], np.float64),
            "last_token_s": np.array([_at(each.token_times_s, -1) for each in outcomes], np.float64),
            "end_s": np.array([each.end_s for each in outcomes], np.float64),
            "num_prompt_tokens": np.array([each.num_prompt_tokens or each.asked_prompt_tokens for each in outcomes]),
            "num_output_tokens": np.array([_output_tokens(each) for each in outcomes], np.int64),
            "num_emitted_tokens": np.array([each.num_emitted_tokens for each in outcomes], np.int64),
            "asked_prompt_tokens": np.array([each.asked_prompt_tokens for each in outcomes], np.int64),
            "asked_output_tokens": np.array([each.asked_output_tokens for each in outcomes], np.int64),
            "counted_prompt_tokens": pd.array([each.num_prompt_tokens for each in outcomes], dtype="Int64"),
            "num_events": np.array([len(each.token_times_s) for each in outcomes], np.int64),
            "num_attempts": np.array([each.num_attempts for each in outcomes], np.int64),
            "away_s": np.array([each.away_s for each in outcomes], np.float64),
            "connect_wait_s": np.array([each.connect_wait_s for each in outcomes], np.float64),
            "http_status": np.array([each.http_status for each in outcomes], np.int64),
            "finish_reason": pd.array([each.finish_reason for each in outcomes], dtype="string"),
            "counting": pd.array([each.counting for each in outcomes], dtype="string"),
            "error": pd.array([each.error for each in outcomes], dtype="string"),
        }
    )
    return _with_latencies(frame)


def event_frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row per event that brought tokens: ``request_id``, ``time_s`` and how many tokens came with it."""
    counts = [np.diff(np.array(each.token_counts, np.int64), prepend=0) for each in outcomes if each.token_counts]
    times = [np.array(each.token_times_s, np.float64) for each in outcomes if each.token_counts]
    ids = [np.full(len(each.token_counts), each.request_id) for each in outcomes if each.token_counts]
    return pd.DataFrame(
        {
            "request_id": np.concatenate(ids) if ids else np.zeros(0, np.int64),
            "time_s": np.concatenate(times) if times else np.zeros(0),
            "num_tokens": np.concatenate(counts) if counts else np.zeros(0, np.int64),
        }
    )


def token_gaps_s(events: pd.DataFrame) -> FloatColumn:
    """Every gap between consecutive tokens of a request, as its client saw them: tokens that share an event are 0 s
    apart."""
    times, ids = events["time_s"].to_numpy(), events["request_id"].to_numpy()
    between = np.diff(times)[ids[1:] == ids[:-1]]
    num_together = int((events["num_tokens"] - 1).sum())
    return np.concatenate([between, np.zeros(num_together)])


def _with_latencies(frame: pd.DataFrame) -> pd.DataFrame:
    finished = (frame["status"] == "finished").to_numpy()
    num_output = frame["num_output_tokens"].where(finished)
    frame["ttft_s"] = (frame["first_token_s"] - frame["arrival_s"]).where(finished)
    gaps = (num_output - 1).where(num_output > 1)
    frame["tpot_s"] = (frame["last_token_s"] - frame["first_token_s"]) / gaps
    frame["e2e_s"] = (frame["last_token_s"] - frame["arrival_s"]).where(finished)
    frame["normalized_latency_s"] = frame["e2e_s"] / num_output
    frame["lateness_s"] = frame["arrival_s"] - frame["due_s"]
    return frame


def _output_tokens(outcome: Outcome) -> int:
    return outcome.num_emitted_tokens if outcome.status == "finished" else outcome.asked_output_tokens


def _at(times_s: list[float], i: int) -> float:
    return times_s[i] if times_s else NEVER
