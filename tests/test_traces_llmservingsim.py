"""LLMServingSim's traces: nanoseconds, token ids that are compared as tokens. Sessions: test_traces_sessions."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simserve.errors import TraceError
from simserve.workload import Trace, read_trace

DATA = Path(__file__).parents[1] / "../shared/data/traces/llmservingsim"
ROW = {"input_toks": 40, "output_toks": 3, "arrival_time_ns": 46_926_808, "input_tok_ids": list(range(40))}


def read(folder: Path, *rows: dict[str, Any]) -> Trace:
    (folder / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return read_trace(folder / "t.jsonl")


def chains(trace: Trace) -> list[list[int]]:
    assert trace.content is not None
    assert trace.content.block_tokens == 16
    return [list(trace.content[i].ids) for i in range(len(trace))]


@pytest.mark.parametrize(
    ("name", "num_rows", "prompt_tokens", "output_tokens", "last_ns"),
    [
        ("sharegpt-llama-3.1-8b-300-sps10", 300, 257_239, 195_753, 29_183_763_203),
        ("sharegpt-qwen3-32b-300-sps10", 300, 258_691, 199_486, 29_183_763_203),
        ("workload_me2_01_mixed", 608, 5_604_402, 1_837_003, 61_000_000_000),
        ("example_trace", 10, 120, 591, 1_026_970_077),
    ],
)
def test_the_public_files_have_their_known_figures(
    name: str, num_rows: int, prompt_tokens: int, output_tokens: int, last_ns: int
) -> None:
    """Rows, sums and times as a loop over the JSON counts them, and every shared beginning as a dict of whole prefixes
    finds it: one entry per distinct one, tokens written out."""
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"the public trace {path.name} is not beside this checkout")
    trace = read_trace(path)
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert len(trace) == len(rows) == num_rows
    assert int(trace.num_prompt_tokens.sum()) == prompt_tokens == sum(row["input_toks"] for row in rows)
    assert int(trace.num_output_tokens.sum()) == output_tokens == sum(row["output_toks"] for row in rows)
    assert trace.arrival_ns[-1] == last_ns - rows[0]["arrival_time_ns"]
    if "input_tok_ids" not in rows[0]:
        assert trace.content is None
        return
    numbers: dict[bytes, int] = {}
    for row, chain in zip(rows, chains(trace), strict=True):
        tokens = [token.to_bytes(4, "little") for token in row["input_tok_ids"]]
        ends = range(16, len(tokens) + 1, 16)
        assert chain == [numbers.setdefault(b"".join(tokens[:end]), len(numbers)) for end in ends]


def test_nanoseconds_since_1970_are_exact(tmp_path: Path) -> None:
    """1,700,000,000,123,456,789 ns needs 61 bits, a float has 53."""
    rows = [ROW | {"arrival_time_ns": 1_700_000_000_123_456_789 + i} for i in (2, 0, 1)]
    assert read(tmp_path, *rows).arrival_ns.tolist() == [0, 1, 2]
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.arrival_ns.tolist() == [0, 1, 2]
    assert chains(trace) == [[0, 1]] * 3


def test_blocks_of_16_tokens_are_equal_only_after_equal_beginnings(tmp_path: Path) -> None:
    """A token that differs in block 0 makes block 1 another one; what is left after whole blocks does not count."""
    changed = [*range(39), 99]
    rows = [list(range(40)), changed, [5, *range(1, 40)], list(range(16)), list(range(15))]
    trace = read(tmp_path, *(ROW | {"input_toks": len(ids), "input_tok_ids": ids} for ids in rows))
    assert chains(trace) == [[0, 1], [0, 1], [2, 3], [0], []]


def test_tokens_that_do_not_fit_their_prompt(tmp_path: Path) -> None:
    """More ids than tokens: unknown. Fewer: known as far as they go. Rows without: unknown. All counted."""
    rows = [ROW] * 4 + [
        ROW | {"input_toks": 39},
        ROW | {"input_toks": 50},
        {key: value for key, value in ROW.items() if key != "input_tok_ids"},
    ]
    trace = read(tmp_path, *rows)
    assert chains(trace) == [[0, 1]] * 4 + [[], [0, 1], []]
    known = "input_tok_ids than their prompt holds: "
    assert f"t.jsonl: 1 row with more {known}nothing is known of their prompts" in trace.notes
    assert f"t.jsonl: 1 row with fewer {known}known as far as they go" in trace.notes
    assert "t.jsonl: 1 row without input_tok_ids: nothing is known of their prompts" in trace.notes


@pytest.mark.parametrize("token", [-1, 2**32, 1.5, "a", None, True])
def test_what_is_no_token_id_is_one_sentence(tmp_path: Path, token: object) -> None:
    """Row and rule."""
    rule = "must be a list of whole numbers from 0 to 4,294,967,295"
    with pytest.raises(TraceError, match=rf"^t.jsonl: row 2: input_tok_ids: {rule} \(got "):
        read(tmp_path, ROW, ROW | {"input_tok_ids": [1, token]})


def test_answers_are_named_as_not_used(tmp_path: Path) -> None:
    """Token ids of answers are not content of a prompt: said so, and dropped while reading."""
    trace = read(tmp_path, ROW | {"output_tok_ids": [1, 2, 3]})
    assert trace.notes == ("t.jsonl: columns not used: output_tok_ids",)


def test_without_a_time_or_a_length_it_is_no_trace(tmp_path: Path) -> None:
    """Unlike Mooncake's, this format has no gaps."""
    for key in ("arrival_time_ns", "output_toks"):
        with pytest.raises(TraceError, match=f"^t.jsonl: lacks the column '{key}' of the llmservingsim format"):
            read(tmp_path, {name: value for name, value in ROW.items() if name != key})
