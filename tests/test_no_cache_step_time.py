"""How long steps without a cache take: by measured whole forwards, as prefills, by FLOPs, by operators."""

from __future__ import annotations

import io
import json
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from calibrate.grid import Point
from calibrate.measure import Measurement
from calibrate.profile_file import assemble
from calibrate.show import show
from simserve.model_spec import causal_pairs, load_model_spec
from simserve.request import Batch, Chunk
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.hardware import load_hardware
from simserve.step_time.no_cache import no_cache_table, without_cache
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import (
    HeldOutError,
    NoCacheTable,
    Profile,
    StepOverhead,
    content_digest,
    load_profile,
    parse_profile,
)
from simserve.step_time.roofline import RooflineStepTime
from simserve.step_time.stretch import Stretch
from tests.operator_builders import DEVICE, step_time, write_llmservingsim
from tests.profile_builders import make_content, make_profile, make_profile_text, make_provenance, make_sample

LENGTHS = (16, 64, 256)
SLOWER = {16: 1.4, 64: 1.2, 256: 0.9}  # a whole forward against the prefill of as many tokens


def rows(*lengths: int) -> Batch:
    """A step without a cache."""
    return Batch(tuple(Chunk(length, 0) for length in lengths), recomputes=True)


def prefill_s(profile: Profile, *lengths: int) -> float:
    """The prefill of the same prompts."""
    return ProfileStepTime(profile).ramp(Batch(tuple(Chunk(length, 0) for length in lengths)), 0).first_s


def whole_forwards(profile: Profile) -> Profile:
    """The profile with whole forwards of 1.4, 1.2 and 0.9 times its prefills."""
    seconds = tuple(SLOWER[n] * prefill_s(profile, n) for n in LENGTHS)
    return profile.model_copy(update={"no_cache": NoCacheTable(num_tokens=LENGTHS, seconds=seconds)})


PROFILE = whole_forwards(make_profile())


@pytest.mark.parametrize("length", LENGTHS)
def test_one_sequence_takes_what_was_measured(length: int) -> None:
    """A step of a single sequence of a measured length is that measured forward."""
    assert PROFILE.no_cache is not None
    ramp = ProfileStepTime(PROFILE).ramp(rows(length), 0)
    assert ramp.first_s == pytest.approx(PROFILE.no_cache.seconds[LENGTHS.index(length)], rel=1e-12)
    assert (ramp.num_steps, ramp.slope_s, ramp.extrapolated) == (1, 0.0, False)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_several_sequences_are_composed_by_tokens_and_pairs(lengths: list[int]) -> None:
    """The packed prefill of the same prompts, times the ratio of their tokens together; flagged outside 16 to 256."""
    ramp = ProfileStepTime(PROFILE).ramp(rows(*lengths), 0)
    ratio = np.interp(np.log(sum(lengths)), np.log(LENGTHS), list(SLOWER.values()))
    assert ramp.first_s == pytest.approx(ratio * prefill_s(PROFILE, *lengths), rel=1e-9)
    assert ramp.extrapolated or 16 <= sum(lengths) <= 256


def test_without_whole_forwards_a_step_is_a_prefill() -> None:
    """A profile that timed none, as one of an engine, is read as packed prefills over an empty context."""
    profile = make_profile()
    assert no_cache_table(profile) is None
    ramp = ProfileStepTime(profile).ramp(rows(30, 50), 3)
    assert (ramp.first_s, ramp.num_steps) == (pytest.approx(prefill_s(profile, 33, 53)), 1)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_a_stretch_grows_by_a_token_per_row(lengths: list[int], num_steps: int) -> None:
    """Step k is the forward of the rows with k tokens more each."""
    model = ProfileStepTime(PROFILE)
    steps = [model.ramp(rows(*(n + k for n in lengths)), 0).first_s for k in range(num_steps)]
    assert Stretch(model, rows(*lengths)).span_s(num_steps) == pytest.approx(sum(steps), rel=1e-12)
    assert model.ramp(rows(*lengths), num_steps - 1).first_s == steps[-1]


def test_calibration_fits_the_table_and_files_without_it_still_load() -> None:
    """Medians of clean samples by length, with bounds about them; an older file has the samples and no table, and
    gives the same forwards."""
    measured = {16: [1.0, 3.0, 2.0], 64: [4.0, 5.0, 60.0]}
    base, spec = make_profile(), load_model_spec("tiny")
    samples = list(base.samples)
    for length, seconds in measured.items():
        samples += [
            make_sample(Point("no_cache", 1, length, 0), s, dirty=s > 9, order=len(samples) + i)
            for i, s in enumerate(seconds)
        ]
    assert base.kv_bytes_per_token is not None
    new, text = assemble("tiny", make_provenance(spec), base.kv_bytes_per_token, Measurement(samples), 1.0)
    assert new.no_cache is not None and new.no_cache.low_s is not None and new.no_cache.high_s is not None
    assert (new.no_cache.num_tokens, new.no_cache.seconds) == ((16, 64), (2.0, 4.5))
    for low, seconds, high in zip(new.no_cache.low_s, new.no_cache.seconds, new.no_cache.high_s, strict=True):
        assert low <= seconds <= high and low < high
    content = json.loads(text)
    del content["no_cache"]
    old = parse_profile({**content, "digest": content_digest(content)}, "old")
    assert old.no_cache is None
    assert (old.prefill, old.decode) == (new.prefill, new.decode)
    table = no_cache_table(old)
    assert table is not None and table.seconds == new.no_cache.seconds


def test_a_profile_that_never_heard_of_it_loads() -> None:
    """No samples and no key: nothing is known, and nothing breaks."""
    content = make_content()
    content.pop("no_cache", None)
    assert no_cache_table(parse_profile({**content, "digest": content_digest(content)}, "old")) is None


def test_the_shipped_measurement_comes_out_as_measured() -> None:
    """25m on a CPU: every length that was timed takes the median of its clean samples; in between, the whole forward of
    384 tokens is within 10 % of the measured prefill of as many."""
    profile = load_profile("25m-cpu-fp32")
    groups: dict[int, list[float]] = {}
    for sample in profile.samples:
        if sample.phase == "no_cache" and not sample.dirty:
            assert sample.cpu_s is not None
            groups.setdefault(sample.num_new_tokens, []).append(sample.cpu_s)
    assert len(groups) >= 5
    model = ProfileStepTime(profile)
    for length, seconds in groups.items():
        assert model.ramp(rows(length), 0).first_s == pytest.approx(median(seconds), rel=1e-9)
    assert model.ramp(rows(384), 0).first_s == pytest.approx(prefill_s(profile, 384), rel=0.1)


def test_a_terminal_shows_what_a_cache_saves() -> None:
    """Of 25m on a CPU: the next token after 2,047 others, by a whole forward and by a decode step of the tables."""
    console = Console(width=100, record=True, file=io.StringIO())
    profile = load_profile("25m-cpu-fp32")
    show(profile, console)
    table = no_cache_table(profile)
    assert table is not None and table.num_tokens[-1] == 2048
    (line,) = (line for line in console.export_text().splitlines() if line.split("│")[1:2] == ["  2,048 "])
    _, _, without, cached, times, _ = (cell.strip() for cell in line.split("│"))
    assert float(without.replace(",", "")) == pytest.approx(1e3 * table.seconds[-1], rel=1e-3)
    step = ProfileStepTime(profile).ramp(Batch(num_decodes=1, decode_context_tokens=2047), 0)
    assert float(cached) == pytest.approx(1e3 * step.first_s, rel=1e-2)
    assert float(times[:-1]) == pytest.approx(table.seconds[-1] / step.first_s, rel=1e-2)


def test_an_engines_overhead_comes_on_top() -> None:
    """Samples are bare forwards; what an engine adds per step and sequence is added to them as it is to the tables."""
    step = make_sample(Point("prefill", 1, 8, 0), 0.01)
    none = HeldOutError(num_points=0, mean=None, p95=None, max=None)
    overhead = StepOverhead(
        source="an engine",
        date="2025-01-01",
        command="test",
        constant_s=0.5,
        per_sequence_s=0.25,
        per_foreign_pair_s=0.0,
        before=none,
        after=none,
        samples=(step,),
    )
    table = no_cache_table(PROFILE.model_copy(update={"overhead": overhead}))
    assert table is not None and PROFILE.no_cache is not None
    assert table.seconds == tuple(seconds + 0.75 for seconds in PROFILE.no_cache.seconds)


def test_draws_carry_the_noise_of_whole_forwards() -> None:
    """With a spread of 10 % between runs the forwards of the draws have it too, together with the tables."""
    assert PROFILE.noise is not None
    noisy = PROFILE.model_copy(update={"noise": PROFILE.noise.model_copy(update={"shared": 0.1, "per_point": 0.0})})
    draws, rng = ProfileDraws(noisy), np.random.default_rng(0)
    drawn = [draws.draw(rng) for _ in range(400)]
    logs = np.log([profile.no_cache.seconds for profile in drawn if profile.no_cache is not None])
    assert logs.std(axis=0) == pytest.approx([0.1] * 3, rel=0.15)
    prefills = np.log([profile.prefill.rows[1].seconds[0] for profile in drawn])
    assert np.corrcoef(logs[:, 0], prefills)[0, 1] == pytest.approx(1.0, abs=1e-6)


def test_notes_say_where_steps_come_from() -> None:
    """Whole forwards with the range of their lengths, or prefills."""
    source = ProfileStepTime(PROFILE).source
    assert without_cache(source, PROFILE.no_cache).note.endswith(
        "steps without a cache are whole forwards measured at 3 lengths of 16–256 tokens, of several sequences at once "
        "composed by their tokens and pairs"
    )
    assert without_cache(source, None).note.endswith("are prefills of whole sequences over an empty context")


@pytest.mark.parametrize("broken", [{"num_tokens": [64, 16]}, {"num_tokens": [16]}, {"seconds": [1.0, -1.0]}])
def test_a_broken_table_is_refused(broken: dict[str, list[float]]) -> None:
    """Lengths increase, each has its seconds, and those are positive."""
    content = json.loads(make_profile_text()[1]) | {
        "no_cache": {"num_tokens": [16, 64], "seconds": [1.0, 2.0], **broken}
    }
    with pytest.raises(Exception, match="no_cache"):
        parse_profile({**content, "digest": content_digest(content)}, "broken")


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_roofline_counts_whole_sequences(lengths: list[int]) -> None:
    """FLOPs of every token and pair, the head once per sequence, all weights once: by the published peak and bandwidth,
    written out anew."""
    spec, gpu = load_model_spec("qwen2.5-0.5b"), load_hardware("h100-sxm")
    flops_per_s = gpu.peak_flops["bf16"] * gpu.compute_efficiency
    bytes_per_s = gpu.bandwidth_bytes_per_s * gpu.memory_efficiency
    weights = spec.matmul_parameters + spec.lm_head_parameters
    products_s = (2 * spec.matmul_parameters * sum(lengths) + 2 * spec.lm_head_parameters * len(lengths)) / flops_per_s
    pairs = sum(causal_pairs(n, 0) for n in lengths)
    attention_s = max(
        spec.attention_flops(pairs) / flops_per_s, spec.kv_bytes_per_token("bf16") * sum(lengths) / bytes_per_s
    )
    expected = np.hypot(products_s, 2 * weights / bytes_per_s) + attention_s + gpu.overhead_s
    stretch = Stretch(RooflineStepTime(spec, gpu), rows(*lengths))
    assert stretch.span_s(1) == pytest.approx(expected, rel=1e-9)
    assert stretch.span_s(2) > 2 * stretch.span_s(1) * (1 - 1e-12)


def test_operators_attend_to_every_pair_of_whole_sequences(tmp_path: Path) -> None:
    """On a device whose attention takes 0.01 µs per (query, key) pair, a sequence that grows from 16 to 19 tokens costs
    the pairs of each length, over two layers, and a quarter of a microsecond per token and operator of a layer."""
    spec = load_model_spec("tiny")
    model = step_time(write_llmservingsim(tmp_path / "x"))
    stretch = Stretch(model, rows(16))
    for k in range(1, 4):
        grown_us = 1e6 * (stretch.span_s(k + 1) - stretch.span_s(k) - stretch.span_s(1))
        pairs = ((16 + k) ** 2 - 16**2) / 2
        attention_us = spec.num_layers * DEVICE.pair_us * pairs
        assert grown_us > attention_us
        without = model.ramp(Batch((Chunk(16, 0),)), 0), model.ramp(Batch((Chunk(16 + k, 0),)), 0)
        assert grown_us == pytest.approx(1e6 * (without[1].first_s - without[0].first_s), rel=1e-9)
