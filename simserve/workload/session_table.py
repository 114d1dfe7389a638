"""What a run's table says of sessions, in the words of our own traces, so that it can be replayed, or routed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simserve.clients.plan import Turns
from simserve.request import RequestTable
from simserve.workload.kept import kept_of_content
from simserve.workload.prefix_columns import only_begin_alike
from simserve.workload.sessions import NO_SESSION, before_in_session
from simserve.workload.timestamps import NS_PER_S


def told_of_sessions(table: RequestTable, turns: Turns | None) -> dict[str, Any]:
    """``session_id`` (null: a request of its own), ``wait_s`` (of turns that wait for the answer before them) and
    ``kept_tokens`` (of the prompt and answer before, those with which a prompt begins); nothing without sessions."""
    if table.session is None:
        return {}
    session = pd.array(table.session, dtype="Int64")
    session[table.session == NO_SESSION] = pd.NA
    waits = {} if turns is None else {"wait_s": np.where(turns.follows, turns.wait_ns / NS_PER_S, np.nan)}
    kept = np.zeros(len(table), np.int64)
    if not only_begin_alike(table.content, table.num_prompt_tokens):  # which prefix_id tells, of other sessions as well
        kept = kept_of_content(before_in_session(table.session), table.content, table.num_prompt_tokens)
    return {"session_id": session, **waits, "kept_tokens": kept}
