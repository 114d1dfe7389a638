"""Whose a trace's requests are: read, written, cut, drawn anew, and measured as the run that it came from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.manifest import build_manifest
from simserve.request import RequestTable, Tenant, Tenants
from simserve.run_directory import OutputChoices, write_files
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from simserve.trace_tools.change import scaled, sliced
from simserve.trace_tools.export import FORMS, write_trace
from simserve.trace_tools.profile import profile
from simserve.workload import build_workload
from simserve.workload.trace import Trace, read_trace
from tests.scenario_builders import small
from tests.test_fairness import SHARED

HEADER = "arrival_s,num_prompt_tokens,num_output_tokens,tenant"
LINES = ["2,30,3,batch", "0.5,40,4,chat", '1,10,1,"a, ""b"""', "3,20,2,chat"]
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


def written(folder: Path, lines: list[str], name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEADER, *lines]), encoding="utf-8")
    return path


def names_of(tenants: Tenants | None) -> list[str]:
    """The tenant of each request."""
    assert tenants is not None
    return [tenants.each[i].name for i in tenants.of.tolist()]


def built(folder: Path, seed: int = 0, **keys: Any) -> RequestTable:
    config = parse_scenario(small(workload={"trace": "t.csv", **keys}), "s").workload
    return build_workload(config, seed, folder).table


def test_a_column_of_names_is_read_by_arrival(tmp_path: Path) -> None:
    """Names as they stand, commas and quotes too, numbered by first arrival; nobody is promised anything."""
    trace = read_trace(written(tmp_path, LINES))
    assert names_of(trace.tenants) == ["chat", 'a, "b"', "batch", "chat"]
    assert trace.tenants is not None
    assert trace.tenants.each == (Tenant("chat"), Tenant('a, "b"'), Tenant("batch"))
    assert profile(trace)["tenants"] == {"chat": 2, 'a, "b"': 1, "batch": 1}


def test_rows_without_a_name_are_one_tenant_and_told(tmp_path: Path) -> None:
    """Empty cells beside names; a column of nothing but empty cells is no column."""
    trace = read_trace(written(tmp_path, ["0,1,1,", "1,1,1,chat", "2,1,1,"]))
    assert names_of(trace.tenants) == ["unnamed", "chat", "unnamed"]
    assert "t.csv: 2 rows without tenant: they are of the tenant 'unnamed'" in trace.notes
    assert read_trace(written(tmp_path, ["0,1,1,", "1,1,1,"], "none.csv")).tenants is None


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["0,1,1,ok", f"1,1,1,{'x' * 101}"], "row 2: tenant: must be printable text of at most 100 characters (got"),
        (["0,1,1,a\x07b"], "row 1: tenant: must be printable text of at most 100 characters"),
        ([f"{i},1,1,t{i}" for i in range(1001)], "tenant: must name at most 1,000 tenants (got 1,001); rename"),
    ],
)
def test_names_that_no_scenario_could_have_are_one_sentence(tmp_path: Path, lines: list[str], sentence: str) -> None:
    """Too long, not printable, or more than a report can hold: the row is named, and what to do."""
    with pytest.raises(InputError) as caught:
        read_trace(written(tmp_path, lines))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@settings(max_examples=12, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.integers(0, 99), st.sampled_from(FORMS))
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, names: list[str], seed: int, form: str):
    """Any names, in any of the forms: every request is the same tenant's, and writing again gives the same bytes."""
    rng = np.random.default_rng(seed)
    ones, of = np.ones(12, np.int64), rng.integers(0, len(names), 12)
    tenants = Tenants(tuple(map(Tenant, names)), of)
    path = tmp_path_factory.mktemp("forms") / f"t{form}"
    write_trace(Trace(np.arange(12) * 10**9, ones, ones, ones, ones * 0, (), tenants=tenants), path)
    again = read_trace(path)
    assert names_of(again.tenants) == names_of(tenants)
    first = path.read_bytes()
    write_trace(again, path)
    if not form.endswith("parquet"):  # whose dictionary has the names in another order
        assert path.read_bytes() == first


def test_tenants_go_where_their_requests_go(tmp_path: Path) -> None:
    """Cut by time, thinned, laid over itself, or drawn anew in blocks: prompt lengths say who is who."""
    lines = [f"{i},{1 + i % 3},1,t{i % 3}" for i in range(60)]
    trace = read_trace(written(tmp_path, lines))
    for changed in (sliced(trace, 10.0, 30.0, None), scaled(trace, 0.5, seed=1), scaled(trace, 2.0, seed=2)):
        assert names_of(changed.tenants) == [f"t{n - 1}" for n in changed.num_prompt_tokens.tolist()]
    for keys in ({"resample": {"block_requests": 7}}, {"limit": 20}, {"concurrency": 4}, {"rate_scale": 3.0}):
        table = built(tmp_path, 5, **keys)
        assert names_of(table.tenants) == [f"t{n - 1}" for n in table.num_prompt_tokens.tolist()]


def test_turns_that_wait_keep_their_tenant(tmp_path: Path) -> None:
    """Sessions are sorted anew by their earliest times at another rate; who sent what stays."""
    rows = ["0,1,5,a,x,", ",2,5,b,x,100", "9,3,5,c,y,"]
    (tmp_path / "t.csv").write_text("\n".join([HEADER + ",session_id,wait_s", *rows]))
    table = built(tmp_path, rate_scale=0.01)
    assert table.num_prompt_tokens.tolist() == [1, 2, 3]
    assert names_of(table.tenants) == ["a", "b", "c"]


def test_a_scenario_may_promise_the_traces_tenants_something(tmp_path: Path) -> None:
    """Limits by name; who is not named has the scenario's, as in a mixture."""
    written(tmp_path, LINES)
    table = built(tmp_path, tenant_slos={"batch": {"e2e_s": 60.0}, "chat": {"ttft_s": 1.0}})
    assert table.tenants is not None
    assert table.tenants.each == (Tenant("chat", ttft_s=1.0), Tenant('a, "b"'), Tenant("batch", e2e_s=60.0))


@pytest.mark.parametrize(
    ("header", "slos", "sentence"),
    [
        (
            HEADER,
            {"chta": {}},
            "t.csv: workload.tenant_slos: must name tenants of the trace (got 'chta'; did you mean 'ch",
        ),
        (
            HEADER[: -len(",tenant")] + ",x",
            {"chat": {}},
            "t.csv: must have a column tenant, for workload.tenant_slos to",
        ),
    ],
)
def test_promises_to_nobody_are_one_sentence(tmp_path: Path, header: str, slos: dict[str, Any], sentence: str) -> None:
    """A misspelt name, and a trace without tenants."""
    (tmp_path / "t.csv").write_text("\n".join([header, *LINES]))
    with pytest.raises(InputError) as caught:
        built(tmp_path, tenant_slos=slos)
    assert str(caught.value).startswith(sentence)


def test_a_runs_requests_replay_to_the_same_figures_by_tenant(tmp_path: Path) -> None:
    """What a run with tenants leaves is a trace of our own: with the same engine and promises its replay has every
    figure of every tenant, and Jain's index, to the last digit."""
    one = {key: value for key, value in SHARED.items() if key != "variants"}
    result = simulate(parse_scenario(one))
    manifest = build_manifest(result, "simserve run", datetime(2026, 1, 1, tzinfo=UTC), 1.0)
    write_files(result, manifest, tmp_path, OutputChoices(report=False))
    workload = {"trace": "requests.parquet", "tenant_slos": {"chat": {"ttft_s": 0.05}}}
    again = simulate(parse_scenario({**one, "workload": workload}, "s", tmp_path))
    (first,), (second,) = result.variants.values(), again.variants.values()
    assert second.summary["tenants"] == first.summary["tenants"]
    assert second.summary["fairness"] == first.summary["fairness"]
