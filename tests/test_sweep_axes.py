"""Axes: what a text or a list stands for, which keys may be swept, and what each point's scenario then is."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.scenario import parse_scenario
from simserve.scenario.axis_values import parse_values
from simserve.tasks.axes import build_axes, flat_notes, load_axis_of
from simserve.tasks.settings import apply_settings, grid
from tests.scenario_builders import small

ends = st.tuples(st.floats(0.001, 1e6), st.floats(1.001, 1e6)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@settings(max_examples=60, deadline=None)
@given(ends, st.integers(2, 40))
def test_a_linear_range_has_equal_steps_and_both_ends(pair, num):
    """LOW:HIGH:NUM: NUM rising values, ends exact, every step (high − low) / (num − 1)."""
    low, high = pair
    axis = parse_values(f"{low!r}:{high!r}:{num}")
    assert axis.scale == "linear"
    assert (axis.values[0], axis.values[-1], len(axis.values)) == (low, high, num)
    for i, value in enumerate(axis.values):
        assert value == pytest.approx(low + (high - low) * i / (num - 1), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(ends.filter(lambda pair: pair[1] / pair[0] > 1.1), st.integers(2, 20))
def test_a_log_range_has_equal_ratios_and_both_ends(pair, num):
    """LOW:HIGH:NUM:log: neighbours' ratios are all (high / low) ^ (1 / (num − 1)), to the six digits that are kept."""
    low, high = pair
    axis = parse_values(f"{low!r}:{high!r}:{num}:log")
    assert axis.scale == "log"
    assert (axis.values[0], axis.values[-1], len(axis.values)) == (low, high, num)
    ratio = math.log(high / low) / (num - 1)
    assert [math.log(value / low) for value in axis.values] == pytest.approx([i * ratio for i in range(num)], abs=2e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1000), st.integers(2, 1000), st.integers(2, 40), st.sampled_from(["", ":log"]))
def test_whole_numbers_rise_without_repeats(low, span, num, scale):
    """A range of a whole-number key: whole, strictly rising, both ends kept, at most NUM."""
    axis = parse_values(f"{low}:{low + span}:{num}{scale}").rounded()
    assert all(type(value) is int for value in axis.values)
    assert all(a < b for a, b in zip(axis.values, axis.values[1:], strict=False))
    assert (axis.values[0], axis.values[-1]) == (low, low + span)
    assert len(axis.values) <= num


def test_lists_keep_their_types_as_yaml_reads_them():
    """A text list, and a YAML list: whole numbers, numbers, words, paths, truth, null; nothing is rounded."""
    assert parse_values("8,16.5,a/b.json,true,null").values == (8, 16.5, "a/b.json", True, None)
    assert parse_values([8, "1:40:16"]).values == (8, "1:40:16")
    assert parse_values("8").values == (8,)
    assert parse_values("1.5,2.5").rounded().values == (1.5, 2.5)


def test_a_range_of_sizes_is_in_bytes():
    """Ends with a unit: 1GiB is 2^30 bytes."""
    assert parse_values("1GiB:3GiB:3").rounded().values == (2**30, 2 * 2**30, 3 * 2**30)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("1:40", "must be LOW:HIGH:NUM, with :log for equal ratios, or a list of values (got '1:40')"),
        ("1:40:16:cubic", "must be LOW:HIGH:NUM"),
        ("1:x:3", "must be LOW:HIGH:NUM"),
        ("40:1:16", "must go from a lower to a higher value (got '40:1:16')"),
        ("0:10:3:log", "must begin above 0"),
        ("1:2:1", "must have from 2 to 10,000 values (got '1' in '1:2:1')"),
        ("1:inf:3", "must have finite ends"),
        ("8,8", "must not repeat a value (got 8 twice)"),
        ("", "must have at least one value"),
        ("[1,2]", "(one is a list)"),
        ("{a", "must be LOW:HIGH:NUM"),
        ([], "must have at least one value"),
        (6016, "put a range in quotes, or YAML reads it as a time (got 6016)"),
    ],
)
def test_what_is_no_axis_is_said_in_one_rule(spec, rule):
    """Bad values name the rule and what was given."""
    with pytest.raises(ValueError, match=re.escape(rule)):
        parse_values(spec)


def _axes(data, *texts, over=None):
    return build_axes(data, "small.yaml", over or {}, texts)


@pytest.mark.parametrize(
    ("key", "is_whole"),
    [
        ("engine.max_num_seqs", True),
        ("engine.kv_cache.block_size", True),
        ("engine.kv_cache.memory", True),
        ("workload.num_requests", True),
        ("workload.prompt_tokens.fixed", True),
        ("workload.concurrency", True),
        ("workload.arrivals.rate_rps", False),
        ("engine.kv_cache.watermark", False),
        ("slo.ttft_s", False),
        ("variants.few.engine.max_num_seqs", True),
    ],
)
def test_a_range_is_whole_where_the_key_is(key, is_whole):
    """Whole or not is the scenario's own rule, also of keys it does not give, and inside a variant."""
    data = {**small(), "variants": {"few": {}}}
    (axis,) = _axes(data, f"{key}=1:2:3")
    assert axis.values == ((1, 2) if is_whole else (1.0, 1.5, 2.0))


def test_a_grid_is_every_combination_the_last_axis_turning_fastest():
    """Two axes of 2 and 3 values: 6 settings in order."""
    axes = _axes(small(), "engine.max_num_seqs=1,2", "workload.num_requests=4,5,6")
    pairs = [tuple(each.values()) for each in grid(axes)]
    assert pairs == [(1, 4), (1, 5), (1, 6), (2, 4), (2, 5), (2, 6)]
    assert grid([]) == [{}]


def test_a_grid_that_nobody_could_wait_for_is_refused():
    """A slip of a colon (10000 where 100 was meant, twice) is told before memory is full of it."""
    axes = _axes(small(), "engine.max_num_seqs=1:9999:9999", "workload.arrivals.rate_rps=1:9:9999")
    with pytest.raises(ScenarioError, match=r"--over: must be at most 20,000 settings in all \(got 99,980,001\)"):
        grid(axes)


def test_a_setting_reaches_every_variant_and_leaves_the_data_alone():
    """The key is set for variants that do not override it; the input mapping does not change."""
    data = {**small(), "variants": {"a": {}, "b": {"engine": {"policy": "chunked"}}}}
    before = repr(data)
    scenario = parse_scenario(apply_settings(data, {"engine.max_num_seqs": 3}))
    assert [each.engine.max_num_seqs for each in scenario.resolve_variants().values()] == [3, 3]
    assert repr(data) == before


def test_a_key_of_another_kind_replaces_the_old_kind():
    """Sweeping clients in a closed loop drops the file's arrivals; another distribution drops the old one's key."""
    data = apply_settings(small(), {"workload.concurrency": 4, "workload.output_tokens.fixed": 7})
    assert "arrivals" not in data["workload"]
    assert data["workload"]["output_tokens"] == {"fixed": 7}


def test_a_typed_path_means_the_working_directory_and_a_written_one_the_file_s(tmp_path, monkeypatch):
    """--over step_time.profile=./a.json is made absolute; the same text in the file stays relative to it."""
    (tmp_path / "a.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    settings_ = {"step_time.profile": "./a.json"}
    typed = apply_settings(small(), settings_, typed=["step_time.profile"])
    assert typed["step_time"]["profile"] == str(tmp_path / "a.json")
    assert apply_settings(small(), settings_)["step_time"]["profile"] == "./a.json"


def test_the_command_line_replaces_the_file_s_axis_of_the_same_key():
    """sweep.over and --over of one key: the typed values count, in the file's place."""
    over = {"engine.max_num_seqs": [1, 2], "workload.num_requests": "4:6:3"}
    axes = _axes(small(), "engine.max_num_seqs=3", over=over)
    assert [(axis.key, axis.values, axis.typed) for axis in axes] == [
        ("engine.max_num_seqs", (3,), True),
        ("workload.num_requests", (4, 5, 6), False),
    ]


def test_the_load_axis_is_a_rate_or_a_number_of_clients():
    """Offered load is a rate, a trace's scale or a concurrency, if it takes several numbers."""
    assert load_axis_of(_axes(small(), "engine.max_num_seqs=1,2", "workload.arrivals.rate_rps=1,2")) == (
        "workload.arrivals.rate_rps"
    )
    assert load_axis_of(_axes(small(), "workload.concurrency=1,2")) == "workload.concurrency"
    assert load_axis_of(_axes(small(), "workload.arrivals.rate_rps=1")) is None
    assert load_axis_of(_axes(small(), "engine.max_num_seqs=1,2")) is None


def test_a_variant_without_the_key_is_told():
    """A contiguous cache has no watermark: its points are all alike, and a note says so."""
    variants = {"paged": {}, "flat": {"engine": {"kv_cache": {"allocator": "contiguous"}}}}
    data = {**small(), "variants": variants}
    axes = _axes(data, "engine.kv_cache.watermark=0.1,0.2")
    assert flat_notes(data, axes) == ["flat has no engine.kv_cache.watermark: it is the same at every value of it"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine", "--over engine: must have the form key.path=values"),
        ("engine..x=1", "must have the form key.path=values"),
        ("seed=1,2", "--over seed: cannot be swept; replications already draw other requests; use --replications"),
        ("variants=1", "--over variants: cannot be swept; name one of its keys"),
        ("sweep.metric=1", "--over sweep.metric: cannot be swept"),
        ("engine.policy=static,chunked", "--over engine.policy: variant 'a' sets it itself; sweep variants.a.engine"),
        ("engine=1", "--over engine: variant 'a' sets it itself"),
        ("variants.b.engine.max_num_seqs=1", "unknown variant 'b' (known: a)"),
        ("variants.a=1", "unknown variant 'a' (name one of its keys too)"),
        ("engine.max_num_seqs=1:2", "--over engine.max_num_seqs: must be LOW:HIGH:NUM"),
    ],
)
def test_a_key_that_cannot_be_swept_is_refused_in_one_sentence(text, message):
    """What the axis names must be one key that every point can set."""
    data = {**small(), "variants": {"a": {"engine": {"policy": "chunked"}}}}
    with pytest.raises(ScenarioError) as caught:
        _axes(data, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_is_given_once():
    """Two --over of one key would leave open which grid is meant."""
    with pytest.raises(ScenarioError, match="must be given once"):
        _axes(small(), "engine.max_num_seqs=1", "engine.max_num_seqs=2")


def test_keys_that_exclude_each_other_are_refused():
    """Clients and a rate cannot both be set: the later would silently undo the earlier."""
    with pytest.raises(ScenarioError, match="rate_rps: another swept key names a kind"):
        apply_settings(small(), {"workload.arrivals.rate_rps": 1.0, "workload.concurrency": 4})


def test_a_sweep_block_is_checked_where_it_stands(tmp_path):
    """Errors in the block name the file and the key; a good block changes nothing about the run."""
    with pytest.raises(
        ScenarioError, match=re.escape("scenario: sweep.over.engine.max_num_seqs: must be LOW:HIGH:NUM")
    ):
        parse_scenario({**small(), "sweep": {"over": {"engine.max_num_seqs": "1:2"}}})
    with pytest.raises(ScenarioError, match=re.escape("sweep.warmup: must be auto, or a share of the requests")):
        parse_scenario({**small(), "sweep": {"warmup": 0.9}})
    with pytest.raises(ScenarioError, match="unknown key 'ovr'"):
        parse_scenario({**small(), "sweep": {"ovr": {}}})
    swept = parse_scenario({**small(), "sweep": {"over": {"engine.max_num_seqs": [1, 2]}, "replications": 2}})
    assert swept.sweep is not None
    assert [v.sweep for v in swept.resolve_variants().values()] == [None]
    with pytest.raises(ScenarioError, match="a variant cannot change the sweep"):
        parse_scenario({**small(), "variants": {"a": {"sweep": {}}}})
