"""The chapters' scenarios: each runs by the commands that its comment names, serves everybody, and shows what it
promises.

The chapters' own figures are in ``test_chapter_figures.py``.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve import cli
from simserve.scenario import load_scenario
from simserve.simulate import simulate
from simserve.sweep.options import SweepOptions
from simserve.sweep.plan import build_plan

ROOT = Path(__file__).parents[1]
CHAPTERS = ROOT / "scenarios" / "chapters"
NAMES = sorted(path.stem for path in CHAPTERS.glob("*.yaml"))


def commands() -> list[str]:
    """Every command line in the comments of the chapters' scenarios, without the words behind it, and in the table."""
    found = []
    for name in NAMES:
        text = (CHAPTERS / f"{name}.yaml").read_text(encoding="utf-8")
        found += [line.partition(" #")[0].strip() for line in re.findall(r"^#\s+(simserve \w+ .*)$", text, re.M)]
    found += re.findall(
        r"`(simserve (?:run|sweep|memory) [^`]*)`", (CHAPTERS / "README.md").read_text(encoding="utf-8")
    )
    return list(dict.fromkeys(found))


@cache
def run(name: str, *overrides: str) -> dict[str, dict[str, Any]]:
    result = simulate(load_scenario(CHAPTERS / f"{name}.yaml", overrides))
    return {variant: each.summary for variant, each in result.variants.items()}


def test_the_table_has_every_scenario_and_its_figures():
    """Each file is in it; figures that are measured here are those of this tree's runs, to the digits given."""
    table = (CHAPTERS / "README.md").read_text(encoding="utf-8")
    assert all(f"scenarios/chapters/{name}.yaml" in table for name in NAMES)
    batches, drafts, cache = run("batch-curve"), run("speculation"), run("no-cache")
    gain = batches["batch-16"]["output_tokens_per_s"] / batches["batch-1"]["output_tokens_per_s"]
    price = batches["batch-16"]["tpot_s"]["mean"] / batches["batch-1"]["tpot_s"]["mean"]
    assert f"{gain:.1f}× the throughput at {price:.1f}× the time per token" in table
    speed = drafts["plain"]["tpot_s"]["mean"] / drafts["draft-8"]["tpot_s"]["mean"]
    assert f"{drafts['draft-8']['speculation']['tokens_per_pass']:.2f} tokens a pass, {speed:.2f}× the speed" in table
    macs, times = (cache["no-cache"][key] / cache["cache"][key] for key in ("model_macs", "makespan_s"))
    assert f"{macs:.0f}× the multiply-adds, {times:.1f}× the time" in table


def test_every_system_of_the_chapters_has_its_scenario():
    """Cache, heads, weights, memory, batches, speculation twice; scenarios/skewed64.yaml has batching policies."""
    wanted = ["attention", "batch-curve", "memory", "no-cache", "speculation", "speculation-batch", "weights"]
    assert wanted == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_to_look_for_and_how_to_run_it(name):
    """A comment before the first key, with the scenario's own command in it; its name is the file's."""
    text = (CHAPTERS / f"{name}.yaml").read_text(encoding="utf-8")
    comment = text[: text.index("\nname:")]
    assert re.search(rf"simserve (run|sweep) scenarios/chapters/{name}\.yaml", comment)
    assert load_scenario(CHAPTERS / f"{name}.yaml").name == name


@pytest.mark.parametrize("name", NAMES)
def test_everybody_is_served_in_every_variant(name):
    """No request is refused, given up or left over, and all variants answer with the same tokens."""
    variants = run(name)
    assert all(summary["num_finished"] == summary["num_requests"] for summary in variants.values())
    assert len({summary["output_tokens"] for summary in variants.values()}) == 1


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_comments_work(line, tmp_path, monkeypatch):
    """Typed as they stand, from the project's folder; a sweep is checked at every point, and not simulated."""
    monkeypatch.chdir(ROOT)
    program, command, *rest = shlex.split(line)
    assert program == "simserve"
    if command == "sweep":
        path, options = rest[0], rest[1:]
        assert options[::2] == ["--over"] * (len(options) // 2)
        assert len(build_plan(SweepOptions(Path(path), over=tuple(options[1::2]))).data) >= 3
        return
    if command == "run":
        rest += ["--no-report", "--quiet", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, [command, *rest])
    assert done.exit_code == 0, done.output


def test_weights_smaller_weights_serve_more_at_once():
    """What the file says: about 1.4 times the throughput with int8 and 1.6 with four bits, for more sit in the
    cache."""
    variants = run("weights")
    fp16, *smaller = (variants[name] for name in ("fp16", "int8", "int4"))
    gains = [each["output_tokens_per_s"] / fp16["output_tokens_per_s"] for each in smaller]
    assert gains == [pytest.approx(1.4, abs=0.05), pytest.approx(1.6, abs=0.05)]
    assert fp16["kv_cache"]["capacity_tokens"] == 20_368 and variants["int4"]["kv_cache"]["capacity_tokens"] == 39_440
    assert fp16["mean_batch_size"] < smaller[0]["mean_batch_size"] < smaller[1]["mean_batch_size"]


def test_memory_heads_matter_as_much_as_bits():
    """What the file says: 63,520 and 3,104 tokens in whole blocks of what 63,534 and 3,116 are; a model with 8 KV heads
    serves more than one with 40 however few bits that one has."""
    variants = run("memory")
    held = {name: summary["kv_cache"]["capacity_tokens"] for name, summary in variants.items()}
    assert (held["mistral-7b-int8"], held["llama-2-13b-int8"]) == (63_520, 3_104)
    assert held["llama-2-13b-int4"] < held["mistral-7b-int8"]
    assert variants["llama-2-13b-int8"]["peak_running"] < variants["llama-2-13b-int4"]["peak_running"]


def test_speculation_longer_drafts_gain_more_where_they_are_right_and_lose_more_where_not():
    """What the file says, at α 0.9 as written and at 0.3."""
    right, wrong = run("speculation"), run("speculation", "engine.speculation.acceptance=0.3")
    names = ("plain", "draft-2", "draft-4", "draft-8")
    speeds = [[each[name]["output_tokens_per_s"] for name in names] for each in (right, wrong)]
    assert speeds[0] == sorted(speeds[0])
    assert speeds[1][1] > speeds[1][0] > speeds[1][3]
    assert right["plain"]["output_tokens_per_s"] == wrong["plain"]["output_tokens_per_s"]
