"""JSON lines to rows: a request per line, or a session per line with its requests in a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

import pandas as pd

from simserve.workload.dialects import EVENTS, SUB_REQUESTS, fold
from simserve.workload.prompt_ids import ID_BYTES, packed
from simserve.workload.refusal import refusal

Row = dict[str, object]
_DECODE = json.JSONDecoder(parse_float=str, parse_constant=str).raw_decode


def json_rows(text: str, where: str) -> pd.DataFrame:
    """One JSON object per line; a key that a line lacks is missing there. Fractions are kept as written. A session is a
    row per request of its, known by ``session_id`` (the line) and ``sub_request`` (from 0). Raises TraceError."""
    rows: list[Row] = []
    for i, line in enumerate(_lines(text), 1):
        stripped = line.strip(" \t\r")
        if stripped:
            row = _json_object(stripped, f"{where}: line {i}")
            parts = next((name for name in row if _is_session(name)), None)
            rows += [row] if parts is None else _requests(row, parts, f"{where}: line {i}", i)
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in names})


def _lines(text: str) -> Iterator[str]:
    """The lines one by one, for all at once are the text once more; not ``splitlines``: U+2028 may stand in JSON."""
    begin = 0
    while (end := text.find("\n", begin)) >= 0:
        yield text[begin:end]
        begin = end + 1
    yield text[begin:]


def _json_object(line: str, where: str) -> Row:
    try:
        row, end = _DECODE(line)
    except (ValueError, RecursionError) as error:
        reason = "nests too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0][:120]
        raise refusal(where, f"is not valid JSON ({reason})") from None
    if end != len(line) or not isinstance(row, dict):
        raise refusal(where, "must be one JSON object")
    return _with_packed_lists(row)


def _with_packed_lists(row: Row) -> Row:
    """Lists (block hashes, token ids: most of a trace's bytes) become bytes where they will be read, and are dropped at
    once where not."""
    for name, value in row.items():
        if type(value) is list and fold(name) == EVENTS:
            row[name] = _input_ready(value)
        elif type(value) is list and not _is_session(name):
            id_bytes = _id_bytes(name)
            ids = packed(value, id_bytes) if id_bytes else None
            row[name] = "a list" if ids is None else ids
    return row


def _input_ready(events: list[object]) -> object:
    """When the last message or tool result of a round's input came; null where none is told."""
    ready: object = None
    for event in events:
        if isinstance(event, dict) and event.get("event_type") in ("user_message", "tool_result"):
            ready = event.get("timestamp")
    return ready


def _requests(session: Row, parts: str, where: str, number: int) -> list[Row]:
    """The requests of a session: only the first has the session's time, the others wait for the answer before."""
    requests = session[parts]
    if not isinstance(requests, list) or not requests or not all(type(request) is dict for request in requests):
        raise refusal(where, f"{parts}: must be a list of at least one request, each a JSON object")
    shared = {name: value for name, value in session.items() if name != parts}
    own = {name: value for name, value in shared.items() if not fold(name).startswith("arrival")}
    known = {"session_id": f"line {number}"}
    return [
        {**(own if i else shared), **_with_packed_lists(request), **known, "sub_request": i}
        for i, request in enumerate(requests)
    ]


@lru_cache(maxsize=64)
def _id_bytes(name: str) -> int:
    return ID_BYTES.get(fold(name), 0)


@lru_cache(maxsize=64)
def _is_session(name: str) -> bool:
    return fold(name) == SUB_REQUESTS
