"""Tenants of a mixture whose requests come from a trace of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.knee.study import study_of
from simserve.request import Content, Ranges, Tenant
from simserve.scenario import TenantsWorkload, parse_scenario
from simserve.scenario.merge import merge
from simserve.scenario.tenant_models import TracedTenant
from simserve.simulate import simulate
from simserve.sweep.plan import _replicable
from simserve.tasks.task import Task
from simserve.workload import Workload, build_workload
from simserve.workload.joined_content import Part, joined
from tests.scenario_builders import small
from tests.test_fairness import SHARED
from tests.test_tenants_workload import BATCH, CHAT, rows_of

OWN = "arrival_s,num_prompt_tokens,num_output_tokens,max_output_tokens,priority"
ROWS = ["10,100,5,8,3", "10.5,200,6,,", "12,300,7,7,-1", "12.25,400,2,1,"]
FILE = "\n".join([OWN, *ROWS])


def data_of(tenants: dict[str, Any], num_requests: int = 20, **more: Any) -> dict[str, Any]:
    return small(workload={"num_requests": num_requests, "tenants": tenants, **more})


def mixed(folder: Path, tenants: dict[str, Any], num_requests: int = 20, seed: int = 0, **more: Any) -> Workload:
    config = parse_scenario(data_of(tenants, num_requests, **more), "s", folder).workload
    assert isinstance(config, TenantsWorkload)
    return build_workload(config, seed, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(FILE)
    return tmp_path


def test_the_traces_requests_are_laid_over_the_others(folder: Path) -> None:
    """Its times from 0 on to the nanosecond, its lengths, declared maxima (by default its longest answer, raised where
    below the true length) and priorities; the other tenant sends what it sends alone."""
    workload = mixed(folder, {"chat": CHAT, "log": {"trace": "t.csv", "slo": {"ttft_s": 2.0}}})
    table = workload.table
    times = [0, 500_000_000, 2_000_000_000, 2_250_000_000]
    expected = zip(times, [100, 200, 300, 400], [5, 6, 7, 2], [3, 0, -1, 0], strict=True)
    assert rows_of(table, "log") == [list(row) for row in expected]
    assert table.tenants is not None
    assert table.tenants.each[1] == Tenant("log", ttft_s=2.0)
    assert table.max_output_tokens[table.tenants.of == 1].tolist() == [8, 7, 7, 2]
    assert (np.diff(table.arrival_ns) >= 0).all()
    assert rows_of(table, "chat") == rows_of(mixed(folder, {"chat": CHAT}, 20).table, "chat")[:16]
    assert "tenant log: 1 of 4 declared maxima were below the true output length: raised to it" in workload.notes


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(0, 2**32), st.floats(0.1, 10.0))
def test_a_mixture_is_every_arrival_up_to_its_last(tmp_path: Path, n: int, seed: int, scale: float) -> None:
    """INV-7 and the law of mixtures: however few are taken and however fast, the first n of all arrivals, each
    tenant's own whatever the others do."""
    (tmp_path / "t.csv").write_text(FILE)
    log = {"trace": "t.csv", "rate_scale": scale}
    table = mixed(tmp_path, {"chat": CHAT, "log": log, "batch": BATCH}, n, seed).table
    assert len(table) == n
    alone = {name: mixed(tmp_path, {name: each}, 40, seed).table for name, each in (("chat", CHAT), ("batch", BATCH))}
    alone["log"] = mixed(tmp_path, {"log": log}, 4, seed).table
    for name, other in alone.items():
        ours = rows_of(table, name)
        assert ours == rows_of(other, name)[: len(ours)]
    every = np.sort(np.concatenate([other.arrival_ns for other in alone.values()]))
    assert table.arrival_ns.tolist() == every[:n].tolist()


def test_the_trace_is_the_same_whatever_the_seed(folder: Path) -> None:
    """Only what is drawn changes with the seed."""
    tables = [mixed(folder, {"chat": CHAT, "log": {"trace": "t.csv"}}, seed=seed).table for seed in (0, 1)]
    assert rows_of(tables[0], "log") == rows_of(tables[1], "log")
    assert rows_of(tables[0], "chat") != rows_of(tables[1], "chat")


def test_limit_rates_priority_and_maxima_are_the_tenants_own(folder: Path) -> None:
    """The first two requests, four times as fast by the tenant's and the workload's rate_scale, in another priority."""
    log = {"trace": "t.csv", "limit": 2, "rate_scale": 2.0, "priority": 7, "max_output_tokens": 50}
    table = mixed(folder, {"log": log}, 2, rate_scale=2.0).table
    assert rows_of(table, "log") == [[0, 100, 5, 7], [125_000_000, 200, 6, 7]]
    assert table.max_output_tokens.tolist() == [8, 50]


def test_when_all_traces_are_over_there_are_fewer_requests(folder: Path) -> None:
    """Nobody is left who sends: what there is, in words; a tenant that draws goes on for ever."""
    workload = mixed(folder, {"a": {"trace": "t.csv"}, "b": {"trace": "t.csv"}}, 100)
    assert len(workload.table) == 8
    assert "the tenants' traces end after 8 of 100 requests (workload.num_requests)" in workload.notes
    assert len(mixed(folder, {"a": {"trace": "t.csv"}, "chat": CHAT}, 100).table) == 100


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("num_prefill_tokens,num_decode_tokens\n3,4\n5,6", "t: must have times to be a tenant's (it has none)"),
        (OWN + "\n5,1,1,,\n5,2,2,,", "t: must span some time to be a tenant's (every request arrives at once)"),
        (
            "arrival_s,num_prompt_tokens,num_output_tokens,session_id,wait_s\n0,1,1,a,\n,2,1,a,3",
            "t: must have requests with times of their own to be a tenant's (got sessions",
        ),
        ("", "t: is empty; a trace needs at least one request"),
    ],
)
def test_a_trace_that_cannot_be_mixed_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """Without times, all at once, in sessions that wait, or not a trace."""
    (tmp_path / "t").write_text(text)
    with pytest.raises(InputError) as caught:
        mixed(tmp_path, {"chat": CHAT, "log": {"trace": "t"}})
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


def test_a_missing_file_is_told_with_the_key_that_names_it(folder: Path) -> None:
    """Of several tenants it is known whose file there is not."""
    with pytest.raises(InputError, match=r"none.csv: no such file; name it in workload.tenants.log.trace$"):
        mixed(folder, {"chat": CHAT, "ok": {"trace": "t.csv"}, "log": {"trace": "none.csv"}})
    with pytest.raises(InputError, match=r"name it in workload.tenants.log.trace$"):
        study_of(data_of({"chat": CHAT, "log": {"trace": "none.csv"}}), "s", folder, replications=2)


@pytest.mark.parametrize(
    ("tenant", "sentence"),
    [
        ({"trace": "t.csv", "arrivals": CHAT["arrivals"]}, "workload.tenants.log: must have exactly one of trace, arr"),
        (
            {"trace": "t.csv", "prompt_tokens": {"fixed": 3}},
            "workload.tenants.log: 'prompt_tokens' belongs to generated",
        ),
        ({"trace": "t.csv", "limt": 3}, "workload.tenants.log: unknown key 'limt' (did you mean 'limit'?)"),
        ({"trace": None}, "workload.tenants.log.trace: must name the trace file (got null)"),
        (
            {"trace": "t.csv", "slo": {"ttft": 1.0}},
            "workload.tenants.log.slo: unknown key 'ttft' (did you mean 'ttft_s'?)",
        ),
        ({"trace": "t.csv", "format": "azur"}, "workload.tenants.log.format: must be 'auto', 'azure'"),
    ],
)
def test_what_is_wrong_with_its_keys_is_one_sentence(folder: Path, tenant: dict[str, Any], sentence: str) -> None:
    """Where, by the tenant's name, the rule, and what was given."""
    with pytest.raises(InputError) as caught:
        mixed(folder, {"log": tenant})
    assert str(caught.value).startswith(f"s: {sentence}")


def test_an_override_with_a_trace_needs_no_clean_up(folder: Path) -> None:
    """A trace in place of distributions drops their keys, and its name may be given on a command line, where it is a
    path from the working directory."""
    section = {"workload": {"tenants": {"batch": {"trace": "t.csv"}}}}
    config = parse_scenario(merge(data_of({"chat": CHAT, "batch": BATCH}), section), "s", folder).workload
    assert isinstance(config, TenantsWorkload)
    batch = config.tenants["batch"]
    assert isinstance(batch, TracedTenant) and (batch.priority, batch.slo.e2e_s) == (2, 60.0)
    typed = parse_scenario(data_of({"chat": CHAT, "b": BATCH}), "s", folder, ["workload.tenants.b.trace=x.csv"])
    assert isinstance(typed.workload, TenantsWorkload)
    assert typed.workload.tenants["b"].model_dump()["trace"] == str(Path.cwd() / "x.csv")


def test_a_study_knows_the_rate_and_the_content_of_the_trace(folder: Path) -> None:
    """Three gaps in 2.25 s, beside chat's 3 requests a second; the key of a run changes with the file."""
    data = {**SHARED, "workload": data_of({"chat": CHAT, "log": {"trace": "t.csv"}})["workload"]}
    assert study_of(data, "s", folder, 2).axis.base_rps == pytest.approx(3.0 + 3 / 2.25)
    task = Task(data, "s", str(folder), 0)
    before = task.key()
    (folder / "t.csv").write_text(FILE.replace("12.25", "13.25"))
    assert task.key() != before


def test_a_run_has_figures_of_a_traced_tenant(folder: Path) -> None:
    """Through the whole simulation, with its own limit."""
    tenants = {**SHARED["workload"]["tenants"], "log": {"trace": "t.csv", "rate_scale": 100.0, "slo": {"ttft_s": 10.0}}}
    data = {**SHARED, "workload": {"num_requests": 40, "tenants": tenants}}
    for variant in simulate(parse_scenario(data, "s", folder)).variants.values():
        log = variant.summary["tenants"]["log"]
        assert (log["num_finished"], log["output_tokens"], log["slo_attainment"]) == (4, 20, 1.0)


MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 900, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 10]},
]


def test_what_two_traces_share_within_stays_apart_between(tmp_path: Path) -> None:
    """The same file twice, and a tenant of whom nothing is known: each trace's two prompts begin with the same 1,024
    tokens, and no prompt of one has a block of the other's."""
    (tmp_path / "m").write_text("\n".join(map(json.dumps, MOONCAKE)))
    workload = mixed(tmp_path, {"a": {"trace": "m"}, "b": {"trace": "m"}, "chat": CHAT}, 10)
    content, tenants = workload.table.content, workload.table.tenants
    assert isinstance(content, Content) and tenants is not None
    ids = {name: [list(content[i].ids) for i in np.flatnonzero(tenants.of == k)] for k, name in enumerate("abc")}
    assert ids["a"][0][:2] == ids["a"][1][:2] and ids["b"][0][:2] == ids["b"][1][:2]
    assert ids["a"][0][2] != ids["a"][1][2]
    assert not {each for row in ids["a"] for each in row} & {each for row in ids["b"] for each in row}
    assert ids["c"] == [[]] * 6
    assert any(
        note.endswith("of the prompt tokens would be hits of an infinite prefix cache") for note in workload.notes
    )


def test_prompts_known_in_two_ways_are_refused(tmp_path: Path) -> None:
    """Blocks of a trace beside declared prefixes: one sentence that names both tenants."""
    (tmp_path / "m").write_text("\n".join(map(json.dumps, MOONCAKE)))
    prefixed = {**CHAT, "shared_prefixes": [{"tokens": 10}]}
    with pytest.raises(InputError, match=r"got chat: ranges of tokens and log: blocks of 512 tokens"):
        mixed(tmp_path, {"chat": prefixed, "log": {"trace": "m"}}, 10)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=4), min_size=1, max_size=3)
)
def test_ranges_of_tenants_have_no_token_in_common(parts: list[list[tuple[int, int]]]) -> None:
    """Law: within a tenant what began alike begins alike, between tenants nothing does, and the lengths stay."""
    n = sum(map(len, parts))
    begin, given_parts = 0, []
    for k, part in enumerate(parts):
        first, tokens = (np.array(column, np.int64) for column in zip(*((10 * f, t) for f, t in part), strict=True))
        given_parts.append(Part(f"t{k}", np.arange(begin, begin + len(part)), Ranges(first, tokens)))
        begin += len(part)
    content = joined(given_parts, n)
    assert isinstance(content, Ranges)
    seen: set[int] = set()
    for part in given_parts:
        assert isinstance(part.content, Ranges)
        assert content.num_tokens[part.rows].tolist() == part.content.num_tokens.tolist()
        shift = content.first[part.rows] - part.content.first
        assert len(set(shift.tolist())) == 1
        own = {i for row in part.rows.tolist() for i in content[row].ids}
        assert not own & seen
        seen |= own


def test_nothing_known_of_anybody_is_no_content() -> None:
    """No parts, no column."""
    assert joined([], 5) is None


def test_a_trace_that_is_over_early_is_told(folder: Path) -> None:
    """After it the others go on alone, with less to do: its end beside theirs; one that lasts is not told."""
    chat = {**CHAT, "arrivals": {"process": "constant", "rate_rps": 1.0}}
    early = mixed(folder, {"chat": chat, "log": {"trace": "t.csv"}}, 24)  # 4 of the log's, and chat's at 1, 2 … 20 s
    assert "tenant log: its trace of 4 requests is over at 2.25 of 20 s" in early.notes
    late = mixed(folder, {"chat": chat, "log": {"trace": "t.csv", "rate_scale": 0.125}}, 22)
    assert not any("is over" in note for note in late.notes)


def test_a_trace_may_be_drawn_anew_by_the_seed(folder: Path) -> None:
    """As workload.resample does: each request is one of the trace's, whole; another seed draws others, the same seed
    the same, whoever else is there; and it says so."""
    log = {"trace": "t.csv", "resample": {"block_requests": 2}}
    tables = {seed: mixed(folder, {"log": log}, 4, seed).table for seed in range(8)}
    originals = {(100, 5, 8), (200, 6, 7), (300, 7, 7), (400, 2, 2)}
    drawn = set()
    for seed, table in tables.items():
        columns = (table.num_prompt_tokens, table.num_output_tokens)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        assert {row[:2] for row in rows} <= {row[:2] for row in originals}
        beside = mixed(folder, {"chat": CHAT, "log": log}, 40, seed).table
        assert rows_of(beside, "log") == rows_of(table, "log")
        drawn.add(tuple(rows))
    assert len(drawn) > 1
    notes = mixed(folder, {"log": log}, 4).notes
    assert "tenant log: its trace is drawn anew in blocks of 2 consecutive requests" in notes
    with pytest.raises(InputError, match=r"^workload.tenants.log.resample.block_requests: must be ≤ .*here 2$"):
        mixed(folder, {"log": {**log, "resample": {"block_requests": 5}}}, 4)


def test_two_tenants_with_one_trace_draw_apart(folder: Path) -> None:
    """Streams are known by the tenant's name: two tenants of the same file are not twins."""
    (folder / "t.csv").write_text("\n".join([OWN, *(f"{i},{i + 1},1,," for i in range(50))]))
    log = {"trace": "t.csv", "resample": {"block_requests": 3}}
    table = mixed(folder, {"a": log, "b": log}, 100).table
    assert [row[1] for row in rows_of(table, "a")] != [row[1] for row in rows_of(table, "b")]


def test_studies_draw_traces_anew_for_each_replication(folder: Path) -> None:
    """Knees and sweeps alike, in blocks of about the root, unless the scenario says how; one replication replays the
    trace as it is, and tenants without one are left alone."""
    data = data_of({"chat": CHAT, "log": {"trace": "t.csv"}})
    study = study_of(data, "s", folder, 2)
    assert study.data["workload"]["tenants"] == {
        "chat": CHAT,
        "log": {"trace": "t.csv", "resample": {"block_requests": 2}},
    }
    told = [note for note in study.notes if "for each replication" in note]
    assert len(told) == 1 and told[0].startswith("the trace of tenant log is drawn anew")
    assert study_of(data, "s", folder, 1).data == data
    own = data_of({"log": {"trace": "t.csv", "resample": {"block_requests": 3}}})
    assert study_of(own, "s", folder, 2).data == own
    swept = {**SHARED, "workload": data["workload"]}
    plan = _replicable([swept, swept], 2, folder / "s.yaml")
    assert [each["workload"]["tenants"]["log"]["resample"] for each in plan[0]] == [{"block_requests": 2}] * 2
    assert plan[1] == told
    assert _replicable([swept], 1, folder / "s.yaml") == ([swept], [])


def test_a_trace_of_sessions_with_times_of_their_own_says_what_is_not_used(folder: Path) -> None:
    """Turns that wait for nobody are requests like others in a mixture, and a note says that sessions are not told."""
    (folder / "s.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,session_id\n0,9,1,a\n2,8,1,a\n")
    workload = mixed(folder, {"chat": CHAT, "log": {"trace": "s.csv"}})
    assert any("s.csv: session_id not used in a mixture" in note for note in workload.notes)
