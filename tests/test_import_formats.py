"""Operator tables and llama-batched-bench to profiles, on the real files; and the verbs of ``simserve profile``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from calibrate.importers.formats import import_profile
from calibrate.importers.llama_bench import read_llama_bench
from calibrate.importers.llmservingsim import read_llmservingsim
from calibrate.importers.reading import ImportOptions
from calibrate.importers.vidur import read_vidur
from simserve.cli import app
from simserve.errors import InputError, ProfileError
from simserve.request import Batch, Chunk
from simserve.step_time.profile import ProfileStepTime
from tests.shared_data import needs

DATA = Path(__file__).parents[1] / "../shared/data/profiles"
RTX = DATA / "llmservingsim/RTX4090/Llama-3.1-8B/bf16/tp1"
VIDUR = DATA / "vidur/a100/llama-2-70b"
BENCH = Path(__file__).parent / "data/llama_batched_bench.md"
LLAMA_7B = ImportOptions("some", "llama-2-7b", "a GPU", dtype="fp16", date="2026-01-01")
needs_data = needs(DATA)


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["profile", *arguments], terminal_width=200)


@needs_data
def test_llmservingsim_names_its_own_model_card_and_version():
    """Everything that a profile must say is in meta.yaml and the folder's name."""
    profile, _ = import_profile("llmservingsim", [RTX], ImportOptions("rtx"))
    made = profile.provenance
    assert (made.model, made.dtype, made.tensor_parallel) == ("llama-3.1-8b", "bf16", 1)
    assert (made.device_name, made.date) == ("NVIDIA GeForce RTX 4090", "2026-08-17")
    assert "vLLM 0.19.0" in (made.source or "")
    assert profile.validity.max_batch_size == 256
    assert profile.held_out.decode.mean < 0.02


@needs_data
def test_measured_mixed_steps_correct_their_composition():
    """Operator tables hold chunks beside decodes, whose attention costs more than the two apart: on steps held out, the
    correction brings the error from 17 % to under 10 %, and both stand in the notes."""
    profile, _ = import_profile("llmservingsim", [RTX], ImportOptions("rtx"))
    bare = ProfileStepTime(profile.model_copy(update={"mixed": None}))
    held = [s for s in profile.samples if s.phase == "mixed" and s.held_out]
    errors = [
        abs(
            bare.ramp(
                Batch(
                    (Chunk(s.num_new_tokens, s.num_context_tokens),),
                    s.num_decodes,
                    s.num_decodes * s.num_decode_context_tokens,
                ),
                0,
            ).first_s
            / s.wall_s
            - 1
        )
        for s in held
    ]
    assert profile.held_out.mixed.num_points == len(held) > 1000
    assert profile.held_out.mixed.mean < 0.1
    assert np.mean(errors) > 0.15
    assert f"{np.mean(errors):.1%} off on average" in " ".join(profile.provenance.notes)


@needs_data
def test_a_composed_step_is_the_sum_of_its_operators():
    """One decode over 16 tokens, added up from the raw rows: 32 layers and what a step takes once."""
    dense = pd.read_csv(RTX / "dense.csv").query("tokens == 1").set_index("layer").time_us
    rows = pd.read_csv(RTX / "per_sequence.csv").query("sequences == 1").set_index("layer").time_us
    attention = pd.read_csv(RTX / "attention.csv").query("prefill_chunk == 0 and n_decode == 1 and kv_decode == 16")
    once = dense[["embedding", "final_layernorm"]].sum() + rows.sum()
    layer = dense.drop(["embedding", "final_layernorm"]).sum() + dense.layernorm + attention.time_us.sum()
    point = next(p for p in read_llmservingsim(RTX).points if (p.phase, p.num_context_tokens) == ("decode", 16))
    assert point.batch_size == 1
    assert point.seconds == pytest.approx((32 * layer + once) / 1e6)


@needs_data
def test_vidur_records_the_degree_of_its_tables():
    """14,658 rows of two-way attention on an A100, of a model that the user names."""
    reading = read_vidur(VIDUR / "mlp.csv.gz", VIDUR / "attention_tp2.csv.gz", "llama-2-70b")
    assert reading.tensor_parallel == 2
    assert len(reading.points) == 14_318
    with pytest.raises(ProfileError, match=r"tensor_parallel: must be 2, as the files say \(got 4\)"):
        options = ImportOptions("x", "llama-2-70b", "A100", dtype="fp16", tensor_parallel=4)
        import_profile("vidur", [VIDUR / "mlp.csv.gz", VIDUR / "attention_tp2.csv.gz"], options)


@needs_data
def test_tables_that_lack_an_operator_are_refused(tmp_path):
    """Composed without it, every step would be too short."""
    folder = tmp_path / "tp1"
    shutil.copytree(RTX, folder)
    dense = pd.read_csv(folder / "dense.csv").query("layer != 'o_proj'")
    dense.to_csv(folder / "dense.csv", index=False)
    with pytest.raises(ProfileError, match=r"dense\.csv: must have the operators o_proj"):
        read_llmservingsim(folder, "llama-3.1-8b")


def test_llama_bench_table_of_its_own_readme():
    """A decode step is T_TG / TG at the context halfway; the profile returns the measured points exactly."""
    profile, _ = import_profile("llama-batched-bench", [BENCH], LLAMA_7B)
    step_time = ProfileStepTime(profile)
    for batch, context, seconds in ((1, 192, 3.079 / 128), (32, 192, 8.801 / 128), (16, 256, 18.073 / 256)):
        decode = Batch(num_decodes=batch, decode_context_tokens=batch * context)
        assert step_time.ramp(decode, 0).first_s == pytest.approx(seconds)
    assert "halfway" in " ".join(profile.provenance.notes)


def test_llama_bench_jsonl_is_the_same_as_its_table(tmp_path):
    """Whatever else a line of JSON holds, and whatever is logged around it."""
    rows = [line.split("|")[1:-1] for line in BENCH.read_text().splitlines() if line.startswith("|   128")]
    names = ("pp", "tg", "pl", "n_kv", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")
    lines = [
        json.dumps({"n_ubatch": 512, "is_pp_shared": 0, **dict(zip(names, map(float, row), strict=True))})
        for row in rows
    ]
    path = tmp_path / "bench.jsonl"
    path.write_text("main: loading\n" + "\n".join(lines) + "\nbye\n")
    assert read_llama_bench(path).points == read_llama_bench(BENCH).points
    assert "n_ubatch 512" in " ".join(read_llama_bench(path).notes)


def test_a_shared_prompt_is_refused(tmp_path):
    """With -pps a decode reads the prompt's cache once for all sequences: not the step that a server runs."""
    path = tmp_path / "bench.md"
    head = "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"
    path.write_text(
        f"{head}\n|---|---|---|---|---|---|---|---|---|---|\n| 128 | 128 | 4 | 640 | 0.1 | 1 | 3.0 | 1 | 3 | 1 |\n"
    )
    with pytest.raises(ProfileError, match="line 3: the prompt is shared"):
        read_llama_bench(path)


cells = st.one_of(st.integers(-1, 5000).map(str), st.floats().map(str), st.sampled_from(["", "x", "---", "|"]))
tables = st.lists(st.lists(cells, min_size=5, max_size=7).map(" | ".join), max_size=12).map(
    lambda rows: "\n".join(["| PP | TG | B | N_KV | T_PP s | T_TG s |", *(f"| {row} |" for row in rows)]).encode()
)


@given(st.one_of(st.binary(max_size=100), tables))
@settings(max_examples=60, deadline=None)
def test_any_bytes_of_a_bench_make_a_profile_or_one_sentence(tmp_path_factory, content):
    """Never a traceback, never two lines."""
    path = tmp_path_factory.mktemp("fuzz") / "bench.md"
    path.write_bytes(content)
    try:
        import_profile("llama-batched-bench", [path], LLAMA_7B)
    except InputError as error:
        assert "\n" not in str(error)


@given(st.sampled_from(["dense.csv", "attention.csv", "per_sequence.csv"]), st.binary(max_size=80))
@settings(max_examples=40, deadline=None)
def test_any_bytes_of_operator_tables_make_one_sentence(tmp_path_factory, name, content):
    """Three small good tables, one of them overwritten."""
    folder = tmp_path_factory.mktemp("fuzz") / "tp1"
    folder.mkdir()
    for file in ("dense.csv", "per_sequence.csv", "attention.csv"):
        (folder / file).write_text("layer,tokens,time_us\nx,1,1\n")
    (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_profile("llmservingsim", [folder], LLAMA_7B)
    assert "\n" not in str(caught.value)


def test_list_shows_the_shipped_and_those_of_a_folder(tmp_path):
    """One line each, with the origin and the error; a file that is no profile is not hidden."""
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "mine.chapters.json").write_text("{}")  # chapters' tables lie beside profiles and are none
    done = invoke("list", str(tmp_path))
    assert "mine.chapters" not in done.stdout
    assert done.exit_code == 0, done.output
    assert "imported" in done.stdout and "3.1% / 3.1%" in done.stdout
    assert "broken.json" in done.stdout.replace("\n", "")


def test_import_writes_a_profile_that_can_be_shown_compared_and_checked(tmp_path):
    """The verbs in a row: what was imported is in what is shown, equals itself, and has findings or none."""
    out = tmp_path / "seven.json"
    done = invoke("import", "llama-batched-bench", str(BENCH), "--model", "llama-2-7b", "--device-name", "a GPU",
                  "--dtype", "fp16", "--out", str(out))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "llama-2-7b" in invoke("show", str(out)).stdout
    compared = invoke("compare", str(out), str(out))
    assert compared.exit_code == 0, compared.output
    assert "1.000 on average" in compared.stdout
    assert invoke("check", str(out)).exit_code == 0


def test_check_exits_with_one_if_anything_was_found():
    """So that a script can stop before it trusts the figures."""
    done = invoke("check", "h200-llama-3.1-8b-fp8-vllm")
    assert done.exit_code == 1
    assert done.stdout.startswith("decode of 19 at 8,291 tokens")
    assert "1 finding in h200" in done.stderr


def test_wrong_input_ends_with_two_and_one_sentence(tmp_path):
    """As every command."""
    done = invoke("import", "step-csv", str(tmp_path / "absent.csv"), "--model", "25m")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not np.any(["Traceback" in done.output])


def test_show_draws_the_surfaces_on_a_page(tmp_path):
    """One file beside the tables; a place that cannot be written is refused in one sentence."""
    page = tmp_path / "h200.html"
    done = invoke("show", "h200-llama-3.1-8b-fp8-vllm", "--html", str(page))
    assert done.exit_code == 0, done.output
    assert "h200-llama-3.1-8b-fp8-vllm" in page.read_text()
    assert invoke("show", "25m-cpu-fp32", "--html", str(tmp_path / "absent" / "x.html")).exit_code == 2
