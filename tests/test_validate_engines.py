"""Validation against real engines in process, on the smallest model: every step's composition is ours, before times."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")

from simserve.errors import InputError, ScenarioError
from simserve.recorded.engine_run import from_engine_run
from simserve.recorded.run import table_of
from simserve.recorded.steps import read_engine_run
from simserve.request import Content, Ranges
from simserve.scenario import load_scenario
from simserve.step_time.profile_schema import load_profile
from simserve.validate.command import ValidateOptions, validate
from simserve.validate.in_process import RealEngine
from simserve.validate.prompts import prompts_of
from tests.prefixes import content_of

SCENARIO = {
    "name": "tiny",
    "model": "tiny",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 12,
        "arrivals": {"process": "poisson", "rate_rps": 60.0},
        "prompt_tokens": {"uniform": {"low": 4, "high": 60}},
        "output_tokens": {"uniform": {"low": 1, "high": 12}},
    },
    "engine": {
        "policy": "chunked",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 48,
        "max_model_len": 128,
        "kv_cache": {"allocator": "paged", "block_size": 16, "num_blocks": 64, "watermark": 0.0},
    },
    "variants": {
        "chunked": {},
        "static": {"engine": {"policy": "static", "max_num_batched_tokens": 512}},
        "few-blocks": {"engine": {"policy": "transformers", "safety_margin": 0.1, "kv_cache": {"num_blocks": 7}}},
    },
}


def scenario_file(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(SCENARIO, sort_keys=False))
    return path


def validated(folder, engine, variant, num_runs=2):
    """The document of a validation, and its folder."""
    real = RealEngine(engine, "cpu", fresh_processes=False)
    options = ValidateOptions(
        scenario_file(folder), variant=variant, serve=real, num_runs=num_runs, out=folder / "out", quiet=True
    )
    validate(options)
    return json.loads((folder / "out" / "validation.json").read_text()), folder / "out"


@pytest.mark.parametrize(
    ("engine", "variant"), [("transformers", "chunked"), ("transformers", "few-blocks"), ("generate", "static")]
)
def test_every_step_is_ours(tmp_path, engine, variant):
    """Requests that come by the clock, cut prompts, static groups: composition by composition, in both runs. The runs
    are kept and can be scored again as recorded ones."""
    document, folder = validated(tmp_path, engine, variant)
    steps = document["steps"]
    assert steps["first_difference"] is None and steps["identical"] == steps["compared"] > 20
    runs = [read_engine_run(folder / f"run-{i}.jsonl") for i in (1, 2)]
    assert steps["compared"] == sum(len(run.steps) for run in runs)
    assert document["engine"]["kind"] == "in process" and document["engine"]["num_runs"] == 2
    entry = document["metrics"]["ttft_s"]["mean"]
    assert entry["noise"] is not None and entry["measured"] > 0 and entry["predicted"] > 0
    assert document["metrics"]["itl_s"]["p50"]["measured"] > 0
    if variant == "static":  # a recorded clock does not move a group's size
        assert document["metrics"]["mean_batch_size"]["error"] == pytest.approx(0, abs=1e-12)
    again = ValidateOptions(
        tmp_path / "tiny.yaml", variant=variant, measured=(folder / "run-1.jsonl",), out=tmp_path / "again", quiet=True
    )
    validate(again)
    rescored = json.loads((tmp_path / "again" / "validation.json").read_text())
    assert rescored["steps"]["compared"] == len(runs[0].steps) and rescored["steps"]["first_difference"] is None


def test_a_calibration_does_not_ask_for_the_profile_that_it_replaces(tmp_path, monkeypatch):
    """The scenario names a profile of the 25m model and is turned to the tiny one: what is measured now is the tiny
    model, with that profile's device and dtype; without a calibration the profile is refused."""
    from rich.console import Console

    from calibrate import sessions

    asked = []
    monkeypatch.setattr(sessions, "calibrate_in_sessions", lambda options, path, console: asked.append(options))
    scenario = load_scenario(scenario_file(tmp_path), ["step_time={profile: 25m-cpu-fp32}"])
    real = RealEngine("transformers", "cpu")
    real.calibrate(scenario.resolve_variants()["chunked"], tmp_path / "new.json", Console())
    assert [(options.model, options.device, options.dtype) for options in asked] == [("tiny", "cpu", "fp32")]
    with pytest.raises(InputError, match="must be measured on tiny"):
        real.check(scenario.resolve_variants()["chunked"])


def test_each_run_is_warmed_up_by_its_first_requests(tmp_path, monkeypatch):
    """Two runs asked for, six served: before each the first requests, two a slot and cut short, and since that took no
    time the whole once more, which no result holds. A run that would take long is not served twice."""
    from calibrate.replay import serve

    served, replay = [], serve.replay

    def counted(*arguments, **named):
        served.append(replay(*arguments, **named))
        return served[-1]

    monkeypatch.setattr(serve, "replay", counted)
    document, folder = validated(tmp_path, "transformers", "chunked")
    assert [len(run.requests) for run in served] == [8, 12, 12, 8, 12, 12] and document["engine"]["num_runs"] == 2
    assert max(each.num_output_tokens for each in served[0].requests) <= 16
    kept = [read_engine_run(folder / f"run-{i}.jsonl") for i in (1, 2)]
    assert [run.steps[-1].end for run in kept] == [run.steps[-1].end for run in served[2::3]]
    served.clear()
    monkeypatch.setattr(serve, "_SHORT_RUN_S", 0.0)
    (tmp_path / "long").mkdir()
    validated(tmp_path / "long", "transformers", "chunked", 1)
    assert [len(run.requests) for run in served] == [8, 12]


def test_a_run_in_a_process_of_its_own_is_the_same_run(tmp_path):
    """Step by step; who ends is told while it runs; nothing but the result comes back."""
    scenario = load_scenario(scenario_file(tmp_path)).resolve_variants()["chunked"]
    table = table_of(np.zeros(3, np.int64), np.array([10, 9, 3]), np.array([4, 2, 1]))
    told: list[int] = []
    fresh = RealEngine("transformers", "cpu")(scenario, table, told.append)
    here = RealEngine("transformers", "cpu", fresh_processes=False)(scenario, table, told.append)
    assert [(step.prefills, step.decodes) for step in fresh.steps] == [(s.prefills, s.decodes) for s in here.steps]
    half = len(told) // 2
    assert told[:half] == told[half:] and told[-1] == 3


def test_a_static_answer_is_delivered_with_its_group(tmp_path):
    """Measured E2E ends at the last step of the group's longest answer."""
    _, folder = validated(tmp_path, "generate", "static", 1)
    run = read_engine_run(folder / "run-1.jsonl")
    recorded = from_engine_run(run, "x")
    first_group = [work.id for work in run.steps[0].prefills]
    longest = max(run.requests[i].num_output_tokens for i in first_group)
    end_s = run.steps[longest - 1].end.cpu_s - min(each.arrival.cpu_s for each in run.requests)
    assert recorded.end_ns[first_group] / 1e9 == pytest.approx(np.full(len(first_group), end_s))


def test_another_policy_s_first_difference_is_shown_with_both_sides(tmp_path):
    """A run with a budget of 48 against a scenario with 40: the step, in what, and both states; a badge on the page."""
    _, folder = validated(tmp_path, "transformers", "chunked", 1)
    options = ValidateOptions(
        tmp_path / "tiny.yaml",
        ("engine.max_num_batched_tokens=40",),
        "chunked",
        measured=(folder / "run-1.jsonl",),
        out=tmp_path / "other",
        quiet=True,
    )
    validate(options)
    document = json.loads((tmp_path / "other" / "validation.json").read_text())
    first = document["steps"]["first_difference"]
    assert document["steps"]["identical"] < document["steps"]["compared"]
    assert first["run"] == "run-1.jsonl" and "prefills" in first["fields"]
    assert first["measured"]["num_batched_tokens"] != first["predicted"]["num_batched_tokens"]
    page = (tmp_path / "other" / "validation.html").read_text()
    assert "other steps" in page and "other settings" in page
    assert any("engine.max_num_batched_tokens 48, and the scenario says 40" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("engine", "variant", "changes", "expected"),
    [
        ("generate", "chunked", (), "engine.policy: must be static for --engine generate (got chunked)"),
        (
            "transformers",
            "static",
            (),
            "engine.policy: must be transformers or chunked for --engine transformers (got static)",
        ),
        ("transformers", "chunked", ("workload.concurrency=2",), "workload.concurrency: must be absent for --engine"),
        ("transformers", "chunked", ("attention=mqa",), "attention: must be absent for --engine"),
        (
            "transformers",
            "chunked",
            ("attention.kv_heads=1",),
            "attention: must be absent for --engine, which does not run that (got {kv_heads: 1})",
        ),
        (
            "transformers",
            "chunked",
            ("variants.chunked.engine.speculation={draft_tokens: 4, acceptance: 0.8, draft: {cost: 0}}",),
            "engine.speculation: must be absent for --engine, which does not run that (got drafts of 4)",
        ),
        ("generate", "static", ("variants.static.engine.kv_cache={allocator: none}",), "kv_cache: must be absent for"),
        (
            "transformers",
            "chunked",
            ("attention=mha",),
            "weights and attention: must be left out for --engine, which builds the model as it is (got 2 KV heads",
        ),
        ("transformers", "chunked", ("weights=int8",), "(got weights kept as int8 and multiplied in bf16"),
    ],
)
def test_what_an_engine_cannot_serve_is_refused_before_it_starts(tmp_path, engine, variant, changes, expected):
    """One sentence, nothing written, no model built."""
    real = RealEngine(engine, "cpu")
    changes = (*changes, *(("workload.arrivals=null",) if "workload.concurrency=2" in changes else ()))
    options = ValidateOptions(scenario_file(tmp_path), changes, variant, serve=real, out=tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match=r"tiny\.yaml: .*") as caught:
        validate(options)
    assert expected in str(caught.value) and not (tmp_path / "out").exists()


def test_a_python_without_vllm_is_refused(tmp_path):
    """Named, but not there."""
    scenario = load_scenario(scenario_file(tmp_path)).resolve_variants()["chunked"]
    real = RealEngine("vllm", "cpu", str(tmp_path / "python"))
    with pytest.raises(ScenarioError, match="--engine-python: must be an interpreter"):
        real(scenario, table_of(*(np.array([value]) for value in (0, 4, 4))), lambda num_ended: None)


def test_the_shipped_scenario_has_a_variant_for_each_engine():
    """The 1,874 tokens of skewed64; each engine accepts its variant, whose profile was measured on that engine."""
    path = Path(__file__).parents[1] / "scenarios" / "validation" / "skewed64-engines.yaml"
    variants = load_scenario(path).resolve_variants()
    assert list(variants) == ["transformers", "generate", "vllm"]
    for name, scenario in variants.items():
        RealEngine(name, "cpu", "python" if name == "vllm" else None).check(scenario)
        assert sum(scenario.workload.output_tokens.values) == 1874
        source = load_profile(scenario.step_time.profile).provenance.source or "forward"
        assert name in ("generate", source.partition(" ")[0].lower())
    cache = variants["vllm"].engine.kv_cache
    assert cache.block_size % 32 == 0 and cache.null_blocks == 1


def test_prompts_of_equal_content_begin_alike():
    """Blocks of one content are one text; the rest of a prompt is its own; lengths are kept."""
    table = table_of(np.zeros(3, np.int64), np.array([10, 9, 3]), np.array([1, 1, 1]))
    content = Content(np.array([5, 6, 5, 7]), np.array([0, 2, 4, 4]), 4)
    first, second, third = prompts_of(table.__class__(**{**vars(table), "content": content}), 1000)
    assert [len(prompt) for prompt in (first, second, third)] == [10, 9, 3]
    assert first[:4] == second[:4] and first[4:8] != second[4:8] and first[8:] != second[8:9]
    assert all(4 <= token < 1000 for token in (*first, *second, *third))
    assert list(prompts_of(table, 1000)) == list(prompts_of(table, 1000))


def test_prompts_of_ranges_and_short_blocks_begin_alike():
    """As far as both are known: 30 tokens of one range; all 25 of two prompts whose last block of ten is the same five;
    a chain that goes on beyond its prompt is the beginning of it."""
    table = table_of(np.zeros(3, np.int64), np.array([40, 50, 20]), np.ones(3, np.int64))
    known = (np.array([7, 7, 7]), np.array([30, 45, 60]))
    one, other, cut = prompts_of(replace(table, content=Ranges(*known)), 1000)
    assert (len(one), len(other), len(cut)) == (40, 50, 20)
    assert one[:30] == other[:30] and one[30:34] != other[30:34] and cut == one[:20]
    led = (np.array([100, 200, 100]), known[1], np.array([7, 7, 7]), np.array([10, 10, 10]))
    one, other, cut = prompts_of(replace(table, content=Ranges(*led)), 1000)
    assert one[:10] == other[:10] and one[10:14] != other[10:14] and cut == one[:20]
    table = table_of(np.zeros(2, np.int64), np.array([25, 25]), np.ones(2, np.int64))
    content = content_of(["ABC", "ABC"], 10, [25, 25])
    one, other = prompts_of(replace(table, content=content), 1000)
    assert one == other and len(one) == 25
