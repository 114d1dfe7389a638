"""A run directory is whole or absent, holds what the design lists, and never costs the user a file of theirs."""

import gzip
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from simserve import run_directory
from simserve.errors import OutputError
from simserve.manifest import KIND, build_manifest, source_revision
from simserve.records import SpanRecords
from simserve.run_directory import OutputChoices, staged_folder, write_files
from simserve.summary import summary_document, to_json
from simserve.timeline import TIMELINE_COLUMNS
from simserve.trace_events import phases
from tests.run_builders import two_variants

NO_REPORT = OutputChoices(report=False, trace=True)
ROOT = Path(__file__).parents[1]


def _write(folder, result=None):
    result = result or two_variants()
    manifest = build_manifest(result, "simserve run two.yaml", datetime.now(UTC), 1.5)
    with staged_folder(folder) as staging:
        write_files(result, manifest, staging, NO_REPORT)
    return result


def _everything_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_folder_holds_every_file_and_nothing_else(tmp_path):
    """summary.json, both parquets, the manifest and the trace; no temporary folder is left beside them."""
    _write(tmp_path / "reports" / "two")
    names = ["manifest.json", "requests.parquet", "summary.json", "timeline.parquet", "trace.json.gz"]
    assert _everything_under(tmp_path) == ["reports", "reports/two", *(f"reports/two/{name}" for name in names)]


def test_requests_table_has_the_variant_first_and_says_why_a_request_was_rejected(tmp_path):
    """One row per variant and request, latencies as the summary averages them, reasons only where rejected."""
    result = _write(tmp_path / "two")
    frame = pd.read_parquet(tmp_path / "two" / "requests.parquet")
    assert list(frame.columns[:3]) == ["variant", "request_id", "status"]
    assert list(frame.variant) == ["slow"] * 3 + ["fast"] * 3
    assert list(frame.status) == ["finished", "finished", "rejected"] * 2
    assert frame.reject_reason.notna().tolist() == [False, False, True] * 2
    means = frame.groupby("variant", observed=True).ttft_s.mean()
    assert means["slow"] == result.variants["slow"].summary["ttft_s"]["mean"] == 1.0
    assert means["fast"] == 0.5


def test_a_long_table_is_written_in_groups_of_rows(tmp_path, monkeypatch):
    """Three requests of each variant in groups of two make groups of 2, 1, 2 and 1 rows; what is read is the same, with
    the same types, as from one group (the file is never whole in memory)."""
    _write(tmp_path / "whole")
    monkeypatch.setattr(run_directory, "ROWS_PER_GROUP", 2)
    _write(tmp_path / "cut")
    for name in ("requests.parquet", "timeline.parquet"):
        whole, cut = (pq.ParquetFile(tmp_path / folder / name) for folder in ("whole", "cut"))
        assert whole.schema_arrow.equals(cut.schema_arrow)
        assert whole.read().to_pandas().equals(cut.read().to_pandas())
    requests = pq.ParquetFile(tmp_path / "cut" / "requests.parquet").metadata
    assert [requests.row_group(i).num_rows for i in range(requests.num_row_groups)] == [2, 1, 2, 1]


def test_a_timeline_without_rows_is_a_table_all_the_same(tmp_path):
    """A run in which nothing took time leaves the columns and no row."""
    result = two_variants()
    for variant in result.variants.values():
        variant.records.spans = SpanRecords()
    _write(tmp_path / "empty", result)
    frame = pd.read_parquet(tmp_path / "empty" / "timeline.parquet")
    assert len(frame) == 0 and list(frame.columns) == ["variant", *TIMELINE_COLUMNS]


def test_timeline_table_has_both_variants(tmp_path):
    """timeline.parquet conserves the tokens of each variant: Σ rate × width = 4 emitted."""
    _write(tmp_path / "two")
    frame = pd.read_parquet(tmp_path / "two" / "timeline.parquet")
    tokens = frame.assign(tokens=frame.output_tokens_per_s * (frame.end_s - frame.begin_s))
    assert tokens.groupby("variant", observed=True).tokens.sum().tolist() == pytest.approx([4, 4])


def test_summary_has_the_head_of_the_design_and_equal_runs_give_equal_bytes(tmp_path):
    """INV-7 for the file: nothing of the clock or the machine is in summary.json."""
    _write(tmp_path / "a")
    _write(tmp_path / "b")
    text = (tmp_path / "a" / "summary.json").read_bytes()
    assert text == (tmp_path / "b" / "summary.json").read_bytes()
    document = json.loads(text)
    assert list(document) == ["schema_version", "scenario", "model", "profile", "variants"]
    assert document["profile"].keys() >= {"name", "device", "calibrated", "holdout_mape"}
    assert list(document["variants"]) == ["slow", "fast"]
    assert document == summary_document(two_variants())


def test_strict_json_refuses_nan():
    """No file may hold a NaN, which other readers cannot parse."""
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": float("nan")})


def test_manifest_says_what_made_the_result(tmp_path):
    """Versions, revision, digests, seed, command and the whole resolved scenario; no path of this machine."""
    _write(tmp_path / "two")
    text = (tmp_path / "two" / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["command"] == "simserve run two.yaml"
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["seed"] == 0
    assert manifest["resolved_scenario"]["engine"]["kv_cache"]["watermark"] is not None  # defaults are filled in
    assert len(manifest["scenario_digest"]) == 64
    assert manifest["variants"]["slow"]["step_time"]["digest"] is None  # a roofline comes from no profile file
    assert str(tmp_path) not in text
    assert str(ROOT) not in text


def test_scenario_digest_changes_with_any_value():
    """Two scenarios share a digest only when they are the same."""
    result = two_variants()
    other = two_variants()
    other.scenario = other.scenario.model_copy(update={"seed": 1})
    digest = [build_manifest(r, "", datetime.now(UTC), 0)["scenario_digest"] for r in (result, two_variants(), other)]
    assert digest[0] == digest[1] != digest[2]


def test_revision_is_of_the_checkout_and_not_of_a_repository_around_it(tmp_path):
    """An installed package inside somebody's repository must not report theirs."""
    assert source_revision(tmp_path) is None
    inside = ROOT / "simserve"
    assert source_revision(inside) is None
    if (ROOT / ".git").exists():
        assert len((source_revision(ROOT) or "").split("+")[0]) == 40


def test_trace_covers_each_admission_without_a_gap(tmp_path):
    """Chrome trace: a process per variant, a thread per slot, phases that abut and never overlap in a slot."""
    _write(tmp_path / "two")
    with gzip.open(tmp_path / "two" / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["slow", "slot 0", "slot 1", "fast", "slot 0", "slot 1"]
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1 and event["tid"] == 0]
    assert [(e["cat"], e["ts"], e["dur"]) for e in spans] == [
        ("prefill", 0, 1e6),
        ("decode", 1e6, 1e6),
        ("idle-held", 2e6, 7),
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((0, 2, 5, 9), [("prefill", 0, 2), ("decode", 2, 5), ("idle-held", 5, 9)]),
        ((0, 2, 5, 5), [("prefill", 0, 2), ("decode", 2, 5)]),
        ((0, 2, -1, 5), [("prefill", 0, 2), ("decode", 2, 5)]),  # preempted while it decoded
        ((0, -1, -1, 5), [("prefill", 0, 5)]),  # preempted in its prefill
        ((3, 3, 5, 5), [("decode", 3, 5)]),  # swapped in
    ],
)
def test_phases_of_an_admission(times, expected):
    """Prefill, decode and idle-held follow each other from admission to release; what took no time is left out."""
    assert phases(*times) == expected


def test_an_earlier_run_is_replaced_only_after_success(tmp_path):
    """While a new run fails or is interrupted the old result stands, whole; then it is replaced whole."""
    folder = tmp_path / "two"
    _write(folder)
    before = (folder / "manifest.json").stat()
    for error in (KeyboardInterrupt, RuntimeError, SystemExit):
        with pytest.raises(error), staged_folder(folder) as staging:
            (staging / "summary.json").write_text("half")
            raise error
        assert (folder / "manifest.json").stat() == before
        assert len(_everything_under(tmp_path)) == 6
    _write(folder)
    assert (folder / "manifest.json").stat().st_ino != before.st_ino
    assert len(_everything_under(tmp_path)) == 6


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    """Also the parent folders that were made for the run go away again."""
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "a" / "b" / "two") as staging:
        (staging / "summary.json").write_text("half")
        raise KeyboardInterrupt
    assert _everything_under(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"thesis.tex": ""}, "thesis.tex"),
        ({"manifest.json": '{"name": "a web page"}'}, "no run wrote"),
        ({"manifest.json": f'{{"kind": "{KIND}"}}', "notes.txt": "mine"}, "notes.txt"),
        ({"summary.json": "{}"}, "no run wrote"),
        ({"manifest.json": "[1]"}, "no run wrote"),
        ({"manifest.json": "not json"}, "no run wrote"),
    ],
)
def test_a_folder_of_the_users_own_is_never_replaced(tmp_path, files, found):
    """Only an empty folder, or one that holds a run and no more, is replaced; the error names what is in the way."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(OutputError, match=f"{found}.*choose another --out"), staged_folder(tmp_path):
        raise AssertionError("must be refused before anything is simulated")
    assert _everything_under(tmp_path) == sorted(files)


def test_an_empty_folder_is_used(tmp_path):
    """A folder that the user made for the run beforehand."""
    folder = tmp_path / "mine"
    folder.mkdir()
    _write(folder)
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize("out", ["", ".", "../here", "link"])
def test_the_working_directory_is_never_replaced(tmp_path, monkeypatch, out):
    """Replacing it would leave the user's shell in a folder that has no name any more."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if out == "link":
        out = str(tmp_path / "link")
        Path(out).symlink_to("here")
    with pytest.raises(OutputError, match=r"working directory; choose another --out"), staged_folder(Path(out)):
        raise AssertionError("must be refused before anything is simulated")
    assert (tmp_path / "here").samefile(Path.cwd())


def test_a_symlink_keeps_pointing_to_the_result(tmp_path):
    """``--out`` through a symlink replaces what it points to, not the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    _write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "summary.json").exists()


@pytest.mark.parametrize("place", ["file", "file/two", "file/a/two", "x" * 300])
def test_an_unwritable_output_is_refused_in_one_sentence(tmp_path, place):
    """A file in the way, a file as a parent, a name that is too long: OutputError before anything is simulated."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"^[^\n]+; choose another --out$"), staged_folder(tmp_path / place):
        raise AssertionError("must be refused before anything is simulated")
    assert _everything_under(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    """No write permission is found out before the simulation."""
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="permission denied"), staged_folder(tmp_path / "two"):
        raise AssertionError("must be refused before anything is simulated")
    tmp_path.chmod(0o700)


def test_something_that_appeared_meanwhile_is_kept(tmp_path):
    """A folder that another program filled while the simulation ran is not overwritten."""
    with pytest.raises(OutputError, match="theirs"), staged_folder(tmp_path / "two") as staging:
        (staging / "summary.json").write_text("{}")
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "theirs").write_text("")
    assert _everything_under(tmp_path) == ["two", "two/theirs"]
