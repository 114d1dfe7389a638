"""Resampled traces: the circular block bootstrap of Politis and Romano (1992), by its defining properties."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simserve.errors import ScenarioError, TraceError
from simserve.request import IntColumn, RequestTable
from simserve.scenario import CancelConfig, ClientsConfig, ResampleConfig, RetryConfig, TraceWorkload
from simserve.workload import Workload, build_workload
from simserve.workload.resample import circular_blocks, resampled

COLUMNS = [name for name in RequestTable.__dataclass_fields__ if name not in ("content", "tenants", "session")]
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60)).filter(lambda sizes: sizes[1] <= sizes[0])


def table(n: int, seed: int = 0) -> RequestTable:
    """Requests that all differ in every column, with uneven gaps."""
    rng = np.random.default_rng(seed)
    arrival_ns = np.concatenate([[0], rng.integers(0, 10**9, n - 1).cumsum()]).astype(np.int64)
    i = np.arange(n, dtype=np.int64)
    return RequestTable(arrival_ns, 1000 + i, 2000 + i, 3000 + i, i - 5)


def write(folder: Path, requests: RequestTable) -> Path:
    """The folder, with the requests as its t.csv."""
    names = ["num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority"]
    lines = [",".join(["arrival_s", *names])]
    for i, arrival_ns in enumerate(requests.arrival_ns.tolist()):
        lines.append(",".join([f"{arrival_ns / 1e9:.9f}", *(str(getattr(requests, name)[i]) for name in names)]))
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder


def drawn(folder: Path, seed: int, block: int, **options: float) -> Workload:
    config = TraceWorkload(trace="t.csv", resample=ResampleConfig(block_requests=block), **options)
    return build_workload(config, seed, folder)


@given(SIZES, st.integers(0, 2**32))
def test_blocks_are_contiguous_on_the_circle(sizes: tuple[int, int], seed: int) -> None:
    """Law: as many rows as there were, and inside each block every row follows the one before it, modulo n."""
    n, block = sizes
    rows = circular_blocks(n, block, np.random.default_rng(seed))
    assert (len(rows), rows.dtype) == (n, np.int64)
    assert rows.min() >= 0
    assert rows.max() < n
    inside = np.arange(1, n) % block != 0
    assert ((rows[1:] - rows[:-1]) % n == 1 % n)[inside].all()


@given(SIZES, st.integers(0, 2**32))
def test_the_columns_of_a_row_travel_together_with_their_gap(sizes: tuple[int, int], seed: int) -> None:
    """Law: each request of the result is one of the trace's, whole, and comes after its own gap."""
    n, block = sizes
    original = table(n, seed)
    rows = circular_blocks(n, block, np.random.default_rng(seed))
    result = resampled(original, rows)
    for name in ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority"):
        assert (getattr(result, name) == getattr(original, name)[rows]).all()
    closing_ns = round(int(original.arrival_ns[-1]) / max(n - 1, 1))
    gaps = [int(original.arrival_ns[i] - original.arrival_ns[i - 1]) if i else closing_ns for i in rows]
    assert np.diff(result.arrival_ns).tolist() == gaps[1:]
    assert result.arrival_ns[0] == 0
    assert all(getattr(result, name).dtype == np.int64 for name in COLUMNS)


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_one_block_of_all_is_a_rotation(n: int, seed: int) -> None:
    """With a block as long as the trace every request comes exactly once."""
    rows = circular_blocks(n, n, np.random.default_rng(seed))
    assert sorted(rows.tolist()) == list(range(n))
    assert ((rows - rows[0]) % n == np.arange(n)).all()


@pytest.mark.parametrize("block", [1, 7, 40])
def test_every_row_is_equally_likely_at_every_place(block: int) -> None:
    """Circular means stationary: chi-squared at the first, a middle and the last place, the cut block included.
    (An ordinary block bootstrap would visit the ends of a trace less often.)"""
    n = 40
    draws = np.array([circular_blocks(n, block, np.random.default_rng(seed)) for seed in range(4000)])
    for place in (0, n // 2 - 1, n - 1):
        assert stats.chisquare(np.bincount(draws[:, place], minlength=n)).pvalue > 1e-3


@pytest.mark.parametrize("block", [1, 6, 30])
def test_the_mean_gap_and_lengths_are_kept_in_expectation(block: int) -> None:
    """Over 2,000 draws the mean span, hence the mean gap, and the mean length lie within five standard errors of the
    trace's own."""
    original = table(50)
    draws = [resampled(original, circular_blocks(50, block, np.random.default_rng(seed))) for seed in range(2000)]
    spans = np.array([draw.arrival_ns[-1] for draw in draws], np.float64)
    prompts = np.array([draw.num_prompt_tokens.mean() for draw in draws])
    for found, expected in ((spans, original.arrival_ns[-1]), (prompts, original.num_prompt_tokens.mean())):
        assert abs(found.mean() - expected) < 5 * found.std() / math.sqrt(len(found)) + 50  # + rounding of one gap


def test_blocks_keep_the_order_that_single_rows_lose() -> None:
    """What blocks are for. In a trace of alternating runs of 20 short and 20 long prompts the correlation of neighbours
    is 0.9 (one pair in twenty differs); blocks of 50 keep it but for one seam in fifty, blocks of 1 make it 0."""

    def correlation(values: IntColumn) -> float:
        return float(np.corrcoef(values[:-1], values[1:])[0, 1])

    prompts = np.tile(np.repeat([10, 1000], 20), 100).astype(np.int64)
    rng = np.random.default_rng(0)
    assert correlation(prompts) == pytest.approx(0.9, abs=0.01)
    assert correlation(prompts[circular_blocks(4000, 50, rng)]) == pytest.approx(0.9 * 49 / 50, abs=0.03)
    assert abs(correlation(prompts[circular_blocks(4000, 1, rng)])) < 5 / math.sqrt(4000)


@given(seed=st.integers(0, 2**63 - 1))
def test_the_seed_decides_and_nothing_else_draws(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """INV-7: same seed, same bytes, whatever the clients do; the trace as it is does not depend on the seed."""
    folder = write(tmp_path_factory.getbasetemp(), table(30))
    first = drawn(folder, seed, 5).table
    clients = ClientsConfig(retry=RetryConfig(), cancel=CancelConfig(share=0.5, mean_after_s=1.0))
    config = TraceWorkload(trace="t.csv", resample=ResampleConfig(block_requests=5), clients=clients)
    second = build_workload(config, seed, folder).table
    for name in COLUMNS:
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    plain = build_workload(TraceWorkload(trace="t.csv"), seed, folder).table
    assert (plain.arrival_ns == table(30).arrival_ns).all()


def test_seeds_differ_and_the_notes_say_what_was_done(tmp_path: Path) -> None:
    """Replications of a trace are other traces; the report's reader learns that this is one."""
    folder = write(tmp_path, table(30))
    a, b = drawn(folder, 0, 5), drawn(folder, 1, 5)
    assert (a.table.num_prompt_tokens != b.table.num_prompt_tokens).any()
    assert "t.csv: drawn anew in blocks of 5 consecutive requests" in a.notes


def test_limit_comes_before_and_the_scale_after(tmp_path: Path) -> None:
    """Only kept requests are drawn, and twice the rate halves the drawn times."""
    folder = write(tmp_path, table(30))
    scaled = drawn(folder, 3, 5, limit=10, rate_scale=2.0).table
    plain = drawn(folder, 3, 5, limit=10).table
    assert len(plain) == 10
    assert plain.num_prompt_tokens.max() < 1010
    assert (scaled.arrival_ns == np.rint(plain.arrival_ns / 2)).all()


def test_in_a_closed_loop_the_drawn_order_is_sent(tmp_path: Path) -> None:
    """Rows as drawn, times all 0."""
    folder = write(tmp_path, table(30))
    loop = drawn(folder, 3, 5, concurrency=4).table
    assert (loop.num_prompt_tokens == drawn(folder, 3, 5).table.num_prompt_tokens).all()
    assert not loop.arrival_ns.any()


def test_what_clients_declare_is_the_trace_s_not_the_draw_s(tmp_path: Path) -> None:
    """The fallback for a missing maximum is the trace's longest output in every replication, drawn or not."""
    (tmp_path / "t.csv").write_text(
        "arrival_s,num_prompt_tokens,num_output_tokens\n" + "".join(f"{i},5,{i + 1}\n" for i in range(30))
    )
    for seed in range(5):
        assert set(drawn(tmp_path, seed, 2).table.max_output_tokens.tolist()) == {30}


def test_blocks_longer_than_the_trace_are_refused(tmp_path: Path) -> None:
    """One sentence that says what is usual."""
    folder = write(tmp_path, table(30))
    with pytest.raises(ScenarioError) as caught:
        drawn(folder, 0, 31)
    assert str(caught.value) == (
        "workload.resample.block_requests: must be ≤ the number of requests (got 31, and t.csv has 30); about its root "
        "is usual, here 5"
    )


def test_a_gap_of_decades_drawn_again_and_again_is_refused(tmp_path: Path) -> None:
    """A trace within the limit can have draws beyond it; they end in a sentence, not in an overflow."""
    times = [0] * 49 + [999_999_999]
    rows = "".join(f"{time},5,5\n" for time in times)
    (tmp_path / "t.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
    with pytest.raises(TraceError, match=r"^t.csv: must span at most 1,000,000,000 seconds after workload.resample$"):
        for seed in range(40):  # one draw in four has the long gap twice
            drawn(tmp_path, seed, 1)
