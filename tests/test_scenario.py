"""A scenario file becomes exactly what it says, with the documented defaults, and variants are whole scenarios."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from simserve.errors import ScenarioError
from simserve.memory.sizes import parse_size
from simserve.scenario import (
    ChunkedEngineConfig,
    ContiguousCacheConfig,
    ContinuousEngineConfig,
    GeneratedWorkload,
    PagedCacheConfig,
    ProfileStepTimeConfig,
    RooflineStepTimeConfig,
    Scenario,
    StaticEngineConfig,
    TraceWorkload,
    parse_scenario,
    scenario_schema,
)
from tests.scenario_builders import SMALL, load, small

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))


def test_attributes_bear_the_names_of_the_keys(tmp_path: Path) -> None:
    """YAML keys = attributes, and each section has the type of its kind."""
    scenario = load(tmp_path, SMALL)
    assert (scenario.name, scenario.model, scenario.seed) == ("small", "qwen2.5-0.5b", 0)
    assert scenario.step_time == ProfileStepTimeConfig(profile="a-profile")
    assert isinstance(scenario.workload, GeneratedWorkload)
    assert scenario.workload.num_requests == 4
    assert isinstance(scenario.engine, ContinuousEngineConfig)
    assert isinstance(scenario.engine.kv_cache, PagedCacheConfig)
    assert (scenario.engine.kv_cache.num_blocks, scenario.engine.kv_cache.watermark) == (64, 0.1)
    assert (scenario.base_dir, scenario.source) == (tmp_path, "small.yaml")


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    """What a file leaves out: blocks of 16 tokens, 1 % watermark, recompute, fcfs, no SLO, no null block."""
    data = small(engine__max_num_seqs=..., engine__kv_cache__watermark=...)
    scenario = load(tmp_path, data)
    engine, cache = scenario.engine, scenario.engine.kv_cache
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.queue_order) == (256, 2048, "fcfs")
    assert isinstance(cache, PagedCacheConfig)
    assert (cache.block_size, cache.watermark, cache.null_blocks, cache.preemption) == (16, 0.01, 0, "recompute")
    assert (scenario.slo.ttft_s, scenario.slo.tpot_s, scenario.slo.e2e_s) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512MiB", 512 * 2**20),
        ("64kb", 64_000),
        ("2TiB", 2 * 2**40),
        ("100B", 100),
        ("0.3GB", 300_000_000),
    ],
)
def test_binary_and_decimal_units_differ(text: str, expected: int) -> None:
    """A GiB is 2³⁰ bytes and a GB 10⁹ (IEC 80000-13); decimals are exact."""
    assert parse_size(text) == expected


def test_memory_may_be_bytes_or_a_size(tmp_path: Path) -> None:
    """``memory: 8GiB`` and its number of bytes are the same capacity."""
    sized, counted = (
        load(tmp_path, small(engine__kv_cache={"allocator": "paged", "memory": memory})) for memory in ("8GiB", 2**33)
    )
    assert sized.engine.kv_cache.memory == counted.engine.kv_cache.memory == 2**33


def test_without_variants_there_is_one_named_by_policy_and_allocator(tmp_path: Path) -> None:
    """A scenario without variants is its own only variant."""
    (name, variant), *others = load(tmp_path, SMALL).resolve_variants().items()
    assert (name, others) == ("continuous-paged", [])
    assert variant == load(tmp_path, SMALL)


def test_variants_are_whole_scenarios_in_the_files_order(tmp_path: Path) -> None:
    """A variant has what it overrides and the rest of its base, requests and seed included; the base stays itself."""
    overrides = {
        "z-static": {"engine": {"policy": "static", "max_wait_s": 2.0}},
        "a-contiguous": {"engine": {"kv_cache": {"allocator": "contiguous", "reserve": "oracle"}}},
        "roofline": {"step_time": {"roofline": "h100-sxm"}, "model": "llama-3.1-8b"},
        "as-is": {},
    }
    base = load(tmp_path, small(variants=overrides, seed=7))
    variants = base.resolve_variants()
    assert list(variants) == list(overrides)
    assert all(v.workload == base.workload and v.seed == 7 and not v.variants for v in variants.values())
    assert all(v.base_dir == tmp_path and v.name == "small" for v in variants.values())
    static, contiguous = variants["z-static"].engine, variants["a-contiguous"].engine
    assert isinstance(static, StaticEngineConfig)
    assert (static.max_wait_s, static.max_num_seqs, static.kv_cache) == (2.0, 4, base.engine.kv_cache)
    assert isinstance(contiguous.kv_cache, ContiguousCacheConfig)
    assert (contiguous.kv_cache.num_blocks, contiguous.kv_cache.reserve) == (64, "oracle")
    assert variants["roofline"].step_time == RooflineStepTimeConfig(roofline="h100-sxm")
    assert variants["as-is"].engine == base.engine


@pytest.mark.parametrize("key", ["workload", "seed", "name", "variants"])
def test_a_variant_cannot_change_what_all_share(tmp_path: Path, key: str) -> None:
    """The same requests meet every variant, so a variant that touches them is refused."""
    with pytest.raises(ScenarioError, match=rf"^small.yaml: variants\.x\.{key}: a variant cannot change the {key}"):
        load(tmp_path, small(variants={"x": {key: {}}}))


def test_a_resolved_variant_is_the_scenario_that_writes_it_out(tmp_path: Path) -> None:
    """Resolving equals validating the same thing written as a file of its own (sizes and defaults survive)."""
    swap = {"preemption": "swap", "swap": {"space": "4GiB", "bandwidth_bytes_per_s": 3.2e10}}
    cache = {"allocator": "paged", "memory": "1GiB", **swap}
    data = small(engine__kv_cache=cache, variants={"v": {"engine": {"policy": "chunked"}}})
    variant = load(tmp_path, data).resolve_variants()["v"]
    assert variant.model_dump() == parse_scenario(small(engine__kv_cache=cache, engine__policy="chunked")).model_dump()
    assert isinstance(variant.engine, ChunkedEngineConfig)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """A path that exists beside the file is found there; anything else stays a name for the catalogue."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text("{}")
    scenario = load(tmp_path, SMALL)
    assert scenario.locate("models/config.json") == str(tmp_path / "models/config.json")
    assert scenario.locate("models") == "models"  # no slash: a catalogue's name
    assert scenario.locate("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_pass_the_schema_that_editors_use(path: Path) -> None:
    """``simserve schema`` accepts every scenario that we ship, and is itself a valid JSON schema."""
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "data",
    [
        small(engine__kv_cache__block_size=0),
        small(engine__policy="unknown"),
        small(unknown=1),
        small(step_time={"profile": "a", "roofline": "b"}),
        small(engine__kv_cache={"allocator": "paged", "memory": "8G"}),
        small(workload__output_tokens={"values": []}),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(data: dict[str, object]) -> None:
    """An editor underlines the mistakes that the command would report."""
    assert not jsonschema.Draft202012Validator(scenario_schema()).is_valid(data)
    with pytest.raises(ScenarioError):
        parse_scenario(data)


def test_the_schema_explains_every_key() -> None:
    """The schema is the editor's help: it is JSON, and every key of the engine and its cache has a description."""
    definitions = json.loads(json.dumps(scenario_schema()))["$defs"]
    for name in ("PagedCacheConfig", "ContiguousCacheConfig", "RooflineStepTimeConfig", "TraceWorkload", "SwapConfig"):
        unexplained = [k for k, v in definitions[name]["properties"].items() if not v.get("description")]
        assert unexplained in ([], ["allocator"]), name


def test_models_can_be_built_without_a_file() -> None:
    """Scenarios made in Python hold models, not mappings, and are equal to the ones read from data."""
    read = parse_scenario(SMALL)
    built = Scenario(
        name="small", model=read.model, step_time=read.step_time, workload=read.workload, engine=read.engine
    )
    assert built == read
    assert TraceWorkload(trace="x.csv").format == "auto"
