"""Which requests are simulated: the scenario's lengths, the run's arrivals; refused where they are not the same."""

import json

import numpy as np
import pytest

from simserve.clients import ClientPlan
from simserve.errors import RunError
from simserve.request import RequestTable
from simserve.validate.match import matched
from simserve.workload import Workload
from tests.validate_builders import run_of


def workload(arrivals_ns=(0, 10, 20), prompts=(5, 6, 7), outputs=(2, 3, 4), concurrency=None):
    columns = (np.array(column, np.int64) for column in (arrivals_ns, prompts, outputs, outputs, [0] * len(prompts)))
    return Workload(RequestTable(*columns), clients=ClientPlan(concurrency=concurrency))


def run(prompts=(5, 6, 7), outputs=(2, 3, 4), arrivals=(0.0, 0.5, 1.0)):
    arrivals = np.array(arrivals)
    return run_of(arrivals, arrivals + 1, arrivals + 2, outputs, prompts)


def test_matched_requests_come_when_the_recorded_ones_came():
    """Lengths are the scenario's, arrivals the run's, and the words say how far apart they were."""
    table, words = matched(workload(), run(), "matched")
    assert table.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]
    assert table.num_prompt_tokens.tolist() == [5, 6, 7]
    assert any("as recorded (they differ by 1 s at most)" in text for text in words)


def test_the_scenario_s_own_times_where_asked_for():
    """Nothing of the table changes."""
    table, words = matched(workload(), run(), "scenario")
    assert table.arrival_ns.tolist() == [0, 10, 20] and any("arrivals are the scenario's" in text for text in words)


def test_the_run_s_own_requests_whatever_the_scenario_has():
    """Another number, other lengths: taken as they are."""
    table, _ = matched(workload(), run((50, 60), (9, 8), (0.0, 2.0)), "recorded")
    assert table.num_prompt_tokens.tolist() == [50, 60] and table.num_output_tokens.tolist() == [9, 8]
    assert table.arrival_ns.tolist() == [0, 2_000_000_000]


def test_a_file_in_the_trace_s_order_matches_although_arrivals_overtook():
    """Request 2 came before request 1: each keeps its own lengths."""
    table, _ = matched(workload(), run(arrivals=(0.0, 1.0, 0.5)), "matched")
    assert table.num_prompt_tokens.tolist() == [5, 7, 6] and table.num_output_tokens.tolist() == [2, 4, 3]
    assert table.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]


def test_untold_lengths_are_the_scenario_s():
    """Only times were recorded."""
    untold = run_of([0, 1, 2], [1, 2, 3], [2, 3, 4], [-1] * 3, [-1] * 3)
    table, words = matched(workload(), untold, "matched")
    assert table.num_output_tokens.tolist() == [2, 3, 4] and "the run does not tell them" in words[0]
    with pytest.raises(RunError, match="must tell every request's prompt and output tokens for --requests recorded"):
        matched(workload(), untold, "recorded")


def test_a_closed_loop_s_clients_decide_when_they_send():
    """The recorded times are outcomes there, not inputs."""
    table, words = matched(workload((0, 0, 0), concurrency=2), run(), "matched")
    assert table.arrival_ns.tolist() == [0, 0, 0] and any("clients send" in text for text in words)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (run((5, 6), (2, 3), (0.0, 1.0)), "must have as many requests as the scenario's workload, 3 (got 2)"),
        (run((5, 6, 8)), "request 3 must have the scenario's 7 prompt tokens (got 8)"),
        (run(outputs=(2, 1, 4)), "request 2 must have the scenario's 3 output tokens (got 1)"),
    ],
)
def test_other_requests_are_refused_with_the_first_that_differs(theirs, expected):
    """One sentence with the remedy."""
    with pytest.raises(RunError) as caught:
        matched(workload(), theirs, "matched")
    assert expected in str(caught.value) and "--requests recorded" in str(caught.value)
    assert "\n" not in json.dumps(str(caught.value))
