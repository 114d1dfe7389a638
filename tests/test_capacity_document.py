"""``capacity.json``: rows of studies whose answers are known."""

import json

import pytest

from simserve.capacity.cost import Question
from simserve.capacity.find import find_capacities
from simserve.capacity.row import Asked
from simserve.capacity.search import Effort
from simserve.capacity.slo import parse_slo
from simserve.errors import ScenarioError
from tests.study_builders import FakeRunner, measures, study

PRICED = Question(target_rps=None, price_per_gpu_hour=3.6)


def slots(load, replication, task):
    """A server of 2 requests/s per slot; latency 1 / (1 − ρ), and TPOT 10 ms at any load."""
    data = task.data["variants"][task.variants[0]] if task.data.get("variants") else {}
    num_slots = data.get("engine", {}).get("max_num_seqs", task.data["engine"]["max_num_seqs"])
    mu = 2.0 * num_slots
    overloaded = load is None or load >= mu
    each = measures(1e3, backlogged_rps=mu) if overloaded else measures(1 / (1 - load / mu))
    each["tpot_s"] = dict.fromkeys(each["tpot_s"], 0.01)
    each["slo_quantiles"]["tpot_s"] = {**each["tpot_s"], "answered_mean": 0.01, "lost_share": 0.0}
    return each


def find(texts, question=PRICED, settings=({},), of=slots, **changes):
    found = study(**changes)
    asked = Asked(tuple(parse_slo(text) for text in texts), question, Effort())
    return find_capacities(found, FakeRunner(of), asked, settings)


def test_a_row_by_hand():
    """4 slots: 8/s saturate; 1/(1−ρ) = 4 at ρ = 3/4: 6/s; 100 output and 300 prompt tokens each; 3.60 an hour."""
    (row,) = find(["ttft_p99=4s", "tpot_p99=20ms"])["rows"]
    assert row["capacity"]["value"] == pytest.approx(6.0, rel=0.005)
    assert row["limited_by"] == "ttft_s.p99" and row["reason"] is None
    assert row["saturation"]["value"] == pytest.approx(8.0)
    assert row["output_tokens_per_s"] == pytest.approx(600, rel=0.005)
    assert row["total_tokens_per_s"] == pytest.approx(2400, rel=0.005)
    assert row["cost_per_million_output_tokens"]["value"] == pytest.approx(3.6 / 2.16, rel=0.005)
    assert row["cost_per_million_tokens"]["value"] == pytest.approx(3.6 / 8.64, rel=0.005)
    assert (row["gpus_per_replica"], row["cost_per_hour"], row["replicas"]) == (1, 3.6, None)


def test_unanswered_requests_bring_no_tokens():
    """A tenth of them: a tenth less."""

    def of(load, replication, task):
        return {**slots(load, replication, task), "unanswered_share": 0.1}

    (row,) = find(["ttft_p50=4s"], of=of)["rows"]
    assert row["output_tokens_per_s"] == pytest.approx(0.9 * 100 * row["capacity"]["value"])


def test_a_target_rate_needs_whole_replicas():
    """20 requests/s at 6 each: 4 replicas, 14.40 an hour for 7.2 million output tokens."""
    (row,) = find(["ttft_p99=4s"], Question(20.0, 3.6))["rows"]
    assert row["replicas"]["value"] == 4 and row["cost_per_hour"] == pytest.approx(14.4)
    assert row["cost_per_million_output_tokens"]["value"] == pytest.approx(2.0)


def test_tensor_parallel_is_how_many_gpus_a_replica_has():
    """Two GPUs cost twice as much at the same speed."""
    hardware = {"roofline": "h100-sxm", "tensor_parallel": 2}
    (row,) = find(["ttft_p99=4s"], variants={"two": {"step_time": hardware}})["rows"]
    assert row["gpus_per_replica"] == 2
    assert row["cost_per_million_output_tokens"]["value"] == pytest.approx(2 * 3.6 / 2.16, rel=0.005)


def test_rows_are_sorted_by_cost():
    """Variants and settings: more slots carry more for the same price. No capacity comes last."""
    document = find(
        ["ttft_p99=4s"],
        settings=[{"engine.kv_cache.num_blocks": n} for n in (64, 128)],
        variants={"few": {"engine": {"max_num_seqs": 2}}, "many": {"engine": {"max_num_seqs": 6}}},
    )
    assert [row["variant"] for row in document["rows"]] == ["many", "many", "few", "few"]
    costs = [row["cost_per_million_output_tokens"]["value"] for row in document["rows"]]
    assert costs == sorted(costs)
    assert {row["settings"]["engine.kv_cache.num_blocks"] for row in document["rows"]} == {64, 128}


def test_without_a_price_rows_are_sorted_by_capacity():
    """The largest first, and no cost is made up."""
    document = find(["ttft_p99=4s"], Question(), [{"engine.max_num_seqs": n} for n in (2, 8, 4)])
    assert [row["settings"]["engine.max_num_seqs"] for row in document["rows"]] == [8, 4, 2]
    assert all(row["cost_per_hour"] is None for row in document["rows"])


def test_what_holds_everywhere_is_limited_by_saturation():
    """The saturation rate with its interval is the answer then."""
    (row,) = find(["tpot_p99=20ms"])["rows"]
    assert (row["limited_by"], row["capacity"]["value"]) == ("saturation", pytest.approx(8.0))


def test_what_holds_nowhere_is_an_answer():
    """Null, and the reason in words: which SLO, where, by how much."""
    (row,) = find(["ttft_p99=4s", "tpot_p99=5ms"])["rows"]
    assert row["capacity"]["value"] is None and row["limited_by"] == "tpot_s.p99"
    assert row["reason"] == "tpot_p99=5ms fails even at 0.072 requests/s: 2 times its limit"
    assert row["cost_per_million_output_tokens"] is None and row["cost_per_hour"] is None


def test_the_reason_of_no_capacity_is_where_it_came_nearest():
    """Latency that falls with load (groups fill faster) is broken everywhere, least of all where it is least."""

    def of(load, replication, task):
        return measures(10 - (load or 0) / 8, backlogged_rps=8.0)

    (row,) = find(["ttft_p99=3s"], of=of)["rows"]
    assert row["reason"] == "ttft_p99=3s fails at every load, at best at 7.2 requests/s: 3.03 times its limit"


def test_what_grows_with_the_run_at_saturation_is_not_settled():
    """A wait that grows with the requests of a run holds its limit below saturation and breaks it somewhere before: an
    interval from there to the saturation rate, and the remedy."""

    def of(load, replication, task):
        wait = 1.0 if load is not None and load < 7.9 else 0.01 * task.data["workload"]["num_requests"]
        return measures(wait, backlogged_rps=8.0)

    document = find(["ttft_p99=4s"], of=of, workload__num_requests=20)
    (row,) = document["rows"]
    assert row["limited_by"] == "not settled: more requests"
    assert (row["capacity"]["low"], row["capacity"]["high"]) == (pytest.approx(7.2), pytest.approx(8.0))
    assert any("raise workload.num_requests" in note for note in document["notes"])


def test_who_was_never_answered_is_a_share_and_not_a_number_of_limits():
    """Everybody beyond one in fifty timed out: infinitely late is said in words."""

    def of(load, replication, task):
        found = measures(1.0, backlogged_rps=8.0)
        found["slo_quantiles"]["ttft_s"] |= {"p99": None, "lost_share": 0.02}
        return found

    (row,) = find(["ttft_p99=4s"], of=of)["rows"]
    assert row["reason"] == "ttft_p99=4s fails even at 0.072 requests/s: 2.0% were never answered"


def test_those_who_cancelled_are_named():
    """A tenth of the requests: in a note, and no SLO counts them."""

    def of(load, replication, task):
        return {**slots(load, replication, task), "num_cancelled": 100}

    assert any("10.0% of the requests were cancelled" in note for note in find(["ttft_p99=4s"], of=of)["notes"])


def test_a_variant_without_an_answer_leaves_the_others_theirs():
    """One whose requests are too few to keep anybody waiting: null, with the reason."""

    def of(load, replication, task):
        return measures(1.0) if task.variants == ("many",) else slots(load, replication, task)

    changes = {"variants": {"many": {"engine": {"max_num_seqs": 6}}, "few": {"engine": {"max_num_seqs": 2}}}}
    few, many = find(["ttft_p99=4s"], of=of, **changes)["rows"]
    assert few["capacity"]["value"] == pytest.approx(3.0, rel=0.01)
    assert many["capacity"]["value"] is None and "must have enough requests" in many["reason"]


def test_a_closed_loop_answers_in_clients_and_in_requests_per_second():
    """4 slots of 2/s each: latency max(1, c/4) / 2 s; 2 s at 16 clients, who are answered 8 requests/s."""

    def of(load, replication, task):
        return measures(max(1.0, load / 4) / 2, requests_per_s=2 * min(load, 4.0))

    (row,) = find(["e2e_mean=2s"], of=of, workload__arrivals=..., workload__concurrency=4, workload__num_requests=4000)[
        "rows"
    ]
    assert row["load"]["value"] == pytest.approx(15.2, abs=0.9) or row["load"]["value"] == pytest.approx(16, abs=0.2)
    assert row["capacity"]["value"] == pytest.approx(8.0)


def test_a_setting_that_is_wrong_is_a_sentence():
    """Whatever the scenario's own rules say of it."""
    with pytest.raises(ScenarioError, match=r"small\.yaml: engine\.max_num_seqs: must be ≥ 1"):
        find(["ttft_p99=4s"], settings=[{"engine.max_num_seqs": 0}])


def test_the_document_has_what_the_page_draws():
    """Keys and shapes; strict JSON; the same question, the same bytes."""
    document = find(["ttft_p99=4s"], Question(20.0, 3.6))
    assert (document["kind"], document["schema_version"]) == ("simserve capacity", 1)
    assert document["slos"] == [{"metric": "ttft_s.p99", "limit": 4.0, "text": "ttft_p99=4s"}]
    assert (document["target_rps"], document["price_per_gpu_hour"]) == (20.0, 3.6)
    (row,) = document["rows"]
    loads = [point["load"] for point in row["curve"]]
    assert loads == sorted(loads) and len(loads) >= 12 and row["num_simulations"] > 50
    again = find(["ttft_p99=4s"], Question(20.0, 3.6))
    assert json.dumps(again, allow_nan=False) == json.dumps(document, allow_nan=False)
