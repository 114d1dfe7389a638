"""Where tasks run: processes of this machine, or a dask cluster. One interface, ``concurrent.futures.Executor``."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import Any

import simserve
from simserve.errors import InputError
from simserve.tasks.dask_worker import worker_options
from simserve.tasks.processes import InProcess, WorkerProcesses

EXTRA = "--cluster: needs dask.distributed; install it with: pip install 'simserve[cluster]'"
RETRIES = 3  # of a task whose worker died
DaskClient = Any  # distributed has no types
CONNECT_TIMEOUT_S = 10


@contextmanager
def executor_for(
    workers: int | None = None, cluster: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> Iterator[Executor]:
    """An executor for the block; leaving it by an exception drops what has not run.

    Without ``cluster`` it has ``workers`` processes (by default one per CPU that this process may use; one worker is
    this process itself). ``local`` starts a dask cluster of so many workers here; an address such as
    ``tcp://host:8786`` uses a running one, whose workers must have this version of simserve and see the same files.
    Results do not depend on which. ``tell`` gets a line about the cluster. Raises InputError.
    """
    num_workers = workers or num_cpus()
    opened = _processes(num_workers) if cluster is None else _dask(num_workers, cluster, tell)
    with opened as executor:
        yield executor


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _processes(num_workers: int) -> Iterator[Executor]:
    executor = InProcess() if num_workers == 1 else WorkerProcesses(num_workers)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


@contextmanager
def _dask(num_workers: int, cluster: str, tell: Callable[[str], None]) -> Iterator[Executor]:
    try:
        distributed = importlib.import_module("distributed")  # not by name: it is optional, and has no types
    except ModuleNotFoundError:
        raise InputError(EXTRA) from None
    with _quiet_when_interrupted(), ExitStack() as stack:
        if cluster == "local":
            options = {"threads_per_worker": 1, "dashboard_address": ":0", **worker_options()}
            with _interrupts_held():
                made = stack.enter_context(distributed.LocalCluster(n_workers=num_workers, **options))
            client = stack.enter_context(distributed.Client(made))
        else:
            client = stack.enter_context(_connected(distributed, cluster))
            _check_workers(client, cluster)
        num_found = len(client.scheduler_info()["workers"])
        tell(f"dask cluster: {num_found} workers, dashboard at {client.dashboard_link}")
        executor: Executor = client.get_executor(retries=RETRIES, pure=False)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False)
            raise
        executor.shutdown()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C comes at the end of the block: dask cannot close a cluster that is half made, and says so at length. The
    processes that are started in it never see one."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _quiet_when_interrupted() -> Iterator[None]:
    """From Ctrl-C on nothing is logged: what dask has to say of workers that it could not start or had to leave is no
    news then, and comes in tracebacks."""
    if threading.current_thread() is not threading.main_thread():  # where signals do not come
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        logging.disable(logging.CRITICAL)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _connected(distributed: ModuleType, address: str) -> DaskClient:
    try:
        client: DaskClient = distributed.Client(address, timeout=CONNECT_TIMEOUT_S)
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else "no answer"
        raise InputError(
            f"--cluster {address}: must be 'local' or the address of a dask scheduler ({reason})"
        ) from None
    return client


def _check_workers(client: DaskClient, address: str) -> None:
    """Every worker must have this version. (Its revision and files are checked with each task: ``run_keyed``.)"""
    try:
        versions = client.run(_version)
    except ModuleNotFoundError:
        raise InputError(f"--cluster {address}: its workers lack simserve; install the same version there") from None
    if not versions:
        raise InputError(f"--cluster {address}: must have a worker; start one with: dask worker {address}")
    for worker, version in versions.items():
        if version != simserve.__version__:
            rule = f"must have simserve {simserve.__version__} as here (got {version})"
            raise InputError(f"--cluster {address}: worker {worker}: {rule}")


def _version() -> str:
    return simserve.__version__
