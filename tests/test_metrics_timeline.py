"""Bins of the timeline conserve what the spans hold, wherever the edges fall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.metrics import timeline
from simserve.timeline import TIMELINE_COLUMNS
from tests.record_builders import add_span, records_of

spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(0, 30)),
    min_size=1,
    max_size=30,
)


def _records(rows):
    records, now = records_of(), 0.0
    for tenths, seqs, used_begin, used_end, emitted in rows:
        end = now + tenths / 10
        steps = {"num_steps": 1, "num_seqs": seqs, "num_emitted_tokens": emitted} if seqs and tenths else {}
        add_span(records, now, end, kv_used_begin=used_begin, kv_used_end=used_end, num_running_begin=seqs, **steps)
        now = end
    return records


@settings(max_examples=80, deadline=None)
@given(spans, st.integers(1, 60))
def test_bins_conserve_integrals(rows, num_bins):
    """Σ bin mean × width = Σ over spans of the mean × duration, for sizes, cache shares and tokens."""
    frame = timeline(_records(rows), num_bins)
    width = frame.end_s - frame.begin_s
    area = {name: float((frame[name] * width).sum()) for name in TIMELINE_COLUMNS}
    busy = [row for row in rows if row[0] and row[1]]
    assert area["batch_size"] == pytest.approx(sum(row[0] / 10 * row[1] for row in busy), abs=1e-6)
    assert area["num_running"] == pytest.approx(sum(row[0] / 10 * row[1] for row in rows), abs=1e-6)
    assert area["kv_used_share"] == pytest.approx(sum(row[0] / 10 * (row[2] + row[3]) / 200 for row in rows), abs=1e-6)
    assert area["output_tokens_per_s"] == pytest.approx(sum(row[4] for row in busy), abs=1e-6)
    assert area["busy_share"] == pytest.approx(sum(row[0] / 10 for row in busy), abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(spans, st.integers(1, 60))
def test_means_stay_within_what_was_recorded(rows, num_bins):
    """No bin is below the least or above the greatest value that any span had."""
    frame = timeline(_records(rows), num_bins)
    assert frame.kv_used_share.between(-1e-9, max(max(row[2:4]) for row in rows) / 100 + 1e-6).all()
    assert frame.busy_share.between(-1e-9, 1 + 1e-6).all()
    if len(frame):
        assert np.allclose(frame.begin_s[1:], frame.end_s[:-1])


def test_a_long_span_shows_its_slope_inside():
    """Fast-forward makes one span of many steps: its linear growth appears in every bin, not as one flat mean."""
    records = records_of(capacity_tokens=100)
    add_span(records, 0, 10, num_steps=100, num_seqs=1, kv_used_begin=0, kv_used_end=100)
    assert timeline(records, 4).kv_used_share.tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875])


def test_cache_parts_and_free_make_a_whole():
    """Used, reserved, internal, external and free shares of every bin sum to one."""
    records = records_of(capacity_tokens=100)
    add_span(
        records, 0, 3, num_steps=1, kv_used_begin=10, kv_used_end=30, kv_reserved_unused_begin=30,
        kv_reserved_unused_end=10, kv_internal_begin=5, kv_external=7,
    )  # fmt: skip
    frame = timeline(records, 7)
    parts = [name for name in frame.columns if name.startswith("kv_")]
    assert len(parts) == 5
    assert frame[parts].sum(axis=1).tolist() == pytest.approx([1.0] * 7)


def test_a_run_without_spans_has_no_rows():
    """Nothing happened: an empty frame with the same columns."""
    frame = timeline(records_of())
    assert list(frame.columns) == list(TIMELINE_COLUMNS)
    assert len(frame) == 0
