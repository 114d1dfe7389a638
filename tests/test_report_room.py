"""What memory holds, as the page shows it: bytes that add up to the device's, and tokens that are the cache's."""

from types import SimpleNamespace

import altair as alt
import pytest

from simserve.report.room import GIB, room_figures


def variant(device_gib=None):
    """A variant whose device has so much memory, or whose cache alone is given."""
    cache = SimpleNamespace(holds_weights=device_gib is not None, memory=None, device_memory=(device_gib or 0) * GIB)
    return SimpleNamespace(scenario=SimpleNamespace(engine=SimpleNamespace(kv_cache=cache)))


def summary(weights_gib, tokens, bytes_per_token=131_072, peak=12):
    """What a run says of its model and its cache."""
    model = {"weight_bytes": weights_gib * GIB, "kv_bytes_per_token": bytes_per_token}
    return {"simulated_model": model, "kv_cache": {"capacity_tokens": tokens}, "peak_running": peak}


def drawn(variants, summaries):
    return {figure.id: figure for figure in room_figures(variants, summaries)}


def test_the_parts_of_the_memory_add_up_to_it():
    """16 GiB: 7 of weights, 65,536 tokens of 128 KiB are 8 GiB, and the rest is 1."""
    figures = drawn({"a": variant(16)}, {"a": summary(7, 65_536)})
    assert list(figures) == ["room-memory"]
    assert figures["room-memory"].table.rows == (("a", "7", "1", "8", "16"),)
    assert "7.00 GiB of weights leave 8.00 GiB of cache" in figures["room-memory"].caption


def test_a_draft_is_in_the_memory_too():
    """16 GiB: 6 and 1 of weights, 65,536 tokens of 112 and 16 KiB are 8 GiB, and the rest is 1."""
    each = summary(6, 65_536, 114_688)
    each["simulated_model"]["draft"] = {"weight_bytes": GIB, "kv_bytes_per_token": 16_384}
    (figure,) = room_figures({"a": variant(16)}, {"a": each})
    assert figure.table.rows == (("a", "7", "1", "8", "16"),)


def test_tokens_are_shown_where_variants_differ():
    """The chapters' shapes: 768 MiB are 65,536 tokens of 12,288 bytes or 9,362 of 86,016; and how many sat there."""
    each = {"two": summary(1, 65_536, 12_288, 128), "all": summary(1, 9_362, 86_016, 1)}
    figures = drawn({"two": variant(), "all": variant()}, each)
    assert list(figures) == ["room-tokens"]
    words = figures["room-tokens"].caption
    assert "65,536 tokens at 12,288 bytes each, at most 128 sequences at once with two" in words
    assert "9,362 tokens at 86,016 bytes each, at most 1 sequence at once with all" in words
    assert drawn({"a": variant(), "b": variant()}, {"a": each["two"], "b": each["two"]}) == {}


@pytest.mark.parametrize("gib", [None, 24])
def test_charts_are_valid_vega_lite(gib):
    """Against the schema."""
    each = {"a": summary(3, 1_000), "b": summary(6, 4_000)}
    for figure in room_figures({"a": variant(gib), "b": variant(gib)}, each):
        alt.Chart.from_dict(figure.spec, validate=True)
