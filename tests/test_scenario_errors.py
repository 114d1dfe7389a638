"""Each mistake in a scenario is one sentence that says where, the rule, the value, and where it can the remedy."""

from pathlib import Path

import pytest

from simserve.errors import InputError, ScenarioError
from simserve.scenario import parse_scenario
from tests.scenario_builders import SMALL, load, small

CASES = [
    (small(engine__kv_cache__block_size=0), "engine.kv_cache.block_size: must be ≥ 1 (got 0)"),
    (small(engine__kv_cache__watermark=1.0), "engine.kv_cache.watermark: must be < 1.0 (got 1.0)"),
    (small(engine__max_num_seqs=10**30), f"engine.max_num_seqs: must be ≤ 65,536 (got {10**30})"),
    (small(slo={"ttft_s": 0}), "slo.ttft_s: must be > 0.0 (got 0)"),
    (small(seed=-1), "seed: must be ≥ 0 (got -1)"),
    (
        small(engine__kv_cache__num_block=3),
        "engine.kv_cache: unknown key 'num_block' (did you mean 'num_blocks'?)",
    ),
    (small(slo={"latency": 1}), "slo: unknown key 'latency' (known: ttft_s, tpot_s, e2e_s)"),
    (small(engin={}), "unknown key 'engin' (did you mean 'engine'?)"),
    (
        small(engine__policy="chunk"),
        "engine.policy: must be one of static, continuous, chunked, transformers (got 'chunk'; did you mean 'chunked'?",
    ),
    (small(engine__policy=...), "engine.policy: must be given (one of static, continuous, chunked, transformers)"),
    (small(engine__policy=3), "engine.policy: must be one of static, continuous, chunked, transformers (got 3)"),
    (
        small(engine__queue_order="fcf"),
        "engine.queue_order: must be 'fcfs', 'priority' or 'shortest_job_oracle' (got 'fcf'; did you mean 'fcfs'?)",
    ),
    (small(engine__max_wait_s=1.0), "engine: 'max_wait_s' belongs to policy: static (got policy: continuous)"),
    (
        small(engine__kv_cache__reserve="oracle"),
        "engine.kv_cache: 'reserve' belongs to allocator: contiguous (got allocator: paged)",
    ),
    (
        small(step_time={"roofline": "h100-sxm", "attention": "sdpa"}),
        "step_time: 'attention' belongs to profile (got roofline)",
    ),
    (
        small(step_time__roofline="h100-sxm"),
        "step_time: must have exactly one of profile, operators, roofline (got 'profile' and 'roofline')",
    ),
    (small(step_time={"file": "x"}), "step_time: must have exactly one of profile, operators, roofline (got 'file')"),
    (small(workload__limit=3), "workload: 'limit' belongs to trace (got generated)"),
    (
        small(workload={"trace": None}),
        "workload.trace: must name the trace file (got null); give it by --set workload.trace=FILE",
    ),
    (small(workload__num_requests=...), "workload.num_requests: must be given (how many requests arrive)"),
    (small(workload__num_requests="4"), "workload.num_requests: must be a whole number (got '4', which YAML reads as"),
    (small(workload__num_requests=True), "workload.num_requests: must be a whole number (got true)"),
    (small(workload__num_requests=4.0), "workload.num_requests: must be a whole number (got 4.0, which YAML reads as"),
    (
        small(workload__arrivals__rate_rps="1e3"),
        "workload.arrivals.rate_rps: must be a number (got '1e3', which YAML reads as text; write 1000)",
    ),
    (
        small(workload__arrivals__rate_rps="1e-12"),
        "workload.arrivals.rate_rps: must be a number (got '1e-12', which YAML reads as text; write 1.0e-12)",
    ),
    (
        small(workload__arrivals__rate_rps="1.25e-5"),
        "workload.arrivals.rate_rps: must be a number (got '1.25e-5', which YAML reads as text; write 0.0000125)",
    ),
    (
        small(workload__arrivals__rate_rps="3e300"),
        "workload.arrivals.rate_rps: must be a number (got '3e300', which YAML reads as text; write 3.0e+300)",
    ),
    (small(workload__arrivals__rate_rps=float("nan")), "workload.arrivals.rate_rps: must be a finite number (got nan)"),
    (small(workload__arrivals__rate_rps=float("inf")), "workload.arrivals.rate_rps: must be a finite number (got inf)"),
    (small(workload__output_tokens={"values": [4, 0]}), "workload.output_tokens.values[1]: must be ≥ 1 (got 0)"),
    (small(workload__output_tokens={"values": []}), "workload.output_tokens.values: must not be empty"),
    (
        small(workload__output_tokens={"quantiles": {"p0": 1}}),
        "workload.output_tokens.quantiles: must have at least 2 entries (got 1)",
    ),
    (
        small(workload={"num_requests": 4, "tenants": {f"t{i}": {"trace": "t.csv"} for i in range(1001)}}),
        "workload.tenants: must have at most 1,000 entries (got 1,001)",
    ),
    (small(workload__length_table=[[1.0]]), "workload.length_table: must have at least 2 entries (got 1)"),
    (
        small(workload__prompt_tokens={"uniform": {"low": 5, "high": 4}}),
        "workload.prompt_tokens.uniform: high must be ≥ low (got low 5, high 4)",
    ),
    (
        small(workload__prompt_tokens={"lognormal": {"mean": 5.0}}),
        "workload.prompt_tokens.lognormal.sigma: must be given (standard deviation of the logarithm of the length)",
    ),
    (
        small(engine__kv_cache__memory="1GiB"),
        "engine.kv_cache: give exactly one of num_blocks, memory, device_memory (got num_blocks and memory)",
    ),
    (
        small(engine__kv_cache={"allocator": "paged", "memory": "8G"}),
        "engine.kv_cache.memory: must be a size with its unit, such as 8GiB",
    ),
    (small(engine__kv_cache__preemption="swap"), "engine.kv_cache: preemption: swap needs swap: {space: 4GiB,"),
    (small(engine__kv_cache__null_blocks=64), "engine.kv_cache: null_blocks must be < num_blocks (got 64 of 64)"),
    (
        small(engine__policy="chunked", engine__max_num_batched_tokens=3),
        "engine: max_num_batched_tokens must be ≥ max_num_seqs, or a full batch could not decode in one step",
    ),
    (small(name="a/b"), "name: must be usable as a folder's name: no slashes, no dot in front (got 'a/b')"),
    (small(model=7), "model: must be text (got 7)"),
    (small(engine=None), "engine: must be a mapping (got null)"),
    (small(engine__kv_cache=...), "engine.kv_cache: must be given ("),
    (small(variants=[1]), "variants: must be a mapping (got a list)"),
    (small(variants={"v": 3}), "variants.v: must be a mapping (got 3)"),
    (
        small(variants={"v": {"engine": {"policy": "magic"}}}),
        "variants.v.engine.policy: must be one of static, continuous, chunked, transformers (got 'magic')",
    ),
    (
        small(variants={"v": {"engine": {"kv_cache": {"blocksize": 1}}}}),
        "variants.v.engine.kv_cache: unknown key 'blocksize' (did you mean 'block_size'?)",
    ),
    (5, "must be a mapping of keys to values (got 5)"),
    ("", "is empty; a scenario needs at least name, model, workload, engine"),
]


@pytest.mark.parametrize(("data", "expected"), CASES, ids=[expected[:60] for _, expected in CASES])
def test_one_sentence_names_place_rule_and_value(tmp_path: Path, data: object, expected: str) -> None:
    """``file: key.path: rule (got value)``, on one line, as an error whose exit code is 2."""
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, data if data == "" or not isinstance(data, int) else str(data))
    message = str(caught.value)
    assert message.startswith(f"small.yaml: {expected}")
    assert "\n" not in message
    assert isinstance(caught.value, InputError)


def test_a_tenant_without_its_file_is_told_of_its_own_key(tmp_path: Path) -> None:
    """Not to set workload.trace, which is another workload's key."""
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, small(workload={"num_requests": 4, "tenants": {"chat": {"trace": None}}}))
    assert str(caught.value) == "small.yaml: workload.tenants.chat.trace: must name the trace file (got null)"


def test_more_lengths_than_a_scenario_holds_belong_in_a_trace() -> None:
    """Unlike too many tenants, which a trace could not name either."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(small(workload__output_tokens={"values": [1] * 200_001}), "s")
    rule = "must have at most 200,000 entries (got 200,001); put more in a trace file"
    assert str(caught.value) == f"s: workload.output_tokens.values: {rule}"


def test_of_several_problems_the_misspelt_key_comes_first(tmp_path: Path) -> None:
    """A misspelt key explains the one that is missing, so it is what the sentence is about; the rest is counted."""
    data = small(workload__num_requests=..., workload__num_request=4, seed=-1)
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, data)
    expected = "small.yaml: workload: unknown key 'num_request' (did you mean 'num_requests'?) (and 2 more)"
    assert str(caught.value) == expected


def test_control_characters_cannot_break_the_line(tmp_path: Path) -> None:
    """Names that come from the file are escaped in the message."""
    with pytest.raises(ScenarioError, match=r"^small.yaml: unknown key") as caught:
        load(tmp_path, {**SMALL, "a\nb\x1b[31m": 1})
    assert str(caught.value).isprintable()
