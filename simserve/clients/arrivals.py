"""Requests in order of arrival, seen one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simserve.request import IntColumn, Request, RequestTable

_CHUNK = 4096


class Arrivals:
    """The requests of a table that have not arrived yet, or those of ``rows``, given in their order. Objects are made a
    chunk ahead, so memory stays flat."""

    def __init__(self, table: RequestTable, rows: IntColumn | None = None) -> None:
        self._table = table
        self._rows = rows
        self._next_row = 0
        self._ahead: deque[Request] = deque()
        self._refill()

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives; None when no more come."""
        return self._ahead[0].arrival_ns if self._ahead else None

    @property
    def next_id(self) -> int:
        """Id of the next request; there must be one."""
        return self._ahead[0].id

    def take(self) -> Request:
        """Take the next request out; there must be one."""
        request = self._ahead.popleft()
        if not self._ahead:
            self._refill()
        return request

    def __bool__(self) -> bool:
        return bool(self._ahead)

    def peek_until(self, end_ns: int) -> Iterator[Request]:
        """Look, in order, at the requests that arrive before ``end_ns``."""
        i = 0
        while i < len(self._ahead) or self._refill():
            request = self._ahead[i]
            if request.arrival_ns >= end_ns:
                return
            yield request
            i += 1

    def _refill(self) -> bool:
        """Make the next chunk of requests; False when the table is exhausted."""
        table, part = self._table, slice(self._next_row, self._next_row + _CHUNK)
        ids = range(len(table))[part] if self._rows is None else self._rows[part].tolist()
        rows = part if self._rows is None else self._rows[part]
        columns = (
            table.arrival_ns,
            table.num_prompt_tokens,
            table.num_output_tokens,
            table.max_output_tokens,
            table.priority,
        )
        values = [column[rows].tolist() for column in columns]
        if table.content is not None:
            values.append([table.content[i] for i in ids])
        made = [Request(i, *row) for i, row in zip(ids, zip(*values, strict=True), strict=True)]
        self._ahead.extend(made)
        self._next_row += len(made)
        return bool(made)
