"""The clients of a workload: what they draw, that it has the stated law, and that it disturbs nothing else."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simserve.clients.plan import OPEN_LOOP, STAYS, ClientPlan
from simserve.errors import ScenarioError
from simserve.request import Ranges, RequestTable
from simserve.scenario import GeneratedWorkload, TraceWorkload, load_scenario, parse_scenario
from simserve.workload import Workload, build_workload
from simserve.workload.behaviour import client_plan
from simserve.workload.generate import arrival_times_ns, lengths
from tests.scenario_builders import small

N = 20_000
P_VALUE = 1e-3  # with fixed seeds a test that passes always passes
SCENARIOS = Path(__file__).parents[1] / "scenarios"
SEEDS = st.integers(0, 2**63 - 1)
BEHAVIOURS: dict[str, dict[str, Any]] = {
    "timeout_s": {"timeout_s": 3.0},
    "cancel": {"cancel": {"share": 0.4, "mean_after_s": 2.0}},
    "retry": {"retry": {"max_attempts": 4}},
}
COLUMNS = [name for name in RequestTable.__dataclass_fields__ if name not in ("content", "tenants", "session")]


def workload(seed: int = 0, **changes: Any) -> Workload:
    uniform = {"uniform": {"low": 1, "high": 10**6}}
    sections = {"num_requests": 30, "prompt_tokens": uniform, "output_tokens": uniform, **changes}
    config = parse_scenario(small(**{f"workload__{key}": value for key, value in sections.items()})).workload
    return build_workload(config, seed, Path())


def plan(seed: int = 0, n: int = N, **changes: Any) -> ClientPlan:
    config = parse_scenario(small(**{f"workload__{key}": value for key, value in changes.items()})).workload
    return client_plan(config, n, seed)


def closed(seed: int = 0, n: int = N, concurrency: int = 4, **changes: Any) -> ClientPlan:
    return plan(seed, n, concurrency=concurrency, arrivals=..., **changes)


def columns(table: RequestTable) -> dict[str, bytes]:
    return {name: getattr(table, name).tobytes() for name in COLUMNS}


@given(SEEDS, st.sets(st.sampled_from(sorted(BEHAVIOURS))))
def test_clients_change_no_request(seed: int, names: set[str]) -> None:
    """INV-7. Whatever clients do, every length and arrival stays byte for byte as without them."""
    clients = {key: value for name in names for key, value in BEHAVIOURS[name].items()}
    assert columns(workload(seed, clients=clients).table) == columns(workload(seed).table)


@given(SEEDS, st.sampled_from([{"fixed": 1.0}, {"exponential": {"mean": 2.0}}, None]))
def test_a_closed_loop_asks_the_same_things(seed: int, think: dict[str, Any] | None) -> None:
    """Open or closed, with or without think times, the lengths are the same; the times are all 0, for the clients to
    decide."""
    loop = workload(seed, concurrency=3, arrivals=..., think_time_s=think).table
    assert {**columns(workload(seed).table), "arrival_ns": bytes(8 * 30)} == columns(loop)


@given(SEEDS)
def test_each_choice_has_a_stream_of_its_own(seed: int) -> None:
    """Adding think times, retries or another mean changes no cancellation, and so on round."""
    cancel, retry = BEHAVIOURS["cancel"], BEHAVIOURS["retry"]
    think = {"exponential": {"mean": 2.0}}
    alone = plan(seed, 30, clients=cancel)
    together = closed(seed, 30, clients={**cancel, **retry, "timeout_s": 1.0}, think_time_s=think)
    assert alone.cancel_after_ns is not None
    assert (alone.cancel_after_ns == together.cancel_after_ns).all()
    assert (together.jitter == plan(seed, 30, clients=retry).jitter).all()
    assert (together.think_ns == closed(seed, 30, think_time_s=think).think_ns).all()
    later = plan(seed, 30, clients={"cancel": {"share": 0.4, "mean_after_s": 200.0}})
    assert later.cancel_after_ns is not None
    assert ((later.cancel_after_ns == STAYS) == (alone.cancel_after_ns == STAYS)).all()
    leaves = alone.cancel_after_ns != STAYS
    assert np.allclose(later.cancel_after_ns[leaves], alone.cancel_after_ns[leaves] * 100, rtol=1e-6, atol=100)


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_who_left_under_a_smaller_one(seed: int, a: float, b: float) -> None:
    """Common random numbers along a sweep of the share: sets of those who leave are nested, at the same times."""
    few, many = (
        plan(seed, 50, clients={"cancel": {"share": share, "mean_after_s": 2.0}}).cancel_after_ns
        for share in sorted((a, b))
    )
    if few is None:
        return
    assert many is not None
    assert (few[few != STAYS] == many[few != STAYS]).all()


@given(SEEDS, st.integers(2, 20), st.integers(1, 40))
def test_more_attempts_or_requests_keep_the_draws(seed: int, attempts: int, n: int) -> None:
    """The draw of a retry depends on its request and its number alone, also in a longer workload."""
    few = plan(seed, n, clients={"retry": {"max_attempts": attempts}}).jitter
    many = plan(seed, n + 7, clients={"retry": {"max_attempts": 20}}).jitter
    assert few is not None
    assert many is not None
    assert few.shape == (n, attempts - 1)
    assert (few == many[:n, : attempts - 1]).all()
    assert (few >= 0).all()
    assert (few < 1).all()


def test_every_variant_meets_the_same_people() -> None:
    """Common random numbers: variants of any policy are one workload, drawn once, clients included; and the same
    scenario gives it again byte for byte."""
    scenario = load_scenario(SCENARIOS / "impatient.yaml")
    variants = list(scenario.resolve_variants().values())
    assert len(variants) > 2
    for variant in variants:
        first, second = (client_plan(each.workload, 600, each.seed) for each in (scenario, variant))
        assert first.cancel_after_ns is not None
        assert first.jitter is not None
        assert second.cancel_after_ns is not None
        assert second.jitter is not None
        assert first.cancel_after_ns.tobytes() == second.cancel_after_ns.tobytes()
        assert first.jitter.tobytes() == second.jitter.tobytes()
        assert first.retry == second.retry


def test_exponential_think_times_are_exponential() -> None:
    """Kolmogorov–Smirnov against the exponential law; the mean within five standard errors."""
    think_ns = closed(think_time_s={"exponential": {"mean": 2.0}}).think_ns
    assert think_ns is not None
    assert stats.kstest(think_ns / 1e9, stats.expon(scale=2.0).cdf).pvalue > P_VALUE
    assert abs(think_ns.mean() / 1e9 - 2.0) < 5 * 2.0 / math.sqrt(N)


def test_fixed_think_times_are_fixed() -> None:
    """To the nanosecond, and none is none."""
    think_ns = closed(n=3, think_time_s={"fixed": 1.5}).think_ns
    assert think_ns is not None
    assert think_ns.tolist() == [1_500_000_000] * 3
    assert closed(n=3).think_ns is None


def test_the_share_leaves_after_exponential_times() -> None:
    """The number who leave is binomial; their times are exponential, and independent of who leaves."""
    cancel_ns = plan(clients={"cancel": {"share": 0.3, "mean_after_s": 5.0}}).cancel_after_ns
    assert cancel_ns is not None
    leaves = cancel_ns != STAYS
    assert stats.binomtest(int(leaves.sum()), N, 0.3).pvalue > P_VALUE
    assert stats.kstest(cancel_ns[leaves] / 1e9, stats.expon(scale=5.0).cdf).pvalue > P_VALUE


def test_nobody_and_everybody_can_leave() -> None:
    """A share of 0 is nobody, of 1 everybody, each at least a nanosecond after asking."""
    assert plan(clients={"cancel": {"share": 0, "mean_after_s": 5.0}}).cancel_after_ns is None
    everybody = plan(clients={"cancel": {"share": 1, "mean_after_s": 1e-9}}).cancel_after_ns
    assert everybody is not None
    assert everybody.min() >= 1


def test_jitter_is_uniform_and_independent_between_retries() -> None:
    """Kolmogorov–Smirnov per retry; the correlation of two retries is zero within five standard errors."""
    jitter = plan(clients={"retry": {"max_attempts": 3}}).jitter
    assert jitter is not None
    for column in jitter.T:
        assert stats.kstest(column, stats.uniform.cdf).pvalue > P_VALUE
    assert abs(np.corrcoef(jitter.T)[0, 1]) < 5 / math.sqrt(N)


def test_without_jitter_the_draws_take_no_memory() -> None:
    """Ten million requests with twenty attempts would be 1.5 GB of zeros."""
    jitter = plan(clients={"retry": {"jitter": 0.0, "max_attempts": 20}}).jitter
    assert jitter is not None
    assert (jitter.shape, jitter.strides, jitter.max()) == ((N, 19), (0, 0), 0.0)


def test_limits_and_retries_are_in_nanoseconds() -> None:
    """Seconds of the file become whole nanoseconds, never 0; the delays are those of exponential backoff."""
    retry = {"max_attempts": 5, "backoff_s": 1.0, "multiplier": 3.0, "max_backoff_s": 20.0, "jitter": 0.5}
    clients = plan(clients={"timeout_s": 60, "ttft_timeout_s": 1e-12, "retry": {**retry, "after": ["timed_out"]}})
    assert (clients.timeout_ns, clients.ttft_timeout_ns, clients.concurrency) == (60 * 10**9, 1, None)
    policy = clients.retry
    assert policy is not None
    assert (policy.max_attempts, policy.after_rejection, policy.after_timeout) == (5, False, True)
    assert [policy.delay_ns(k, 0.0) / 1e9 for k in (1, 2, 3, 4)] == [1, 3, 9, 20]
    assert policy.delay_ns(4, 1.0) / 1e9 == 10
    assert policy.delay_ns(1, 0.0, retry_after_ns=7 * 10**9) / 1e9 == 7


def test_without_clients_the_plan_is_an_open_loop() -> None:
    """Nothing asked for, nothing drawn: the very object by which the compiled engine knows them."""
    assert plan() is OPEN_LOOP


@pytest.mark.parametrize("think", [{"fixed": 1e9}, {"exponential": {"mean": 1e9}}])
def test_think_times_of_decades_are_refused(think: dict[str, Any]) -> None:
    """Nanoseconds in 64 bits end after 292 years; with as many clients as requests nobody thinks at all."""
    with pytest.raises(ScenarioError, match=r"^workload.think_time_s: must add up to at most 1e\+09 seconds for each"):
        closed(n=100, concurrency=4, think_time_s=think)
    think_ns = closed(n=100, concurrency=100, think_time_s=think).think_ns
    assert think_ns is not None
    assert 0 <= think_ns.min() <= think_ns.max() <= 10**18


def test_more_clients_than_requests_are_noted() -> None:
    """Those without a request have nothing to do, which is probably a mistake."""
    notes = workload(concurrency=31, arrivals=...).notes
    assert notes == ("31 clients for 30 requests: 30 of them send one each",)
    assert workload(concurrency=30, arrivals=...).notes == ()


def test_a_trace_s_times_are_ignored_in_a_closed_loop_and_the_notes_say_so(tmp_path: Path) -> None:
    """Its requests are sent in its order; everything but the times stays."""
    rows = "arrival_s,num_prompt_tokens,num_output_tokens,priority\n0,5,4,1\n9,6,3,0\n2,7,8,5\n"
    (tmp_path / "t.csv").write_text(rows)
    built = build_workload(TraceWorkload(trace="t.csv", concurrency=2, limit=2), 0, tmp_path)
    assert built.table.arrival_ns.tolist() == [0, 0]
    assert (built.table.num_prompt_tokens.tolist(), built.table.priority.tolist()) == ([5, 7], [1, 5])
    assert "t.csv: its times are not used, 2 clients send its requests in order" in built.notes
    assert built.clients.concurrency == 2


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_scenarios_keep_the_requests_they_had(path: Path) -> None:
    """Arrivals, prompts and outputs are drawn from the first three children of the seed's SeedSequence, as they were
    before there were other streams."""
    scenario = load_scenario(path, ["workload.trace=t.csv"] if path.stem == "azure" else [])
    config, n = scenario.workload, 0
    if not isinstance(config, GeneratedWorkload) or config.sessions is not None:
        return
    n, table = config.num_requests, build_workload(config, scenario.seed, path.parent).table
    arrivals, prompts, outputs = map(np.random.default_rng, np.random.SeedSequence(scenario.seed).spawn(3))
    if config.arrivals is not None:
        assert (table.arrival_ns == arrival_times_ns(config.arrivals, n, arrivals)).all()
    begun = table.content.num_tokens if isinstance(table.content, Ranges) else 0  # shared prefixes come on top
    assert (table.num_prompt_tokens - begun == lengths(config.prompt_tokens, n, prompts)[0]).all()
    assert (table.num_output_tokens == lengths(config.output_tokens, n, outputs)[0]).all()
