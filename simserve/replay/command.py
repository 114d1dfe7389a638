"""``simserve replay``, from a URL and a file to a finished folder."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from simserve.clients.plan import ClientPlan, RetryPolicy
from simserve.replay.address import parse_address
from simserve.replay.client import NS_PER_S, Clients
from simserve.replay.dialect import TOKEN_IDS, Dialect, Endpoint
from simserve.replay.errors import ReplayError
from simserve.replay.folder import FILES, build_manifest, write_files
from simserve.replay.frames import event_frame, request_frame
from simserve.replay.load import Load
from simserve.replay.negotiate import Negotiator
from simserve.replay.pool import Pool
from simserve.replay.server import Server
from simserve.replay.show import print_replay, progress_bar
from simserve.replay.source import Source, SourceChoices, load_source
from simserve.replay.summary import KIND, Measured, replay_document, warnings_of
from simserve.request import Ranges
from simserve.run_directory import staged_folder
from simserve.summary import to_json

RESULTS = Path("reports")
KEY_VARIABLE = "SIMSERVE_API_KEY"
DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ReplayOptions:
    """What was asked. Times that are None are the scenario's, and without one there 600 s for the whole answer and no
    limit for its first token. ``out`` is by default ``reports/<name>-replay``."""

    url: str
    source: SourceChoices
    served_model: str | None = None
    endpoint: Endpoint | None = None
    vocab_size: int | None = None
    api_key: str | None = None
    timeout_s: float | None = None
    ttft_timeout_s: float | None = None
    stall_timeout_s: float = 60.0
    max_attempts: int | None = None
    out: Path | None = None
    csv: bool = False
    json: bool = False
    quiet: bool = False
    command: str = ""


@dataclass(frozen=True)
class Replayed:
    """Where the result is, and whether it was cut short by Ctrl-C."""

    folder: Path
    interrupted: bool


def replay(options: ReplayOptions) -> Replayed:
    """Send the requests, write the folder, print the tables. Raises InputError before anything is sent when an option,
    the file, the folder or the server's endpoint is not as it must be."""
    began, started = time.perf_counter(), datetime.now(UTC)
    server = Server(parse_address(options.url), options.api_key or os.environ.get(KEY_VARIABLE))
    source = _with_patience(load_source(options.source), options)
    folder = options.out or RESULTS / f"{source.name}-replay"
    messages = Console(stderr=True, quiet=options.quiet)
    _allow_many_connections()
    with staged_folder(folder, FILES, KIND) as staging:
        session = _Session(options, server, source, messages)
        dialect, measured = asyncio.run(session.run())
        document = replay_document(source.name, server.address.url, dialect, measured, source.slo)
        document["notes"] = [*source.notes, *session.notes]
        document["warnings"] = warnings_of(document, measured.requests)
        command = options.command.replace(options.url, server.address.url)
        manifest = build_manifest(source, server, dialect, command, started, time.perf_counter() - began)
        write_files(document, manifest, measured, staging, options.csv)
    _print(document, folder, options)
    return Replayed(folder, measured.interrupted)


class _Session:
    """One replay under way; ``notes`` are what was found out about the server."""

    def __init__(self, options: ReplayOptions, server: Server, source: Source, messages: Console) -> None:
        self.notes: tuple[str, ...] = ()
        self._options, self._server, self._source, self._messages = options, server, source, messages
        self._rng = np.random.default_rng()  # another run must not repeat this one's prompts: they may be cached

    async def run(self) -> tuple[Dialect, Measured]:
        pool = Pool(self._server.address)
        try:
            dialect = await self._agree(pool)
            clients = Clients(pool, self._server, self._source.plan, self._options.stall_timeout_s)
            load = Load(clients, pool, dialect, self._source.table, self._rng)
            with progress_bar(self._messages, len(self._source.table)) as on_progress:
                completed = await load.run(on_progress)
        finally:
            pool.close()
        measured = Measured(
            requests=request_frame(load.outcomes),
            events=event_frame(load.outcomes),
            faults=clients.faults,
            num_turned_away=sum(outcome.num_turned_away for outcome in load.outcomes),
            num_stale=clients.num_stale,
            cpu_share=load.cpu_share,
            interrupted=not completed,
        )
        return dialect, measured

    async def _agree(self, pool: Pool) -> Dialect:
        negotiator = Negotiator(pool, self._server, self._rng)
        ids = TOKEN_IDS if self._options.vocab_size is None else _ids_of(self._options.vocab_size)
        with self._messages.status(f"asking {self._server.address} what it understands"):
            model_id = self._options.served_model or await negotiator.model_id()
            agreed = await negotiator.agree(model_id, self._options.endpoint, ids)
        self.notes = agreed.notes
        content = self._source.table.content
        if content is not None:
            blocks = "" if isinstance(content, Ranges) else f", by blocks of {content.block_tokens:,} tokens"
            self.notes = (*self.notes, f"prompts begin alike where the workload's do{blocks}")
        span_s = float(self._source.table.arrival_ns[-1]) / NS_PER_S
        what = f"{len(self._source.table):,} requests over {span_s:,.1f} s to {model_id} by {agreed.dialect.note}"
        self._messages.print(Text(what), soft_wrap=True)
        return agreed.dialect


def _with_patience(source: Source, options: ReplayOptions) -> Source:
    """The source with the plan of its clients as the options change it."""
    for name in ("timeout_s", "ttft_timeout_s", "stall_timeout_s"):
        value = getattr(options, name)
        if value is not None and not (value > 0 and math.isfinite(value) and value <= 1e9):
            raise ReplayError(f"--{name.replace('_', '-')}: must be > 0 and at most 1e9 seconds (got {value:g})")
    plan = source.plan
    timeout_ns = _ns(options.timeout_s) or plan.timeout_ns or _ns(DEFAULT_TIMEOUT_S)
    plan = replace(plan, timeout_ns=timeout_ns, ttft_timeout_ns=_ns(options.ttft_timeout_s) or plan.ttft_timeout_ns)
    return replace(source, plan=_with_attempts(plan, len(source.table), options.max_attempts))


def _with_attempts(plan: ClientPlan, num_requests: int, max_attempts: int | None) -> ClientPlan:
    if max_attempts is None:
        return plan
    if not 1 <= max_attempts <= 20:
        raise ReplayError(f"--max-attempts: must be from 1 to 20 (got {max_attempts})")
    if max_attempts == 1:
        return replace(plan, retry=None, jitter=None)
    jitter = np.random.default_rng().random((num_requests, max_attempts - 1))
    usual = RetryPolicy(max_attempts, 500_000_000, 2.0, 8_000_000_000, 0.25, after_rejection=True, after_timeout=True)
    retry = usual if plan.retry is None else replace(plan.retry, max_attempts=max_attempts)
    return replace(plan, retry=retry, jitter=jitter)


def _ids_of(vocab_size: int) -> tuple[int, int]:
    if vocab_size < 16:
        raise ReplayError(f"--vocab-size: must be ≥ 16 (got {vocab_size})")
    return vocab_size // 8, vocab_size - vocab_size // 8


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * NS_PER_S))


def _allow_many_connections() -> None:
    """Each request under way needs a connection: raise this process's limit of open files as far as it goes."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print(document: dict[str, Any], folder: Path, options: ReplayOptions) -> None:
    if options.json:
        sys.stdout.write(to_json(document))
    elif not options.quiet:
        console = Console(file=sys.stdout, highlight=False)
        print_replay(document, console)
        console.print(Text(f"results: {folder / 'replay.json'}"), soft_wrap=True)
