"""The load itself: an honest server's delays come out, and requests go out in time whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simserve.replay.frames import event_frame, request_frame, token_gaps_s
from simserve.replay.load import Load
from simserve.request import Content
from tests.replay_builders import load_on, outcomes_on, plan, requests
from tests.replay_server import ReplayServer

SLACK_S = 0.04  # of a busy machine; medians are far less off


def test_an_honest_server_s_delays_are_measured():
    """TTFT 80 ms and ITL 20 ms, by a server that keeps a timetable: never less, and mostly hardly more."""
    outcomes, _ = outcomes_on(ReplayServer(ttft_s=0.08, itl_s=0.02), requests(np.arange(30) * 0.02, num_output=10))
    frame = request_frame(outcomes)
    assert (frame["status"] == "finished").all()
    assert frame["ttft_s"].min() > 0.079 and frame["ttft_s"].quantile(0.25) < 0.095
    assert frame["tpot_s"].median() == pytest.approx(0.02, abs=0.004)
    assert np.median(token_gaps_s(event_frame(outcomes))) == pytest.approx(0.02, abs=0.008)
    assert frame["e2e_s"].min() > 0.08 + 9 * 0.02 - 0.001 and frame["e2e_s"].quantile(0.25) < 0.28


def test_times_of_a_request_are_in_order():
    """due ≤ sent < first token < … < last token ≤ end, and 4 gaps between 5 tokens (INV-3)."""
    outcomes, _ = outcomes_on(ReplayServer(), requests(np.arange(10) * 0.01))
    for each in outcomes:
        times = [each.due_s, each.arrival_s, *each.token_times_s, each.end_s]
        assert all(earlier <= later for earlier, later in pairwise(times))
        assert len(each.token_times_s) == 5 and each.num_emitted_tokens == 5
        assert each.num_prompt_tokens == each.asked_prompt_tokens == 20
        assert (each.http_status, each.finish_reason, each.num_attempts, each.error) == (200, "length", 1, "")


def test_a_silent_server_gets_every_request_in_time():
    """The open loop: of 60 requests none is answered, and each is read by the server when it was due."""
    server = ReplayServer(always="silent")
    outcomes, _ = outcomes_on(server, requests(np.arange(60) * 0.02), clients=plan(timeout_s=2.0))
    assert len(server.arrived_s) == 60
    late_s = np.array(server.arrived_s) - np.arange(60) * 0.02
    assert np.median(late_s - late_s.min()) < SLACK_S  # the clock of the server has another zero
    assert np.ptp(late_s) < 0.5
    assert {each.status for each in outcomes} == {"timed_out"}
    assert all(each.sent_s - each.due_s < 0.5 for each in outcomes)


def test_a_slow_server_does_not_slow_the_load():
    """Answers take 1 s; 50 requests in half a second are all under way together."""
    server = ReplayServer(ttft_s=1.0, itl_s=0.0)
    outcomes, _ = outcomes_on(server, requests(np.linspace(0, 0.5, 50)))
    assert max(each.sent_s for each in outcomes) < min(each.token_times_s[0] for each in outcomes)


def test_requests_due_together_leave_in_their_order():
    """Thirty at once: sent in the table's order."""
    outcomes, _ = outcomes_on(ReplayServer(), requests([0.0] * 30))
    sent = [each.sent_s for each in outcomes]
    assert sent == sorted(sent)


def test_connections_are_kept_and_used_again():
    """Requests one after another need no connection each."""
    server = ReplayServer(ttft_s=0.01, itl_s=0.001)
    outcomes_on(server, requests(1.2 + np.arange(40) * 0.05))
    assert server.num_connections < 35


def test_a_kept_connection_found_closed_is_replaced():
    """A server may close a connection that carried an answer: the request goes again, at once, on a fresh one."""
    server = ReplayServer(ttft_s=0.01, itl_s=0.001, drops_kept=True)
    outcomes, senders = outcomes_on(server, requests(np.arange(10) * 0.2))
    assert {each.status for each in outcomes} == {"finished"}
    assert {each.num_attempts for each in outcomes} == {1}
    assert senders.num_stale > 0 and not senders.faults


def test_tokens_that_share_an_event_are_counted():
    """Four tokens an event: 10 tokens in 3 events, by the usage of each."""
    outcomes, _ = outcomes_on(ReplayServer(tokens_per_event=4), requests([0.0], num_output=10))
    assert outcomes[0].token_counts == [4, 8, 10]
    gaps = np.sort(token_gaps_s(event_frame(outcomes)))
    assert len(gaps) == 9 and (gaps[:7] == 0).all() and (gaps[7:] > 0.005).all()


def test_what_prompts_have_in_common_is_sent():
    """Three requests of which the first two begin with the same block of eight tokens."""
    content = Content(np.array([4, 4, 5]), np.array([0, 1, 2, 3]), block_tokens=8)
    server = ReplayServer(ttft_s=0.0, itl_s=0.0)
    outcomes_on(server, replace(requests([0.0, 0.1, 0.2]), content=content))
    first, second, third = (body["prompt"] for body in server.bodies)
    assert first[:8] == second[:8] != third[:8] and first[8:] != second[8:]
    assert len(first) == len(second) == len(third) == 20


def test_an_interrupted_load_keeps_what_it_has():
    """Cancelled in the middle, as Ctrl-C does it: the finished stay finished, what was under way is cancelled with the
    tokens that it had, and what was not sent is said to be unsent."""

    async def run() -> Load:
        async with ReplayServer(ttft_s=0.05, itl_s=0.1).serve() as server:
            table = requests([0.0, 1.0, 9.0], num_output=6)
            task = asyncio.create_task(_interruptible(server.url, table))
            while len(server.arrived_s) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.25)
            task.cancel()
            return await task

    load = asyncio.run(run())
    assert [each.status for each in load.outcomes] == ["finished", "cancelled", "unsent"]
    assert 0 < load.outcomes[1].num_emitted_tokens < 6
    assert load.outcomes[1].error == "the replay was interrupted"
    assert np.isnan(request_frame(load.outcomes)["arrival_s"][2])


async def _interruptible(url, table):
    made: list[Load] = []
    original = Load.run

    async def run(self, on_progress=None):
        made.append(self)
        assert not await original(self, on_progress)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Load, "run", run)
        await load_on(url, table)
    return made[0]


def test_the_server_sees_a_request_given_up():
    """After a time-out its connection is closed, so that the server can stop generating."""

    async def run() -> int:
        async with ReplayServer(ttft_s=0.05, itl_s=0.1).serve() as server:
            load, _ = await load_on(server.url, requests([0.0] * 5, num_output=100), clients=plan(timeout_s=0.3))
            assert {each.status for each in load.outcomes} == {"timed_out"}
            assert all(each.num_emitted_tokens > 0 for each in load.outcomes)
            for _ in range(100):
                await asyncio.sleep(0.05)
                if not server.num_open:
                    break
            return server.num_open

    assert asyncio.run(run()) == 0


def test_500_requests_a_second_are_little_work():
    """A thousand requests in two seconds, on a server in a process of its own: this process needs less than one CPU
    for them, also where others slow it down (a fifth of one was measured)."""
    port = 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.replay_server", str(port), "0.2", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            url = process.stdout.readline().strip()
            began_s = time.process_time()
            load, _ = asyncio.run(load_on(url, requests(np.arange(1000) * 0.002, num_prompt=500, num_output=4)))
            spent_s = time.process_time() - began_s
        finally:
            process.terminate()
    assert {each.status for each in load.outcomes} == {"finished"}
    assert spent_s < 1.5
