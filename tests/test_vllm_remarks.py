"""What is said of flags that no key stands for, and how values are written into YAML and comments."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simserve.vllm_flags.flags import KNOWN, Flags, parse_flags
from simserve.vllm_flags.known import MARKS, SWITCHES
from simserve.vllm_flags.older import OLDER, WHY
from simserve.vllm_flags.remarks import IMMATERIAL, TRANSLATED, immaterial, translated, untranslated
from simserve.vllm_flags.starter import starter_scenario
from tests.vllm_flag_builders import SERVE, written

NAMES = sorted(KNOWN - {"model", "config"})


def _value(name):
    return True if name in SWITCHES | MARKS else "2"


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_goes_one_way(name):
    """Translated, without effect on timing, named as untranslated, or asking for what is usual anyway: never two, and a
    value of 2 is unusual for all that count something."""
    version = "0.32" if name in KNOWN - {"override-attention-dtype"} else "0.19"
    flags = Flags(version, "m", {name: _value(name)})
    ways = [bool(translated(flags)), bool(immaterial(flags)), bool(untranslated(flags))]
    if name == "enable-chunked-prefill":
        assert ways == [True, False, False]  # on, as always
    elif sum(ways) == 0:
        assert _value(name) is True, f"--{name} 2 goes unmentioned"
    else:
        assert sum(ways) == 1


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=12), st.randoms())
def test_the_order_of_flags_changes_nothing_that_is_said(names, random):
    """All lists are sorted."""
    shuffled = list(names)
    random.shuffle(shuffled)
    first, second = (Flags("0.32", "m", {name: _value(name) for name in order}) for order in (names, shuffled))
    assert translated(first) == translated(second)
    assert immaterial(first) == immaterial(second)
    assert list(untranslated(first).items()) == list(untranslated(second).items())


@given(st.lists(st.sampled_from(sorted(IMMATERIAL)), unique=True, min_size=1), st.text(min_size=8, max_size=20))
def test_values_of_immaterial_flags_are_never_repeated(names, secret):
    """Some are keys."""
    flags = Flags("0.32", "m", dict.fromkeys(names, secret))
    assert immaterial(flags) == [f"--{name}" for name in sorted(names)]
    assert untranslated(flags) == {}
    assert translated(flags) == []


def test_older_flags_have_their_own_reasons():
    """Where there is something to say; else that they are gone."""
    assert set(WHY) <= set(OLDER)
    flags = parse_flags(["m", "--num-scheduler-steps", "8", "--guided-decoding-backend", "xgrammar"], "0.32")
    assert untranslated(flags) == {
        "--guided-decoding-backend xgrammar": "vLLM 0.32 has no such flag any more",
        "--num-scheduler-steps 8": "multi-step scheduling went with the v0 engine",
    }


def test_a_flag_of_the_other_version_says_so():
    """The watermark came after 0.19."""
    assert untranslated(parse_flags(["m", "--watermark", "0.1"], "0.19")) == {
        "--watermark 0.1": "vLLM 0.19 has no such flag"
    }


def test_long_or_odd_values_are_cut_and_quoted():
    """A JSON of a page stays a remark, and line ends cannot leave the comment."""
    found = untranslated(parse_flags(["m", "--speculative-config", "x" * 500], "0.32"))
    assert max(len(flag) for flag in found) < 100
    text = written(f"{SERVE} --hf-overrides 'a\nengine: {{}}'").text
    assert "\nengine: {}" not in text
    assert yaml.safe_load(text)["engine"]["policy"] == "chunked"


def test_the_tables_name_no_flag_twice():
    """A flag is translated or immaterial."""
    assert not TRANSLATED & IMMATERIAL
    assert not set(OLDER) & (TRANSLATED | IMMATERIAL)


@pytest.mark.parametrize("hardware", [None, "a100-sxm", "rtx-4090"])
def test_the_starter_is_yaml_with_the_hardware_asked_for(hardware):
    """An H100 unless another is named."""
    data = yaml.safe_load(starter_scenario(hardware, None))
    assert data["step_time"] == {"roofline": hardware or "h100-sxm"}


def test_the_starter_of_a_profile_takes_its_model():
    """The model that was measured."""
    data = yaml.safe_load(starter_scenario(None, "h200-llama-3.1-8b-fp8-vllm"))
    assert (data["model"], data["step_time"]) == ("llama-3.1-8b", {"profile": "h200-llama-3.1-8b-fp8-vllm"})
