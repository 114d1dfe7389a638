"""The requests of a workload: same seed, same bytes; one random stream per column; what clients declare."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import TraceError
from simserve.request import RequestTable
from simserve.scenario import GeneratedWorkload, TraceWorkload, parse_scenario
from simserve.workload import Workload, build_workload
from tests.scenario_builders import small

LENGTHS = st.sampled_from(
    [{"fixed": 9}, {"uniform": {"low": 1, "high": 50}}, {"lognormal": {"mean": 40.0, "sigma": 1.0}}, {"values": [1, 5]}]
)
OWN = "arrival_s,num_prompt_tokens,num_output_tokens,max_output_tokens\n0,5,4,10\n2,5,30,20\n3,5,6,\n1,5,8,9\n"


def generated(seed: int = 0, **changes: Any) -> Workload:
    sections = {f"workload__{key}": value for key, value in changes.items()}
    config = parse_scenario(small(**sections)).workload
    assert isinstance(config, GeneratedWorkload)
    return build_workload(config, seed, Path())


def same(a: RequestTable, b: RequestTable) -> dict[str, bool]:
    return {name: bool(np.all(getattr(a, name) == getattr(b, name))) for name in a.__dataclass_fields__}


def replay(folder: Path, text: str, **options: Any) -> Workload:
    (folder / "t.csv").write_text(text)
    return build_workload(TraceWorkload(trace="t.csv", **options), 0, folder)


@given(st.integers(0, 2**63 - 1), LENGTHS, LENGTHS, LENGTHS)
def test_streams_are_independent(seed: int, a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    """INV-7. Changing one distribution leaves the other columns' draws as they were."""
    base = generated(seed, num_requests=20, prompt_tokens=a, output_tokens=b).table
    other_outputs = same(base, generated(seed, num_requests=20, prompt_tokens=a, output_tokens=c).table)
    other_prompts = same(base, generated(seed, num_requests=20, prompt_tokens=c, output_tokens=b).table)
    assert other_outputs["arrival_ns"]
    assert other_outputs["num_prompt_tokens"]
    assert other_prompts["arrival_ns"]
    assert other_prompts["num_output_tokens"]
    burst = generated(seed, num_requests=20, prompt_tokens=a, output_tokens=b, arrivals={"process": "all_at_once"})
    assert {**same(base, burst.table), "arrival_ns": True} == dict.fromkeys(base.__dataclass_fields__, True)


@given(st.integers(0, 2**63 - 1))
def test_same_seed_same_bytes(seed: int) -> None:
    """INV-7: every column, byte for byte; and int64 throughout."""
    first, second = (generated(seed, num_requests=50).table for _ in range(2))
    assert first.content is second.content is None
    for name in first.__dataclass_fields__.keys() - {"content", "tenants", "session"}:
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
        assert getattr(first, name).dtype == np.int64


def test_other_seed_other_requests() -> None:
    """Two seeds differ in arrivals and in lengths, and the columns of one seed do not repeat each other."""
    uniform = {"uniform": {"low": 1, "high": 10**6}}
    a, b = (generated(s, num_requests=50, prompt_tokens=uniform, output_tokens=uniform).table for s in (0, 1))
    assert not any(same(a, b)[name] for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"))
    assert (a.num_prompt_tokens != a.num_output_tokens).any()


def test_declared_maximum_is_by_default_the_longest_output() -> None:
    """``max_output_tokens`` left out: every client declares the workload's largest output."""
    table = generated(output_tokens={"values": [3, 9, 4, 1]}).table
    assert table.max_output_tokens.tolist() == [9] * 4
    assert generated(output_tokens={"fixed": 5}, max_output_tokens=64).table.max_output_tokens.tolist() == [64] * 4


def test_declared_maximum_is_never_below_the_truth() -> None:
    """A declared maximum that the true output exceeds is raised to it, and the notes count how often."""
    workload = generated(output_tokens={"values": [3, 9, 4, 10], "shuffle": False}, max_output_tokens=4)
    assert workload.table.max_output_tokens.tolist() == [4, 9, 4, 10]
    assert workload.notes == ("2 of 4 declared maxima were below the true output length: raised to it",)


def test_cut_lengths_are_noted() -> None:
    """What the distribution's ``max`` cut is counted: here every draw."""
    workload = generated(prompt_tokens={"lognormal": {"mean": 1e6, "sigma": 0.1, "max": 10}})
    assert workload.notes == ("4 of 4 prompt_tokens were cut to the distribution's max",)


def test_a_trace_declares_per_row(tmp_path: Path) -> None:
    """A trace's own column comes first, an empty cell falls back to the default, the truth is the floor."""
    rows = replay(tmp_path, OWN)  # in order of arrival: outputs 4, 8, 30, 6
    assert rows.table.num_output_tokens.tolist() == [4, 8, 30, 6]
    assert rows.table.max_output_tokens.tolist() == [10, 9, 30, 30]
    assert rows.notes[-1] == "1 of 4 declared maxima were below the true output length: raised to it"
    assert replay(tmp_path, OWN, max_output_tokens=7).table.max_output_tokens.tolist() == [10, 9, 30, 7]


def test_limit_keeps_the_first_by_arrival(tmp_path: Path) -> None:
    """``limit`` counts after sorting, and is said in the notes."""
    workload = replay(tmp_path, OWN, limit=2)
    assert workload.table.arrival_ns.tolist() == [0, 10**9]
    assert "t.csv: the first 2 of 4 requests kept (workload.limit)" in workload.notes
    assert len(replay(tmp_path, OWN, limit=99).table) == 4


@pytest.mark.parametrize(("scale", "expected"), [(1.0, [0, 1, 2, 3]), (2.0, [0, 0.5, 1, 1.5]), (0.5, [0, 2, 4, 6])])
def test_rate_scale_divides_the_times(tmp_path: Path, scale: float, expected: list[float]) -> None:
    """Twice the rate is half of every time; lengths and order stay."""
    table = replay(tmp_path, OWN, rate_scale=scale).table
    assert (table.arrival_ns / 1e9).tolist() == expected
    assert table.num_output_tokens.tolist() == [4, 8, 30, 6]


def test_a_scale_that_stretches_a_trace_over_decades_is_refused(tmp_path: Path) -> None:
    """One sentence instead of an overflow of nanoseconds."""
    with pytest.raises(TraceError, match=r"^t.csv: must span at most 1,000,000,000 seconds after workload.rate_scale"):
        replay(tmp_path, OWN, rate_scale=1e-12)
