"""Mooncake's and Bailian's traces: block hashes under the same keys, in other units; whatever a row lacks is said."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.errors import TraceError
from simserve.kv_cache.identities import names_of
from simserve.scenario import TraceWorkload
from simserve.workload import Trace, build_workload, read_trace

DATA = Path(__file__).parents[1] / "../shared/data/traces/mooncake"
ROW = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}


def read(folder: Path, *rows: dict[str, Any], format_name: str = "auto") -> Trace:
    (folder / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return read_trace(folder / "t.jsonl", format_name)


def chains(trace: Trace) -> list[list[int]]:
    """The whole blocks of each prompt, numbered by first appearance."""
    assert trace.content is not None
    known = [trace.content[i] for i in range(len(trace))]
    whole = [list(chain.ids)[: chain.num_tokens // chain.block_tokens] for chain in known]
    numbers = {node: k for k, node in enumerate(dict.fromkeys(node for each in whole for node in each))}
    return [[numbers[node] for node in each] for each in whole]


@pytest.mark.parametrize(
    ("name", "num_rows", "rate", "blocks", "prompt_tokens", "output_tokens"),
    [
        ("conversation", 12_031, 0.366, 288_500, 144_793_823, 4_122_048),
        ("synthetic", 3_993, 0.640, 121_877, 61_194_628, 595_432),
    ],
)
def test_the_public_files_have_their_known_figures(
    name: str, num_rows: int, rate: float, blocks: int, prompt_tokens: int, output_tokens: int
) -> None:
    """Rows and infinite-cache block hit rates as they are known for these files, sums counted apart by a loop over the
    JSON. The rate is (blocks listed - distinct ids) / blocks listed: the partial last block of each prompt is one of
    them, though only caches of smaller blocks can serve it, and only to a prompt that is the same to its end. Whole
    blocks alone give 0.382 and 0.659."""
    path = DATA / f"{name}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"the public trace {path.name} is not beside this checkout")
    trace = read_trace(path)
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    listed = [block for row in rows for block in row["hash_ids"]]
    assert round(1 - len(set(listed)) / len(listed), 3) == rate
    said = f"{100 * (1 - len(set(listed)) / blocks):.1f} % of {blocks:,} blocks of up to 512 tokens repeat an earlier"
    assert trace.notes[0] == f"{path.name}: {said} prompt's, partial last ones included"
    assert len(trace) == num_rows == len(rows)
    assert int(trace.num_prompt_tokens.sum()) == prompt_tokens
    assert int(trace.num_output_tokens.sum()) == output_tokens
    assert (trace.arrival_ns == [row["timestamp"] * 10**6 for row in rows]).all()
    assert trace.content is not None
    assert np.diff(trace.content.offsets).tolist() == [-(-row["input_length"] // 512) for row in rows]
    seen: set[tuple[int, int]] = set()  # (id, tokens of its block)
    cached = 0
    for row in rows:
        blocks = [(block, min(512, row["input_length"] - 512 * k)) for k, block in enumerate(row["hash_ids"])]
        cached += min(sum(block[1] for block in blocks if block in seen), row["input_length"] - 1)
        seen.update(blocks)
    said = f"{100 * cached / prompt_tokens:.1f} % of the prompt tokens would be hits of an infinite prefix cache"
    assert build_workload(TraceWorkload(trace=path.name), 0, DATA).notes[-1] == f"{path.name}: {said}"


def test_milliseconds_from_the_earliest_and_whole_blocks(tmp_path: Path) -> None:
    """Times in ms, fractions and files that do not start at 0 included; a partial last block is content of the tokens
    that it has."""
    other = {"timestamp": 1712.5, "input_length": 1024, "output_length": 6, "hash_ids": [7, 10]}
    trace = read(tmp_path, ROW | {"timestamp": 1700}, other)
    assert trace.arrival_ns.tolist() == [0, 12_500_000]
    assert trace.num_prompt_tokens.tolist() == [1100, 1024]
    assert trace.num_output_tokens.tolist() == [5, 6]
    assert chains(trace) == [[0, 1], [0, 2]]
    assert trace.content is not None
    assert [trace.content[i].num_tokens for i in range(2)] == [1100, 1024]
    assert trace.content.block_tokens == 512


@pytest.mark.parametrize(
    ("lengths", "ids", "block_size", "num_alike"),
    [
        ((1100, 1100), ([7, 8, 9], [7, 8, 9]), 16, 68),  # 64 in the whole blocks, and 4 of the 4.75 in the short one
        ((1100, 1100), ([7, 8, 9], [7, 8, 9]), 512, 2),  # a cache of the trace's own blocks gains nothing by it
        ((1100, 1100), ([7, 8, 9], [7, 8, 9]), 1, 1100),
        ((1100, 1100), ([7, 8, 9], [7, 8, 1]), 16, 64),
        ((1100, 1101), ([7, 8, 9], [7, 8, 9]), 16, 64),  # one of them has a token more: the hash tells nothing
        ((1100, 1100), ([7, 8, 9], [6, 8, 9]), 16, 0),
        ((1100, 1536), ([7, 8, 9], [7, 8, 9]), 16, 64),
        ((1100, 2000), ([7, 8, 9], [7, 8, 9, 4]), 16, 64),
        ((100, 100), ([7], [7]), 16, 6),
        ((1100, 1100), ([7, 8, 9], [7, 8, 9]), 24, 45),  # any block size: 45 · 24 = 1,080 of 1,100 tokens
        ((1100, 1100), ([7, 8, 9], [7, 8, 1]), 24, 42),  # 42 · 24 = 1,008 of 1,024
        ((1100, 1100), ([7, 8, 9], [7, 8, 9]), 1024, 1),
    ],
)
def test_short_last_blocks_are_shared_by_prompts_that_are_the_same_to_their_end(
    tmp_path: Path, lengths: tuple[int, int], ids: tuple[list[int], list[int]], block_size: int, num_alike: int
) -> None:
    """The last hash stands for fewer than 512 tokens: in two prompts of one length it says that these are equal."""
    rows = [ROW | {"input_length": length, "hash_ids": each} for length, each in zip(lengths, ids, strict=True)]
    content = read(tmp_path, *rows).content
    assert content is not None
    one, other = (names_of(i, content[i], block_size).of_content.tolist() for i in range(2))
    assert one[:num_alike] == other[:num_alike]
    assert not set(one[num_alike:]) & set(other[num_alike:])


def test_milliseconds_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    """A float of 1,700,000,000,000.000001 ms holds no nanoseconds: the digits are read."""
    lines = [f'{{"timestamp": 1700000000000.00000{i}, "input_length": 9, "output_length": 1}}' for i in (3, 1)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert read_trace(tmp_path / "t.jsonl").arrival_ns.tolist() == [0, 2]


def test_what_was_read_is_kept_for_all_who_replay_it(tmp_path: Path) -> None:
    """Reading again gives the same object, so nobody may write into it."""
    trace = read(tmp_path, ROW)
    assert read_trace(tmp_path / "t.jsonl") is trace
    assert trace.content is not None
    for column in (trace.arrival_ns, trace.num_prompt_tokens, trace.content.ids, trace.content.offsets):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_the_same_hash_after_another_prefix_is_another_block(tmp_path: Path) -> None:
    """Some tools hash a block alone, others with all before it: whichever, only equal beginnings are equal."""
    trace = read(tmp_path, ROW, ROW | {"hash_ids": [6, 8, 9]}, ROW | {"hash_ids": [7, 8, 1], "output_length": 9})
    assert chains(trace) == [[0, 1], [2, 3], [0, 1]]


def test_hashes_have_64_bits(tmp_path: Path) -> None:
    """Ids that a float would confuse stay apart; signed and unsigned spellings of the same bits are the same id."""
    big = 2**63 + 2**60
    rows = [[big, 1, 0], [big + 1, 1, 0], [big - 2**64, 1, 0]]
    assert chains(read(tmp_path, *(ROW | {"hash_ids": ids} for ids in rows))) == [[0, 1], [2, 3], [0, 1]]


def test_rows_travel_with_their_content(tmp_path: Path) -> None:
    """Sorting by arrival and leaving failed requests out keeps every prompt with its own blocks."""
    late, failed = ROW | {"timestamp": 9, "hash_ids": [1, 2, 3]}, ROW | {"output_length": 0, "hash_ids": [4, 5, 6]}
    trace = read(tmp_path, late, failed, ROW | {"timestamp": 3, "hash_ids": [1, 8, 9]})
    assert chains(trace) == [[0, 1], [0, 2]]
    assert trace.arrival_ns.tolist() == [0, 6_000_000]


def test_requests_are_repeated_only_when_their_prompts_are(tmp_path: Path) -> None:
    """Same time and lengths, other blocks: not a repetition; a partial last block counts."""
    trace = read(tmp_path, ROW, ROW | {"hash_ids": [7, 8, 5]}, ROW)
    assert "t.jsonl: 1 row repeating an earlier one kept" in trace.notes


def test_without_times_only_a_closed_loop_can_replay_it(tmp_path: Path) -> None:
    """No timestamp: an order without times, which a closed loop needs none of, and an open one cannot invent."""
    rows = [{key: value for key, value in ROW.items() if key != "timestamp"}] * 2
    assert "t.jsonl: no timestamp: its requests have an order, and no times" in read(tmp_path, *rows).notes
    table = build_workload(TraceWorkload(trace="t.jsonl", concurrency=2), 0, tmp_path).table
    assert (len(table), table.content is None) == (2, False)
    with pytest.raises(TraceError, match=r"^t.jsonl: must have times \(it has none\); give workload.concurrency"):
        build_workload(TraceWorkload(trace="t.jsonl"), 0, tmp_path)


def test_without_prompt_lengths_the_blocks_say_the_most(tmp_path: Path) -> None:
    """No input_length, in one row or in all: as many whole blocks as there are ids, and a note."""
    without = {key: value for key, value in ROW.items() if key != "input_length"}
    for rows, expected, said in (([ROW, without], [1100, 1536], "1 row"), ([without] * 2, [1536] * 2, "2 rows")):
        trace = read(tmp_path, *rows)
        assert trace.num_prompt_tokens.tolist() == expected
        assert f"t.jsonl: {said} without input_length: taken as whole blocks of 512 tokens" in trace.notes
        assert not any("without input_length and" in note for note in trace.notes)


def test_without_hashes_nothing_is_known_of_the_prompts(tmp_path: Path) -> None:
    """No hash_ids at all: no content. In some rows: they share with nobody. Each is a note."""
    bare = {"timestamp": 4, "input_length": 1100, "output_length": 5}
    assert read(tmp_path, bare).content is None
    assert read(tmp_path, bare).notes == ("t.jsonl: no hash_ids: nothing is known of what its prompts share",)
    trace = read(tmp_path, ROW, bare, ROW | {"timestamp": 5, "hash_ids": None}, ROW | {"timestamp": 6, "hash_ids": []})
    assert chains(trace) == [[0, 1], [], [], []]
    assert "t.jsonl: 3 rows without hash_ids: nothing is known of their prompts" in trace.notes


def test_rows_that_lack_a_length_are_left_out_and_counted(tmp_path: Path) -> None:
    """Neither a prompt's length nor its blocks, or no output length: no request, and each a note."""
    lacking = [{"timestamp": 1, "output_length": 5}, {"timestamp": 2, "input_length": 700, "hash_ids": [1, 2]}]
    trace = read(tmp_path, ROW, *lacking)
    assert len(trace) == 1
    for note in (
        "1 row without input_length and hash_ids",
        "1 row without output_length",
        "1 row without output tokens (failed requests) left out",
        "1 row without prompt tokens left out",
    ):
        assert f"t.jsonl: {note}" in trace.notes


def test_ids_that_do_not_fit_their_prompt(tmp_path: Path) -> None:
    """More ids than blocks: the row's content is unknown. Fewer: known as far as they go. One id per whole block, the
    partial one not listed, is as usual as one more."""
    rows = [ROW | {"hash_ids": ids} for ids in ([7, 8], [7, 8, 9], [7, 8, 9], [7], [7, 8, 9, 10])]
    trace = read(tmp_path, *rows)
    assert chains(trace) == [[0, 1], [0, 1], [0, 1], [0], []]
    assert "t.jsonl: 1 row with more hash_ids than their prompt holds: nothing is known of their prompts" in trace.notes
    assert "t.jsonl: 1 row with fewer hash_ids than their prompt holds: known as far as they go" in trace.notes


BAILIAN = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 9}
BAILIAN |= {"type": "text", "turn": 1, "hash_ids": [1, 2, 3]}


def test_bailian_is_told_by_its_chats_and_has_seconds_and_16_token_blocks(tmp_path: Path) -> None:
    """The same keys mean other units: 1,000 times the time, a 32nd of the block."""
    trace = read(tmp_path, BAILIAN, BAILIAN | {"timestamp": 62.5, "hash_ids": [1, 2, 4]})
    assert trace.arrival_ns.tolist() == [0, 1_386_000_000]
    assert chains(trace) == [[0, 1], [0, 1]]
    assert trace.content is not None
    assert trace.content.block_tokens == 16
    assert trace.notes[0] == "t.jsonl: columns not used: type, turn"


def test_blocks_of_another_size_are_refused_not_misread(tmp_path: Path) -> None:
    """A trace of 16-token blocks read as Mooncake's, or the other way round, is one sentence."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, BAILIAN, format_name="mooncake")
    assert str(caught.value) == (
        "t.jsonl: row 1: hash_ids: must have an id per 512 tokens of its prompt (got 3 for 40, and most rows are so); "
        "name another format or block size"
    )
    with pytest.raises(TraceError, match=r"must have an id per 16 tokens of its prompt \(got 3 for 1,100"):
        read(tmp_path, ROW, format_name="bailian")


BAD = {
    "[1.5, 2]": "hash_ids: must be a list of whole numbers of at most 64 bits",
    "[1, true]": "hash_ids: must be a list of whole numbers of at most 64 bits",
    '["a"]': "hash_ids: must be a list of whole numbers of at most 64 bits",
    "[[1], 2]": "hash_ids: must be a list of whole numbers of at most 64 bits",
    "[18446744073709551616]": "hash_ids: must be a list of whole numbers of at most 64 bits",
    "[-1, 18446744073709551615]": "hash_ids: must be a list of whole numbers of at most 64 bits",
    "17": "hash_ids: must be a list of whole numbers of at most 64 bits",
    "{}": "hash_ids: must be a list of whole numbers of at most 64 bits",
}


@pytest.mark.parametrize("ids", BAD)
def test_what_is_no_list_of_ids_is_one_sentence(tmp_path: Path, ids: str) -> None:
    """The row and the rule; NaN, fractions, text and nested lists are no hashes."""
    good = json.dumps(ROW)
    bad = f'{{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": {ids}}}'
    (tmp_path / "t.jsonl").write_text(f"{good}\n{bad}\n")
    with pytest.raises(TraceError, match=rf"^t.jsonl: row 2: {BAD[ids]} \(got "):
        read_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize("time", ["soon", None, float("nan"), 1e13, [1]])
def test_times_that_are_none_are_one_sentence(tmp_path: Path, time: object) -> None:
    """A file has times in every row, or in none."""
    with pytest.raises(TraceError) as caught:
        read(tmp_path, ROW, ROW | {"timestamp": time})
    rule = "must be a number of milliseconds, below 9,000,000,000,000 (got "
    assert str(caught.value).startswith(f"t.jsonl: row 2: timestamp: {rule}")


VARIANTS = {
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "final-newlines": lambda text: (text + "\n \n\n").encode(),
    "gz-of-crlf-bom": lambda text: gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
    "other-case": lambda text: text.replace("hash_ids", "Hash IDs").replace("timestamp", "TimeStamp").encode(),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_the_bytes_are_written_does_not_matter(tmp_path: Path, variant: str) -> None:
    """Line ends, byte-order mark, gzip, names in another case: one trace."""
    rows = [ROW, ROW | {"timestamp": 2, "hash_ids": [7, 9, 1]}]
    (tmp_path / "t").write_bytes(VARIANTS[variant]("\n".join(json.dumps(row) for row in rows)))
    trace = read_trace(tmp_path / "t")
    assert chains(trace) == [[0, 1], [0, 2]]
    assert trace.arrival_ns.tolist() == [0, 2_000_000]


def test_csv_and_parquet_hold_the_same_lists(tmp_path: Path) -> None:
    """Someone's data frame of such a trace: lists in cells, as pandas writes them."""
    frame = pd.DataFrame([ROW, ROW | {"timestamp": 2, "hash_ids": [7, 9, 2**63]}])
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame["hash_ids"] = [np.array(ids, np.uint64) for ids in frame["hash_ids"]]
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert chains(read_trace(tmp_path / name)) == [[0, 1], [0, 2]]
