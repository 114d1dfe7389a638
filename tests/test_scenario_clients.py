"""Closed loops, clients, resampled traces and the engine's queue limit, as scenario files say them."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.scenario import GeneratedWorkload, RetryConfig, TraceWorkload, parse_scenario, scenario_schema
from simserve.scenario.merge import merge
from tests.scenario_builders import load, small

CLOSED = {"workload__arrivals": ..., "workload__concurrency": 4}
TRACE = {"trace": "t.csv"}


def closed(**changes: object) -> dict[str, Any]:
    return small(**{**CLOSED, **changes})


def clients(**section: object) -> dict[str, Any]:
    return small(workload__clients=section)


def test_a_file_says_how_clients_behave(tmp_path: Path) -> None:
    """Every key has the value that the file gives it, under its own name."""
    retry = {"max_attempts": 4, "backoff_s": 1, "max_backoff_s": 60.0, "jitter": 0.5, "after": ["rejected"]}
    section = {"timeout_s": 60, "ttft_timeout_s": 10.0, "cancel": {"share": 0.05, "mean_after_s": 3.0}, "retry": retry}
    limits = {"engine__max_queued_requests": 64, "engine__retry_after_s": 0}
    think = {"exponential": {"mean": 2.0}}
    scenario = load(tmp_path, closed(workload__clients=section, workload__think_time_s=think, **limits))
    assert isinstance(scenario.workload, GeneratedWorkload)
    dumped = scenario.workload.model_dump(exclude_unset=True)
    assert (dumped["clients"], dumped["think_time_s"], dumped["concurrency"]) == (section, think, 4)
    assert (scenario.engine.max_queued_requests, scenario.engine.retry_after_s) == (64, 0.0)


def test_by_default_nobody_gives_up_and_nobody_is_turned_away() -> None:
    """What a file leaves out: open loop, no time-outs, no cancellations, no retries, no limit; Retry-After 1 s."""
    scenario = parse_scenario(small())
    people = scenario.workload.clients
    assert (people.timeout_s, people.ttft_timeout_s, people.cancel, people.retry) == (None, None, None, None)
    assert (scenario.workload.concurrency, scenario.workload.think_time_s) == (None, None)
    assert (scenario.engine.max_queued_requests, scenario.engine.retry_after_s) == (None, 1.0)


def test_a_bare_retry_is_that_of_the_usual_python_clients() -> None:
    """openai-python's _constants.py and _base_client.py: 2 retries, 0.5 s doubled to at most 8 s, times
    1 − 0.25 · random(), after a 429 as after a time-out."""
    retry = RetryConfig()
    assert (retry.max_attempts - 1, retry.backoff_s, retry.multiplier) == (2, 0.5, 2.0)
    assert (retry.max_backoff_s, retry.jitter, retry.after) == (8.0, 0.25, ["rejected", "timed_out"])


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked"])
def test_every_policy_can_limit_its_queue(policy: str) -> None:
    """The limit is the server's, whatever policy runs behind it; variants may differ in it."""
    data = small(engine__policy=policy, variants={"short": {"engine": {"max_queued_requests": 4}}, "long": {}})
    limits = {name: v.engine.max_queued_requests for name, v in parse_scenario(data).resolve_variants().items()}
    assert limits == {"short": 4, "long": None}


CASES = [
    (closed(workload__arrivals={"process": "all_at_once"}), "workload: give exactly one of arrivals and concurrency"),
    (small(workload__arrivals=...), "workload: give exactly one of arrivals and concurrency (got neither)"),
    (closed(workload__concurrency=None), "workload: give exactly one of arrivals and concurrency (got neither)"),
    (closed(workload__concurrency=0), "workload.concurrency: must be ≥ 1 (got 0)"),
    (closed(workload__concurrency=2.5), "workload.concurrency: must be a whole number (got 2.5)"),
    (
        small(workload__think_time_s={"fixed": 1.0}),
        "workload: think_time_s needs concurrency: clients of an open loop send at their own times",
    ),
    (
        small(workload={**TRACE, "think_time_s": {"fixed": 1.0}}),
        "workload: think_time_s needs concurrency: clients of an open loop send at their own times",
    ),
    (closed(workload__think_time_s=2.0), "workload.think_time_s: must be a mapping (got 2.0)"),
    (
        closed(workload__think_time_s={"gamma": {}}),
        "workload.think_time_s: must have exactly one of fixed, exponential (got 'gamma')",
    ),
    (closed(workload__think_time_s={"fixed": -1}), "workload.think_time_s.fixed: must be ≥ 0.0 (got -1)"),
    (
        closed(workload__think_time_s={"exponential": {"mean": 0}}),
        "workload.think_time_s.exponential.mean: must be > 0.0 (got 0)",
    ),
    (clients(timeout=3), "workload.clients: unknown key 'timeout' (did you mean 'timeout_s'?)"),
    (clients(timeout_s=0), "workload.clients.timeout_s: must be > 0.0 (got 0)"),
    (clients(timeout_s=float("inf")), "workload.clients.timeout_s: must be a finite number (got inf)"),
    (
        clients(timeout_s=5, ttft_timeout_s=6),
        "workload.clients: ttft_timeout_s must be ≤ timeout_s (got 6 and 5)",
    ),
    (
        clients(cancel={"share": 1.5, "mean_after_s": 1}),
        "workload.clients.cancel.share: must be ≤ 1.0 (got 1.5)",
    ),
    (clients(cancel={"share": 0.5}), "workload.clients.cancel.mean_after_s: must be given (mean of the exponential"),
    (clients(retry={"max_attempts": 1}), "workload.clients.retry.max_attempts: must be ≥ 2 (got 1)"),
    (clients(retry={"multiplier": 0.5}), "workload.clients.retry.multiplier: must be ≥ 1.0 (got 0.5)"),
    (clients(retry={"jitter": 1.1}), "workload.clients.retry.jitter: must be ≤ 1.0 (got 1.1)"),
    (clients(retry={"backoff_s": 0}), "workload.clients.retry.backoff_s: must be > 0.0 (got 0)"),
    (
        clients(retry={"backoff_s": 9.5}),
        "workload.clients.retry: max_backoff_s must be ≥ backoff_s (got 8 and 9.5)",
    ),
    (
        clients(retry={"after": ["timeout"]}),
        "workload.clients.retry.after[0]: must be 'rejected' or 'timed_out' (got 'timeout'; did you mean 'timed_out'?)",
    ),
    (clients(retry={"after": []}), "workload.clients.retry.after: must not be empty"),
    (clients(retry={"after": "rejected"}), "workload.clients.retry.after: must be a list (got 'rejected')"),
    (
        clients(retry={"after": ["rejected", "rejected"]}),
        "workload.clients.retry: after must name each reason once (got rejected, rejected)",
    ),
    (
        small(workload={**TRACE, "concurrency": 4, "rate_scale": 2.0}),
        "workload: rate_scale must be 1.0 with concurrency, which does not use the trace's times (got 2); raise",
    ),
    (
        small(workload={**TRACE, "resample": {"block_requests": 0}}),
        "workload.resample.block_requests: must be ≥ 1 (got 0)",
    ),
    (small(workload={**TRACE, "resample": 140}), "workload.resample: must be a mapping (got 140)"),
    (
        small(workload={**TRACE, "resample": {}}),
        "workload.resample.block_requests: must be given (consecutive requests",
    ),
    (
        small(workload__resample={"block_requests": 3}),
        "workload: 'resample' belongs to trace (got generated)",
    ),
    (small(engine__max_queued_requests=0), "engine.max_queued_requests: must be ≥ 1 (got 0)"),
    (small(engine__retry_after_s=-1), "engine.retry_after_s: must be ≥ 0.0 (got -1)"),
    (
        small(engine__max_queued_request=8),
        "engine: unknown key 'max_queued_request' (did you mean 'max_queued_requests'?)",
    ),
    (
        small(engine__policy="static", engine__max_queued_requests=3),
        "engine: max_queued_requests must be ≥ max_num_seqs, or a full group could never gather (got 3 and 4); or give",
    ),
]


@pytest.mark.parametrize(("data", "expected"), CASES, ids=[expected[:70] for _, expected in CASES])
def test_a_mistake_is_one_sentence(data: dict[str, Any], expected: str) -> None:
    """``file: key.path: rule (got value)``, on one line."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data, "small.yaml")
    assert str(caught.value).startswith(f"small.yaml: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [closed(), small(engine__policy="static", engine__max_queued_requests=4)])
def test_the_limits_of_the_rules_are_allowed(data: dict[str, Any]) -> None:
    """What stands exactly on a rule's border is fine."""
    parse_scenario(data)


def test_a_static_group_may_start_partial_under_a_short_queue() -> None:
    """With ``max_wait_s`` a group needs not be full, so that a queue shorter than it is no trap."""
    data = small(engine__policy="static", engine__max_queued_requests=3, engine__max_wait_s=1.0)
    assert parse_scenario(data).engine.max_queued_requests == 3


@pytest.mark.parametrize("order", [1, -1])
def test_an_open_loop_becomes_a_closed_one_by_set(tmp_path: Path, order: int) -> None:
    """``--set workload.concurrency`` drops the arrivals; a think time may be set before or after it."""
    overrides = ["workload.concurrency=8", "workload.think_time_s.fixed=1.5"][::order]
    workload = load(tmp_path, small(), *overrides).workload
    assert isinstance(workload, GeneratedWorkload)
    assert (workload.arrivals, workload.concurrency, workload.num_requests) == (None, 8, 4)


def test_a_closed_loop_becomes_an_open_one_by_set(tmp_path: Path) -> None:
    """``--set workload.arrivals…`` drops the clients' number and what goes with it, and keeps their patience."""
    data = closed(workload__think_time_s={"fixed": 1.0}, workload__clients={"timeout_s": 9})
    workload = load(tmp_path, data, "workload.arrivals={process: poisson, rate_rps: 3}").workload
    assert isinstance(workload, GeneratedWorkload)
    assert (workload.concurrency, workload.think_time_s, workload.clients.timeout_s) == (None, None, 9)
    assert workload.arrivals is not None
    assert workload.arrivals.model_dump() == {"process": "poisson", "rate_rps": 3}


def test_setting_both_is_one_sentence(tmp_path: Path) -> None:
    """Of two overrides that exclude each other the earlier would be lost in silence, so both are refused."""
    with pytest.raises(ScenarioError, match=r"^--set workload.concurrency=3: another --set names a kind without this"):
        load(tmp_path, small(), "workload.concurrency=3", "workload.arrivals.process=all_at_once")


def test_a_trace_keeps_its_kind_in_a_closed_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrency belongs to both kinds: set on a trace it stays one, and a trace set on a closed loop keeps it."""
    monkeypatch.chdir(tmp_path)
    traced = load(tmp_path, small(workload={**TRACE, "limit": 9}), "workload.concurrency=8").workload
    assert traced == TraceWorkload(trace="t.csv", limit=9, concurrency=8)
    replaced = load(tmp_path, closed(workload__clients={"timeout_s": 5}), "workload.trace=t.csv").workload
    assert isinstance(replaced, TraceWorkload)
    assert (replaced.concurrency, replaced.clients.timeout_s) == (4, 5)


def test_think_times_of_another_kind_need_no_clean_up(tmp_path: Path) -> None:
    """``think_time_s.fixed`` laid over an exponential one replaces it."""
    data = closed(workload__think_time_s={"exponential": {"mean": 2.0}})
    assert load(tmp_path, data, "workload.think_time_s.fixed=3").workload.think_time_s.model_dump() == {"fixed": 3}


def test_sections_on_the_way_are_made(tmp_path: Path) -> None:
    """A sweep over one number of the clients needs no other key of theirs in the file."""
    scenario = load(tmp_path, small(), "workload.clients.retry.max_attempts=5", "workload.clients.timeout_s=2")
    assert scenario.workload.clients.retry == RetryConfig(max_attempts=5)


LOOPS: list[dict[str, Any]] = [
    {"arrivals": {"process": "poisson", "rate_rps": 2.0}},
    {"concurrency": 3},
    {"concurrency": 5, "think_time_s": {"fixed": 1.0}},
]


@given(st.lists(st.sampled_from(LOOPS), min_size=1, max_size=5))
def test_any_chain_of_loops_is_the_last_one(chain: list[dict[str, Any]]) -> None:
    """Law: laid over each other in any order, open and closed loops leave the last one that was named whole."""
    data = small()
    for loop in chain:
        data = merge(data, {"workload": loop})
    workload = parse_scenario(data).workload
    assert isinstance(workload, GeneratedWorkload)
    assert (workload.arrivals is None) == ("concurrency" in chain[-1])
    assert workload.concurrency == chain[-1].get("concurrency")


def test_editors_explain_and_check_the_new_keys() -> None:
    """Each key has a description in the JSON schema, which accepts what the loader does and refuses a wrong share."""
    schema = scenario_schema()
    definitions = json.loads(json.dumps(schema))["$defs"]
    names = ("ClientsConfig", "CancelConfig", "RetryConfig", "ResampleConfig", "FixedThinkTime", "ExponentialMean")
    for name in (*names, "GeneratedWorkload", "TraceWorkload", "ContinuousEngineConfig"):
        properties = definitions[name]["properties"]
        assert {key for key, v in properties.items() if not v.get("description")} <= {"policy", "kv_cache"}, name
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(closed(workload__clients={"retry": {}, "cancel": {"share": 0.1, "mean_after_s": 3}}))
    assert not validator.is_valid(clients(cancel={"share": 2, "mean_after_s": 3}))
