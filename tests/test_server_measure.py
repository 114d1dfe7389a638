"""Calibrating a server whose step times are known: the profile must give them back, whatever the server's manners."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import calibrate.server.client as client_module
from calibrate.grid import Limits
from calibrate.server.address import parse_address
from calibrate.server.dialect import Dialect, negotiate
from calibrate.server.fit import Fit, fit
from calibrate.server.grid import QUICK, make_points
from calibrate.server.load import Client, OutOfTime
from calibrate.server.measure import Findings, ServerMeasurer
from tests.fake_server import FakeServer

GRID = replace(QUICK, prompts=(16, 64, 256), held_out_prompts=(128,), contexts=(64, 256), window=12)
POINTS = make_points(replace(GRID, held_out_decodes=((2, 64), (4, 128))), Limits())


def _client(server: FakeServer, timeout_s: float = 5.0, limit_s: float = 60.0, key: str | None = None) -> Client:
    return Client(parse_address(server.url), key, timeout_s, time.monotonic() + limit_s)


def _measure(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0
) -> tuple[Findings, Client, Dialect]:
    """Negotiate and measure the whole grid on the server's own clock."""
    monkeypatch.setattr(client_module, "time", SimpleNamespace(perf_counter=server.perf_counter))

    async def run() -> tuple[Findings, Client, Dialect]:
        async with asyncio.timeout(60), server.serve():
            client = _client(server, timeout_s)
            dialect = await negotiate(client, "tiny", 1024, random.Random(0))
            measurer = ServerMeasurer(client, dialect, Findings([]), GRID.window, 0)
            await measurer.run(dialect.reachable(POINTS), 1, lambda *_: None)
            await client.close()
            return measurer.findings, client, dialect

    return asyncio.run(run())


def _ttft(fitted: Fit) -> dict[int, float]:
    return {row.row: row.seconds[0] for row in fitted.prefill.rows}


def _assert_recovered(server: FakeServer, fitted: Fit, within: float = 0.02) -> None:
    """TTFT = a + b·P and ITL = c + d·B + e·B·C at every point of the tables."""
    for prompt, seconds in _ttft(fitted).items():
        assert seconds == pytest.approx(server.a + server.b * prompt, rel=within)
    assert [row.row for row in fitted.decode.rows] == [1, 4, 8]
    for row in fitted.decode.rows:
        for context, seconds in zip(row.contexts, row.seconds, strict=True):
            expected = server.c + server.d * row.row + server.e * row.row * context
            assert seconds == pytest.approx(expected, rel=within), (row.row, context)


MANNERS = {
    "usage of each event": {},
    "several tokens an event, told": {"tokens_per_event": 3},
    "several tokens an event, not told": {"tokens_per_event": 3, "accepts": frozenset()},
    "one token an event": {"accepts": frozenset({"ignore_eos"})},
    "no usage, but length": {"usage": False},
    "text alone": {"takes_ids": False},
}


@pytest.mark.parametrize("manners", MANNERS.values(), ids=MANNERS)
def test_step_times_come_back(manners: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fields the server takes and however it packs tokens into events, the profile holds its a, b, c, d, e."""
    server = FakeServer(**manners)
    findings, client, _ = _measure(server, monkeypatch)
    fitted = fit(findings.samples)
    _assert_recovered(server, fitted, 0.05 if server.tokens_per_event > 1 else 0.02)
    assert fitted.held_out.all.num_points == 3
    assert fitted.held_out.all.max < 0.08  # a plane is met by linear interpolation
    assert not findings.left_out and not client.failures


def test_the_bend_of_ttft_is_the_cost_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """TTFT = a + b·P + q·P²/2: the table's second column is q·n for one token of context."""
    server = FakeServer(q=4e-6)
    fitted = fit(_measure(server, monkeypatch)[0].samples)
    assert fitted.pair_s == pytest.approx(server.q, rel=0.05)
    for row in fitted.prefill.rows:
        assert row.seconds[1] - row.seconds[0] == pytest.approx(server.q * row.row, rel=0.05)


def test_streams_are_together_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slow prefills the first of 8 streams decodes long before the last begins: none of that may count."""
    server = FakeServer(a=0.5)
    fitted = fit(_measure(server, monkeypatch)[0].samples)
    _assert_recovered(server, fitted)


def test_prompts_have_the_exact_length_and_never_a_common_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are nominal to within two tokens; no two prompts begin with the same block of 16 ids."""
    server = FakeServer()
    findings, _, dialect = _measure(server, monkeypatch)
    assert max(abs(off) for off in findings.offs) <= 2
    assert "token ids" in dialect.note
    heads = [tuple(b["prompt"][:16]) for b in server.bodies if isinstance(b["prompt"], list) and len(b["prompt"]) > 15]
    assert len(heads) == len(set(heads))
    assert all(b["temperature"] == 0 and b["ignore_eos"] and b["min_tokens"] == b["max_tokens"] for b in server.bodies)


def test_text_prompts_are_gauged_by_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens a letter and one at the beginning: found out, said, and aimed at."""
    server = FakeServer(takes_ids=False)
    findings, _, dialect = _measure(server, monkeypatch)
    assert (dialect.tokens_per_unit, dialect.offset, dialect.token_ids) == (2.0, 1.0, None)
    assert "random letters (2 tokens each, by usage)" in dialect.note
    assert {s.num_new_tokens for s in findings.samples if s.phase == "prefill"} == {17, 65, 129, 257}  # odd all
    assert max(abs(off) for off in findings.offs) <= 2


def test_faults_on_the_way_are_counted_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy, a server error, a reset, garbage, an error event, a stream cut short: each costs a try, none the result."""
    apart = [None] * 20  # so that no load of 8 meets two
    faults = [429, 503, "reset", *apart, "garbage", *apart, "cut", *apart, "error", *apart, "reset"]
    server = FakeServer(faults=faults)
    findings, client, _ = _measure(server, monkeypatch)
    _assert_recovered(server, fit(findings.samples))
    assert not server.faults
    assert client.failures.total() == 7
    assert client.failures["answers of 429 (busy)"] == client.failures["answers of 503"] == 1
    assert any("out of cake" in reason for reason in client.failures)


def test_a_server_with_fewer_slots_is_measured_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 streams never run on 4 slots: those points are left out and said to be, the others are right."""
    server = FakeServer(max_num_seqs=4)
    findings, _, _ = _measure(server, monkeypatch)
    assert {point.batch_size for point in findings.left_out} == {8}
    assert "never decoded together" in next(iter(findings.left_out.values()))
    assert [row.row for row in fit(findings.samples).decode.rows] == [1, 4]


def test_a_server_that_falls_silent_under_load_is_measured_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 streams make it thrash and say nothing: two tries, and those points are left out; the others are right."""
    server = FakeServer(stalls_from=8)
    findings, client, _ = _measure(server, monkeypatch, timeout_s=0.5)
    assert {point.batch_size for point in findings.left_out} == {8}
    assert client.failures == {"silence for 0.5 s": 2}
    assert [row.row for row in fit(findings.samples).decode.rows] == [1, 4]


def test_a_server_with_a_shorter_context_is_measured_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused for its length is left out with all that is longer."""
    server = FakeServer(max_model_len=200)
    findings, _, _ = _measure(server, monkeypatch)
    assert {point.num_context_tokens for point in findings.left_out if point.phase == "decode"} == {256}
    assert {point.row for point in findings.left_out if point.phase == "prefill"} == {256}
    assert list(_ttft(fit([*findings.samples, *_at_two_contexts(findings)]))) == [16, 64]


def _at_two_contexts(findings: Findings) -> list[object]:
    """The decode samples again at another context, so that a table can be made of them."""
    return [s.model_copy(update={"num_context_tokens": 1}) for s in findings.samples if s.phase == "decode"]


def test_time_is_bounded_even_by_a_server_that_is_never_silent() -> None:
    """A stream of comments without end defeats a time-out between bytes; the limit of the whole ends it."""
    server = FakeServer(always="slow")

    async def run() -> None:
        async with server.serve():
            await negotiate(_client(server, limit_s=0.5), "tiny", 1024, random.Random(0))

    began = time.monotonic()
    with pytest.raises(OutOfTime):
        asyncio.run(run())
    assert time.monotonic() - began < 5


def test_samples_of_an_earlier_run_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurer that is given samples asks only for what is missing."""
    server = FakeServer()
    findings = _measure(server, monkeypatch)[0]
    for sample in findings.samples:
        object.__setattr__(sample, "dirty", False)
    kept = [s for s in findings.samples if not (s.phase == "prefill" and s.num_new_tokens == 64)]
    again = FakeServer()
    monkeypatch.setattr(client_module, "time", SimpleNamespace(perf_counter=again.perf_counter))

    async def run() -> Findings:
        async with asyncio.timeout(30), again.serve():
            measurer = ServerMeasurer(_client(again), Dialect("tiny", token_ids=(8, 99)), Findings(kept), 12, 0)
            await measurer.run(POINTS, 1, lambda *_: None)
            return measurer.findings

    found = asyncio.run(run())
    assert {len(body["prompt"]) for body in again.bodies} == {64}
    assert {s.num_new_tokens for s in found.samples if s.phase == "prefill"} == {16, 64, 128, 256}
