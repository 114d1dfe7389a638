"""``--set key.path=value``: what it sets, what it drops, and what it refuses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.scenario import (
    ContiguousCacheConfig,
    GeneratedWorkload,
    RooflineStepTimeConfig,
    StaticEngineConfig,
    TraceWorkload,
    parse_scenario,
)
from simserve.scenario.merge import merge
from tests.scenario_builders import SMALL, load, small


def test_values_are_yaml(tmp_path: Path) -> None:
    """Numbers, text, null, lists and mappings are read as they would be in the file; a later one wins."""
    scenario = load(
        tmp_path,
        small(slo={"tpot_s": 0.2}),
        "engine.max_num_seqs=16",
        "seed=3",
        "seed=4",
        "slo.ttft_s=1.5",
        "slo.tpot_s=null",
        "workload.output_tokens.values=[7, 8]",
        "model=llama=like",
    )
    assert (scenario.engine.max_num_seqs, scenario.seed, scenario.model) == (16, 4, "llama=like")
    assert (scenario.slo.ttft_s, scenario.slo.tpot_s) == (1.5, None)
    assert isinstance(scenario.workload, GeneratedWorkload)
    assert scenario.workload.output_tokens.model_dump() == {"values": [7, 8], "shuffle": True}


def test_sections_on_the_way_are_made(tmp_path: Path) -> None:
    """A path may name sections, and variants, that the file does not have."""
    scenario = load(tmp_path, SMALL, "slo.e2e_s=9.0", "variants.big.engine.max_num_seqs=64", "variants.as-is={}")
    assert scenario.slo.e2e_s == 9.0
    assert {name: v.engine.max_num_seqs for name, v in scenario.resolve_variants().items()} == {"big": 64, "as-is": 4}


def test_variants_can_be_cleared(tmp_path: Path) -> None:
    """A value replaces what stood there, so an empty mapping leaves the base scenario alone."""
    scenario = load(tmp_path, small(variants={"v": {"engine": {"policy": "static"}}}), "variants={}")
    assert list(scenario.resolve_variants()) == ["continuous-paged"]


def test_an_override_that_names_another_kind_drops_the_old_kinds_keys(tmp_path: Path) -> None:
    """Step time, policy, allocator, arrivals, lengths, capacity: no key of the old kind is left to trip on."""
    cache = {"allocator": "paged", "num_blocks": 64, "watermark": 0.1, "null_blocks": 1}
    scenario = load(
        tmp_path,
        small(engine__kv_cache=cache),
        "step_time.roofline=h100-sxm",
        "engine.policy=static",
        "engine.kv_cache.allocator=contiguous",
        "engine.kv_cache.memory=1GiB",
        "workload.arrivals.process=all_at_once",
        "workload.output_tokens.fixed=5",
    )
    assert isinstance(scenario.step_time, RooflineStepTimeConfig)
    assert isinstance(scenario.engine, StaticEngineConfig)
    assert isinstance(scenario.engine.kv_cache, ContiguousCacheConfig)
    assert (scenario.engine.kv_cache.memory, scenario.engine.kv_cache.num_blocks) == (2**30, None)
    assert isinstance(scenario.workload, GeneratedWorkload)
    assert scenario.workload.arrivals.model_dump() == {"process": "all_at_once"}
    assert scenario.workload.output_tokens.model_dump() == {"fixed": 5}
    assert scenario.engine.max_num_seqs == 4  # known to both kinds: kept


def test_a_trace_replaces_a_generator_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``workload.trace`` drops the distributions; arrivals, lengths and a number of requests drop the trace. A path on
    the command line starts from the working directory."""
    monkeypatch.chdir(tmp_path)
    traced = load(tmp_path, SMALL, "workload.trace=t.csv", "workload.limit=5")
    assert traced.workload == TraceWorkload(trace=str(tmp_path / "t.csv"), limit=5)
    back = load(
        tmp_path,
        small(workload={"trace": "t.csv", "format": "azure", "limit": 5}),
        "workload.arrivals.process=all_at_once",
        "workload.num_requests=2",
        "workload.prompt_tokens.fixed=8",
        "workload.output_tokens.fixed=8",
    )
    assert isinstance(back.workload, GeneratedWorkload)


def test_paths_on_the_command_line_start_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model or profile that exists there is found there, ``~`` is home, and catalogue names stay names."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/someone")
    assert load(tmp_path, SMALL, "model=config.json").model == str(tmp_path / "here" / "config.json")
    assert load(tmp_path, SMALL, "model=meta-llama/Llama-3.1-8B").model == "meta-llama/Llama-3.1-8B"
    traced = load(tmp_path, SMALL, "workload={trace: ~/t.csv}").workload
    assert traced == TraceWorkload(trace="/home/someone/t.csv")


def test_swap_is_dropped_with_its_preemption(tmp_path: Path) -> None:
    """Comparing swap with recompute takes a one-key variant, not one that also unsets the swap space."""
    swap = {"preemption": "swap", "swap": {"space": "4GiB", "bandwidth_bytes_per_s": 1e10}}
    cache = {"allocator": "paged", "num_blocks": 64, **swap}
    data = small(engine__kv_cache=cache, variants={"r": {"engine": {"kv_cache": {"preemption": "recompute"}}}, "s": {}})
    caches = {name: v.engine.kv_cache.model_dump() for name, v in load(tmp_path, data).resolve_variants().items()}
    assert (caches["r"]["swap"], caches["s"]["swap"]["space"]) == (None, 4 * 2**30)


def test_an_override_inside_a_variant_drops_the_variants_old_keys(tmp_path: Path) -> None:
    """The rule holds inside ``variants.<name>`` as it does in the scenario itself."""
    data = small(variants={"v": {"engine": {"policy": "static", "max_wait_s": 1.0}}})
    scenario = load(tmp_path, data, "variants.v.engine.policy=chunked")
    assert scenario.resolve_variants()["v"].engine.policy == "chunked"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed"], "--set seed: must have the form key.path=value"),
        (["=3"], "--set =3: must have the form key.path=value"),
        (["a..b=3"], "--set a..b=3: must have the form key.path=value"),
        (["seed=[1"], "--set seed: line "),
        (["seed={a: 1, a: 2}"], "--set seed: line 1: is not valid YAML (key 'a' twice)"),
        (["engine.max_num_seq=3"], "small.yaml: engine: unknown key 'max_num_seq' (did you mean 'max_num_seqs'?)"),
        (["seed.x=1"], "small.yaml: seed: must be a whole number (got a mapping)"),
        (["engine.kv_cache.num_blocks=0"], "small.yaml: engine.kv_cache.num_blocks: must be ≥ 1 (got 0)"),
        (
            ["workload.num_requests=9", "workload.trace=t.csv"],
            "--set workload.num_requests=9: another --set names a kind without this key; give only one",
        ),
    ],
)
def test_bad_overrides_are_one_sentence(tmp_path: Path, overrides: list[str], expected: str) -> None:
    """A mistake on the command line is reported as such; a value that breaks a rule, at its key."""
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, SMALL, *overrides)
    assert str(caught.value).startswith(expected)


KINDS = {
    "policy": ({"policy": "static", "max_wait_s": 2.0}, {"policy": "continuous"}, {"policy": "chunked"}),
    "allocator": (
        {"allocator": "paged", "watermark": 0.2, "null_blocks": 1},
        {"allocator": "contiguous", "reserve": "oracle"},
    ),
}


@given(
    st.lists(st.tuples(st.sampled_from(KINDS["policy"]), st.sampled_from(KINDS["allocator"])), max_size=6),
    st.integers(1, 100),
)
def test_any_chain_of_kinds_stays_valid(chain: list[tuple[dict[str, object], dict[str, object]]], seqs: int) -> None:
    """Law: laying whole kinds over each other in any order leaves a valid scenario of the last kind, and what no kind
    owns is untouched."""
    data = small(engine__max_num_seqs=seqs)
    for policy, cache in chain:
        data = merge(data, {"engine": {**policy, "kv_cache": cache}})
    scenario = parse_scenario(data)
    assert (scenario.engine.max_num_seqs, scenario.engine.kv_cache.num_blocks) == (seqs, 64)
    if chain:
        assert scenario.engine.policy == chain[-1][0]["policy"]
        assert scenario.engine.kv_cache.allocator == chain[-1][1]["allocator"]


@given(st.dictionaries(st.sampled_from("abc"), st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers())))
def test_merging_nothing_changes_nothing_and_twice_is_once(override: dict[str, object]) -> None:
    """Laws: ``{}`` is neutral on both sides, merging is idempotent, and inputs are not changed."""
    base = {"a": 1, "b": {"x": 1}}
    assert merge(base, {}) == base
    assert merge({}, override) == override
    assert merge(merge(base, override), override) == merge(base, override)
    assert base == {"a": 1, "b": {"x": 1}}
