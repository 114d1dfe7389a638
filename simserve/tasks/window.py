"""Many calls on an executor, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from concurrent.futures import Executor, Future, as_completed
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
MAX_IN_FLIGHT = 1024  # enough for any cluster; two hundred thousand futures at once would take gigabytes


def in_window(
    executor: Executor, call: Callable[..., T], arguments: Mapping[K, tuple[Any, ...]]
) -> Generator[tuple[K, T], None, None]:
    """``call(*arguments[key])`` for every key: (key, result) as they finish, with at most ``MAX_IN_FLIGHT`` handed to
    the executor at any time. Closing the iterator drops what was not started. Raises whatever a call raised."""
    pending: dict[Future[T], K] = {}
    try:
        for key, values in arguments.items():
            future = executor.submit(call, *values)
            pending[future] = key
            if future.done():
                yield pending.pop(future), future.result()
            elif len(pending) >= MAX_IN_FLIGHT:
                yield from _finished(pending, MAX_IN_FLIGHT // 2)
        yield from _finished(pending, 0)
    finally:
        for future in pending:
            future.cancel()


def _finished(pending: dict[Future[T], K], leave: int) -> Iterator[tuple[K, T]]:
    """Results as they come, until only so many are pending."""
    for future in as_completed(list(pending)):
        yield pending.pop(future), future.result()
        if len(pending) <= leave:
            return
