"""``simserve trace info`` and ``check``: figures by hand, the data's published ones, and each finding."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from simserve import cli
from simserve.trace_tools.command import info
from simserve.trace_tools.picture import columns, log_bins, narrowed
from simserve.trace_tools.profile import profile, window_counts
from simserve.trace_tools.show import duration
from simserve.workload import read_trace
from simserve.workload.trace import MAX_SPAN_S

RUNNER = CliRunner()
DATA = Path(__file__).parents[2] / "shared" / "data" / "traces"
HEADER = "arrival_s,num_prompt_tokens,num_output_tokens"


def _typed(*words: object, exit_code: int = 0):
    done = RUNNER.invoke(cli.app, ["trace", *map(str, words)])
    assert done.exit_code == exit_code, done.output
    return done


def _own(folder: Path, rows: str, more: str = "") -> Path:
    path = folder / "own.csv"
    path.write_text(f"{HEADER}{more}\n{rows}\n")
    return path


def test_a_trace_in_numbers_by_hand(tmp_path: Path) -> None:
    """Five requests over 8 s: gaps 2, 2, 0, 4 have mean 2 and variance 2, so their CV is 1/√2; 4 / 8 s is the rate."""
    rows = "10,1,10\n12,2,10\n14,3,10\n14,4,10\n18,5,60"
    found = json.loads(_typed("info", _own(tmp_path, rows), "--json").stdout)
    assert found["schema_version"] == 1 and found["trace"] == "own.csv" and found["num_requests"] == 5
    arrivals = found["arrivals"]
    assert arrivals["span_s"] == 8 and arrivals["mean_rate_rps"] == 0.5 and arrivals["longest_gap_s"] == 4
    assert arrivals["gap_cv"] == pytest.approx(0.5**0.5)
    assert arrivals["share_at_the_time_of_another"] == 0.25
    assert sum(arrivals["counts"]) == 5
    assert found["num_prompt_tokens"] == {
        **{"sum": 15, "mean": 3.0, "min": 1, "p1": 1.04, "p25": 2.0, "p50": 3.0, "p75": 4.0},
        **{"p90": pytest.approx(4.6), "p95": pytest.approx(4.8), "p99": pytest.approx(4.96), "max": 5},
    }
    assert found["num_output_tokens"]["mean"] == 20
    assert found["declared_max_output_tokens"] is None and found["sessions"] is None and found["prefix"] is None
    assert found["priorities"] == {"0": 5}
    assert found["format"] == "simserve" and found["num_rows"] == 5
    path = _own(tmp_path, rows + "\n20,5,0")
    assert json.loads(_typed("info", path, "--json").stdout)["num_rows"] == 6
    assert "own.csv: 5 requests of 6 rows, read as simserve" in _typed("info", path).stdout


def test_prefix_hits_are_bounded_as_by_a_cache_that_forgets_nothing(tmp_path: Path) -> None:
    """Blocks of 4 tokens: the second prompt of 10 begins with the first's two, the third is the second again, of which
    all but the last token can hit: 8 of 10, then 8 of 8 less the last one, 7."""
    rows = '0,10,1,"1 2",4\n1,10,1,"1 2",4\n2,8,1,"1 2",4\n3,8,1,,4'
    found = json.loads(_typed("info", _own(tmp_path, rows, ",prefix_hashes,prefix_block_tokens"), "--json").stdout)
    assert found["prefix"] == {
        **{"block_tokens": 4, "num_requests_with_blocks": 3, "num_blocks": 6, "num_distinct_blocks": 2},
        **{"repeated_tokens": 15, "hit_rate_bound": 15 / 36},
    }


def test_what_else_a_trace_knows_is_counted(tmp_path: Path) -> None:
    """Declared maxima, priorities; both are printed, too."""
    path = _own(tmp_path, "0,1,5,9,1\n1,1,5,,1\n2,1,5,70,-2", ",max_output_tokens,priority")
    found = json.loads(_typed("info", path, "--json").stdout)
    assert found["declared_max_output_tokens"] == {"num_requests": 2, "max": 70}
    assert found["priorities"] == {"-2": 1, "1": 2}
    shown = _typed("info", path).stdout
    assert "2 requests, at most 70 tokens" in shown and "-2: 1, 1: 2" in shown


def test_sessions_are_counted(tmp_path: Path) -> None:
    """Two sessions of two and one requests, one of which waits for an answer; one request belongs to none."""
    path = _own(tmp_path, "0,1,5,a,\n1,1,5,b,\n2,1,5,,\n,1,5,a,0.5", ",session_id,wait_s")
    found = json.loads(_typed("info", path, "--json").stdout)["sessions"]
    assert found == {
        **{"num_sessions": 2, "num_requests": 3, "mean_requests": 1.5, "max_requests": 2, "num_waiting": 1},
    }
    shown = _typed("info", path).stdout
    assert "2, 1.5 requests each, at most 2" in shown and "1 request waits for the answer before it" in shown


def test_burstiness_by_window_and_lengths_that_go_together(tmp_path: Path) -> None:
    """Pairs at one time, a pair a second for 20 s: 4 requests in 2 s whatever the place, so no size of window sees any
    spread; of prompts 1 to 40, answers in the opposite order have rank correlation −1. Both are printed."""
    path = _own(tmp_path, "\n".join(f"{i // 2},{i + 1},{41 - i}" for i in range(41)))
    found = json.loads(_typed("info", path, "--json").stdout)
    assert found["arrivals"]["dispersion"] == [{"window_s": 1.0, "variance_over_mean": 0.0}]
    assert found["prompt_output_rank_correlation"] == pytest.approx(-1)
    shown = _typed("info", path).stdout
    assert "by size of the window: 0 in 1 s" in shown
    assert "rank correlation of prompt and output -1.00" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_figure_is_cut_in_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    """Columns are left out instead, down to four; nothing ends in an ellipsis."""
    path = _own(tmp_path, "\n".join(f"{i},{10**i},{10 ** (9 - i)}" for i in range(10)))
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    info(path, "auto", as_json=False, console=console)
    shown = console.file.getvalue()
    assert "…" not in shown and "1,000,000,000" in shown
    assert max(map(len, shown.splitlines())) <= max(width, 70)
    assert ("p25" in shown) == (width > 100)


@pytest.mark.parametrize(
    ("file", "num_requests", "prompt_mean", "output_mean"),
    [
        ("azure/AzureLLMInferenceTrace_code.csv", 8_819, 2_047.8, 27.9),
        ("azure/AzureLLMInferenceTrace_conv.csv", 19_366, 1_154.7, 211.1),
    ],
)
def test_published_figures(file: str, num_requests: int, prompt_mean: float, output_mean: float) -> None:
    """Azure's hour of code and of conversation, rows and means as issued with them; printed the same."""
    if not (DATA / file).exists():
        pytest.skip(f"{file} is not here")
    found = profile(read_trace(DATA / file))
    assert found["num_requests"] == num_requests
    assert found["num_prompt_tokens"]["mean"] == pytest.approx(prompt_mean, abs=0.05)
    assert found["num_output_tokens"]["mean"] == pytest.approx(output_mean, abs=0.05)
    shown = _typed("info", DATA / file).stdout
    assert f"{num_requests:,} requests" in shown and f"{prompt_mean:,.1f}" in shown


@pytest.mark.parametrize("rows", ["0,5,5", "7,5,5\n7,6,6", "0,1,1\n0.000000001,1,1"])
def test_the_smallest_traces_have_a_profile(tmp_path: Path, rows: str) -> None:
    """One request, all at one time, a nanosecond apart: no division by zero, and JSON without NaN."""
    path = _own(tmp_path, rows)
    found = json.loads(_typed("info", path, "--json").stdout)
    assert found["num_requests"] == rows.count("\n") + 1
    assert ("1 request," if "\n" not in rows else "2 requests,") in _typed("info", path).stdout


def test_a_trace_without_times_says_so(tmp_path: Path) -> None:
    """Mooncake's keys without a timestamp: lengths are profiled, arrivals are not."""
    path = tmp_path / "order.jsonl"
    path.write_text('{"input_length": 5, "output_length": 6}\n')
    assert json.loads(_typed("info", path, "--json").stdout)["arrivals"] is None
    assert "workload.concurrency" in _typed("info", path).stdout
    assert "has no times" in _typed("check", path, exit_code=1).stdout


def test_poisson_arrivals_are_told_from_bursts(tmp_path: Path) -> None:
    """Theory: exponential gaps have CV 1 and counts whose variance is their mean. 20,000 of them: the CV within 0.05 (5
    standard errors of 1/√n·√2), the dispersion of 60 windows within 5 standard errors of √(2/59)."""
    rng = np.random.default_rng(4)
    times = rng.exponential(0.1, 20_000).cumsum()
    path = _own(tmp_path, "\n".join(f"{time:.9f},1,1" for time in times))
    arrivals = profile(read_trace(path))["arrivals"]
    assert arrivals["gap_cv"] == pytest.approx(1, abs=0.05)
    assert arrivals["count_dispersion"] == pytest.approx(1, abs=5 * (2 / 59) ** 0.5)
    assert arrivals["mean_rate_rps"] == pytest.approx(10, rel=5 / 20_000**0.5)


@given(st.lists(st.integers(0, MAX_SPAN_S * 10**9), min_size=1, max_size=30))
def test_windows_count_everybody_once(times: list[int]) -> None:
    """Law: whatever the times, the windows' counts add up to the requests, and there are at most 60."""
    arrivals = np.sort(np.array(times, np.int64)) - min(times)
    counts = window_counts(arrivals)
    assert counts.sum() == len(times) and 1 <= len(counts) <= 60


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=30), st.integers(1, 40))
def test_bins_of_lengths_count_everybody_once(tokens: list[int], num_bins: int) -> None:
    """Law: the shortest and the longest are in a bin, too."""
    counts, low, high = log_bins(np.array(tokens, np.int64), num_bins)
    assert counts.sum() == len(tokens) and (low, high) == (min(tokens), max(tokens))


def test_pictures() -> None:
    """In proportion to the largest, nothing a space, something never nothing; narrowing adds neighbours."""
    assert columns([0, 1, 4, 8, 1000, 500]) == " ▁▁▁█▅"
    assert columns([0, 0]) == "  "
    assert narrowed([1, 2, 3, 4, 5], 2) == [6, 9]
    assert narrowed([1, 2], 5) == [1, 2]


def test_durations() -> None:
    """Each in the unit that people use for it."""
    texts = [duration(s) for s in (0.0005, 0.85, 59.2, 754.0, 11_700.0, 648_000.0)]
    assert texts == ["0.5 ms", "850 ms", "59.2 s", "12.6 min", "3.25 h", "7.5 days"]


def test_a_sound_trace_has_no_finding(tmp_path: Path) -> None:
    """Exit code 0, nothing on standard output."""
    done = _typed("check", _own(tmp_path, "\n".join(f"{0.37 * i:.2f},{5 + i},5" for i in range(40))))
    assert done.stdout == "" and "40 requests, no findings" in done.stderr


FORTY = [f"{0.37 * i:.2f},{5 + i},5" for i in range(40)]
WHOLE = [f"{i // 2},{5 + i},5" for i in range(40)]


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ([*FORTY, "20,4,0"], "", "1 row without output tokens"),
        ([*FORTY, FORTY[-1]], "", "1 row repeating an earlier one kept"),
        ([*FORTY, "3,4,9"], "", "1 row earlier than the row before"),
        ([f"5,{5 + i},5" for i in range(40)], "", "all requests arrive at one time"),
        ([*FORTY, "90000,7,7"], "", "after request 40 of 41: is a date wrong?"),
        (WHOLE, "", "times are whole seconds: 51.3 % share theirs"),
        ([f"{i // 8 * 1.5},{5 + i},5" for i in range(40)], "", "times are coarse: 89.7 % share theirs"),
        ([f"{i * 0.000001:.6f},{5 + i},5" for i in range(40)], "", "1,000,000 requests/s"),
        ([f"{i * 100000.5},{5 + i},5" for i in range(40)], "", "a request in 27.8 h"),
        ([*FORTY, "14.5,99999999,7"], "", "1 request of more than 10,000,000 tokens"),
        ([f"{row},{9 - 5 * (i == 3)}" for i, row in enumerate(FORTY)], ",max_output_tokens", "1 request got more"),
    ],
)
def test_each_finding(tmp_path: Path, rows: list[str], more: str, words: str) -> None:
    """One thing is wrong with a sound trace: one line that says so, with the file's name, and exit code 1."""
    done = _typed("check", _own(tmp_path, "\n".join(rows), more), exit_code=1)
    assert words in done.stdout and done.stdout.count("\n") == 1 and done.stdout.startswith("own.csv: ")
    assert "1 finding\n" in done.stderr


def test_requests_beyond_a_model_are_counted(tmp_path: Path) -> None:
    """Prompt and output together: 44 + 5 of the last is the longest, and 49 is not beyond 49."""
    path = _own(tmp_path, "\n".join(FORTY))
    assert _typed("check", path, "--max-model-len", 49).stdout == ""
    done = _typed("check", path, "--max-model-len", 47, exit_code=1)
    assert "2 requests (5 %) beyond 47 tokens: an engine would reject them" in done.stdout


def test_no_trace_is_one_sentence(tmp_path: Path) -> None:
    """Exit code 2 for what does not read, by every verb."""
    for verb in ("info", "check"):
        done = _typed(verb, tmp_path / "none.csv", exit_code=2)
        assert "no such file" in done.stderr and done.stderr.count("\n") == 1
