"""The chapters' tables, measured on the tiny model: counts and bytes exact, times sensible, refusals in words."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from calibrate.chapters.command import assemble, measure_to_file
from calibrate.chapters.kv_shapes import measure_kv_shapes, measure_residents
from calibrate.chapters.measure import lengths
from calibrate.chapters.options import ChaptersOptions
from calibrate.chapters.peak import highest, peak_bytes
from calibrate.chapters.pushed import count_pushed
from calibrate.chapters.timing import Case, Watch, summarize
from calibrate.chapters.weights import measure_weights
from calibrate.clock import time_on_cpu
from calibrate.errors import CalibrationError
from calibrate.model import ModelSource, build_model
from calibrate.quantize.kernels import Int4Linear, int8_model, weight_bytes
from simserve.errors import OutputError, ProfileError
from simserve.model_spec import load_model_spec
from simserve.step_time.chapters_schema import Chapters, KvShape, chapters_beside, load_chapters, profile_beside

MIB = 1 << 20


def source_of(name):
    return ModelSource(load_model_spec(name), None, False)


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return build_model(source_of("tiny"), "cpu", "fp32", "sdpa", 0)


@pytest.fixture(scope="module")
def chapters(tmp_path_factory):
    """One whole run on the tiny model."""
    path = tmp_path_factory.mktemp("chapters") / "tiny.chapters.json"
    options = ChaptersOptions(model="tiny", device="cpu", max_tokens=64, repeats=2, out=path, command="pytest")
    assert measure_to_file(options) == path
    return load_chapters(path)


def test_a_generation_without_a_cache_pushes_213_times_the_tokens(chapters):
    """512 prompt, 256 answer tokens: NP + N(N − 1)/2 = 163,712 against P + N = 768 (767: the last is not computed)."""
    pushed = chapters.pushed
    assert (pushed.recomputed, pushed.cached) == (163_712, 767)
    assert round(pushed.recomputed / (pushed.cached + 1)) == 213
    assert pushed.recomputed_s > 3 * pushed.cached_s
    assert pushed.num_equal_tokens >= 0.9 * pushed.num_output_tokens


@settings(max_examples=6, deadline=None)
@given(prompt=st.integers(1, 40), answer=st.integers(1, 12))
def test_tokens_pushed_follow_the_formula(prompt, answer):
    """Any lengths: NP + N(N − 1)/2 without a cache, P + N − 1 with one, and the same answer either way."""
    torch.set_num_threads(1)
    pushed = count_pushed(build_model(source_of("tiny"), "cpu", "fp32", "eager", 0), "tiny", prompt, answer)
    assert pushed.recomputed == answer * prompt + answer * (answer - 1) // 2
    assert pushed.cached == prompt + answer - 1


def test_kv_bytes_of_real_caches_are_the_published_ones(chapters):
    """24 layers × 64 in fp16: 12,288 for 2 KV heads, 86,016 for all 14, 6,144 for one; and known shapes beside them."""
    found = {row.name: (row.attention, row.measured) for row in chapters.kv_shapes}
    assert found["qwen2.5-0.5b"] == ("grouped-query", 12_288)
    assert found["qwen2.5-0.5b, all 14 heads"] == ("multi-head", 86_016)
    assert found["qwen2.5-0.5b, one head"] == ("multi-query", 6_144)
    assert found["llama-3.1-8b"] == ("grouped-query", 131_072)  # 128 KiB
    assert found["llama-2-7b"] == ("multi-head", 524_288)  # half a MiB
    assert found["llama-2-13b"] == ("multi-head", 819_200)
    assert all(row.measured == row.formula for row in chapters.kv_shapes)


def test_the_measured_model_is_among_the_shapes():
    """A model of one's own is checked too."""
    spec = load_model_spec("qwen3-8b")
    names = [row.name for row in measure_kv_shapes(spec, "cpu")]
    assert names.count("qwen3-8b") == 1


def test_a_cache_of_65536_tokens_is_768_mib_however_it_is_shared():
    """32 × 2,048, 64 × 1,024 or 128 × 512 tokens: the same bytes in the tensors."""
    rows = measure_residents("cpu")
    if not rows:
        pytest.skip("too little free memory for two such caches")
    assert [(row.num_sequences, row.num_tokens_each) for row in rows] == [(32, 2048), (64, 1024), (128, 512)]
    assert {row.num_bytes for row in rows} == {768 * MIB}


def test_a_disagreeing_cache_cannot_be_written_down():
    """The schema refuses bytes that are not the formula's."""
    with pytest.raises(ValueError, match="not 12288"):
        KvShape(
            name="x",
            attention="multi-head",
            num_layers=24,
            num_kv_heads=2,
            head_dim=64,
            dtype="fp16",
            measured=12_289,
            formula=12_288,
        )


def test_the_peak_counts_what_is_alive_at_once():
    """Three buffers of 4 MB, at most two alive: 8 MB, though 12 MB were allocated."""

    def step():
        one = torch.ones(1_000_000)
        two = one + 1
        del one
        return (two + 1).shape

    peak = peak_bytes(lambda: step, "cpu")
    assert 8_000_000 <= peak < 8_100_000


def test_the_peak_includes_what_the_step_was_given():
    """Inputs built for the step (its cache) count; what was there before does not."""
    before = torch.ones(500_000)

    def make():
        cache = torch.ones(1_000_000)
        return lambda: float(cache.sum() + before.sum())

    assert 4_000_000 <= peak_bytes(make, "cpu") < 4_200_000


@given(st.lists(st.integers(-1000, 1000)))
def test_highest_is_the_highest_running_sum(changes):
    """And never below what was there at the start."""
    assert highest(changes) == max(0, *(sum(changes[:i]) for i in range(len(changes) + 1)), 0)


def test_recomputing_needs_more_memory_and_time_as_sequences_grow(chapters):
    """The cached step's peak holds the cache itself: at least its bytes by the formula; the recomputed one's, more
    activations. Times grow for the recomputed step."""
    per_token = load_model_spec("tiny").kv_bytes_per_token("fp32")
    for row in chapters.cache:
        assert row.cached_peak_bytes >= row.num_tokens * per_token
        assert row.recomputed_peak_bytes > 0
    first, last = chapters.cache[0], chapters.cache[-1]
    assert last.recomputed_peak_bytes > 2 * first.recomputed_peak_bytes
    assert last.num_tokens == 64 and last.recomputed.seconds > first.cached.seconds / 3


def test_every_table_is_there(chapters):
    """Lengths, batches, a knee among them, and a row for every width of weights."""
    assert [row.num_new_tokens for row in chapters.prefill] == [16, 64]
    assert [row.num_context_tokens for row in chapters.decode] == [16, 64]
    batches = [row.batch_size for row in chapters.batch]
    assert batches == [1, 2, 4, 8, 16, 32, 64]
    assert {chapters.knee.low, chapters.knee.knee, chapters.knee.high} <= set(batches)
    assert [row.name for row in chapters.weights.rows] == ["fp32", "bf16", "int8", "int4"]
    assert chapters.provenance.model == "tiny" and chapters.provenance.duration_s > 0


def test_weights_get_smaller_as_their_bits_do():
    """25m with a tied head of 8,192 × 512: bytes as they lie in memory, each width below the one before where its
    kernel stores the embedding as well."""
    watch = Watch(time_on_cpu, "process_cpu", 1)
    torch.set_num_threads(1)
    table = measure_weights(source_of("25m"), "cpu", "sdpa", watch, (64, 32))
    rows = {row.name: row for row in table.rows}
    spec = load_model_spec("25m")
    assert rows["fp32"].weight_bytes - spec.weight_bytes("fp32") < 4096  # the rotary table comes on top
    assert rows["bf16"].weight_bytes == pytest.approx(rows["fp32"].weight_bytes / 2, rel=1e-3)
    linear = spec.matmul_parameters + spec.lm_head_parameters
    # The embedding is no longer shared with the head, and stays as it was. int4: two bf16 numbers for each 128 weights.
    for name, bits, kept in (("int8", 8, 4), ("int4", 4.25, 2)):
        if rows[name].refused is None:
            assert rows[name].weight_bytes - kept * spec.lm_head_parameters == pytest.approx(
                linear * bits / 8, rel=0.02
            )
            assert rows[name].decode.seconds > 0 and rows[name].prefill.seconds > 0


def test_what_does_not_run_says_so_and_has_no_figure():
    """A device without the kernels: a sentence instead of an estimate."""
    watch = Watch(time_on_cpu, "process_cpu", 1)
    with pytest.raises(ValueError, match="CPUs only"):
        int8_model(nn.Linear(2, 2), "cuda")
    narrow = nn.Linear(48, 8)  # 48 is no multiple of 32
    with pytest.raises(ValueError, match="multiple of 32"):
        Int4Linear(narrow)
    assert watch.repeats == 1


def test_int4_layers_compute_what_their_levels_say():
    """Weights that are exact at 4 bits (whole levels of their group's scale) give the same product."""
    torch.manual_seed(0)
    linear = nn.Linear(256, 32)
    levels = torch.randint(-7, 8, (32, 256)).float()
    levels[:, ::64] = 7.0  # the largest of each group, so that its scale is known
    linear.weight.data = levels * 0.01
    x = torch.randn(3, 5, 256)
    with torch.inference_mode():
        assert torch.allclose(Int4Linear(linear)(x), linear(x), rtol=1e-4, atol=1e-4)


def test_shared_weights_are_counted_once(tiny):
    """The tied head of the tiny model is its embedding: the formula's bytes, and the rotary table."""
    spec = load_model_spec("tiny")
    assert spec.tie_word_embeddings and weight_bytes(tiny) - spec.weight_bytes("fp32") < 1024


def test_timing_takes_disturbed_samples_again_and_says_how_many(monkeypatch):
    """Neighbours during the first round of a case: its samples are not used, and counted."""
    readings = iter([1.0, 0.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr("calibrate.chapters.timing.Contention.others", lambda _self: next(readings))
    timed = Watch(time_on_cpu, "wall", 2).time_all({"a": Case(lambda: None, lambda: math.sqrt(2))})["a"]
    assert len(timed.samples) == 2 and timed.num_disturbed == 1


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=9))
def test_an_interval_holds_its_median(samples):
    """low ≤ median ≤ high, all inside the samples' range."""
    timed = summarize(samples, 0)
    assert min(samples) <= timed.low_s <= timed.seconds <= timed.high_s <= max(samples)


def test_lengths_end_at_the_limit():
    """Powers of two below it, then the limit itself."""
    assert lengths(1024) == (16, 64, 128, 256, 512, 1024)
    assert lengths(600) == (16, 64, 128, 256, 512, 600)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 0}, "threads: must be ≥ 1"),
        ({"repeats": 0}, "repeats: must be ≥ 1"),
        ({"max_tokens": 3}, "max_tokens: must be ≥ 16"),
    ],
)
def test_bad_options_are_one_sentence(change, message):
    """Before anything is built."""
    with pytest.raises(CalibrationError, match=message):
        measure_to_file(ChaptersOptions(model="tiny", **change))


def test_an_unwritable_place_is_refused_before_measuring(tmp_path):
    """Not after a minute."""
    with pytest.raises(OutputError, match="must exist"):
        measure_to_file(ChaptersOptions(model="tiny", out=tmp_path / "missing" / "a.json"))


def test_a_file_that_was_changed_or_cut_is_refused(chapters, tmp_path):
    """One sentence each: edited, truncated, of another shape, absent."""
    path = tmp_path / "a.chapters.json"
    content = chapters.model_dump(mode="json")
    for text, message in (
        (json.dumps(content | {"name": "other"}), "changed after it was measured"),
        (json.dumps(content)[:100], "not a whole JSON file"),
        (json.dumps({"schema_version": 2}), "schema_version"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ProfileError, match=message):
            load_chapters(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        load_chapters(tmp_path / "missing.json")


def test_tables_lie_beside_their_profile():
    """NAME.json and NAME.chapters.json."""
    assert chapters_beside(Path("a/b.json")) == Path("a/b.chapters.json")
    assert profile_beside(Path("a/b.chapters.json")) == Path("a/b.json")


def test_a_run_is_assembled_with_its_digest(chapters):
    """What is read back is what was assembled."""
    tables = {name: getattr(chapters, name) for name in Chapters.model_fields}
    for name in ("schema_version", "name", "provenance", "digest"):
        del tables[name]
    again = assemble(chapters.name, chapters.provenance, tables, chapters.provenance.duration_s)
    assert again == chapters
