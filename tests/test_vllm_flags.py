"""Flags of vLLM in all their spellings: what is read, and what is refused as vLLM's own parser refuses it."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.vllm_flags.command import parse_command
from simserve.vllm_flags.flags import KNOWN, parse_flags
from simserve.vllm_flags.known import LISTS, MARKS, ONLY_0_19, ONLY_0_32, OTHER_NAMES, SHORT_FORMS, SWITCHES, VALUES
from simserve.vllm_flags.older import OLDER
from simserve.vllm_flags.remarks import IMMATERIAL, ON_BY_DEFAULT, TRANSLATED
from tests.vllm_flag_builders import MODEL, SERVE, same_command, written

REFERENCE = (
    f"{SERVE} --max-num-seqs 64 --max-num-batched-tokens 4000 --max-model-len 8192 --block-size 32 "
    "--gpu-memory-utilization 0.8 --tensor-parallel-size 2 --quantization fp8 --kv-cache-dtype fp8 "
    "--scheduling-policy priority --no-enable-prefix-caching --enable-chunked-prefill --pipeline-parallel-size 2 "
    "--port 8000 --served-model-name mine"
)


def _given(*words, version="0.32"):
    return dict(parse_flags(words, version).given)


@settings(max_examples=60, deadline=None)
@given(same_command())
def test_any_order_and_spelling_means_the_same_scenario(command):
    """The same flags in another order, with = or a space, dashes or underscores, short or long, from a shell, a module
    or a container: the same file, to the byte, but for how a number was written."""
    assert written(command).text.replace("4k", "4000") == written(REFERENCE).text


def test_of_two_the_last_one_holds():
    """As in argparse."""
    assert _given("--max-num-seqs", "8", "--max-num-seqs=16") == {"max-num-seqs": "16"}
    assert _given("--enable-prefix-caching", "--no-enable-prefix-caching") == {"enable-prefix-caching": False}


def test_unmistakable_beginnings_will_do():
    """argparse takes an abbreviation that only one flag of that version begins with."""
    assert _given("--max-num-se", "8") == {"max-num-seqs": "8"}
    assert _given("--max-num-s", "8", version="0.19") == {"max-num-seqs": "8"}
    with pytest.raises(InputError, match=r"--max-num-s: may mean --max-num-scheduled-tokens, --max-num-seqs; write it"):
        _given("--max-num-s", "8", version="0.32")


def test_values_of_several_words_end_at_the_next_flag():
    """Lists take what follows; a model after them would be eaten, as vLLM's parser eats it."""
    given = _given("--served-model-name", "a", "b", "--cudagraph-capture-sizes", "1", "2", "-tp", "2")
    assert given["served-model-name"] == ("a", "b")
    assert given["cudagraph-capture-sizes"] == ("1", "2")
    assert given["tensor-parallel-size"] == "2"


def test_short_forms_of_one_letter_take_their_value_at_once():
    """-O3 and -qawq are vLLM's; -tp2 is not, for it has two letters."""
    assert _given("-O3", "-qawq") == {"optimization-level": "3", "quantization": "awq"}
    with pytest.raises(InputError, match="-tp2: is not a flag of vllm serve; short forms: "):
        _given("-tp2")


def test_a_negative_number_is_a_value():
    """--max-model-len -1 asks vLLM to fit the context to the cache."""
    assert _given("--max-model-len", "-1") == {"max-model-len": "-1"}


def test_keys_inside_a_json_flag():
    """--compilation-config.mode 3 sets a part of that flag, and leaves the others."""
    given = _given("--compilation-config.use_inductor", "true", "-cc.mode=3")
    assert given == {"compilation-config": "use_inductor=true, mode=3"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--max-num-sequences", "8"],
            "--max-num-sequences: is not a flag of vllm serve 0.32; did you mean 'max-num-seqs'?",
        ),
        (["--max-num-seqs"], "--max-num-seqs: needs a value"),
        (["--max-num-seqs", "--port", "1"], "--max-num-seqs: needs a value"),
        (["--enable-prefix-caching=true"], "--enable-prefix-caching: takes no value"),
        (["a", "b"], "vllm serve: takes one model (got 'a' and 'b'); give every flag its dashes"),
        (["a", "--model", "b"], "vllm serve: takes one model (got 'a' and 'b')"),
        (["--config"], "--config: needs a value"),
        (["--=3"], "--: is not a flag"),
    ],
)
def test_what_vllm_would_refuse_is_refused_in_a_sentence(words, sentence):
    """Misspelt flags, missing values, values for switches, two models."""
    with pytest.raises(InputError) as refusal:
        parse_flags(words, "0.32")
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


def test_a_config_file_stands_for_its_flags_and_what_is_typed_wins(tmp_path):
    """--config FILE, as vLLM reads it: names with dashes or underscores, true for a switch, typed flags in front."""
    path = tmp_path / "server.yaml"
    path.write_text("model: other\nmax_num_seqs: 8\nport: 80\nenforce-eager: true\nenable-prefix-caching: false\n")
    flags = parse_flags([MODEL, "--max-num-seqs", "16", "--config", str(path)], "0.32")
    assert flags.model == MODEL
    assert flags.given == {
        "max-num-seqs": "16",
        "port": "80",
        "enforce-eager": True,
        "enable-prefix-caching": False,
    }
    assert parse_flags([f"--config={path}"], "0.32").model == "other"


def test_a_config_file_that_is_no_mapping_is_refused(tmp_path):
    """One sentence, with the file's name."""
    path = tmp_path / "server.yaml"
    path.write_text("- a\n")
    with pytest.raises(InputError, match=r"server\.yaml: must be a mapping of flags to values"):
        parse_flags(["--config", str(path)], "0.32")


def test_flags_of_the_other_version_are_kept_apart():
    """--watermark came after 0.19, --max-num-partial-prefills went before 0.32, --swap-space long before."""
    assert parse_flags(["m", "--watermark", "0.1"], "0.19").foreign == {"watermark": "0.1"}
    assert parse_flags(["m", "--max-num-partial-prefills", "2"], "0.32").foreign == {"max-num-partial-prefills": "2"}
    assert parse_flags(["m", "--swap-space", "4"], "0.32").foreign == {"swap-space": "4"}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("vllm serve m --port 1", ("m", "--port", "1")),
        ("/opt/venv/bin/vllm serve 'm' \\\n --port 1", ("m", "--port", "1")),
        ("env A=1 uv run vllm serve m >log 2>&1", ("m",)),
        ("python -u -m vllm.entrypoints.openai.api_server --model m", ("--model", "m")),
        ("python -m vllm.entrypoints.cli.main serve m", ("m",)),
        ("source x/bin/activate; vllm serve m; echo done", ("m",)),
        (
            "#!/bin/sh\nset -e  # vllm serve no\nM=m\nexec vllm serve $M \\ \n  --port ${P:-1}\necho",
            ("m", "--port", "${P:-1}"),
        ),
        ("vllm serve m\n  --port 1\n\n  --host '#\n'\n", ("m", "--port", "1", "--host", "#\n")),
        ('vllm serve m --a "b\\"c" # d', ("m", "--a", 'b"c')),
        ("docker run --rm vllm/vllm-openai --model m", ("--model", "m")),
        ("sudo podman run --name vllm --gpus=all registry.local:5000/mirror/vllm-openai:v0.19.0 m", ("m",)),
        ("docker run --entrypoint vllm vllm/vllm-openai:latest serve m", ("m",)),
        ("docker run vllm/vllm-openai:latest vllm serve m", ("m",)),
    ],
)
def test_the_server_is_found_in_a_command(command, arguments):
    """Whatever starts it."""
    assert parse_command(command).arguments == arguments


def test_variables_are_found_wherever_they_are_set():
    """Before the program, exported earlier, and with -e for a container."""
    assert parse_command("A=1 vllm serve m").environment == {"A": "1"}
    assert parse_command("export A=1 && B=2 vllm serve m").environment == {"A": "1", "B": "2"}
    assert parse_command("docker run -e A=1 --env B=2 --env=C=3 vllm/vllm-openai m").environment == {
        "A": "1",
        "B": "2",
        "C": "3",
    }


def test_the_image_tells_the_version():
    """Its tag, if it has one."""
    assert parse_command("docker run vllm/vllm-openai:v0.19.0 m").image_tag == "v0.19.0"
    assert parse_command("docker run vllm/vllm-openai m").image_tag is None


@pytest.mark.parametrize("command", ["", "vllm bench serve", "python -m sglang.launch_server", "docker run ubuntu ls"])
def test_a_command_that_starts_no_server_is_refused(command):
    """One sentence that names the three forms."""
    with pytest.raises(InputError, match="--from-vllm: must start a vLLM server: 'vllm serve MODEL …'"):
        parse_command(command)


def test_open_quotes_are_refused():
    """A shell would wait for more."""
    with pytest.raises(InputError, match=r"--from-vllm: is not a shell command \(no closing quotation\)"):
        parse_command("vllm serve 'm")


def test_the_tables_of_flags_hold_together():
    """Each flag has one arity, and every flag that a table speaks of exists."""
    assert len(KNOWN) == len(SWITCHES) + len(MARKS) + len(LISTS) + len(VALUES)
    for table in (
        TRANSLATED,
        IMMATERIAL,
        ON_BY_DEFAULT,
        ONLY_0_19,
        ONLY_0_32,
        *map(set, (SHORT_FORMS.values(), OTHER_NAMES.values())),
    ):
        assert set(table) <= KNOWN
    assert not TRANSLATED & IMMATERIAL
    assert not KNOWN & set(OLDER)
    assert not ONLY_0_19 & ONLY_0_32
    assert (len(KNOWN - ONLY_0_32), len(KNOWN - ONLY_0_19)) == (230, 316)  # as their own parsers count


WORDS = st.sampled_from(
    [
        "vllm",
        "serve",
        "docker",
        "run",
        "vllm/vllm-openai:v9",
        MODEL,
        "--model",
        "-tp",
        "2",
        "--config",
        "A=1",
        "-e",
        ";",
        "&&",
    ]
) | st.text(max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=8), st.booleans())
def test_any_words_are_translated_or_refused_in_a_sentence(words, quoted):
    """Whatever is typed: a scenario, or one printable sentence; never another error."""
    text = " ".join(["vllm serve", *(shlex.quote(word) if quoted else word for word in words)])
    try:
        assert "engine:" in written(text).text
    except InputError as error:
        assert str(error).isprintable()
