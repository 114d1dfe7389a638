"""Replays in a line or two: a table of requests, a load on a server, what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simserve.clients.plan import ClientPlan, RetryPolicy
from simserve.replay.address import parse_address
from simserve.replay.client import Clients
from simserve.replay.dialect import USAGE_OF_EACH_EVENT, Dialect
from simserve.replay.load import Load
from simserve.replay.outcome import Outcome
from simserve.replay.pool import Pool
from simserve.replay.server import Server
from simserve.request import RequestTable
from tests.replay_server import ReplayServer

PLAN = ClientPlan(timeout_ns=20_000_000_000)
AGAIN = RetryPolicy(3, 20_000_000, 2.0, 1_000_000_000, 0.0, after_rejection=True, after_timeout=True)
DIALECT = Dialect("tiny", stream_options=USAGE_OF_EACH_EVENT, token_ids=(260, 1000))
NS_PER_S = 1_000_000_000


def requests(due_s: Sequence[float], num_prompt: int = 20, num_output: int = 5) -> RequestTable:
    """Equal requests that are due then."""
    column = np.ones(len(due_s), np.int64)
    arrival_ns = np.rint(np.array(due_s, np.float64) * NS_PER_S).astype(np.int64)
    return RequestTable(arrival_ns, num_prompt * column, num_output * column, num_output * column, 0 * column)


def plan(**seconds: float) -> ClientPlan:
    """``timeout_s=…`` and ``ttft_timeout_s=…`` as a plan."""
    return replace(PLAN, **{name[:-1] + "ns": round(value * NS_PER_S) for name, value in seconds.items()})


async def load_on(
    url: str, table: RequestTable, clients: ClientPlan = PLAN, dialect: Dialect = DIALECT, stall_s: float = 20.0
) -> tuple[Load, Clients]:
    """The load, over. The test fails if that takes half a minute."""
    server = Server(parse_address(url))
    pool = Pool(server.address)
    senders = Clients(pool, server, clients, stall_s)
    load = Load(senders, pool, dialect, table, np.random.default_rng(1))
    try:
        async with asyncio.timeout(30):
            assert await load.run()
    finally:
        pool.close()
    return load, senders


def outcomes_on(server: ReplayServer, table: RequestTable, **choices: Any) -> tuple[list[Outcome], Clients]:
    """Outcomes, in the order of the requests, of a load on a server in the same loop."""

    async def run() -> tuple[Load, Clients]:
        async with server.serve():
            return await load_on(server.url, table, **choices)

    load, senders = asyncio.run(run())
    return load.outcomes, senders
