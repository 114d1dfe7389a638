"""BurstGPT, Vidur and splitwise-sim: what their columns mean, failures, whole seconds, lengths without times."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simserve.errors import TraceError
from simserve.scenario import TraceWorkload
from simserve.workload import Trace, build_workload, read_trace

DATA = Path(__file__).parents[1] / "../shared/data/traces"
FIRST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SECOND = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"

READ = """
import resource, sys
from pathlib import Path
from simserve.workload import read_trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
trace = read_trace(Path(sys.argv[1]))
used = resource.getrusage(resource.RUSAGE_SELF)
# Of this process: ru_maxrss would hold what its parent had when it was forked.
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(len(trace), trace.num_prompt_tokens.sum(), trace.arrival_ns[-1], used.ru_utime - before, peak)
"""


def read(folder: Path, text: str, name: str = "t.csv") -> Trace:
    (folder / name).write_text(text)
    return read_trace(folder / name)


def rows_of(trace: Trace) -> list[tuple[int, int, int]]:
    columns = (trace.arrival_ns, trace.num_prompt_tokens, trace.num_output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_whole_seconds_that_start_late_keep_the_files_order(tmp_path: Path) -> None:
    """Times count from the earliest (5), requests of one second stay in the order in which they were logged, and no
    response is a failure: left out and counted."""
    rows = [
        "45,ChatGPT,1087,230,1317,Conversation log",
        "5,ChatGPT,472,18,490,Conversation log",
        "45,GPT-4,417,276,693,API log",
        "45,GPT-4,9,0,9,API log",
        "45,ChatGPT,1087,230,1317,Conversation log",
    ]
    trace = read(tmp_path, FIRST + "\n".join(rows))
    late = 40 * 10**9
    assert rows_of(trace) == [(0, 472, 18), (late, 1087, 230), (late, 417, 276), (late, 1087, 230)]
    assert trace.session is None
    assert trace.notes == (
        "t.csv: columns not used: Model, Log Type",
        "t.csv: 1 row without output tokens (failed requests) left out",
        "t.csv: 1 row repeating an earlier one kept",
        "t.csv: 1 row earlier than the row before: sorted by arrival",
    )


def test_the_second_version_has_sessions_and_fractions(tmp_path: Path) -> None:
    """Session numbers by first appearance; API calls have none. The elapsed time of an answer is not an input."""
    rows = [
        "0.5,b7,3.25,GPT-4,10,5,15,Conversation log",
        "1.0,,1.5,GPT-4,10,5,15,API log",
        "2,a1,1,GPT-4,10,5,15,Conversation log",
        "3,b7,1,GPT-4,10,5,15,Conversation log",
    ]
    trace = read(tmp_path, SECOND + "\n".join(rows))
    assert trace.arrival_ns.tolist() == [0, 500_000_000, 1_500_000_000, 2_500_000_000]
    assert trace.session is not None
    assert trace.session.tolist() == [0, -1, 1, 0]
    assert trace.notes == ("t.csv: columns not used: Elapsed time, Model, Log Type",)


def test_a_total_that_is_no_sum_is_counted(tmp_path: Path) -> None:
    """Prompt and response are what is replayed; a total that says otherwise (or nothing readable) is told."""
    rows = ["1,m,10,5,15,x", "2,m,10,5,16,x", "3,m,10,5,,x", "4,m,10,5,many,x"]
    trace = read(tmp_path, FIRST + "\n".join(rows))
    assert "t.csv: 2 rows whose Total tokens is not the sum of the two: the two are used" in trace.notes
    assert len(trace) == 4


def test_the_quoted_rows_of_burstgpt() -> None:
    """Three rows as the data set's own page quotes them."""
    path = DATA / "quoted_rows/burstgpt_1_head3.csv"
    if not path.exists():
        pytest.skip("the quoted rows are not beside this checkout")
    assert rows_of(read_trace(path)) == [(0, 472, 18), (40 * 10**9, 1087, 230), (113 * 10**9, 417, 276)]


def test_vidur_with_and_without_times(tmp_path: Path) -> None:
    """Its traces have times when they were made for a run; its processed ones are lengths with an order, which only a
    closed loop can replay."""
    timed = read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,7,3\n0.125,9,1\n")
    assert rows_of(timed) == [(0, 9, 1), (125_000_000, 7, 3)]
    lengths = ",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n0,7,3,10,2.3\n1,9,1,10,9\n"
    trace = read(tmp_path, lengths, "lengths.csv")
    assert rows_of(trace) == [(0, 7, 3), (0, 9, 1)]
    assert not trace.has_times
    with pytest.raises(TraceError, match=r"^lengths.csv: must have times \(it has none\); give workload.concurrency"):
        build_workload(TraceWorkload(trace="lengths.csv"), 0, tmp_path)
    assert len(build_workload(TraceWorkload(trace="lengths.csv", concurrency=2), 0, tmp_path).table) == 2


def test_vidurs_public_lengths_have_their_figures() -> None:
    """Rows, sums and extremes as a loop over the text counts them."""
    path = DATA / "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"
    if not path.exists():
        pytest.skip("the public trace is not beside this checkout")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    prompts, outputs = ([int(line.split(",")[i]) for line in lines] for i in (0, 1))
    trace = read_trace(path)
    assert len(trace) == len(lines) == 28_257
    assert trace.num_prompt_tokens.tolist() == prompts
    assert trace.num_output_tokens.tolist() == outputs
    assert not trace.has_times


def test_splitwise_sim(tmp_path: Path) -> None:
    """As its generator writes them, the columns it adds among them."""
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    trace = read(tmp_path, header + "0,2,0,0.0,1,1155,15\n1,2,0,0.0412,1,4,211\n")
    assert rows_of(trace) == [(0, 1155, 15), (41_200_000, 4, 211)]
    assert trace.notes == ("t.csv: columns not used: request_id, request_type, application_id, batch_size",)


def test_a_million_rows_take_seconds_and_little_memory(tmp_path: Path) -> None:
    """BurstGPT's size: 1.4 million rows in under 10 s of CPU time, the process under 1 GiB. Checked against numpy."""
    rng = np.random.default_rng(0)
    num_rows = 1_400_000
    times = np.sort(rng.integers(5, 5_270_000, num_rows))
    prompts, outputs = rng.integers(1, 3000, num_rows), rng.integers(0, 800, num_rows)
    columns = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    path = tmp_path / "burst.csv"
    with path.open("w") as file:
        file.write(FIRST)
        file.writelines(f"{time},GPT-4,{p},{o},{p + o},Conversation log\n" for time, p, o in columns)
    kept = outputs > 0
    expected = [int(kept.sum()), int(prompts[kept].sum()), int(times[kept][-1] - times[kept][0]) * 10**9]
    told = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True).stdout.split()
    assert [int(word) for word in told[:3]] == expected
    cpu_s, peak_kib = float(told[3]), int(told[4])
    assert cpu_s < 10
    assert peak_kib < 2**20
