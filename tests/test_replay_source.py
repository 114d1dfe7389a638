"""What is sent: traces in any format we read, and scenarios."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.replay.source import SourceChoices, _first, load_source
from simserve.request import Content, RequestTable

TRACE = "arrival_s,num_prompt_tokens,num_output_tokens\n10,5,7\n11,6,8\n13,9,4\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
SCENARIO = """
name: little
model: 25m
step_time: {roofline: h100-sxm}
workload:
  num_requests: 6
  arrivals: {process: constant, rate_rps: 4}
  prompt_tokens: {fixed: 20}
  output_tokens: {fixed: 3}
  clients: {timeout_s: 5, retry: {max_attempts: 2}}
engine:
  policy: continuous
  max_num_seqs: 8
  max_num_batched_tokens: 2048
  max_model_len: 2048
  kv_cache: {allocator: paged, block_size: 16, num_blocks: 512}
slo: {ttft_s: 0.5}
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (
        ("trace.csv", TRACE),
        ("azure.csv", AZURE),
        ("little.yaml", SCENARIO),
        ("bad.csv", "a,b\n1,2\n"),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_trace_of_our_own(folder):
    """Times from the first arrival, lengths as they stand, the file's name for the result's."""
    source = load_source(SourceChoices(folder / "trace.csv"))
    assert source.name == "trace"
    assert source.table.arrival_ns.tolist() == [0, 1_000_000_000, 3_000_000_000]
    assert source.table.num_output_tokens.tolist() == [7, 8, 4]
    assert source.plan.retry is None and source.plan.timeout_ns is None


def test_a_trace_of_another_s(folder):
    """Azure's datetimes, told from the columns."""
    source = load_source(SourceChoices(folder / "azure.csv"))
    assert source.table.arrival_ns.tolist() == [0, 4_314_579_000]


def test_a_scenario_with_its_clients(folder):
    """Its requests, and how long its clients wait."""
    source = load_source(SourceChoices(folder / "little.yaml", overrides=("workload.num_requests=3",)))
    assert source.name == "little" and len(source.table) == 3
    assert source.table.arrival_ns.tolist() == [0, 250_000_000, 500_000_000]
    assert source.plan.timeout_ns == 5_000_000_000 and source.plan.retry.max_attempts == 2
    assert source.slo.ttft_s == 0.5


@pytest.mark.parametrize("name", ["trace.csv", "little.yaml"])
def test_limit_and_rate(folder, name):
    """The first two requests, twice as fast; every column is cut."""
    whole = load_source(SourceChoices(folder / name)).table
    source = load_source(SourceChoices(folder / name, limit=2, rate_scale=2.0))
    assert np.array_equal(source.table.arrival_ns * 2, whole.arrival_ns[:2])
    assert len(source.table.priority) == len(source.table.num_prompt_tokens) == 2
    assert any("--limit" in note for note in source.notes)


@pytest.mark.parametrize(
    ("name", "choices", "said"),
    [
        ("none.csv", {}, "no such file"),
        ("bad.csv", {}, "must have the columns of a known format"),
        ("trace.csv", {"format": "vida"}, "--format: format: must be"),
        ("trace.csv", {"overrides": ("seed=1",)}, "--set: must be left out with a trace"),
        ("trace.csv", {"seed": 3}, "--seed: must be left out with a trace"),
        ("trace.csv", {"rate_scale": 0.0}, "--rate-scale: must be a number > 0"),
        ("trace.csv", {"rate_scale": float("nan")}, "--rate-scale: must be a number > 0"),
        ("trace.csv", {"rate_scale": 1e-12}, "must keep the replay within"),
        ("trace.csv", {"limit": 0}, "--limit: must be ≥ 1"),
        ("little.yaml", {"format": "azure"}, "--format: must be left out with a scenario"),
        ("little.yaml", {"overrides": ("engine.polcy=static",)}, "unknown key"),
        (
            "little.yaml",
            {
                "overrides": (
                    "workload={concurrency: 4, num_requests: 6, prompt_tokens: {fixed: 1}, output_tokens: {fixed: 1}}",
                )
            },
            "workload.concurrency: must be absent",
        ),
        (".", {}, "must be a file"),
    ],
)
def test_bad_input_is_one_sentence(folder, name, choices, said):
    """Each says what is wrong, on one line."""
    with pytest.raises(InputError) as error:
        load_source(SourceChoices(folder / name, **choices))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_sessions_are_not_replayed_at_invented_times(tmp_path):
    """A turn that waits for an answer has no time of its own, and a server's answers are not the simulation's."""
    header = "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n"
    (tmp_path / "turns.csv").write_text(header + "0,1,1,a,\n,1,1,a,2\n")
    with pytest.raises(InputError, match=r"^turns.csv: must have requests with times of their own, which is when"):
        load_source(SourceChoices(tmp_path / "turns.csv"))


def test_the_limit_cuts_what_prompts_hold():
    """What is known of prompts' contents goes with its requests."""
    column = np.arange(3)
    content = Content(np.array([7, 8, 9]), np.array([0, 1, 1, 3]), block_tokens=16)
    table = _first(RequestTable(column, column, column, column, column, content), 2)
    assert len(table) == 2 and list(table.content[0].ids) == [7] and list(table.content[1].ids) == []
    assert len(table.content.offsets) == 3
