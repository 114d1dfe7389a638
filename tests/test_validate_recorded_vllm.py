"""The two recorded vLLM runs: their scenarios hold what their files say, and one set of assumptions for both.

The runs, their operator tables and their trace lie beside the project, not in it (LLMServingSim 5daddb21 under MIT).
"""

import json
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.recorded.read import read_recorded
from simserve.scenario import load_scenario
from simserve.validate.command import ValidateOptions, validate
from simserve.validate.score import flat
from simserve.validate.screen import problems, remarks
from tests.shared_data import needs

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "validation"
DATA = Path(__file__).parents[2] / "shared" / "data"
NAMES = {"rtx4090": "RTX4090", "rtxpro6000": "RTXPRO6000"}
has_data = needs(DATA)
ASSUMED = ("host_overhead_s", "unequal_contexts")  # of step times
RULES = ("watermark", "null_blocks", "preemption", "prefix_caching", "block_size")  # of the cache


def measured(name):
    return DATA / "measured" / f"vllm-0.19-{name}" / "requests.jsonl"


def overrides(name):
    tables = DATA / "profiles" / "llmservingsim" / NAMES[name] / "Llama-3.1-8B" / "bf16" / "tp1"
    trace = DATA / "traces" / "llmservingsim" / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"
    return f"step_time.operators={tables}", f"workload.trace={trace}"


def scenario(name):
    return load_scenario(SCENARIOS / f"vllm-{name}.yaml", ("step_time.operators=x", "workload.trace=y"))


@pytest.mark.parametrize("name", NAMES)
def test_without_tables_and_trace_the_scenario_says_what_to_give(name):
    """One sentence for each of the two, with the option that gives it."""
    with pytest.raises(
        ScenarioError, match=r"step_time\.operators: must name the folder .* --set step_time\.operators="
    ):
        load_scenario(SCENARIOS / f"vllm-{name}.yaml", ("workload.trace=y",))
    with pytest.raises(ScenarioError, match=r"workload\.trace: must name the trace file .* --set workload\.trace="):
        load_scenario(SCENARIOS / f"vllm-{name}.yaml", ("step_time.operators=x",))


def test_both_scenarios_share_every_assumption():
    """They differ in name, slots, context limit and blocks, which the runs' own files tell, in the largest CUDA graph,
    which follows from the slots (twice as many tokens, 512 at most), and in nothing else."""
    first, second = (scenario(name) for name in NAMES)
    for key in ASSUMED:
        assert getattr(first.step_time, key) == getattr(second.step_time, key)
    assert first.engine.async_scheduling is second.engine.async_scheduling is True
    for key in RULES:
        assert getattr(first.engine.kv_cache, key) == getattr(second.engine.kv_cache, key)
    flat_first, flat_second = (dict(_leaves(each.model_dump(mode="json"))) for each in (first, second))
    differing = {key for key in flat_first if flat_first[key] != flat_second[key]}
    told = {"engine.max_num_seqs", "engine.max_model_len", "engine.kv_cache.num_blocks"}
    assert differing == {"name", "step_time.max_captured_tokens", *told}
    for each in (first, second):
        assert each.step_time.max_captured_tokens == min(2 * each.engine.max_num_seqs, 512)


def _leaves(value, path=""):
    for key, child in value.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(child, dict):
            yield from _leaves(child, dotted)
        else:
            yield dotted, child


@has_data
@pytest.mark.parametrize("name", NAMES)
def test_the_run_is_sound_and_made_with_the_scenario_s_settings(name):
    """No problem, and nothing of meta.json that the scenario contradicts; only the PRO 6000's blocks are not told."""
    run = read_recorded(measured(name))
    assert problems(run) == [] and len(run) == 300
    found = remarks(run, scenario(name).model_dump(mode="json"))
    expected = [] if name == "rtx4090" else ["does not tell engine.kv_cache.num_blocks"]
    assert len(found) == len(expected) and all(text in found[0] for text in expected)


@has_data
@pytest.mark.parametrize("name", NAMES)
def test_figures_of_the_run_are_those_that_others_computed_from_it(name, tmp_path):
    """The other simulator's own summary of the same run (its column for vLLM), in milliseconds with one decimal."""
    options = ValidateOptions(
        SCENARIOS / f"vllm-{name}.yaml", overrides(name), measured=(measured(name),), out=tmp_path / "out", quiet=True
    )
    validate(options)
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    entries = flat(document["metrics"])
    rows = (measured(name).parent / "summary.txt").read_text().splitlines()
    words = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "e2e_s", "Mean": "mean", "Median": "p50"}
    checked = 0
    for row in rows:
        parts = row.split()
        if len(parts) == 5 and parts[0] in words:
            key = f"{words[parts[0]]}.{words.get(parts[1], parts[1].lower())}"
            assert 1e3 * entries[key]["measured"] == pytest.approx(float(parts[2]), abs=0.051), key
            checked += 1
    assert checked == 15
    assert all(entry["error"] is not None for key, entry in entries.items() if key.startswith(("ttft", "tpot", "e2e")))
    assert any("as recorded" in text for text in document["known_beforehand"])
    most = scenario(name).step_time.max_captured_tokens
    assert f"declared: steps of up to {most} tokens padded to captured sizes" in document["known_beforehand"]
