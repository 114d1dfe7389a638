"""Declared shared prefixes: who begins with which, what that leaves alone, and what an engine finds of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.request import IntColumn, Ranges, RequestTable
from simserve.scenario import parse_scenario
from simserve.workload import Workload, build_workload
from simserve.workload.content import led_by, ranges_of
from simserve.workload.prefixes import first_of_session, placed
from simserve.workload.resample import resampled
from tests.builders import run_engine
from tests.prefix_rules import ROOMY
from tests.prefixes import ids_of
from tests.scenario_builders import small
from tests.step_times import ConstantStepTime

ALONE = [{"tokens": 1000}]
TWO = [{"tokens": 1000, "share": 0.5}, {"tokens": 300, "share": 0.2, "count": 4}]
TENANT = {
    "arrivals": {"process": "poisson", "rate_rps": 3.0},
    "prompt_tokens": {"uniform": {"low": 1, "high": 10**6}},
    "output_tokens": {"fixed": 7},
}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'


def generated(prefixes: object, num_requests: int = 100, seed: int = 0, **more: Any) -> Workload:
    keys = {"num_requests": num_requests, "prompt_tokens": {"uniform": {"low": 1, "high": 99}}, **more}
    if "concurrency" not in keys:
        keys.setdefault("arrivals", {"process": "poisson", "rate_rps": 1.0})
    keys |= {"output_tokens": {"uniform": {"low": 1, "high": 9}}, "shared_prefixes": prefixes}
    return build_workload(parse_scenario(small(workload=keys), "s").workload, seed, Path())


def mixed(seed: int = 0, **tenants: object) -> Workload:
    keys = {name: {**TENANT, "shared_prefixes": prefixes} for name, prefixes in tenants.items()}
    scenario = parse_scenario(small(workload={"num_requests": 300, "tenants": keys}), "s")
    return build_workload(scenario.workload, seed, Path())


def traced(folder: Path, text: str, prefixes: object, **more: Any) -> Workload:
    (folder / "t").write_text(text)
    keys = {"trace": "t", "shared_prefixes": prefixes, **more}
    return build_workload(parse_scenario(small(workload=keys), "s").workload, 3, folder)


def azure(*prompts: int) -> str:
    rows = [f"2024-05-10 00:00:{i % 60:02}.0000000,{tokens},{i + 1}\n" for i, tokens in enumerate(prompts)]
    return AZURE + "".join(rows)


def begun(table: RequestTable) -> tuple[IntColumn, IntColumn]:
    """Of each request: which text it begins with, and how long that is."""
    assert isinstance(table.content, Ranges)
    return table.content.first, table.content.num_tokens


@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 62), (8, 125), (512, 1), (24, 41), (1024, 0)])
def test_a_prefix_of_1000_tokens_is_found_in_whole_blocks(block_size: int, num_blocks: int) -> None:
    """62 blocks of 16 are 992 of its tokens; whoever comes after the first finds them, whatever comes after it."""
    table = generated(ALONE, 5, arrivals={"process": "constant", "rate_rps": 1.0}).table
    settings = replace(ROOMY, block_size=block_size, num_blocks=2000, max_num_batched_tokens=4000, max_model_len=4000)
    hits = run_engine(table, settings, ConstantStepTime(0.01)).requests.num_prefix_hit_tokens
    assert hits.tolist() == [0] + [num_blocks * block_size] * 4


def test_they_come_on_top_of_the_prompts_and_leave_all_else_alone() -> None:
    """As load generators count. Arrivals and lengths are those of the same workload without; who has none is as long
    as before, and begins like nobody."""
    without, table = generated([]).table, generated(TWO).table
    first, num_tokens = begun(table)
    assert without.content is None
    assert (table.num_prompt_tokens == without.num_prompt_tokens + num_tokens).all()
    assert (table.arrival_ns == without.arrival_ns).all()
    assert (table.num_output_tokens == without.num_output_tokens).all()
    assert set(num_tokens.tolist()) == {0, 300, 1000}
    assert len(set(first[num_tokens == 1000].tolist())) == 1
    assert 1 < len(set(first[num_tokens == 300].tolist())) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_as_many_begin_so_as_the_shares_say(seed: int) -> None:
    """Five standard errors of a binomial: each text's share is its group's over ``count``."""
    n = 20_000
    first, num_tokens = begun(generated(TWO, n, seed).table)
    texts = [num_tokens == 1000, num_tokens == 0]
    texts += [(num_tokens == 300) & (first == each) for each in set(first[num_tokens == 300].tolist())]
    expected = [0.5, 0.3, *[0.05] * 4]
    assert len(texts) == len(expected)
    for found, p in zip(texts, expected, strict=True):
        assert abs(found.mean() - p) < 5 * (p * (1 - p) / n) ** 0.5


@given(st.integers(1, 60), st.integers(0, 99), st.lists(st.sampled_from([1, 2, 3, 50]), min_size=1, max_size=4))
def test_a_longer_workload_begins_as_the_shorter(n: int, seed: int, counts: list[int]) -> None:
    """INV-7: request i begins with the same text, and like the same others, whatever comes after it."""
    prefixes = [{"tokens": 10 * k + 10, "share": 0.9 / len(counts), "count": c} for k, c in enumerate(counts)]
    (few, few_tokens), (many, many_tokens) = (begun(generated(prefixes, size, seed).table) for size in (n, 70))
    assert (few_tokens == many_tokens[:n]).all()
    has = few_tokens > 0
    alike = [(column[:n][:, None] == column[:n])[has][:, has] for column in (few, many)]
    assert (alike[0] == alike[1]).all()


def test_different_tenants_never_begin_alike() -> None:
    """The same declaration by two tenants, and one without: what two of them hold has no number in common; and each
    tenant's are the same whoever else is there."""
    table = mixed(a=TWO, b=TWO, c=[]).table
    first, num_tokens = begun(table)
    assert table.tenants is not None
    held = [
        {token for i in rows.tolist() for token in (first[i], first[i] + num_tokens[i] - 1)}
        for rows in (np.flatnonzero((table.tenants.of == k) & (num_tokens > 0)) for k in range(2))
    ]
    assert not held[0] & held[1]
    assert not num_tokens[table.tenants.of == 2].any()
    fewer = mixed(a=TWO, c=[]).table
    assert fewer.tenants is not None
    mine = [t.num_prompt_tokens[t.tenants.of == 0].tolist() for t in (table, fewer) if t.tenants is not None]
    assert mine[0] == mine[1][: len(mine[0])] and len(mine[0]) > 50
    assert mixed(a=[], c=[]).table.content is None


def test_what_leads_a_tenants_turns_stays_its_own() -> None:
    """Two tenants' sessions, each begun by a prefix, laid over each other: all is as it was within each, and nothing of
    one is in the other."""
    one = led_by(ranges_of(np.array([0, 0, 1]), np.array([9, 12, 8])), ranges_of(np.zeros(3, int), np.array([5, 5, 5])))
    both = placed(placed(Ranges(*np.zeros((2, 7), int)), np.array([0, 2, 4]), one), np.array([1, 3, 6]), one)
    held = [set(ids_of(both[i])) for i in range(7)]
    assert [len(held[0] & each) for each in held] == [9, 0, 9, 0, 5, 0, 0]
    assert [len(held[6] & each) for each in held] == [0, 5, 0, 5, 0, 0, 8]
    assert [ids_of(both[i])[:5] for i in (0, 2, 4)] == [ids_of(both[0])[:5]] * 3


def test_who_sends_next_in_a_closed_loop_has_them_too() -> None:
    """Clients take the requests in order, with what they begin with."""
    opened, closed = generated(TWO).table, generated(TWO, concurrency=4).table
    assert begun(opened)[1].tolist() == begun(closed)[1].tolist()


def test_of_a_trace_they_are_the_first_tokens_of_the_prompts(tmp_path: Path) -> None:
    """Lengths stay; a prompt of exactly the prefix has it, and a shorter one has none, which a note counts."""
    made = traced(tmp_path, azure(999, 1000, 5000, 7), {"tokens": 1000})
    assert made.table.num_prompt_tokens.tolist() == [999, 1000, 5000, 7]
    assert begun(made.table)[1].tolist() == [0, 1000, 1000, 0]
    assert "t: 2 prompts are shorter than the shared prefix drawn for them, and have none" in made.notes
    # The second finds all 1,000 tokens of the first's: 1,000 of 7,006.
    said = "50.0 % of the requests begin with a common text, within the lengths that they have; 14.3 % of the prompt "
    assert f"t: shared_prefixes: {said}tokens would be hits of an infinite prefix cache" in made.notes


@pytest.mark.parametrize("more", [{"limit": 20}, {"rate_scale": 3.0}, {"concurrency": 2}], ids=str)
def test_rows_of_a_trace_keep_them(tmp_path: Path, more: dict[str, Any]) -> None:
    """Whoever sends the rows, as fast as they like: row i begins with the same."""
    text = azure(*[2000] * 50)
    plain, other = (traced(tmp_path, text, TWO, **keys).table for keys in ({}, more))
    assert begun(other)[1].tolist() == begun(plain)[1].tolist()[: len(other)]


def test_a_resampled_trace_draws_rows_with_their_beginnings(tmp_path: Path) -> None:
    """Row by row what the rows drawn have; a prompt drawn again repeats what is known of it, no more."""
    text = azure(*range(900, 1100, 4))
    plain = traced(tmp_path, text, TWO).table
    drawn = traced(tmp_path, text, TWO, resample={"block_requests": 5})
    rows = drawn.table.num_output_tokens - 1  # row i has i + 1 output tokens
    assert [drawn.table.content[i] for i in range(50)] == [plain.content[i] for i in rows.tolist()]
    assert (resampled(plain, rows).content[7]) == plain.content[int(rows[7])]
    assert not any("whole prompt" in note for note in drawn.notes)


def test_requests_of_a_session_begin_alike(tmp_path: Path) -> None:
    """Of a trace with sessions of which nothing is known: one draw for each session, and for each request without."""
    header = "arrival_s,num_prompt_tokens,num_output_tokens,session_id\n"
    text = header + "".join(f"{i},2000,1,{i % 20 if i % 3 else ''}\n" for i in range(300))
    table = traced(tmp_path, text, [{"tokens": 100, "share": 0.5, "count": 30}]).table
    found: dict[int, set[tuple[int, int]]] = {}
    first, num_tokens = begun(table)
    for i in range(300):
        if i % 3:
            found.setdefault(i % 20, set()).add((int(first[i]) if num_tokens[i] else -1, int(num_tokens[i])))
    assert all(len(each) == 1 for each in found.values())
    assert len(set.union(*found.values())) > 4
    assert first_of_session(np.array([4, -1, 2, 4, -1, 2])).tolist() == [0, 1, 2, 0, 4, 2]


@pytest.mark.parametrize(
    ("prefixes", "said"),
    [
        ([{"tokens": 9, "share": 0.7}, {"tokens": 9, "share": 0.31}], "the shares must add up to at most 1 (got 1.01)"),
        ([{"tokens": 0}], "workload.shared_prefixes[0].tokens: must be ≥ 1 (got 0)"),
        ({"tokens": 5, "share": 0}, "workload.shared_prefixes[0].share: must be > 0.0 (got 0)"),
        ([{"tokens": 5, "count": 0}], "workload.shared_prefixes[0].count: must be ≥ 1 (got 0)"),
        (
            [{"share": 0.5}],
            "workload.shared_prefixes[0].tokens: must be given (length of the common beginning, tokens)",
        ),
        ([{"tokens": 5, "shares": 1.0}], "workload.shared_prefixes[0]: unknown key 'shares' (did you mean 'share'?)"),
        (3, "workload.shared_prefixes: must be a list (got 3)"),
    ],
)
def test_mistakes_are_one_sentence(prefixes: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        generated(prefixes)
    assert said in str(error.value) and str(error.value).isprintable()


def test_shares_that_round_to_one_are_one() -> None:
    """0.7 + 0.2 + 0.1 is not 1 in floating point; whatever is drawn, everybody has one."""
    prefixes = [{"tokens": 5, "share": share, "count": 3} for share in (0.7, 0.2, 0.1)]
    assert (begun(generated(prefixes, 5000).table)[1] == 5).all()


def test_a_trace_that_tells_what_its_prompts_hold_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t: tells what its prompts have in common: leave workload\.shared_prefixes"):
        traced(tmp_path, MOONCAKE, ALONE)
