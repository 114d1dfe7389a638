"""A whole JSON document by GET."""

from __future__ import annotations

import json
from typing import Any

from simserve.replay.errors import BrokenAnswer
from simserve.replay.exchange import Exchange, Limits
from simserve.replay.pool import Pool
from simserve.replay.server import Server

_MAX_BYTES = 1 << 22
_WITHIN_S = 30.0


class _Text:
    """A sink that keeps everything, up to 4 MiB."""

    has_begun = True

    def __init__(self) -> None:
        self.body = bytearray()

    def head(self, headers: dict[str, str]) -> None:
        pass

    def take(self, body: bytes, now_s: float) -> bool:
        self.body += body
        if len(self.body) > _MAX_BYTES:
            raise BrokenAnswer("an answer of more than 4 MiB")
        return False

    def end(self, now_s: float) -> None:
        pass


async def fetch_json(pool: Pool, server: Server, path: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON at ``path``. Raises BrokenAnswer, Refused or GaveUp."""
    text = _Text()
    connection = await pool.take(pool.lease())
    await Exchange(connection, text, Limits(_WITHIN_S)).run(server.get(path))
    try:
        return json.loads(text.body)
    except (ValueError, RecursionError):
        raise BrokenAnswer("something that is not JSON") from None
