"""``simserve compare`` from end to end: what it writes and prints, and that bad input writes nothing."""

import json
import os

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from simserve.compare import compare_runs, load_run
from simserve.compare.pairing import pair_variants
from simserve.compare_command import EPILOG, compare
from tests.compare_builders import SCENARIO, ar1, requests_frame, summary_of, write_run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(epilog=EPILOG)(compare)


def frame_of(mean=1.0, n=600, seed=0, **options):
    return requests_frame(ar1(n, 0.7, np.random.default_rng(seed), mean, 0.3), seed, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run a, the same requests half as slow (b), other requests (c), and a again (same)."""
    home = tmp_path_factory.mktemp("runs")
    slow, fast = frame_of(1.0), frame_of(1.0)
    fast = fast.assign(ttft_s=fast.ttft_s / 2)
    fast = fast.assign(e2e_s=fast.ttft_s + 0.05 * (fast.num_output_tokens - 1))
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["engine"]["max_num_seqs"] = 16
    write_run(home / "a", {"x": slow})
    write_run(home / "b", {"x": fast}, scenario)
    write_run(home / "c", {"x": frame_of(2.0, 500, 5)}, {**SCENARIO, "seed": 5})
    write_run(home / "same", {"x": slow})
    return home


def command(runs, *arguments, cwd):
    """The command as typed in ``cwd``; paths of runs are absolute."""
    before = os.getcwd()
    os.chdir(cwd)
    try:
        words = [str(runs / word) if word in {"a", "b", "c", "same"} else word for word in arguments]
        return CliRunner().invoke(app, words, env={"COLUMNS": "140"})
    finally:
        os.chdir(before)


def document_of(runs, first, second):
    a, b = load_run(runs / first), load_run(runs / second)
    return compare_runs(a, b, pair_variants(a, b))


def test_the_folder_holds_document_page_and_manifest(runs, tmp_path):
    """By default reports/<a>-vs-<b>; the document is the one that --json prints; the manifest holds both runs' own."""
    done = command(runs, "a", "b", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "reports" / "a-vs-b"
    assert sorted(path.name for path in folder.iterdir()) == ["compare.html", "compare.json", "manifest.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "simserve compare"
    assert manifest["a"] == json.loads((runs / "a" / "manifest.json").read_text())
    printed = command(runs, "a", "b", "--json", "--out", str(tmp_path / "other"), cwd=tmp_path)
    assert json.loads(printed.stdout) == json.loads((folder / "compare.json").read_text())
    assert (tmp_path / "other" / "compare.json").read_bytes() == (folder / "compare.json").read_bytes()


def test_the_table_says_what_differs_first_then_ratios_in_words(runs, tmp_path):
    """Half the TTFT is better, with its interval; equal things are the same; what has no interval gets a dash."""
    output = command(runs, "a", "b", cwd=tmp_path).stdout
    assert output.index("engine.max_num_seqs") < output.index("TTFT, mean")
    lines = {line.strip().split("  ")[0]: line for line in output.splitlines() if "  " in line.strip()}
    assert "0.50×" in lines["TTFT, mean"] and "0.50 to 0.50×" in lines["TTFT, mean"]
    assert "B is better" in lines["TTFT, mean"] and "the same" in lines["TPOT, mean"]
    assert lines["ITL, p99"].rstrip().endswith("–")
    assert "600" in lines["requests finished"] and "rejected" not in output
    assert "Both met the same requests" in output and "not over seeds" in output and "simserve sweep" in output


def test_what_differs_is_named_once(runs):
    """The seed is in the resolved scenario and in the manifest: one line, not two alike."""
    keys = [(one["key"], one["pair"]) for one in document_of(runs, "a", "c")["differences"]]
    assert ("seed", None) in keys and len(keys) == len(set(keys))


def test_an_earlier_comparison_is_replaced_and_nothing_else(runs, tmp_path):
    """The same folder again is fine; a run's folder, or one with a file of theirs, is not."""
    for _ in range(2):
        assert command(runs, "a", "b", "--out", "mine", "-q", cwd=tmp_path).exit_code == 0
    (tmp_path / "mine" / "thesis.tex").write_text("")
    for out in ("mine", str(runs / "same")):
        refused = command(runs, "a", "b", "--out", out, cwd=tmp_path)
        assert refused.exit_code == 2 and "choose another --out" in refused.stderr
    assert (runs / "same" / "requests.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a", "missing"), "missing: must be a run's folder (there is no such folder)"),
        (("a", "b", "--variant-a", "y"), "--variant-a: must be a variant of this run (got 'y'); it has x"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(runs, tmp_path, arguments, expected):
    """Exit code 2; no folder appears, not even its parents."""
    done = command(runs, *arguments, cwd=tmp_path)
    assert done.exit_code == 2 and done.stdout == ""
    assert expected in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_torn_requests_leave_nothing_behind(runs, tmp_path):
    """They are found after the folder was begun, which goes away again."""
    torn = write_run(tmp_path / "torn", {"x": frame_of()})
    (torn / "requests.parquet").write_bytes(b"PAR1")
    home = tmp_path / "home"
    home.mkdir()
    done = command(runs, "a", str(torn), cwd=home)
    assert done.exit_code == 2 and "requests.parquet: cannot be read" in done.stderr
    assert list(home.iterdir()) == []


def test_identical_runs_have_ratio_one_and_no_doubt(runs):
    """Every ratio is exactly 1, every interval [1, 1]; nothing differs."""
    document = document_of(runs, "a", "same")
    assert document["differences"] == []
    pair = document["pairs"][0]
    assert pair["same_requests"] is True
    for name, metric in pair["metrics"].items():
        assert metric["ratio"] in {1.0, None}, name
        if metric["low"] is not None:
            assert (metric["low"], metric["high"], metric["verdict"]) == (1.0, 1.0, "same"), name
    assert pair["metrics"]["e2e_s.p99"]["low"] == 1.0


@pytest.mark.parametrize("other", ["b", "c"])
def test_swapping_the_runs_inverts_every_ratio(runs, other):
    """compare(A, B) = 1 / compare(B, A), bounds included, whether both met the same requests or not."""
    there, back = (document_of(runs, *pair)["pairs"][0]["metrics"] for pair in (("a", other), (other, "a")))
    assert document_of(runs, "a", other)["pairs"][0]["same_requests"] is (other == "b")
    opposite = {"better": "worse", "worse": "better"}
    for name, metric in there.items():
        swapped = back[name]
        assert (metric["a"], metric["b"]) == (swapped["b"], swapped["a"])
        if metric["ratio"] is not None:
            assert metric["ratio"] == pytest.approx(1 / swapped["ratio"])
        if metric["low"] is not None:
            bounds = [1 / bound if bound else {None: 0.0}.get(bound) for bound in (swapped["high"], swapped["low"])]
            assert [metric["low"], metric["high"]] == pytest.approx(bounds, rel=1e-7)
        assert swapped["verdict"] == opposite.get(metric["verdict"], metric["verdict"])


def test_a_scaled_latency_has_its_scale_and_no_spread(runs):
    """TTFT halved for every request: ratio ½ in mean and quantiles with an interval of no width, when paired."""
    metrics = document_of(runs, "a", "b")["pairs"][0]["metrics"]
    for statistic in ("mean", "p50", "p90", "p99"):
        metric = metrics[f"ttft_s.{statistic}"]
        assert (metric["ratio"], metric["low"], metric["high"]) == pytest.approx((0.5, 0.5, 0.5))
        assert metric["verdict"] == "better"
    assert metrics["queue_time_s.mean"]["verdict"] == "same" and metrics["itl_s.p99"]["verdict"] is None


def test_values_are_the_summary_s(runs):
    """A's and B's columns repeat summary.json to the last digit."""
    pair = document_of(runs, "a", "c")["pairs"][0]
    expected = summary_of(frame_of(1.0))
    for name in ("output_tokens_per_s", "goodput_rps", "makespan_s"):
        assert pair["metrics"][name]["a"] == expected[name]
    assert pair["metrics"]["ttft_s.p99"]["a"] == expected["ttft_s"]["p99"]
    assert pair["num_requests"] == {"a": 600, "b": 500}


def test_unanswered_requests_are_counted_and_warned_of(runs, tmp_path):
    """Statuses stand side by side, and the table says that latencies leave the unanswered out."""
    status = np.where(np.arange(600) % 10 == 0, "timed_out", "finished")
    leaving = write_run(tmp_path / "leaving", {"x": frame_of(status=status)})
    done = command(runs, "a", str(leaving), cwd=tmp_path)
    pair = json.loads((tmp_path / "reports" / "a-vs-leaving" / "compare.json").read_text())["pairs"][0]
    assert pair["statuses"]["b"] == {"finished": 540, "rejected": 0, "cancelled": 0, "timed_out": 60}
    assert "A left 0 requests unanswered, B 60" in done.stdout
    assert "requests timed out" in done.stdout and "cancelled" not in done.stdout


def test_goodput_counts_by_each_run_s_own_slo(tmp_path):
    """Without any SLO there is no goodput to compare; with one, its ratio is that of the summaries."""
    frame = frame_of()
    free = {**SCENARIO, "slo": {"ttft_s": None, "tpot_s": None, "e2e_s": None}}
    write_run(tmp_path / "a", {"x": frame}, free)
    write_run(tmp_path / "b", {"x": frame.assign(ttft_s=frame.ttft_s * 1.2)}, free)
    assert "goodput_rps" not in document_of(tmp_path, "a", "b")["pairs"][0]["metrics"]
    write_run(tmp_path / "c", {"x": frame})
    write_run(tmp_path / "d", {"x": frame.assign(ttft_s=frame.ttft_s * 1.2)})
    metric = document_of(tmp_path, "c", "d")["pairs"][0]["metrics"]["goodput_rps"]
    assert metric["low"] < metric["ratio"] < metric["high"] < 1 and metric["verdict"] == "worse"


@pytest.mark.parametrize("n", [0, 1, 5])
def test_tiny_runs_compare_too(tmp_path, n):
    """No request, one or five: no interval, no crash."""
    for name, factor in (("a", 1.0), ("b", 2.0)):
        frame = requests_frame(np.ones(n))
        write_run(tmp_path / name, {"x": frame.assign(ttft_s=frame.ttft_s * factor)})
    metrics = document_of(tmp_path, "a", "b")["pairs"][0]["metrics"]
    assert metrics["ttft_s.mean"]["ratio"] == (2.0 if n else None)
    assert metrics["ttft_s.mean"]["low"] is None


def test_two_variants_of_one_run_compare(tmp_path, runs):
    """The same folder twice, with a variant each; the folder is named after both."""
    write_run(tmp_path / "pair", {"static": frame_of(2.0), "continuous": frame_of(1.0)})
    arguments = ("pair", "pair", "--variant-a", "static", "--variant-b", "continuous")
    done = command(runs, *arguments, cwd=tmp_path)
    assert done.exit_code == 0 and "static → continuous" in done.stdout
    assert (tmp_path / "reports" / "pair-static-vs-pair-continuous" / "compare.html").exists()


def test_help_shows_examples():
    """The epilog holds commands to copy, and importing the command costs nothing heavy."""
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).stdout
    assert "RUN_A" in text and "simserve compare reports/skewed64 reports/sixteen" in text
