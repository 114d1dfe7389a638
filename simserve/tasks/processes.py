"""Worker processes of this machine behind the interface of ``concurrent.futures``: a worker that dies is replaced."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Lock
from typing import ParamSpec, TypeVar

from simserve.errors import InputError
from simserve.tasks.task import code_revision, same_checkout

P = ParamSpec("P")
T = TypeVar("T")
MAX_FRESH_POOLS = 3


class InProcess(Executor):
    """Runs each call at once, in this process: what one worker amounts to, without starting it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A future that is done already."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class WorkerProcesses(Executor):
    """``num_workers`` processes. When one dies (killed, out of memory) the pool is made anew and what it had not
    finished is run again, at most ``MAX_FRESH_POOLS`` times; then calls fail with an InputError that says so."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._lock = Lock()
        self._num_broken = 0
        self._closed = False
        self._pool = self._fresh_pool()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a worker; it and its arguments are pickled."""
        outer: Future[T] = Future()
        self._start(outer, lambda pool: pool.submit(fn, *args, **kwargs))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop. With ``cancel_futures`` workers are ended at once, whatever they are doing."""
        self._closed = cancel_futures
        # Not public before Python 3.14, which has terminate_workers(); without it they would work on to no purpose.
        processes = getattr(self._pool, "_processes", None) or {}
        workers = list(processes.values()) if cancel_futures else []
        self._pool.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()

    def _fresh_pool(self) -> ProcessPoolExecutor:
        # spawn: a forked child would share this process's threads' locks, and Windows and macOS have no safe fork
        context = multiprocessing.get_context("spawn")
        revision = (code_revision(),)
        return ProcessPoolExecutor(self._num_workers, mp_context=context, initializer=_begin, initargs=revision)

    def _start(self, outer: Future[T], submit: Callable[[ProcessPoolExecutor], Future[T]]) -> None:
        pool = self._pool
        try:
            inner = submit(pool)
        except BrokenProcessPool:
            self._again(outer, submit, pool)
            return
        inner.add_done_callback(lambda done: self._settle(outer, done, submit, pool))

    def _settle(
        self,
        outer: Future[T],
        done: Future[T],
        submit: Callable[[ProcessPoolExecutor], Future[T]],
        pool: ProcessPoolExecutor,
    ) -> None:
        if done.cancelled() or outer.cancelled() or self._closed:
            outer.cancel()
            return
        error = done.exception()
        if isinstance(error, BrokenProcessPool):
            self._again(outer, submit, pool)
        elif outer.set_running_or_notify_cancel():
            _pass_on(outer, done, error)

    def _again(
        self, outer: Future[T], submit: Callable[[ProcessPoolExecutor], Future[T]], broken: ProcessPoolExecutor
    ) -> None:
        with self._lock:
            if self._pool is broken and not self._closed:
                self._num_broken += 1
                if self._num_broken <= MAX_FRESH_POOLS:
                    self._pool = self._fresh_pool()
            usable = self._pool is not broken
        if usable:
            self._start(outer, submit)
        elif outer.set_running_or_notify_cancel():
            rule = f"worker processes died {self._num_broken} times (out of memory?); try fewer --workers"
            outer.set_exception(InputError(f"--workers {self._num_workers}: {rule}"))


def _pass_on(outer: Future[T], done: Future[T], error: BaseException | None) -> None:
    if error is None:
        outer.set_result(done.result())
    else:
        outer.set_exception(error)


def _begin(revision: str | None) -> None:
    leave_interrupts_to_parent()
    same_checkout(revision)


def leave_interrupts_to_parent() -> None:
    """Ctrl-C reaches every process of a terminal; only the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
