"""The figures of DESIGN.md section 7, each by one command, as written there.

Counts and bytes are exact. Times were measured on the chapters' machine, and cannot be ours: the shipped profile was
measured on another CPU. Where a figure is a time, the test holds what follows from it (flat, cheap per token, the knee)
on our own figures and gives the chapters' beside them; nothing is fitted to theirs. What needs trained weights from a
hub is held by ordering (``test_quantize_*``), and here by the theory of rounding normal numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from simserve import cli
from simserve.report.words import NBSP
from simserve.request import Batch, Chunk
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
CPU = "qwen2.5-0.5b-cpu-fp32"
THIRTEEN = "--params 13B --layers 40 --kv-heads 40 --head-dim 128"
SEVEN = "--params 7B --layers 32 --kv-heads 8 --head-dim 128"


def command(line: str) -> str:
    """What a command prints, run from the project's folder as its help says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        done = CliRunner().invoke(cli.app, shlex.split(line))
    assert done.exit_code == 0, done.output
    return done.stdout


def _slug(*words: str) -> str:
    return re.sub(r"\W+", "-", "-".join(words)).strip("-")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@cache
def ran(folder: Path, scenario: str, options: str = "") -> tuple[dict[str, Any], Path]:
    """The variants of ``simserve run SCENARIO``, and its folder."""
    out = folder / f"run-{_slug(scenario, options)}"
    command(f"run scenarios/{scenario}.yaml {options} --no-report --quiet --out {out}")
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))["variants"], out


@cache
def swept(folder: Path, scenario: str, options: str) -> dict[str, Any]:
    """The document of ``simserve sweep SCENARIO``."""
    out = folder / f"sweep-{_slug(scenario, options)}"
    command(f"sweep scenarios/{scenario}.yaml {options} --reports none --workers 1 --quiet --out {out}")
    return json.loads((out / "sweep.json").read_text(encoding="utf-8"))


def memory(line: str) -> dict[str, Any]:
    return json.loads(command(f"memory {line} --json"))


# Without a cache


def test_163_712_tokens_instead_of_768(folder):
    """``simserve run scenarios/chapters/no-cache.yaml``: NP + N(N − 1)/2 = 163,712 tokens through the model without a
    cache; 767 with one, 768 with the last, which is never computed; 213 times."""
    variants, _ = ran(folder, "chapters/no-cache")
    without, cached = variants["no-cache"]["computed_tokens"], variants["cache"]["computed_tokens"]
    assert (without, cached, cached + 1) == (163_712, 767, 768)
    assert round(without / 768) == round(without / 767) == 213


def test_multiply_adds_grow_with_the_cube_without_a_cache_and_with_the_square_with_one(folder):
    """``simserve sweep … --over workload.output_tokens.fixed=…``: O(T³) against O(T²), exactly. Over answers in equal
    steps h of length the third differences of a square vanish, and those of N³/6 (the pairs of N whole sequences, each
    a token longer than the last) are h³, times the 2 · layers · heads · head dim multiply-adds of a pair."""
    lengths = (32, 64, 96, 128, 160)
    over = f"--over workload.output_tokens.fixed={','.join(map(str, lengths))}"
    document = swept(folder, "chapters/no-cache", over)
    macs = {name: [p["metrics"]["model_macs"]["value"] for p in document["points"] if p["variant"] == name]
            for name in ("cache", "no-cache")}  # fmt: skip
    assert np.diff(macs["cache"], 2).all() and not np.diff(macs["cache"], 3).any()
    third = np.diff(macs["no-cache"], 3)
    assert set(third) == {2 * 24 * 14 * 64 * 32**3}
    tokens = {name: [p["metrics"]["computed_tokens"]["value"] for p in document["points"] if p["variant"] == name]
              for name in ("cache", "no-cache")}  # fmt: skip
    assert tokens["cache"] == [512 + n - 1 for n in lengths]
    assert tokens["no-cache"] == [512 * n + n * (n - 1) // 2 for n in lengths]


# Bytes


@pytest.mark.parametrize(("options", "num_bytes"), [("", 12_288), ("--kv-heads 14", 86_016)])
def test_kv_bytes_per_token(options, num_bytes):
    """``simserve memory qwen2.5-0.5b``: 24 layers × 2 KV heads × 64 in fp16, and if all 14 heads kept theirs."""
    assert memory(f"qwen2.5-0.5b {options}")["kv_bytes_per_token"] == num_bytes


@pytest.mark.parametrize(("variant", "num_bytes", "admitted"), [
    ("multi-head", 86_016, 18), ("grouped-query", 12_288, 128), ("multi-query", 6_144, 256),
])  # fmt: skip
def test_kv_bytes_are_exact_against_the_allocator(folder, variant, num_bytes, admitted):
    """``simserve run scenarios/chapters/attention.yaml``: 768 MiB hold that many tokens and not one more, and as many
    requests of 512 tokens sit in them at once as a division says."""
    found = ran(folder, "chapters/attention")[0][variant]
    capacity = found["kv_cache"]["capacity_tokens"]
    assert found["simulated_model"]["kv_bytes_per_token"] == num_bytes
    assert capacity * num_bytes <= 768 * MIB < (capacity + 1) * num_bytes
    assert found["peak_running"] == admitted == min(256, capacity // 512)


@pytest.mark.parametrize(("users", "context"), [(32, 2_048), (64, 1_024), (128, 512)])
def test_65_536_tokens_are_768_mib_however_they_are_shared(folder, users, context):
    """``simserve memory``, and ``simserve run … attention.yaml`` with answers of other lengths: the engine holds just
    so many in 768 MiB."""
    (demand,) = memory(f"qwen2.5-0.5b --users {users} --context {context}")["demands"]
    assert (demand["tokens"], demand["cache_bytes"]) == (65_536, 768 * MIB)
    sizes = f"--set workload.prompt_tokens.fixed={context - 128} --set workload.num_requests={2 * users}"
    held = ran(folder, "chapters/attention", sizes)[0]["grouped-query"]
    assert held["peak_running"] == users and held["kv_cache"]["peak_used"] > 0.9


@pytest.mark.parametrize(("line", "tokens"), [
    (f"{THIRTEEN} --weights-bits 4.125 --memory 8GiB", 337),
    (f"{SEVEN} --weights int8 --memory 16GiB", 65_378),
    (f"{THIRTEEN} --weights int8 --memory 16GiB", 3_136),
])  # fmt: skip
def test_tokens_that_memory_leaves(line, tokens):
    """``simserve memory``: GiB throughout, 1.5 GiB reserved, fp16 cache, int8 counted without scales."""
    assert memory(line)["resident_tokens"] == tokens
    assert f"{tokens:,}" in command(f"memory {line}")


# Steps


def decode_s(batch: int, context: int) -> float:
    """A decode step of the shipped profile, as the simulation takes it."""
    step_time = ProfileStepTime(load_profile(CPU))
    return step_time.ramp(Batch(num_decodes=batch, decode_context_tokens=batch * context), 0).first_s


def test_decode_is_nearly_flat_and_prefill_cheap_per_token():
    """The chapters' laptop: 40 tokens of prompt in 1.02 s (25.6 ms each), a decode step 166 ms at any context from 16
    to 1,024. Ours (``simserve profile show``): 430 ms (10.8 ms each) and 120 to 125 ms. Held here: what both show, flat
    to a tenth, and a token of a prompt under a sixth of a step (theirs 6.5, ours 11 times)."""
    steps = [decode_s(1, context) for context in (16, 64, 256, 1_024)]
    assert max(steps) < 1.1 * min(steps)
    prefill_s = ProfileStepTime(load_profile(CPU)).ramp(Batch(chunks=(Chunk(40, 0),)), 0).first_s
    assert prefill_s / 40 < steps[0] / 6
    assert 1.02 / 40 < 0.166 / 6
    printed = command(f"profile show {CPU}")
    assert "Prefill, ms" in printed and "ms/token" in printed and "119.9" in printed


def test_the_batch_curve_and_its_knee():
    """``simserve profile show``: batch 1 → 16 gave the chapters 6.0× throughput at 2.67× latency, 16 → 32 only 9 %.
    Ours, on another CPU: 5.67× at 2.82×, and 34 %. Held here: both within a tenth of theirs up to 16, and the same
    knee, 16, for the next doubling gains less than √2 on either machine."""
    curve = load_profile(CPU).batch_curve
    at = {point.batch_size: point for point in curve.points}
    assert at[16].throughput_ratio == pytest.approx(6.0, rel=0.1)
    assert at[16].latency_ratio == pytest.approx(2.67, rel=0.1)
    assert 1.0 < at[32].tokens_per_s / at[16].tokens_per_s < math.sqrt(2)
    assert curve.knee == 16
    assert "knee at batch 16" in command(f"profile show {CPU}")


def test_the_batch_curve_is_what_a_run_shows(folder):
    """``simserve run scenarios/chapters/batch-curve.yaml``: the same gain and the same price, prefills included."""
    variants, _ = ran(folder, "chapters/batch-curve")
    one, sixteen, more = (variants[f"batch-{n}"] for n in (1, 16, 32))
    assert sixteen["output_tokens_per_s"] / one["output_tokens_per_s"] == pytest.approx(6.0, rel=0.1)
    assert sixteen["tpot_s"]["mean"] / one["tpot_s"]["mean"] == pytest.approx(2.67, rel=0.1)
    assert more["output_tokens_per_s"] < math.sqrt(2) * sixteen["output_tokens_per_s"]
    for a, b in itertools.pairwise(variants[f"batch-{n}"] for n in (1, 2, 4, 8, 16, 32)):
        assert a["output_tokens_per_s"] <= b["output_tokens_per_s"]


# Batching


@pytest.mark.parametrize(("scenario", "gains", "latencies"), [
    ("skewed64", (1.5, 1.7), (9.0, 10.0)), ("skewed64-burst", (2.0, 2.9), (2.4, 4.0)),
])  # fmt: skip
def test_continuous_against_static(folder, scenario, gains, latencies):
    """``simserve run scenarios/skewed64.yaml``: 64 requests of median 18 and longest 231 output tokens, 1,874 in all, 8
    slots. Six decode steps apart about 1.6× throughput and 9 to 10× mean latency together; all at once 2 to 2.9× and
    2.4 to 4×. Seed 0; ``tests/validation/test_skewed64.py`` has 30."""
    variants, out = ran(folder, scenario)
    requests = pd.read_parquet(out / "requests.parquet").query("variant == 'static-paged'")
    lengths = sorted(requests["num_output_tokens"])
    assert (len(lengths), median(lengths), max(lengths), sum(lengths)) == (64, 18, 231, 1_874)
    static, continuous = variants["static-paged"], variants["continuous-paged"]
    assert gains[0] <= continuous["output_tokens_per_s"] / static["output_tokens_per_s"] <= gains[1]
    assert latencies[0] <= static["e2e_s"]["mean"] / continuous["e2e_s"]["mean"] <= latencies[1]


# Speculation


@pytest.mark.parametrize(("alpha", "gain"), [(0.9, "3.40"), (0.3, "0.79")])
def test_speculation_gains_and_loses(folder, alpha, gain):
    """``simserve sweep scenarios/chapters/speculation.yaml``: γ 8 and c 0.1 by the closed form 3.40× at α 0.9 and 0.79×
    at α 0.3; simulated on a card where nine tokens take hardly longer than one, within 5 % (they do take longer, and an
    answer's last pass is cut off, so a little less). With constant steps ``test_speculation_theory.py`` holds both
    within sampling error."""
    over = "--over engine.speculation.acceptance=0.3,0.9 --replications 4"
    speedups = swept(folder, "chapters/speculation", over)["speedups"]
    (curve,) = [each for each in speedups["curves"] if each["variant"] == "draft-8"]
    (point,) = [each for each in curve["points"] if each["x"] == alpha]
    assert f"{point['formula']:.2f}" == gain
    assert 0.95 * float(gain) <= point["value"] <= 1.005 * float(gain)
    assert 0.3 < curve["break_even"]["value"] < 0.9 and curve["break_even"]["pays"] == "above"


def test_tokens_per_pass(folder):
    """``simserve run scenarios/chapters/speculation.yaml``: (1 − α^(γ+1)) / (1 − α) tokens a pass at α 0.9, within 5 %:
    some hundred passes each, and every answer's last one is cut off."""
    variants, _ = ran(folder, "chapters/speculation")
    for gamma in (2, 4, 8):
        per_pass = variants[f"draft-{gamma}"]["speculation"]["tokens_per_pass"]
        assert per_pass == pytest.approx((1 - 0.9 ** (gamma + 1)) / (1 - 0.9), rel=0.05)
    assert variants["plain"]["speculation"] is None


def test_speculation_slows_a_full_batch_down(folder):
    """``simserve sweep scenarios/chapters/speculation-batch.yaml``: the payoff shrinks as the batch grows, and turns
    into a loss at a batch that the sweep finds."""
    over = "--over workload.concurrency=1,32,256 --replications 2"
    curves = swept(folder, "chapters/speculation-batch", over)["speedups"]["curves"]
    for curve in curves:
        values = [point["value"] for point in curve["points"]]
        assert values == sorted(values, reverse=True) and values[0] > 1 > values[-1]
        assert 1 < curve["break_even"]["value"] < 256 and curve["break_even"]["pays"] == "below"


# Weights


def test_smaller_weights_shorten_a_step_and_free_cache(folder):
    """``simserve run scenarios/chapters/weights.yaml``: alone, a step that waits for the weights is nearly as much
    shorter as they have fewer bits (16 → 8 → 4.125), and never more; the cache gains what the weights lose, to a
    block."""
    alone, _ = ran(folder, "chapters/weights", "--set engine.max_num_seqs=1 --set workload.num_requests=2")
    fp16 = alone["fp16"]["tpot_s"]["mean"]
    for name, bits in (("int8", 8), ("int4", 4.125), ("nf4", 4.25)):
        assert bits / 16 < alone[name]["tpot_s"]["mean"] / fp16 < 1.1 * bits / 16
        freed = alone["fp16"]["simulated_model"]["weight_bytes"] - alone[name]["simulated_model"]["weight_bytes"]
        gained = alone[name]["kv_cache"]["capacity_tokens"] - alone["fp16"]["kv_cache"]["capacity_tokens"]
        assert abs(freed - gained * 524_288) < 16 * 524_288


def test_relative_weight_errors(folder):
    """``simserve quantize``: the chapters have over all projection matrices of a trained model int4 per tensor up to
    0.99 in the worst, per row ÷ 3.4, groups of 128 0.1323, NF4 0.0952; and bits per weight 4.125 and 4.25. Random
    (normal) weights have no outliers, so per tensor is not ruinous here: held are the order, the bits, and what theory
    says of normal numbers, which trained ones exceed: groups of 128 about 0.117, NF4 about 0.092. Trained weights stand
    in ``test_quantize_quality.py``; perplexities of the chapters' model (23.08 … 365 million) need its weights."""
    out = folder / "quantization.json"
    command(f"quantize 25m --out {out}")
    rows = {row["scheme"]: row for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    order = [rows[name]["mean_error"] for name in ("int4:tensor", "int4:row", "int4", "nf4", "int8:tensor", "int8")]
    assert order == sorted(order, reverse=True)
    assert (rows["int4"]["bits_per_weight"], rows["nf4"]["bits_per_weight"]) == (4.125, 4.25)
    assert 0.11 < rows["int4"]["mean_error"] < 0.1323 and 0.09 < rows["nf4"]["mean_error"] < 0.0952


# Pages


def test_the_pages_show_them(folder):
    """``simserve run`` with its report: the tokens, the ratio and the multiply-adds stand on the page without a
    script."""
    out = folder / "page"
    command(f"run scenarios/chapters/no-cache.yaml --quiet --out {out}")
    html = (out / "report.html").read_text(encoding="utf-8").replace(NBSP, " ")
    assert "163,712 tokens (213×)" in html and "767 tokens (1.00×)" in html
    assert 'id="work"' in html and "60.9 trillion" in html
