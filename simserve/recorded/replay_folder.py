"""The folder of ``simserve replay``: a server as its clients saw it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.errors import RunError
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.replay.frames import token_gaps_s
from simserve.scenario.messages import printable

FORMAT = "simserve-replay"
_EVENTS = ("request_id", "time_s", "num_tokens")
_COLUMNS = (
    "request_id",
    "arrival_s",
    "first_token_s",
    "last_token_s",
    "asked_prompt_tokens",
    "num_output_tokens",
    "status",
)


def read(path: Path) -> RecordedRun:
    """The replay in a folder. Raises RunError, one sentence: it is not whole, or nothing was sent.

    Prompts count as they were asked for; answers that were cut off or left are unfinished requests. What the replay
    warned of stands in the notes.
    """
    try:
        document = json.loads((path / "replay.json").read_text(encoding="utf-8"))
        requests = pd.read_parquet(path / "requests.parquet")
        events = pd.read_parquet(path / "events.parquet")
    except Exception as error:  # pyarrow raises a dozen kinds on damaged bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            printable(f"{path}: must be a whole folder of simserve replay ({reason}); run it again")
        ) from None
    if not isinstance(document, dict):
        raise RunError(printable(f"{path}/replay.json: must hold a JSON object (got {type(document).__name__})"))
    for name, table, wanted in (("requests", requests, _COLUMNS), ("events", events, _EVENTS)):
        missing = [column for column in wanted if column not in table.columns]
        if missing:
            raise RunError(printable(f"{path}/{name}.parquet: must have {', '.join(missing)}; run the replay again"))
    sent = requests[requests["arrival_s"].notna()]
    if sent.empty:
        raise RunError(printable(f"{path}: must have sent at least one request (it sent none)"))
    finished = (sent["status"] == "finished").to_numpy()
    seconds = {name: sent[name].to_numpy(np.float64) for name in ("arrival_s", "first_token_s", "last_token_s")}
    stamps = Stamps(
        arrival_s=seconds["arrival_s"],
        first_token_s=seconds["first_token_s"],
        last_token_s=np.where(finished, seconds["last_token_s"], np.nan),
        num_prompt_tokens=sent["asked_prompt_tokens"].to_numpy(np.int64),
        num_output_tokens=sent["num_output_tokens"].to_numpy(np.int64),
    )
    warned = [str(text) for text in (*document.get("notes", ()), *document.get("warnings", ()))]
    return recorded_run(
        path.name,
        FORMAT,
        stamps,
        itl_s=token_gaps_s(events[events["request_id"].isin(sent["request_id"][finished])]),
        engine=f"{document.get('model')} at {document.get('url')}",
        notes=tuple(printable(text) for text in warned),
    )
