"""Azure traces, 2023 to 2025: exact times, and the figures that others published for the same files."""

import gzip
import time
from pathlib import Path

import pandas as pd
import pytest

from simserve.workload import Trace, read_trace

DATA = Path(__file__).parents[1] / "../shared/data/traces"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(folder: Path, content: str | bytes, name: str = "trace.csv", **options: str) -> Trace:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(path, **options)


@pytest.mark.parametrize(
    ("name", "num_rows", "mean_prompt", "mean_output", "total_output"),
    [("code", 8_819, 2_047.8, 27.9, None), ("conv", 19_366, 1_154.7, 211.1, 4_088_665)],
)
def test_the_2023_files_have_their_known_figures(
    name: str, num_rows: int, mean_prompt: float, mean_output: float, total_output: int | None
) -> None:
    """Rows and means as published with Splitwise (ISCA'24); nothing dropped; read in well under a second."""
    path = DATA / "azure" / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        pytest.skip(f"the public trace {path.name} is not beside this checkout")
    begin = time.perf_counter()
    trace = read_trace(path)
    assert time.perf_counter() - begin < 1.0
    assert len(trace) == num_rows
    assert round(float(trace.num_prompt_tokens.mean()), 1) == mean_prompt
    assert round(float(trace.num_output_tokens.mean()), 1) == mean_output
    assert total_output in (None, int(trace.num_output_tokens.sum()))
    assert trace.notes == ()


def test_seven_digits_are_kept_exactly(tmp_path: Path) -> None:
    """The 2023 format: naive dates, seven fractional digits, CRLF. 100 ns ticks survive the subtraction."""
    rows = "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8\r\n"
    trace = read(tmp_path, HEADER.replace("\n", "\r\n") + rows)
    assert trace.arrival_ns.tolist() == [0, 52_000_100]
    assert trace.num_prompt_tokens.tolist() == [4808, 3180]
    assert trace.num_output_tokens.tolist() == [10, 8]


def test_zones_and_missing_fractions_mix_in_one_column(tmp_path: Path) -> None:
    """The 2024 format, whose whole seconds have no fraction; the 2025 format with T and Z; and another zone."""
    stamps = [
        "2024-05-10 00:00:00.009930+00:00",
        "2024-05-10 00:00:01+00:00",
        "2024-05-10T00:00:02.269Z",
        "2024-05-10 00:00:03",
        "2024-05-10T02:00:04.000000001+02:00",
    ]
    trace = read(tmp_path, HEADER + "".join(f"{stamp},5,6\n" for stamp in stamps))
    begin = 9_930_000
    expected = [begin, 10**9, 2_269_000_000, 3 * 10**9, 4 * 10**9 + 1]
    assert trace.arrival_ns.tolist() == [t - begin for t in expected]


def test_multimodal_rows_say_that_images_are_not_used(tmp_path: Path) -> None:
    """LMM 2025 has a column NumImages, which is not used yet: said in the notes, never silent."""
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,0,770,491\n"
    trace = read(tmp_path, text + "2024-10-15T12:00:05.819Z,1,949,126\n")
    assert trace.arrival_ns.tolist() == [0, 5_550_000_000]
    assert trace.notes == ("trace.csv: columns not used: NumImages",)


@pytest.mark.parametrize(
    "header", ["timestamp,context_tokens,generated tokens", "Generated Tokens,TIME_STAMP,ContextTokens"]
)
def test_column_names_are_folded_and_may_stand_in_any_order(tmp_path: Path, header: str) -> None:
    """Case, spaces and underscores do not matter, nor does the order."""
    values = {"timestamp": "2023-11-16 18:00:00", "contexttokens": "7", "generatedtokens": "8"}
    row = ",".join(values[name.lower().replace(" ", "").replace("_", "")] for name in header.split(","))
    trace = read(tmp_path, f"{header}\n{row}\n")
    assert (trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist()) == ([7], [8])


VARIANTS = {
    "plain": lambda text: text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "no-final-newline": lambda text: text.rstrip("\n").encode(),
    "blank-lines": lambda text: ("\n" + text.replace("\n", "\n\n")).encode(),
    "quoted": lambda text: "\n".join(
        ",".join(f'"{field}"' for field in line.split(",")) for line in text.splitlines()
    ).encode(),
    "spaces": lambda text: text.replace(",", ", ").encode(),
    "gz": lambda text: gzip.compress(text.encode()),
    "gz-of-crlf-bom": lambda text: gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_the_bytes_are_written_does_not_matter(tmp_path: Path, variant: str) -> None:
    """Line ends, byte-order mark, quotes, blank lines, gzip (told by content, whatever the name): one trace."""
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:05,1,1\n"
    trace = read(tmp_path, VARIANTS[variant](HEADER + rows))
    assert trace.arrival_ns.tolist() == [0, 52_000_000, 1_020_040_000]
    assert trace.num_prompt_tokens.tolist() == [4808, 3180, 1]
    assert trace.notes == ()


def test_parquet_with_typed_timestamps_reads_as_its_csv(tmp_path: Path) -> None:
    """A trace that someone stored with real timestamp columns, in any unit or zone, has the same times."""
    stamps = pd.to_datetime(["2024-05-10 00:00:00.000001", "2024-05-10 00:00:01"], format="ISO8601")
    frame = pd.DataFrame({"TIMESTAMP": stamps.tz_localize("UTC"), "ContextTokens": [5, 6], "GeneratedTokens": [7, 8]})
    frame.to_parquet(tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.arrival_ns.tolist() == [0, 999_999_000]
    assert trace.num_output_tokens.tolist() == [7, 8]


def test_rows_quoted_from_the_large_files_read(tmp_path: Path) -> None:
    """First and last rows of the week-long files, as their own notebooks print them: a week apart."""
    folder = DATA / "quoted_rows"
    if not folder.exists():
        pytest.skip("the rows quoted from public traces are not beside this checkout")
    for path in sorted(folder.glob("azure_*.csv")):
        trace = read_trace(path)
        assert len(trace) == 10
        assert trace.arrival_ns[-1] / 1e9 == pytest.approx(7 * 86_400, rel=1e-3)
