"""``simserve memory`` as a user types it: the chapters' figures by one command each, tables, JSON, and one sentence."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from simserve import cli
from simserve.errors import InputError
from simserve.memory.command import MemoryOptions, show_memory
from tests.gguf_builders import LLAMA, gguf

RUNNER = CliRunner()
THIRTEEN = "--params 13B --layers 40 --kv-heads 40 --head-dim 128"
SEVEN = "--params 7B --layers 32 --kv-heads 8 --head-dim 128"


def _run(line, exit_code=0):
    done = RUNNER.invoke(cli.app, ["memory", *line.split()])
    assert done.exit_code == exit_code, done.output
    return done


def _json(line):
    return json.loads(_run(f"{line} --json").stdout)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (f"{THIRTEEN} --weights-bits 4.125 --memory 8GiB --overhead 1.5GiB", 337),
        (f"{THIRTEEN} --weights int4 --memory 8GiB", 337),
        (f"{SEVEN} --weights int8 --memory 16GiB", 65_378),
        (f"{THIRTEEN} --weights int8 --memory 16GiB", 3_136),
    ],
)
def test_the_chapters_resident_tokens(line, tokens):
    """DESIGN section 7, memory left for tokens; in JSON, and printed with its thousands."""
    assert _json(line)["resident_tokens"] == tokens
    assert f"{tokens:,}" in _run(line).stdout


@pytest.mark.parametrize(
    ("line", "bytes_per_token"), [("qwen2.5-0.5b", 12_288), ("qwen2.5-0.5b --kv-heads 14", 86_016)]
)
def test_the_chapters_bytes_per_token(line, bytes_per_token):
    """DESIGN section 7; without options, the model's page shows both."""
    assert _json(line)["kv_bytes_per_token"] == bytes_per_token
    assert f"{bytes_per_token:,} B" in _run("qwen2.5-0.5b").stdout


def test_the_chapters_65_536_tokens_take_768_mib_however_they_are_shared():
    """DESIGN section 7: 32 × 2,048, 64 × 1,024 and 128 × 512."""
    line = "qwen2.5-0.5b --users 32,64,128 --context 2048,1024,512"
    demands = {(d["users"], d["context"]): d for d in _json(line)["demands"]}
    for shares in ((32, 2_048), (64, 1_024), (128, 512)):
        assert demands[shares]["tokens"] == 65_536
        assert demands[shares]["cache_bytes"] == 768 * 2**20
    assert _run(line).stdout.count("768 MiB") == 3


def test_a_table_is_models_by_weights_by_memories():
    """A list in this order; each row as the command alone would answer it."""
    rows = _json("llama-3.1-8b qwen2.5-7b --weights int8,int4 --memory rtx-4090,24GB")
    assert [(r["model"], r["weights"], r["memory"]) for r in rows] == [
        (model, weights, memory)
        for model in ("llama-3.1-8b", "qwen2.5-7b")
        for weights in ("int8", "int4")
        for memory in ("rtx-4090", "24GB")
    ]
    alone = _json("qwen2.5-7b --weights int4 --memory 24GB")
    assert rows[-1]["resident_tokens"] == alone["resident_tokens"] > 0


def test_gb_and_gib_are_two_things():
    """16 GB hold fewer tokens than 16 GiB, by exactly their difference; each answer keeps to the unit it was given."""
    binary, decimal = (_json(f"qwen2.5-0.5b --memory 16{unit}") for unit in ("GiB", "GB"))
    assert binary["cache_bytes"] - decimal["cache_bytes"] == 16 * 2**30 - 16 * 10**9
    printed = _run("qwen2.5-0.5b --memory 16GB").stdout
    assert "16.0 GB" in printed
    assert "iB" not in printed
    assert " GB" not in _run("qwen2.5-0.5b --memory 16GiB").stdout


def test_a_row_that_does_not_fit_stands_in_the_table():
    """With what is missing; alone it is wrong input."""
    line = "llama-2-13b --weights fp16,int4 --memory 16GiB"
    rows = _json(line)
    assert [row["fits"] for row in rows] == [False, True]
    assert rows[0]["resident_tokens"] == 0
    assert "−9.745 GiB" in _run(line).stdout
    refused = _run("llama-2-13b --memory 16GiB", exit_code=2)
    assert refused.stderr.startswith("error: --memory: 16GiB holds 16.0 GiB, but the weights of llama-2-13b in fp16")


def test_a_gguf_file_is_counted_as_stored_unless_told_otherwise(tmp_path):
    """Its tensors' bytes; or a scheme's bits for all its parameters; or both, as a table."""
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(LLAMA))
    stored = _json(f"{path} --memory 2GiB")
    assert stored["weights"] == "stored"
    assert stored["weight_bytes"] == 256_000 * 34 // 32 + 65_536 * 144 // 256
    assert stored["kv_bytes_per_token"] == 2 * 4 * 2 * 32 * 2
    both = _json(f"{path} --weights stored,int8 --memory 2GiB")
    assert [row["weight_bytes"] for row in both] == [stored["weight_bytes"], 256_000 + 65_536]
    assert "small: 321,536 parameters" in _run(f"{path} --memory 2GiB").stdout


def test_a_config_file_is_as_good_as_a_name(tmp_path):
    """A folder with a config.json, as downloaded."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert _json(f"--model {tmp_path}")["kv_bytes_per_token"] == 2 * 4 * 64 * 2
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if "heads" not in k}))
    refused = _run(str(tmp_path), exit_code=2)
    assert "num_attention_heads: is missing" in refused.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "model: must be given: a built-in name, a config.json, a GGUF file, or --params"),
        ("qwen2.5-0.6b", "did you mean 'qwen2.5-0.5b'?"),
        (f"tiny {THIRTEEN}", "--params, --layers, --head-dim: must be left out where a model is named (got 'tiny')"),
        ("--params 13B --kv-heads 40", "--layers, --head-dim: must be given too"),
        ("tiny --kv-heads 3", "--kv-heads: must divide the 2 attention heads of tiny (got 3)"),
        ("tiny --weights int5", "unknown scheme 'int5'; did you mean 'int8'?"),
        ("tiny --weights stored", "--weights: tiny has no stored weights"),
        ("tiny --weights-bits many", "--weights-bits: must be a number of bits per weight such as 4.125 (got 'many')"),
        ("tiny --weights-bits inf", "bits per weight must be from 0.1 to 64 (got inf)"),
        ("tiny --kv-dtype int4", "--kv-dtype: must be one of fp32, fp16, bf16, fp8, int8 (got 'int4')"),
        ("tiny --memory 8", "--memory: must be a size with its unit"),
        ("tiny --memory h100", "did you mean 'h100-sxm'?"),
        ("tiny --memory 8GiB --overhead 1.5", "--overhead: must be a size with its unit"),
        ("tiny --memory 1.5GiB", "are missing for a single token"),
        ("tiny --tensor-parallel 0", "--tensor-parallel: must be from 1 to 1024 (got 0)"),
        ("tiny --context 4k", "--context: must be whole numbers from 1 to 2147483647 (got '4k')"),
        ("tiny --users 0", "--users: must be whole numbers from 1 to 2147483647 (got '0')"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(line, said):
    """On standard error, and nothing on standard output."""
    done = _run(line, exit_code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_page_says_what_users_and_contexts_there_are():
    """Defaults in words; a context that the model cannot read is said to be one."""
    printed = _run("tiny --memory 2GiB").stdout
    assert "users with 2,048 tokens each" in printed
    assert "1 user has each" in printed
    assert "(the model reads 32,768)" in printed
    assert "users" not in _run("tiny --memory 2GiB --users 4").stdout.replace("4 users have each", "")


def test_bits_below_eight_say_what_is_left_out():
    """Real checkpoints keep embeddings wide: the textbook's figures do not."""
    note = "checkpoints usually keep embeddings in 16 bits"
    assert note in _run("tiny --weights int4 --memory 2GiB").stdout
    assert note not in _run("tiny --weights int8 --memory 2GiB").stdout


def test_help_has_examples_that_run(tmp_path, monkeypatch):
    """Each example of the epilog, but for the file that it names."""
    from simserve.memory_command import EPILOG

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(gguf(LLAMA))
    lines = [line.partition("   (")[0] for line in EPILOG.split("\n\n") if line.startswith("simserve memory")]
    assert len(lines) == 5
    for line in lines:
        _run(line.removeprefix("simserve memory "))


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_terminal_is_too_narrow_for_a_whole_figure(width):
    """Columns are left out and lines go beyond the edge before a digit is lost: a cut number reads as another."""
    out = io.StringIO()
    models, memory = ("llama-3.1-8b", "llama-2-13b"), ("h100-sxm", "16GB")
    options = MemoryOptions(models=models, memory=memory, weights=("fp16", "4.125"), context=("1024",))
    show_memory(options, Console(file=out, force_terminal=True, width=width, color_system=None))
    for row in _json("llama-3.1-8b llama-2-13b --memory h100-sxm,16GB --weights fp16,4.125 --context 1024"):
        if row["fits"]:
            assert f" {row['resident_tokens']:,} " in out.getvalue()
            assert f" {row['users_at_context']['1024']:,} " in out.getvalue()
    assert "…" not in out.getvalue()
    assert ("131,072 B" in out.getvalue()) == (width >= 100)


WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["8GiB", "0", "int4", "nf4,int8", "4.125", "stored", "1.5GB", "h100-sxm", "1,2", "99999999999", "-1"]
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_words_are_an_answer_or_one_sentence(data):
    """Whatever stands behind an option: an answer, or an InputError of one line; never another error."""
    fields = ("memory", "weights", "weights_bits", "context", "users")
    lists = {name: tuple(data.draw(st.lists(WORDS, max_size=2), label=name)) for name in fields}
    texts = {
        "overhead": data.draw(st.one_of(st.just("1GiB"), WORDS)),
        "kv_dtype": data.draw(st.sampled_from(["fp16", "x"])),
    }
    own = {"params": data.draw(st.one_of(st.none(), st.just("7B"), WORDS))}
    sizes = {
        name: data.draw(st.one_of(st.none(), st.integers(-1, 40)))
        for name in ("layers", "kv_heads", "head_dim", "heads")
    }
    models = data.draw(st.sampled_from([(), ("tiny",), ("25m", "tiny")]))
    options = MemoryOptions(
        models=models, tensor_parallel=data.draw(st.integers(-1, 9)), **lists, **texts, **own, **sizes
    )
    out = io.StringIO()
    try:
        show_memory(options, Console(file=out))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert "KV" in out.getvalue()
