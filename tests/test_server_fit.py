"""From a server's samples to tables: laws that are given come back, and what is too little is refused."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.errors import CalibrationError
from calibrate.grid import Limits, Point
from calibrate.server.address import parse_address
from calibrate.server.dialect import Dialect, negotiate
from calibrate.server.estimate import estimate_s
from calibrate.server.fit import fit, medians_of, pair_seconds, repeat_spread
from calibrate.server.grid import STANDARD, make_points
from calibrate.server.load import Client
from simserve.step_time.profile_schema import Sample
from tests.fake_server import FakeServer
from tests.profile_builders import make_sample

POINTS = make_points(STANDARD, Limits())


def _sample(point: Point, seconds: float, order: int = 0, dirty: bool = False) -> Sample:
    return make_sample(point, seconds, dirty, order).model_copy(update={"wall_s": seconds, "cpu_s": None})


def _samples(a: float, b: float, q: float, d: float) -> list[Sample]:
    """TTFT = a + b·P + q·P²/2 and ITL = a + d·B·C."""
    return [
        _sample(p, a + b * p.row + q * p.row**2 / 2 if p.phase == "prefill" else a + d * p.row * p.num_context_tokens)
        for p in POINTS
    ]


@given(st.floats(1e-3, 1), st.floats(1e-5, 1e-2), st.floats(1e-8, 1e-5), st.floats(1e-8, 1e-4))
def test_laws_come_back(a: float, b: float, q: float, d: float) -> None:
    """Measured points are in the tables as they are; a plane is interpolated without error in decode; the bend is q."""
    fitted = fit(_samples(a, b, q, d))
    assert fitted.pair_s == pytest.approx(q, rel=1e-3, abs=1e-12)
    for row in fitted.prefill.rows:
        assert row.seconds[0] == pytest.approx(a + b * row.row + q * row.row**2 / 2)
        assert row.contexts == (0, 1)
    assert [row.row for row in fitted.prefill.rows] == list(STANDARD.prompts)
    assert fitted.held_out.decode.max == pytest.approx(0, abs=1e-6)
    assert fitted.held_out.decode.num_points == len(STANDARD.held_out_decodes)
    assert fitted.held_out.prefill.num_points == len(STANDARD.held_out_prompts)


def test_held_out_error_is_that_of_the_held_out_points() -> None:
    """A held-out point that is 25 % slower than the line says so: 20 % of what was measured."""
    samples = _samples(0.1, 1e-3, 0.0, 1e-5)
    slow = [s.model_copy(update={"wall_s": s.wall_s * 1.25}) if s.held_out else s for s in samples]
    error = fit(slow).held_out.all
    assert (error.mean, error.max) == (pytest.approx(0.2), pytest.approx(0.2))


def test_a_bend_the_other_way_is_none() -> None:
    """Attention never gives time back; and two lengths have no bend."""
    assert pair_seconds({16: 0.1, 64: 0.5, 256: 0.6}) == 0.0
    assert pair_seconds({16: 0.1, 64: 0.5}) == 0.0


def test_disturbed_samples_count_only_where_there_is_nothing_else() -> None:
    """The median is over the clean ones, or over all."""
    first, second = POINTS[0], POINTS[1]
    samples = [
        _sample(first, 1.0),
        _sample(first, 9.0, dirty=True),
        _sample(first, 3.0),
        _sample(second, 9.0, dirty=True),
    ]
    assert medians_of(samples) == {first: 2.0, second: 9.0}


def test_repeats_tell_their_spread() -> None:
    """9, 10 and 11 ms lie 6.7 % from 10 ms on average; a point measured once tells nothing."""
    point = POINTS[0]
    assert repeat_spread([_sample(point, s) for s in (0.009, 0.010, 0.011)]) == pytest.approx(0.2 / 3)
    assert repeat_spread([_sample(point, 0.01)]) is None


@pytest.mark.parametrize(("phase", "said"), [("decode", "prefill: at least 2"), ("prefill", "decode: at least 2")])
def test_too_little_is_refused(phase: str, said: str) -> None:
    """One phase alone makes no profile; the sentence says what to do."""
    samples = [s for s in _samples(0.1, 1e-3, 0.0, 1e-5) if s.phase == phase]
    with pytest.raises(CalibrationError, match=f"{said}.*allow more time"):
        fit(samples)


def test_the_estimate_is_of_the_right_size() -> None:
    """Every point at least as long as its prompts and its window take alone; more repeats take proportionally more."""

    async def run() -> tuple[float, float]:
        async with asyncio.timeout(20), FakeServer().serve() as server:
            client = Client(parse_address(server.url), None, 5.0, time.monotonic() + 20)
            dialect = await negotiate(client, "tiny", 1024, random.Random(0))
            one, three = [await estimate_s(client, dialect, POINTS, repeats, 24) for repeats in (1, 3)]
            await client.close()
            return one, three

    one, three = asyncio.run(run())
    assert 0 < one < 600
    assert 0.5 < three / one < 8  # (3 + 1) / (1 + 1) on a clock that is not ours


@pytest.mark.parametrize(
    ("accepts", "forced", "options"),
    [
        ({"ignore_eos", "min_tokens", "stream_options"}, ("ignore_eos", "min_tokens"), 2),
        ({"ignore_eos", "stream_options"}, ("ignore_eos",), 1),
        ({"stream_options"}, (), 1),
        (set(), (), 0),
    ],
)
def test_the_richest_dialect_that_is_taken(accepts: set[str], forced: tuple[str, ...], options: int) -> None:
    """From the top of the ladder down to the first rung that the server stands on."""

    async def run() -> Dialect:
        async with asyncio.timeout(20), FakeServer(accepts=frozenset(accepts)).serve() as server:
            client = Client(parse_address(server.url), None, 5.0, time.monotonic() + 20)
            return await negotiate(client, "tiny", 1024, random.Random(0))

    dialect = asyncio.run(run())
    assert (dialect.forced, len(dialect.stream_options)) == (forced, options)
    assert dialect.token_ids == (128, 896)
