"""Runs under ``weights:`` and ``attention:``: who is admitted, how long a step takes and what is answered follow."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simserve.assemble import assemble
from simserve.cli import app
from simserve.model_spec import load_model_spec
from simserve.scenario import parse_scenario
from simserve.simulate import RunResult, simulate
from simserve.step_time.hardware import HARDWARE
from tests.profile_builders import make_content
from tests.scenario_builders import write

GIB = 2**30
CARD = HARDWARE["rtx-4090"]
BYTES_PER_S = CARD.bandwidth_bytes_per_s * CARD.memory_efficiency
BITS = {"fp16": 16, "int8": 8, "nf4": 4.25, "int4": 4.125}


def scenario_data(model: str, cache: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Requests of 256 tokens, all at once, over ranges of a contiguous cache: who is admitted is a division."""
    return {
        "name": "switches",
        "model": model,
        "step_time": {"roofline": "rtx-4090", "dtype": "fp16"},
        "workload": {
            "num_requests": 128,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"fixed": 192},
            "output_tokens": {"fixed": 64},
        },
        "engine": {
            "policy": "continuous",
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192,
            "kv_cache": {"allocator": "contiguous", "reserve": "max_tokens", "block_size": 1, **cache},
        },
        **keys,
    }


def run(data: dict[str, Any]) -> RunResult:
    return simulate(parse_scenario(data))


def test_smaller_weights_really_admit_more() -> None:
    """Llama-2-7B, 6,738,415,616 weights and 512 KiB of fp16 cache a token, on 16 GiB with 1.5 GiB reserved: 15 requests
    of 256 tokens run at once beside fp16 weights, 65 beside int8, 89 beside NF4, 90 at 4.125 bits. All are answered, in
    less time the smaller the weights."""
    variants = {name: {"weights": name} for name in BITS}
    result = run(scenario_data("llama-2-7b", {"device_memory": "16GiB"}, variants=variants))
    admitted = {}
    for name, bits in BITS.items():
        tokens = int((14.5 * GIB - 6_738_415_616 * bits / 8) // (512 * 1024))
        summary = result.variants[name].summary
        assert summary["kv_cache"]["capacity_tokens"] == tokens
        admitted[name] = tokens // 256
        assert summary["peak_running"] == admitted[name]
        assert (summary["num_finished"], summary["num_preemptions"]) == (128, 0)
    assert admitted == {"fp16": 15, "int8": 65, "nf4": 89, "int4": 90}
    speeds = [result.variants[name].summary["output_tokens_per_s"] for name in BITS]
    assert all(slow < fast for slow, fast in pairwise(speeds))


def test_memory_of_the_cache_alone_admits_alike() -> None:
    """With ``memory`` the cache is as large whatever the weights, so what is gained is the shorter step."""
    variants = {name: {"weights": name} for name in BITS}
    result = run(scenario_data("llama-2-7b", {"memory": "4GiB"}, variants=variants))
    assert {v.summary["peak_running"] for v in result.variants.values()} == {4 * GIB // (512 * 1024) // 256}


@pytest.mark.parametrize("scheme", BITS)
def test_one_at_a_time_a_token_takes_what_its_bytes_take(scheme: str) -> None:
    """A request alone on a card without overhead: TPOT is the bytes of weights (embedding apart) and cached tokens over
    the bandwidth; arithmetic adds less than a hundredth of that (at four bits, two hundredths)."""
    data = scenario_data("llama-2-7b", {"memory": "4GiB"}, weights=scheme)
    data["workload"] = {**data["workload"], "num_requests": 1}
    num_read = 6_738_415_616 - 32_000 * 4_096
    cached = 512 * 1024 * (192 + 33)  # a decode's mean context: 192 prompt tokens, and half of the 63 that follow
    expected_s = (num_read * BITS[scheme] / 8 + cached) / BYTES_PER_S
    assert run(data).variants["continuous-contiguous"].summary["tpot_s"]["mean"] == pytest.approx(expected_s, rel=0.02)


def test_heads_decide_who_is_admitted_and_how_fast() -> None:
    """Qwen2.5-0.5B in 192 MiB of fp16 cache: 2,340, 16,384 and 32,768 tokens with 14, 2 and 1 KV heads, hence 9, 64 and
    128 requests of 256 tokens. Fewer heads answer more tokens a second."""
    heads = {"mha": 14, "gqa": 2, "mqa": 1}
    variants = {name: {"attention": name} for name in heads}
    result = run(scenario_data("qwen2.5-0.5b", {"memory": "192MiB"}, variants=variants))
    for name, num in heads.items():
        variant = result.variants[name]
        tokens = 192 * 2**20 // (2 * 24 * num * 64 * 2)
        assert variant.summary["kv_cache"]["capacity_tokens"] == tokens
        assert variant.summary["peak_running"] == tokens // 256
        assert variant.model.spec.num_kv_heads == num
    assert [v.summary["peak_running"] for v in result.variants.values()] == [9, 64, 128]
    speeds = [v.summary["output_tokens_per_s"] for v in result.variants.values()]
    assert all(slow < fast for slow, fast in pairwise(speeds))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from(["fp16", "fp8", "fp32"]), st.integers(1, 3))
def test_tokens_times_bytes_fill_the_cache(kv_heads: int, dtype: str, gib: int) -> None:
    """Law: whatever the heads and the type, capacity × bytes per token is the memory, to less than one token."""
    data = scenario_data("llama-2-7b", {"memory": gib * GIB, "dtype": dtype}, attention={"kv_heads": kv_heads})
    data["workload"] = {**data["workload"], "num_requests": 1}
    (variant,) = run(data).variants.values()
    per_token = 2 * 32 * kv_heads * 128 * {"fp8": 1, "fp16": 2, "fp32": 4}[dtype]
    assert variant.model.kv_bytes_per_token == per_token
    assert 0 <= gib * GIB - variant.summary["kv_cache"]["capacity_tokens"] * per_token < per_token


def test_switches_that_say_what_is_so_anyway_change_nothing() -> None:
    """Same records, same summary, to the bit."""
    plain = scenario_data("qwen2.5-0.5b", {"memory": "96MiB"})
    (one,) = run(plain).variants.values()
    (other,) = run({**plain, "weights": "fp16", "attention": "gqa"}).variants.values()
    assert (one.summary, one.model, one.step_time.source) == (other.summary, other.model, other.step_time.source)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path, scenario_data("qwen2.5-0.5b", {"device_memory": "4GiB"}))


def invoke(*args: object) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return done.output


def test_set_reaches_them_and_the_results_tell(tmp_path: Path, file: Path) -> None:
    """``--set`` from the command line; ``summary.json`` and the manifest say which weights and heads were simulated,
    the terminal and the page that they are not the model's own."""
    output = invoke("run", file, "--set", "weights=int4", "--set", "attention.kv_heads=14", "--out", tmp_path / "r")
    (summary,) = json.loads((tmp_path / "r" / "summary.json").read_text())["variants"].values()
    (manifest,) = json.loads((tmp_path / "r" / "manifest.json").read_text())["variants"].values()
    simulated = summary["simulated_model"]
    assert simulated == manifest["simulated_model"]
    assert {key: simulated[key] for key in ("weights", "bits_per_weight", "num_kv_heads", "kv_bytes_per_token")} == {
        "weights": "int4",
        "bits_per_weight": 4.125,
        "num_kv_heads": 14,
        "kv_bytes_per_token": 86_016,
    }
    spec = replace(load_model_spec("qwen2.5-0.5b"), num_kv_heads=14)
    assert summary["kv_cache"]["capacity_tokens"] == (2.5 * GIB - spec.num_parameters * 4.125 / 8) // 86_016
    for text in (
        "14 KV heads instead of the model's own 2",
        "weights kept as int4 (4.125 bits) and multiplied in fp16",
    ):
        assert text in " ".join(output.split())
        assert text.replace("'", "&#39;") in (tmp_path / "r" / "report.html").read_text()


def test_a_sweep_over_weights_and_heads(tmp_path: Path, file: Path) -> None:
    """``simserve sweep``: each point's throughput rises with fewer bits and falls with more heads."""
    over = ("--over", "weights=fp16,int4", "--over", "attention.kv_heads=1,2,14")
    invoke("sweep", file, *over, "--replications", 1, "--reports", "none", "--out", tmp_path / "s")
    points = json.loads((tmp_path / "s" / "sweep.json").read_text())["points"]
    speed = {tuple(p["settings"].values()): p["metrics"]["output_tokens_per_s"]["value"] for p in points}
    assert len(speed) == 6
    for scheme in ("fp16", "int4"):
        assert speed[scheme, 1] > speed[scheme, 2] > speed[scheme, 14]
    for heads in (1, 2, 14):
        assert speed["int4", heads] > speed["fp16", heads]


def test_a_variant_that_no_profile_measured_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    """Exit code 2 and one sentence; nothing is written."""
    (tmp_path / "p.json").write_text(json.dumps(make_content()))
    variants = {"own": {}, "half": {"weights": "int8"}}
    data = scenario_data("tiny", {"num_blocks": 40_000}, step_time={"profile": "./p.json"}, variants=variants)
    done = CliRunner().invoke(app, ["run", str(write(tmp_path, data)), "--out", str(tmp_path / "r")])
    assert done.exit_code == 2
    assert "must be measured with weights in int8 (got fp32)" in " ".join(done.output.split())
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("model", "scheme", "memory", "devices"),
    [("llama-2-7b", "int4", 16, 1), ("llama-2-13b", "int8", 16, 1), ("llama-3.1-8b", "fp16", 12, 2)],
)
def test_a_scenario_s_cache_is_what_simserve_memory_says(model: str, scheme: str, memory: int, devices: int) -> None:
    """Model, weights, memory, overhead and type of the cache alike: ``resident_tokens`` of the command is the cache's
    capacity. The command takes one device's memory, a scenario that of all together."""
    options = ("--memory", f"{memory}GiB", "--weights", scheme, "--kv-dtype", "fp16", "--tensor-parallel", devices)
    answer = json.loads(invoke("memory", model, *options, "--json"))
    step_time = {"roofline": "rtx-4090", "dtype": "fp16", "tensor_parallel": devices}
    scenario = parse_scenario(
        scenario_data(model, {"device_memory": f"{memory * devices}GiB"}, weights=scheme, step_time=step_time)
    )
    assert assemble(scenario).scheduler.pool.allocator.capacity_tokens == answer["resident_tokens"] > 0
