"""Results of `vllm bench serve` and guidellm as recorded runs: the same requests from either, or the aggregates."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import RunError
from simserve.recorded import guidellm, vllm_bench
from simserve.recorded.benchmarks import benchmark_format, read_benchmark
from simserve.recorded.read import read_recorded
from simserve.recorded.run import RecordedRun
from simserve.validate.observed import figures, observed_run
from tests.benchmark_files import DROP, GAPS, guidellm_report, vllm_aggregates, vllm_result, write

NS = 1_000_000_000


@pytest.fixture
def file(tmp_path):
    """Where a result is written."""
    return tmp_path / "result.json"


@pytest.mark.parametrize("data", [vllm_result(), guidellm_report(), guidellm_report(newer=False)])
def test_a_row_per_request_in_order_of_arrival(file, data):
    """vLLM's gaps and guidellm's stamps, of either form, tell the same three requests; wall clocks are good to a
    microsecond (doubles of 1.79e9 seconds), perf_counter here to the nanosecond."""
    run = read_benchmark(write(file, data))
    assert list(run.file_rows) == [1, 0, 2]
    for found, seconds in (
        (run.table.arrival_ns, [0, 0.5, 2.0]),
        (run.first_token_ns, [0.5, 0.75, 2.125]),
        (run.last_token_ns, [1.5, 1.5, 2.125]),
    ):
        assert found.dtype == np.int64
        assert list(found) == pytest.approx([s * NS for s in seconds], abs=1000)
    assert list(run.table.num_prompt_tokens) == [20, 10, 30]
    assert list(run.table.num_output_tokens) == [2, 3, 1]
    assert run.finished.all()
    assert run.source == "result.json"


def test_vllm_s_gaps_are_kept_and_are_those_of_tokens(file):
    """Every gap of every finished request, in seconds."""
    run = vllm_bench.read(write(file, vllm_result()))
    assert sorted(run.itl_s) == sorted(gap for gaps in GAPS for gap in gaps)
    assert not any("pieces" in note for note in run.notes)


def test_pieces_that_are_no_tokens_are_pointed_out(file):
    """A server may send several tokens at once: vLLM's itls are then of pieces."""
    run = vllm_bench.read(write(file, vllm_result(output_lens=[30, 2, 1])))
    assert any(note.startswith("1 of 3 answers came in more or fewer pieces than tokens") for note in run.notes)


def test_requests_that_failed_are_unfinished_and_counted(file):
    """vLLM gives them a ttft of 0 and an error; guidellm lists them apart."""
    failed = vllm_result(
        errors=["", "Connection reset", ""], output_lens=[3, 0, 1], ttfts=[0.25, 0.0, 0.125], itls=[[0.5, 0.25], [], []]
    )
    run = vllm_bench.read(write(file, failed))
    assert list(run.finished) == [False, True, True]
    assert run.first_token_ns[0] == run.last_token_ns[0] == -1
    assert "1 of 3 requests failed, and count as unfinished" in run.notes
    report = guidellm_report()
    groups = report["benchmarks"][0]["requests"]
    groups["errored"].append(groups["successful"].pop())
    groups["incomplete"].append(json.loads(json.dumps(groups["successful"].pop())))
    groups["incomplete"][0]["info"]["timings"].update(request_start=None)
    report["benchmarks"][0]["metrics"]["request_totals"] = {"successful": 1, "incomplete": 1, "errored": 1, "total": 3}
    run = guidellm.read(write(file, report))
    assert list(run.finished) == [True, False]
    assert "1 requests errored, which count as unfinished" in run.notes
    assert "1 requests were never sent, and are left out" in run.notes


def test_how_requests_were_offered_is_noted(file):
    """Rates, burstiness, limits, strategies, and how late requests were sent."""
    run = vllm_bench.read(write(file, vllm_result(max_concurrency=8)))
    assert "offered at 2.0 requests/s, burstiness 1.0" in run.notes
    assert any(note.startswith("at most 8 at a time") for note in run.notes)
    assert "offered all at once" in vllm_bench.read(write(file, vllm_result(request_rate="inf"))).notes
    notes = guidellm.read(write(file, guidellm_report())).notes
    assert "offered by guidellm's strategy: constant at 2.0 requests/s" in notes
    assert "requests were sent 2.0 ms after their targeted time, on average" in notes


def test_without_start_times_only_a_burst_can_be_read(file):
    """Older vLLMs saved none: with everything sent at once they are all 0, else they are unknown."""
    burst = vllm_result(start_times=DROP, request_rate="inf")
    assert list(vllm_bench.read(write(file, burst)).table.arrival_ns) == [0, 0, 0]
    with pytest.raises(RunError, match="has no start_times, so nobody knows when requests came"):
        vllm_bench.read(write(file, vllm_result(start_times=DROP)))


def test_a_file_of_aggregates_is_read_as_that_and_says_what_is_missing(file):
    """Milliseconds become seconds; what was not asked of the benchmark is named."""
    found = read_benchmark(write(file, vllm_aggregates()))
    assert not isinstance(found, RecordedRun)
    assert found.metrics["ttft_s"] == pytest.approx({"mean": 0.2916666, "p50": 0.25, "p99": 0.495})
    assert found.metrics["tpot_s"]["mean"] == pytest.approx(0.6875)
    assert found.metrics["itl_s"]["p99"] == pytest.approx(0.99)
    assert (found.num_requests, found.num_finished, found.makespan_s) == (3, 3, 2.125)
    assert found.output_tokens_per_s == pytest.approx(6 / 2.125)
    assert found.notes[0] == "aggregates only: no request can be replayed or matched"
    assert "e2e_s not told; give vllm bench serve --percentile-metrics ttft,tpot,itl,e2el" in found.notes


def test_aggregates_go_by_the_names_of_a_validation(file):
    """Those that `simserve validate` compares, so that the two can be held against each other; what is missing is
    None."""
    found = vllm_bench.aggregates(write(file, vllm_aggregates())).figures()
    run = vllm_bench.read(write(file, vllm_result()))
    compared = figures(observed_run(run, run.table.num_output_tokens), np.ones(3, bool))
    assert set(found) == set(compared) - {"mean_batch_size", "num_preemptions"}
    assert found["e2e_s.p50"] is None
    assert found["ttft_s.mean"] == pytest.approx(compared["ttft_s.mean"], abs=1e-6)
    assert found["throughput.output_tokens_per_s"] == pytest.approx(compared["throughput.output_tokens_per_s"])
    assert found["makespan_s"] == compared["makespan_s"]


@pytest.mark.parametrize("newer", [True, False])
def test_guidellm_without_requests_is_read_as_aggregates(file, newer):
    """Its inter_token_latency is a mean per request: our TPOT. Its time_per_output_token has the first token in it, and
    is nothing of ours."""
    empty = {"successful": [], "incomplete": [], "errored": [], "total": None}
    found = read_benchmark(write(file, guidellm_report(newer, requests=empty)))
    assert not isinstance(found, RecordedRun)
    assert set(found.metrics) == {"ttft_s", "tpot_s", "e2e_s"}
    assert found.metrics["tpot_s"]["p99"] == pytest.approx(0.6875)
    assert found.metrics["e2e_s"]["mean"] == 0.875
    assert (found.num_requests, found.requests_per_s, found.output_tokens_per_s) == (3, 1.4, 2.8)


def test_a_sample_of_requests_is_not_taken_for_all(file):
    """--sample-requests keeps some: they would be a lighter workload than the server met."""
    report = guidellm_report()
    report["benchmarks"][0]["requests"]["successful"].pop()
    assert not isinstance(read_benchmark(write(file, report)), RecordedRun)
    with pytest.raises(RunError, match=r"requests\.successful: has 2 of 3 requests, a sample"):
        guidellm.read(file)


def test_of_several_benchmarks_one_must_be_chosen(file):
    """A sweep holds one per rate; the message names them."""
    report = guidellm_report()
    report["benchmarks"] *= 2
    write(file, report)
    with pytest.raises(RunError, match=r"holds 2 benchmarks \(constant at 2\.0 requests/s, constant at 2\.0"):
        guidellm.read(file)
    assert len(guidellm.read(file, which=1)) == 3
    with pytest.raises(RunError, match="asked for number 2, from 0"):
        guidellm.read(file, which=2)


def test_which_generator_wrote_a_file(file):
    """By its keys."""
    assert benchmark_format(write(file, vllm_result())) == "vllm-bench"
    assert benchmark_format(write(file, guidellm_report())) == "guidellm"
    assert benchmark_format(write(file, {"a": 1})) is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("{", "result.json: is not JSON (Expecting"),
        ("[1]", "result.json: must hold a JSON object (got a list)"),
        ("[" * 100_000, "result.json: is not JSON (maximum recursion"),
        ({"a": 1}, "result.json: must be a result of vllm-bench or guidellm (it has neither's keys)"),
        (
            json.dumps(vllm_result()) + "\n" + json.dumps(vllm_result()),
            "result.json: holds several runs, one after another",
        ),
        (vllm_result(ttfts=[0.25, "soon", 0.1]), "result.json: ttfts[1]: must be a number (got 'soon')"),
        (vllm_result(ttfts=[]), "result.json: ttfts: must have an entry per request (it has none)"),
        (vllm_result(itls=[[0.1], [0.2]]), "result.json: itls: must have an entry per request, 3 (got 2)"),
        (vllm_result(itls=[[0.1], [None], []]), "result.json: itls[1][0]: must be a number (got null)"),
        (vllm_result(output_lens=[3, 2.5, 1]), "result.json: output_lens[1]: must be a number of tokens (got 2.5)"),
        (vllm_result(start_times=[0, 1, float("nan")]), "result.json: start_times[2]: must be a number (got nan)"),
        (vllm_result(start_times=[0, 1, 1e300]), "result.json: start_times[2]: must be a number (got 1e+300)"),
        (vllm_result(errors="none"), "result.json: errors: must be a list (got 'none')"),
        (
            vllm_result(itls=DROP),
            "result.json: has no itls, only aggregates; run vllm bench serve with --save-detailed",
        ),
        ({"benchmarks": []}, "result.json: holds no benchmark"),
        ({"benchmarks": {}}, "result.json: benchmarks: must be a list (got a mapping)"),
        ({"benchmarks": [3]}, "result.json: benchmarks[0]: must be an object (got 3)"),
        (
            guidellm_report(requests={"successful": [7] * 3}),
            "result.json: benchmarks[0].requests.successful[0]: must be an",
        ),
        (
            guidellm_report(requests=None, metrics=None),
            "result.json: benchmarks[0].metrics: must be an object (got null)",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(file, data, sentence):
    """With the file's name, the place, the rule and the value."""
    with pytest.raises(RunError) as refusal:
        read_benchmark(write(file, data))
    assert str(refusal.value).startswith(sentence)
    assert str(refusal.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-5, 5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(vllm_result())), JSON)
def test_any_value_anywhere_in_vllm_s_file_is_read_or_refused(tmp_path_factory, key, value):
    """No other error than RunError, whatever one key holds."""
    _read_or_refuse(tmp_path_factory.mktemp("any") / "a.json", vllm_result(**{key: value}))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(guidellm_report()["benchmarks"][0])), JSON)
def test_any_value_anywhere_in_guidellm_s_file_is_read_or_refused(tmp_path_factory, key, value):
    """As above, for a key of its benchmark, and in the requests' own stamps."""
    _read_or_refuse(tmp_path_factory.mktemp("any") / "a.json", guidellm_report(**{key: value}))
    report = guidellm_report()
    report["benchmarks"][0]["requests"]["successful"][1]["info"]["timings"]["request_start"] = value
    _read_or_refuse(tmp_path_factory.mktemp("any") / "b.json", report)


def _read_or_refuse(path, data):
    try:
        read_benchmark(write(path, data))
    except RunError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("data", "form"),
    [(vllm_result(), "vllm-bench"), (guidellm_report(), "guidellm"), (guidellm_report(newer=False), "guidellm")],
)
def test_a_recorded_run_s_format_is_told_from_its_head(file, data, form):
    """`simserve validate --measured FILE` needs no --format."""
    assert read_recorded(write(file, data)).format == form
