"""Screening of step times: what physics forbids and what contradicts its neighbours is named, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.importers.step_csv import read_step_csv
from calibrate.screening.screen import screen
from calibrate.screening.steps import beyond_the_chip, hardware_of, not_growing, outliers, repeated
from simserve.errors import ProfileError
from simserve.model_spec import load_model_spec
from simserve.step_time.hardware import H200
from simserve.step_time.source import MeasuredPoint
from tests.shared_data import needs

STEPS = Path(__file__).parents[1] / "../shared/data/measured/step-times/h200_llama3.1-8b-fp8_vllm.csv"
needs_steps = needs(STEPS)
LLAMA = load_model_spec("llama-3.1-8b")
CELLS = [(b, c) for b in (2, 4, 8, 16, 32, 64) for c in (250, 500, 1000, 2000, 4000)]


def decode(batch: int, context: int, seconds: float) -> MeasuredPoint:
    return MeasuredPoint("decode", batch, 1, context, seconds)


def honest(noise: dict[int, float] | None = None) -> list[MeasuredPoint]:
    """A device that is linear in batch and KV load; some points times a factor."""
    factors = noise or {}
    return [decode(b, c, (5e-3 + 2e-5 * b + 4e-8 * b * c) * factors.get(i, 1.0)) for i, (b, c) in enumerate(CELLS)]


@needs_steps
def test_the_one_bad_point_of_the_h200_is_flagged_and_no_other():
    """19 sequences at 8,291 tokens read 11.7 ms where neighbours of like KV load read 9.7 to 10.1."""
    found = screen(str(STEPS), "llama-3.1-8b", "NVIDIA H200", "fp8")
    assert len(found) == 1
    assert found[0].startswith("decode of 19 at 8,291 tokens, 11.73 ms")
    assert found[0].endswith("which read 9.73 to 10.13 ms")


def test_the_shipped_h200_profile_shows_the_same_point():
    """A profile keeps its raw samples, so what is wrong with the figures can be seen without the file."""
    assert [line[:30] for line in screen("h200-llama-3.1-8b-fp8-vllm")] == ["decode of 19 at 8,291 tokens, "]


@given(st.integers(0, len(CELLS) - 1), st.sampled_from([0.7, 1.3, 2.0]))
@settings(max_examples=30, deadline=None)
def test_one_disturbed_point_with_neighbours_is_the_only_outlier(index, factor):
    """Whichever point is 30 % off is named if enough others have its KV load; honest points never are."""
    points = honest({index: factor})
    batch, context = CELLS[index]
    like = [1 for b, c in CELLS if b * c == batch * context and c != context]
    found = list(outliers(points))
    assert all(line.startswith(f"decode of {batch} at {context:,} tokens") for line in found)
    assert len(found) == (len(like) >= 3)


def test_honest_points_raise_nothing():
    """Up to 4 % of noise."""
    points = honest({i: 1 + 0.04 * (-1) ** i for i in range(len(CELLS))})
    assert not [*repeated(points), *outliers(points)]
    assert not list(not_growing(honest()))


def test_a_step_that_takes_less_for_more_is_named():
    """Beyond 5 %, along context and along batch."""
    points = [decode(8, 100, 0.010), decode(8, 900, 0.009), decode(16, 100, 0.0096)]
    assert list(not_growing(points)) == [
        "decode of 8 at 900 tokens, 9.00 ms: 10% less time than with less context, decode of 8 at 100 tokens, 10.00 ms"
    ]
    prompts = [MeasuredPoint("prefill", 1, n, 0, s) for n, s in ((100, 0.02), (400, 0.01))]
    assert [line.split(":")[0] for line in not_growing(prompts)] == ["prefill of 400 tokens, 10.00 ms"]


def test_no_step_is_faster_than_the_chip():
    """8B weights in fp8 are 7.5 GB, 1.6 ms of an H200's bandwidth; 2 · 8e9 FLOP a token are 8.1 µs at its peak."""
    slow = [decode(1, 1, 1.7e-3), MeasuredPoint("prefill", 1, 1000, 0, 8e-3)]
    assert not list(beyond_the_chip(slow, LLAMA, H200, "fp8", 1))
    fast = [replace(slow[0], seconds=1.4e-3), replace(slow[1], seconds=6e-3)]
    memory, compute = beyond_the_chip(fast, LLAMA, H200, "fp8", 1)
    assert "TB/s of memory, and NVIDIA H200 SXM 141 GB has 4.80" in memory
    assert "TFLOP/s, and NVIDIA H200 SXM 141 GB peaks at 1,979" in compute
    assert not list(beyond_the_chip(fast, LLAMA, H200, "fp8", 2))


def test_repeated_rows_are_counted():
    """A row that holds the same time again was copied, not measured again."""
    points = honest()
    assert list(repeated([*points, *points[:3]])) == [
        f"3 of {len(points) + 3} rows repeat an earlier one, time included"
    ]


@pytest.mark.parametrize(
    ("name", "entry"),
    [("NVIDIA H200", "h200-sxm"), ("NVIDIA A100-SXM4-80GB", "a100-sxm"), ("NVIDIA GeForce RTX 4090", "rtx-4090")],
)
def test_devices_are_known_by_their_own_names(name, entry):
    """As drivers call them; an unknown one is none."""
    assert hardware_of(name).name == entry
    assert hardware_of("AMD EPYC") is None


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    """Not a finding: exit code 2."""
    with pytest.raises(ProfileError, match="cannot be read"):
        screen(str(tmp_path / "absent.csv"))


@needs_steps
def test_points_are_read_as_they_stand():
    """55 figures, none repeated."""
    assert len(read_step_csv(STEPS).points) == 55
    assert not list(repeated(read_step_csv(STEPS).points))


LOOPS = Path(__file__).parents[1] / "../shared/data/measured/aiconfigurator/silicon_sample.csv.gz"


@needs(LOOPS)
def test_the_closed_loops_of_real_servers_are_screened():
    """The sample's repeated rows are counted, and so are the 177 rows of Llama-8B under TRT-LLM whose TTFT moves with
    the length of the answer."""
    found = screen(str(LOOPS))
    assert found[0].endswith("of 5,221 rows repeat an earlier one in configuration and in both times")
    assert any(
        "h100_sxm trtllm meta-llama/Llama-3.1-8B-Instruct: 177 rows whose TTFT cannot be used" in f for f in found
    )
    assert any("h200_sxm vllm nvidia/Llama-3.1-8B-Instruct-FP8, 64 × (2000 + 100) tokens on 1" in f for f in found)


def write_loops(folder: Path, *rows: str) -> str:
    head = "system,backend,model_path,mode,precision,isl,osl,batch_size,tp_size,silicon_ttft_ms,silicon_tpot_ms"
    path = folder / "loops.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def test_littles_law_bounds_a_closed_loop(tmp_path):
    """64 requests of 4,000 + 10 tokens: 64 prompts are 4.1 PFLOP, two seconds of an H200's fp8 peak, so a loop that
    turns in one second did not happen, and one that turns in four may have."""
    row = "h200_sxm,vllm,meta-llama/Llama-3.1-8B,agg,fp8,4000,10,64,1"
    assert screen(write_loops(tmp_path, f"{row},3000,150")) == []
    (line,) = screen(write_loops(tmp_path, f"{row},500,50"))
    assert "64 × (4000 + 10) tokens on 1: 14.84 ms a request, and the chip needs" in line


def test_a_first_token_cannot_know_how_long_the_answer_will_be(tmp_path):
    """TTFT that doubles with the output length in every shape is named; a steady one is not."""
    shapes = [(prompt, answer) for prompt in (100, 200, 300) for answer in (10, 1000)]
    for factor, count in ((1.0, 0), (2.0, 1)):
        rows = [f"s,b,m,agg,,{p},{o},8,1,{100 + p * (factor if o > 10 else 1) ** 3},20" for p, o in shapes]
        assert len(screen(write_loops(tmp_path, *rows))) == count
