"""``simserve trace fit --by``: whose each request is, a tenant for each client, and how well each fits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from simserve.cli import app
from simserve.errors import TraceError
from simserve.scenario import TenantsWorkload, parse_scenario
from simserve.trace_tools.clients import clients_of, may_tell_clients
from simserve.trace_tools.fit import fit
from simserve.trace_tools.fit_show import COINCIDE
from simserve.trace_tools.measures import dispersion, rank_correlation, window_sizes_s
from simserve.workload.trace import read_trace
from tests.scenario_builders import small

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
CHAT, API = "GPT-4, Conversation log", "ChatGPT, API log"


def burstgpt(path: Path, n: int = 4000, seed: int = 0) -> Path:
    """Conversations at 1 request/s whose long prompts get long answers; twice as many API calls of short answers in the
    first half of the hour, and none in the second."""
    rng = np.random.default_rng(seed)
    chat = np.cumsum(rng.exponential(1.0, n))
    api = np.cumsum(rng.gamma(0.25, 4 / 2.0, n))
    api = api[api < chat[-1] / 2]
    rows = []
    for time in chat:
        prompt = int(rng.lognormal(6, 0.8)) + 1
        rows.append((time, "GPT-4", prompt, int(prompt * rng.lognormal(-1, 0.4)) + 1, "Conversation log"))
    rows += [(time, "ChatGPT", int(rng.lognormal(7, 0.3)) + 1, int(rng.integers(1, 20)), "API log") for time in api]
    lines = [f"{t:.6f},{model},{p},{o},{p + o},{log}\n" for t, model, p, o, log in sorted(rows)]
    path.write_text(BURSTGPT + "".join(lines))
    return path


def test_each_client_is_fitted_by_itself(tmp_path: Path) -> None:
    """Rates of each half, cv, lengths and their rank correlation are each client's own; the mixture has them again."""
    path = burstgpt(tmp_path / "b.csv")
    trace = read_trace(path)
    clients = clients_of(path, trace, ["log type"], 20)
    found = fit(trace, 2, clients)
    tenants = found.workload["tenants"]
    assert list(tenants) == sorted(tenants, key=lambda name: -int((clients.of == clients.names.index(name)).sum()))
    chat, api = tenants["Conversation log"], tenants["API log"]
    assert [window["rate_rps"] for window in chat["arrivals"]["windows"]] == pytest.approx([1.0, 1.0], rel=0.06)
    rates = [window["rate_rps"] for window in api["arrivals"]["windows"]]
    assert rates[0] == pytest.approx(2.0, rel=0.12)
    assert rates[1] == 0
    assert api["arrivals"]["windows"][0]["cv"] == pytest.approx(2.0, rel=0.15)
    assert chat["length_correlation"] > 0.7
    assert abs(api.get("length_correlation", 0.0)) < 0.1
    for name, each in found.quality["clients"].items():
        count = each["num_requests"]
        assert count["generator"] == pytest.approx(count["trace"], rel=0.1), name
        assert max(distance["trace"] for distance in each["distances"].values()) < 0.06
    assert isinstance(parse_scenario(small(workload=found.workload)).workload, TenantsWorkload)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcd "), st.integers(0, 3)), min_size=2, max_size=40), st.integers(1, 5))
def test_every_request_has_one_client(tmp_path_factory: pytest.TempPathFactory, rows, most: int) -> None:
    """Law: the i-th request of the trace, wherever its row is and whatever rows are left out, is of its row's client;
    the most frequent have names of their own."""
    path = tmp_path_factory.mktemp("t") / "t.csv"
    lines = [f"{time},{i + 1},{1 if time else 0},{who}\n" for i, (who, time) in enumerate(rows)]
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens,User\n" + "".join([*lines, "9,99,1,a\n"]))
    trace = read_trace(path)
    clients = clients_of(path, trace, ["user"], most)
    users = [*(who.strip() or "(none)" for who, _ in rows)]
    own = [users[p - 1] if p != 99 else "a" for p in trace.num_prompt_tokens.tolist()]
    counts = {who: own.count(who) for who in own}
    named = sorted(counts, key=lambda who: (-counts[who], who))[:most]
    assert [clients.names[i] for i in clients.of] == [who if who in named else "others" for who in own]


def test_several_columns_make_a_client_together(tmp_path: Path) -> None:
    """Model and log type, as people tell BurstGPT's; what the file lacks is one sentence, and what it has is told."""
    path = burstgpt(tmp_path / "b.csv", 600)
    trace = read_trace(path)
    assert set(clients_of(path, trace, ["Model", "Log Type"], 20).names) == {CHAT, API}
    assert may_tell_clients(path, trace) == [("Model", 2), ("Log Type", 2)]
    with pytest.raises(TraceError, match=r"^--by: must be a column of b.csv \(got 'Modell'; did you mean 'Model'\?\)"):
        clients_of(path, trace, ["Modell"], 20)


def test_what_became_of_requests_does_not_tell_their_clients(tmp_path: Path) -> None:
    """A run's requests.parquet is a trace of ours: its figures and its states are no clients, a column more is."""
    n = 400
    columns = {name: [i % 3 for i in range(n)] for name in ("num_prefix_hit_tokens", "num_preemptions", "away_s")}
    columns |= {"status": ["finished", "rejected"] * (n // 2), "reject_reason": ["", "queue is full"] * (n // 2)}
    columns |= {"request_id": list(range(n)), "arrival_s": list(range(n)), "customer": ["a", "b"] * (n // 2)}
    columns |= {"num_prompt_tokens": [5] * n, "num_output_tokens": [5] * n}
    path = tmp_path / "requests.parquet"
    pd.DataFrame(columns).to_parquet(path)
    assert may_tell_clients(path, read_trace(path)) == [("customer", 2)]


def test_names_are_such_as_a_scenario_takes(tmp_path: Path) -> None:
    """Long ones are cut and told apart, what cannot be printed is escaped, a client called others is not the others."""
    users = ["x" * 100, "x" * 99, "tab\there", "others", "others", "one", "two"]
    lines = [f'{i},{i + 1},1,"{user}"\n' for i, user in enumerate(users)]
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,user\n" + "".join(lines))
    trace = read_trace(tmp_path / "t.csv")
    clients = clients_of(tmp_path / "t.csv", trace, ["user"], 5)
    assert len(set(clients.names)) == len(clients.names) == 6
    assert clients.names[0] == "others"
    assert clients.names[-1] == "others (1)"
    parse_scenario(small(workload=fit(trace, 1, clients).workload))


def test_a_client_s_priority_is_its_tenant_s(tmp_path: Path) -> None:
    """One priority for all its requests is kept; where they differ, that is named as left out."""
    lines = [f"{i},{i + 1},1,{'ab'[i % 2]},{3 if i % 2 else (i // 2) % 2}\n" for i in range(60)]
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,user,priority\n" + "".join(lines))
    trace = read_trace(tmp_path / "t.csv")
    found = fit(trace, 1, clients_of(tmp_path / "t.csv", trace, ["user"], 5))
    assert {name: tenant.get("priority") for name, tenant in found.workload["tenants"].items()} == {"a": None, "b": 3}
    assert found.quality["left_out"] == ["priorities"]


def test_what_all_of_a_client_declare_is_kept(tmp_path: Path) -> None:
    """One maximum for all requests of a client is its tenant's; where they differ, that is named as left out."""
    lines = [f"{i},{i + 1},1,{'ab'[i % 2]},{50 if i % 2 else 9 + i // 2 % 2}\n" for i in range(60)]
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens,user,max_output_tokens\n" + "".join(lines))
    trace = read_trace(path)
    found = fit(trace, 1, clients_of(path, trace, ["user"], 5))
    assert [tenant.get("max_output_tokens") for tenant in found.workload["tenants"].values()] == [None, 50]
    assert found.quality["left_out"] == ["declared maxima"]
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens,max_output_tokens\n0,5,1,70\n1,6,1,70\n")
    found = fit(read_trace(path))
    assert found.workload["max_output_tokens"] == 70
    assert found.quality["left_out"] == []


def test_the_command_by_column(tmp_path: Path) -> None:
    """Tenants in the file, a line for each client in the terminal; without --by the columns that tell clients."""
    path, out = burstgpt(tmp_path / "b.csv", 1500), tmp_path / "w.yaml"
    done = CliRunner().invoke(app, ["trace", "fit", str(path), "--by", "Model", "--by", "log_type", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert CHAT in done.stdout
    workload = yaml.safe_load(out.read_text())["workload"]
    assert set(workload["tenants"]) == {CHAT, API}
    told = json.loads(CliRunner().invoke(app, ["trace", "fit", str(path), "--by", "Model", "--json"]).stdout)
    assert set(told["quality"]["clients"]) == {"GPT-4", "ChatGPT"}
    plain = CliRunner().invoke(app, ["trace", "fit", str(path), "--windows", "2"])
    assert "--by 'Model' (2 values), --by 'Log Type' (2 values)" in plain.stderr
    one = CliRunner().invoke(app, ["trace", "fit", str(path), "--by", "Model", "--clients", "1", "--json"])
    assert list(json.loads(one.stdout)["workload"]["tenants"]) == ["ChatGPT", "others"]


def test_bursts_that_come_together_are_told(tmp_path: Path) -> None:
    """One bursty stream whose requests are one of ten users' each, by a die: apart the users are nearly Poisson, and
    together they are not; users of their own say nothing of the kind."""
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.gamma(0.05, 20.0, 4000))
    for name, who in (("together", rng.integers(0, 10, 4000)), ("apart", np.zeros(4000, int))):
        rows = "".join(f"{t:.6f},9,9,u{i}\n" for t, i in zip(times, who, strict=True))
        (tmp_path / f"{name}.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,user\n" + rows)
        words = ["trace", "fit", str(tmp_path / f"{name}.csv"), "--by", "user", "--windows", "1"]
        assert (COINCIDE in CliRunner().invoke(app, words).stdout) == (name == "together")


def test_clients_who_all_come_at_once_are_refused(tmp_path: Path) -> None:
    """A tenant needs a rate; exit code 2, one sentence."""
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens,user\n0,1,1,a\n0,1,1,b\n")
    done = CliRunner().invoke(app, ["trace", "fit", str(tmp_path / "t.csv"), "--by", "user"])
    assert done.exit_code == 2
    assert "--by: needs requests that come at different times" in done.output


def test_dispersion_of_counts() -> None:
    """By hand: 0 0 1 3 and 4 arrivals in five windows have mean 1.6 and variance 2.64; a Poisson process has 1 at any
    size, gamma gaps of cv 3 come to 9, and a size is only asked about where ten windows and a request in each are."""
    times = np.array([20, 30, 31, 32, 40, 41, 42, 43]) * 10**9
    assert dispersion(times, 10.0, 50 * 10**9) == pytest.approx(2.64 / 1.6)
    rng = np.random.default_rng(0)
    for gaps, expected in ((rng.exponential(1.0, 40_000), 1.0), (rng.gamma(1 / 9, 9.0, 40_000), 9.0)):
        arrival_ns = (np.cumsum(gaps) * 1e9).astype(np.int64)
        sizes = window_sizes_s(arrival_ns)
        assert sizes == [size for size in (1.0, 10.0, 60.0, 600.0, 3600.0) if size >= 1e-9 * arrival_ns[-1] / 39_999]
        found = dispersion(arrival_ns, 60.0, int(arrival_ns[-1]))
        assert found == pytest.approx(expected, rel=5 * (2 / (40_000 / 60)) ** 0.5)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    """Spearman's, ties and all; None where one is all alike."""
    a, b = np.array(pairs).T
    found = rank_correlation(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(a, b).statistic)
