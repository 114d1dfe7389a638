"""Readers of recorded runs: every form gives the same columns, whatever its clock, units, order and column names."""

import contextlib
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import InputError, RunError
from simserve.recorded import Stamps, recorded_run
from simserve.recorded.read import FORMATS, read_recorded
from simserve.records import NEVER
from tests.validate_builders import frame, own_run, rows, scenario_file, vllm_line, write_vllm

META = {
    "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": None},
    "kv_cache": {"num_gpu_blocks": 2588, "block_size": 16, "enable_prefix_caching": True, "num_cpu_blocks": None},
    "hardware": {"device_name": "A CARD"},
}


def assert_is_own_run(run, tolerance_ns=0):
    """Every time and length is that of the engine's own run."""
    requests = own_run().requests
    assert np.array_equal(run.table.num_prompt_tokens, requests.table.num_prompt_tokens)
    assert np.array_equal(run.table.num_output_tokens, requests.table.num_output_tokens)
    pairs = (
        (run.table.arrival_ns, requests.arrival_ns),
        (run.first_token_ns, requests.first_token_ns),
        (run.last_token_ns, requests.last_token_ns),
    )
    for ours, theirs in pairs:
        assert np.abs(ours - theirs).max() <= tolerance_ns


def test_vllm_s_stamps_are_read_from_the_monotonic_clock(tmp_path):
    """queued_ts is the arrival: to the nanosecond, although arrival_time is of a clock 57 years away."""
    path = write_vllm(tmp_path, own_run(), META)
    for given_path in (path, tmp_path):
        run = read_recorded(given_path)
        assert run.format == "vllm-requests"
        assert_is_own_run(run)
        assert np.array_equal(run.first_scheduled_ns, own_run().requests.first_scheduled_ns)
    assert any("queued_ts" in note and "another clock" in note for note in run.notes)


def test_vllm_s_meta_becomes_settings_of_a_scenario(tmp_path):
    """What is null there is not told; the version and the card name the engine."""
    run = read_recorded(write_vllm(tmp_path, own_run(), META))
    assert run.settings == {
        "engine.max_num_seqs": 128,
        "engine.max_num_batched_tokens": 2048,
        "engine.kv_cache.block_size": 16,
        "engine.kv_cache.num_blocks": 2588,
        "engine.kv_cache.prefix_caching": True,
    }
    assert run.engine == "vLLM 0.19.0 on A CARD"
    assert read_recorded(write_vllm(tmp_path / "bare", own_run())).settings == {}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_generic_form_in_three_kinds_of_file(tmp_path, suffix):
    """csv, jsonl and parquet hold the same run."""
    table, path = frame(own_run()), tmp_path / f"run.{suffix}"
    if suffix == "csv":
        table.to_csv(path, index=False)
    elif suffix == "jsonl":
        table.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        table.to_parquet(path)
    run = read_recorded(path)
    assert run.format == "requests"
    assert_is_own_run(run)


@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        (("arrival_ms", "first_token_ms", "last_token_ms"), 1e3),
        (("arrival_us", "first token us", "End_us"), 1e6),
        (("start_time", "first_token_time", "end_time"), 1.0),
        (("arrived_at_ns", "first_token_ns", "last_token_ns"), 1e9),
    ],
)
def test_units_are_in_the_names(tmp_path, columns, unit):
    """Milliseconds, microseconds, nanoseconds; without a unit, seconds."""
    own = frame(own_run())
    table = pd.DataFrame(
        {
            name: own[ours] * unit
            for name, ours in zip(columns, ("arrival_s", "first_token_s", "last_token_s"), strict=True)
        }
    )
    table["prompt_tokens"], table["completion_tokens"] = own.num_prompt_tokens, own.num_output_tokens
    table.to_csv(tmp_path / "run.csv", index=False)
    assert_is_own_run(read_recorded(tmp_path / "run.csv"), tolerance_ns=1)


def test_latencies_instead_of_moments(tmp_path):
    """TTFT and latency count from the arrival."""
    own = frame(own_run())
    table = own[["num_prompt_tokens", "num_output_tokens", "arrival_s"]].assign(
        ttft_ms=1e3 * (own.first_token_s - own.arrival_s), latency_ms=1e3 * (own.last_token_s - own.arrival_s)
    )
    table.to_csv(tmp_path / "run.csv", index=False)
    assert_is_own_run(read_recorded(tmp_path / "run.csv"), tolerance_ns=2)


def test_dates_are_moments_too(tmp_path):
    """ISO dates with fractions, to the microsecond that they are written with."""
    own = frame(own_run())
    table = own[["num_prompt_tokens", "num_output_tokens"]].copy()
    for name in ("arrival", "first_token", "last_token"):
        table[name] = [
            pd.Timestamp("2026-11-29T21:00:00Z") + pd.Timedelta(seconds=value).round("us") for value in own[f"{name}_s"]
        ]
    table.to_csv(tmp_path / "run.csv", index=False)
    assert_is_own_run(read_recorded(tmp_path / "run.csv"), tolerance_ns=1000)


def test_without_lengths_they_are_untold(tmp_path):
    """Three columns are enough to be read; lengths are then the scenario's business."""
    frame(own_run())[["arrival_s", "first_token_s", "last_token_s"]].to_csv(tmp_path / "run.csv", index=False)
    run = read_recorded(tmp_path / "run.csv")
    assert not run.has_lengths and len(run) == 40


def test_failed_requests_are_unfinished(tmp_path):
    """By status, by an empty last token, or by no output at all; they keep their arrival."""
    table = frame(own_run()).assign(status="finished")
    table.loc[3, "status"] = "timed_out"
    table.loc[5, "last_token_s"] = table.loc[5, "end_s"] = np.nan
    table.loc[7, "num_output_tokens"] = 0
    table.to_csv(tmp_path / "run.csv", index=False)
    run = read_recorded(tmp_path / "run.csv")
    assert np.flatnonzero(~run.finished).tolist() == [3, 5, 7]
    assert (run.first_token_ns[[3, 5, 7]] == NEVER).all() and len(run) == 40


def test_a_run_folder_of_ours_is_a_recorded_run(tmp_path):
    """What `simserve run` predicted can be scored against: the same columns again."""
    from simserve.run_command import RunOptions, run_scenario

    run_scenario(RunOptions(scenario_file(tmp_path), out=tmp_path / "run", report=False, quiet=True))
    run = read_recorded(tmp_path / "run")
    assert run.format == "simserve-run" and run.num_preemptions == own_run().num_preemptions
    assert_is_own_run(run)


@given(st.permutations(list(range(12))), st.floats(0, 2e9))
def test_rows_in_any_order_on_any_clock(order, origin_s):
    """Sorted by arrival, counted from the first one; ``file_rows`` leads back to the file."""
    arrivals = np.array([0.5 * i for i in order])
    stamps = Stamps(origin_s + arrivals, origin_s + arrivals + 0.25, origin_s + arrivals + 1)
    run = recorded_run("x", "requests", stamps)
    assert np.array_equal(run.table.arrival_ns, np.arange(12) * 500_000_000)
    assert np.abs(run.first_token_ns - run.table.arrival_ns - 250_000_000).max() <= 500
    assert [order[i] for i in run.file_rows] == list(range(12))


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.csv", "", "run.csv: is empty"),
        ("run.csv", "arrival_s,last_token_s\n0,1\n", "must tell each request's first token in a column such as"),
        ("run.csv", "a,b\n0,1\n", "arrival and first token and last token"),
        ("run.csv", "arrival_s,ttft_s,e2e_s\n", "must have a row per request (it has none)"),
        ("run.csv", "arrival_s,ttft_s,e2e_s\n0,soon,1\n", "row 1: ttft_s: must be a time"),
        ("run.csv", "arrival_s,ttft_s,e2e_s\n,0.1,1\n", "row 1: arrival_s: must be a time"),
        (
            "run.csv",
            "arrival_s,ttft_s,e2e_s,prompt_tokens\n0,0.1,1,2.5\n",
            "row 1: prompt_tokens: must be a whole number",
        ),
        ("run.csv", "variant,arrival_s,ttft_s,e2e_s\na,0,1,2\nb,0,1,2\n", "must hold one variant (got several)"),
        ("run.jsonl", '{"queued_ts": 1, "first_token_ts": 2}\n', "must have input_toks, output_toks, last_token_ts"),
        ("run.jsonl", '{"queued_ts": 1, "first_token_ts": \n', "line 1: is not valid JSON"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, name, text, expected):
    """Which file, what must be there, what was found."""
    with pytest.raises(InputError) as caught:
        read_recorded(write(tmp_path / name, text))
    message = str(caught.value)
    assert expected in message and "\n" not in message


def test_the_batch_size_of_vllm_s_series_is_over_steps(tmp_path):
    """100 steps of 8 in one second and 50 of 2 in the next are (800 + 100) / 150 sequences a step, not 5, the mean of
    the seconds; a second in which nothing ran or nothing came out has no steps. Without the file it is not known."""
    path = write_vllm(tmp_path / "with", own_run())
    assert read_recorded(path).mean_batch_size is None
    series = "t,gen_throughput,running,waiting\n1.0,800.0,8,0\n2.0,100.0,2,1\n3.0,0.0,4,0\n4.0,0.0,0,0\n"
    write(tmp_path / "with" / "timeseries.csv", series)
    run = read_recorded(path)
    assert run.mean_batch_size == pytest.approx(6.0) and any("timeseries.csv" in note for note in run.notes)
    write(tmp_path / "with" / "timeseries.csv", "t,waiting\n1.0,2\n")
    with pytest.raises(InputError, match=r"timeseries\.csv: must have the column gen_throughput"):
        read_recorded(path)


@pytest.mark.parametrize("name", ["queued_ts", "first_token_ts"])
def test_bad_stamps_of_vllm_name_the_row(tmp_path, name):
    """Text where a time must be."""
    lines = [vllm_line(i, row) for i, row in enumerate(rows(own_run()))]
    lines[4][name] = "late"
    write(tmp_path / "requests.jsonl", "\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError, match=rf"row 5: {name}: must be a number of seconds \(got 'late'\)"):
        read_recorded(tmp_path / "requests.jsonl")


@pytest.mark.parametrize("meta", ["[1]", "{torn"])
def test_a_torn_meta_is_refused(tmp_path, meta):
    """It would silently lose the settings otherwise."""
    path = write_vllm(tmp_path, own_run())
    write(tmp_path / "meta.json", meta)
    with pytest.raises(RunError, match=r"meta\.json: must"):
        read_recorded(path)


def test_what_is_no_run_at_all(tmp_path):
    """No such file, an empty folder, a folder of something else, an unknown format."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "study").mkdir()
    write(tmp_path / "study" / "manifest.json", '{"kind": "simserve sweep"}')
    (tmp_path / "replay").mkdir()
    write(tmp_path / "replay" / "manifest.json", '{"kind": "simserve replay"}')
    for path, expected in (
        (tmp_path / "none", "no such file or folder"),
        (tmp_path / "empty", "must be the folder of `simserve replay`"),
        (tmp_path / "study", "must be the folder of `simserve replay`"),
        (tmp_path / "replay", "must be a whole folder of simserve replay"),
    ):
        with pytest.raises(RunError, match=expected):
            read_recorded(path)
    path = write_vllm(tmp_path, own_run())
    with pytest.raises(RunError, match=r"--format: must be one of auto, .* \(got 'csv'\)"):
        read_recorded(path, "csv")
    assert "auto" in FORMATS


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8), st.lists(st.integers())
)
GENERIC = ["arrival_s", "first_token_s", "last_token_s", "ttft_ms", "e2e", "end", "status", "output_tokens", "x"]
OF_VLLM = ["queued_ts", "first_token_ts", "last_token_ts", "scheduled_ts", "input_toks", "output_toks", "variant"]
NAMES = st.sampled_from(GENERIC) | st.sampled_from(OF_VLLM)


@given(st.lists(st.dictionaries(NAMES, CELLS, max_size=8), max_size=4))
def test_whatever_a_jsonl_holds_it_is_read_or_refused(tmp_path_factory, lines):
    """A run, or one sentence: never another error, whatever stands in its cells."""
    path = tmp_path_factory.mktemp("fuzz") / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    try:
        run = read_recorded(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert len(run) == len(lines) and (np.diff(run.table.arrival_ns) >= 0).all()


@given(st.binary(max_size=200))
def test_whatever_bytes_a_file_holds_it_is_refused_or_read(tmp_path_factory, content):
    """Torn files, other formats, nothing."""
    path = tmp_path_factory.mktemp("fuzz") / "run.bin"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        read_recorded(path)


@pytest.mark.parametrize("torn", ["replay.json", "requests.parquet", "events.parquet"])
def test_a_torn_replay_is_refused(tmp_path, torn):
    """Each file of the folder, when it holds something else."""
    frame(own_run()).to_parquet(tmp_path / "requests.parquet")
    frame(own_run()).to_parquet(tmp_path / "events.parquet")
    write(tmp_path / "replay.json", "[]" if torn == "replay.json" else "{}")
    write(tmp_path / "manifest.json", '{"kind": "simserve replay"}')
    if torn == "events.parquet":
        columns = ("request_id", "asked_prompt_tokens", "status")
        frame(own_run()).assign(**dict.fromkeys(columns, 1)).to_parquet(tmp_path / "requests.parquet")
    with pytest.raises(RunError, match=torn):
        read_recorded(tmp_path)


def test_a_queued_stamp_goes_before_an_arrival_time(tmp_path):
    """Read as the generic form too, vLLM's file has the arrivals of the clock that its other stamps are of."""
    assert_is_own_run(read_recorded(write_vllm(tmp_path, own_run()), "requests"))
