"""How long the formulas take on a run of a million requests."""

import numpy as np
import pytest

from simserve.metrics import summarize, timeline
from simserve.records import FINISHED, Records, RequestRecords, SpanRecords
from simserve.request import RequestTable
from tests.record_builders import S, Slo

NUM_REQUESTS = 1_000_000


@pytest.fixture(scope="module")
def records():
    """A million finished requests of random latencies and as many spans."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 1000, NUM_REQUESTS)
    arrival = np.sort(rng.integers(0, NUM_REQUESTS * S // 10, NUM_REQUESTS))
    requests = RequestRecords(RequestTable(arrival, tokens, tokens, tokens, np.zeros(NUM_REQUESTS, np.int64)))
    requests.status[:] = FINISHED
    requests.first_scheduled_ns = arrival + rng.integers(1, S, NUM_REQUESTS)
    requests.first_token_ns = requests.first_scheduled_ns + rng.integers(1, S, NUM_REQUESTS)
    requests.last_token_ns = requests.end_ns = requests.first_token_ns + rng.integers(1, 9 * S, NUM_REQUESTS)
    requests.num_emitted_tokens = tokens
    made = Records(requests, capacity_tokens=100_000)
    spans = rng.integers(1, 100, (NUM_REQUESTS, len(SpanRecords.COLUMNS)))
    spans[:, 0], spans[:, 1] = arrival, np.append(arrival[1:], arrival[-1] + S)
    made.spans.rows.append(spans.ravel().tolist())
    return made


def test_summary_of_a_million_requests(benchmark, records):
    """About a second."""
    summary = benchmark.pedantic(summarize, (records, Slo(ttft_s=1.0, e2e_s=9.0)), rounds=3)
    assert summary["num_finished"] == NUM_REQUESTS
    assert benchmark.stats.stats.min < 5


def test_timeline_of_a_million_spans(benchmark, records):
    """Under half a second."""
    frame = benchmark.pedantic(timeline, (records,), rounds=3)
    assert len(frame) == 400
    assert benchmark.stats.stats.min < 5
