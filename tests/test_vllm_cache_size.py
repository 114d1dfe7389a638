"""The size of a server's cache: the sum that vLLM does, in pieces that can be checked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import InputError
from simserve.model_spec import load_model_spec
from simserve.step_time.hardware import GIB, HARDWARE, VISIBLE_BYTES, visible_bytes
from simserve.vllm_flags.defaults import Device, batch_defaults, counts_graph_memory, gpu_memory_utilization
from simserve.vllm_flags.devices import find_hardware, hardware_called
from simserve.vllm_flags.flags import Flags
from simserve.vllm_flags.memory import SAMPLER_BYTES, CacheShape, Room, step_bytes
from simserve.vllm_flags.values import AUTO, length, share, whole
from tests.vllm_flag_builders import SERVE, engine

LLAMA = load_model_spec("llama-3.1-8b")
TOKEN_BYTES = 131_072  # Llama-3.1-8B: 2 × 32 layers × 8 heads × 128 × 2 bytes


def _flags(**given):
    return Flags("0.32", "m", {name.replace("_", "-"): value for name, value in given.items()})


@pytest.mark.parametrize(
    ("parallel", "block_bytes"),
    [(1, 16 * TOKEN_BYTES), (2, 8 * TOKEN_BYTES), (8, 2 * TOKEN_BYTES), (16, 2 * TOKEN_BYTES)],
)
def test_a_block_takes_its_heads_share_on_each_device(parallel, block_bytes):
    """Eight KV heads are split over up to eight devices; sixteen hold each head twice."""
    assert CacheShape(LLAMA, "bf16", 16, parallel).block_bytes == block_bytes
    assert CacheShape(LLAMA, "fp8", 16, parallel).block_bytes == block_bytes // 2
    assert CacheShape(LLAMA, "bf16", 32, parallel).block_bytes == block_bytes * 2


def test_what_is_left_is_what_nobody_takes():
    """The sum, and the same in words."""
    room = Room("h100-sxm", 0.9, granted=72 * GIB, weights=15 * GIB, step=2 * GIB, other=GIB)
    assert room.left == 54 * GIB
    assert room.sentence() == (
        "of h100-sxm's memory 0.9 is granted, 72.00 GiB; 15.00 GiB of weights, 2.00 GiB for one step (an estimate), "
        "1.00 GiB for CUDA and its graphs (an estimate), leave 54.00 GiB"
    )


def test_a_profiling_step_peaks_in_the_sampler_or_in_the_widest_layer():
    """Many sequences over a large vocabulary: the sampler; long steps with few sequences: the MLP over all tokens."""
    assert step_bytes(LLAMA, 2048, 256, 1) == SAMPLER_BYTES * 256 * 128_256
    wide = 2 * (3 * 14_336 + 4 * 4096)  # gate, up and their product, and four hidden states, two bytes each
    assert step_bytes(LLAMA, 65_536, 8, 1) == wide * 65_536
    assert step_bytes(LLAMA, 65_536, 8, 2) < step_bytes(LLAMA, 65_536, 8, 1)
    assert step_bytes(LLAMA, 16, 256, 1) == SAMPLER_BYTES * 16 * 128_256  # no more rows than tokens


@given(st.floats(0.45, 0.95), st.integers(0, 1))
def test_a_larger_share_never_makes_a_smaller_cache(share_of_memory, which):
    """And a hundredth more of an H100 is 0.79 GiB, which are 405 blocks of 2 MiB."""
    version = ("0.19", "0.32")[which]
    less, more = (
        engine(f"{SERVE} --gpu-memory-utilization {u}", hardware="h100-sxm", version=version)["num_blocks"]
        for u in (share_of_memory, share_of_memory + 0.01)
    )
    assert more - less == pytest.approx(0.01 * 79.19 * GIB / (16 * TOKEN_BYTES), abs=1.5)


def test_graphs_take_room_only_where_they_are_counted_and_made():
    """vLLM 0.32 counts them, 0.19 does when told by its variable, and eager servers make none."""
    count = {
        name: engine(command, hardware="h100-sxm", version=version)["num_blocks"]
        for name, command, version in (
            ("new", SERVE, "0.32"),
            ("new, eager", f"{SERVE} --enforce-eager", "0.32"),
            ("new, told not to", f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 {SERVE}", "0.32"),
            ("old", f"{SERVE} --gpu-memory-utilization 0.92", "0.19"),
            (
                "old, told to",
                f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 {SERVE} --gpu-memory-utilization 0.92",
                "0.19",
            ),
        )
    }
    assert count["new"] == count["old, told to"] < count["old"]
    assert count["new, eager"] == count["new, told not to"] == count["old"]


def test_visible_memory_is_less_than_the_datasheet_s_and_near_it():
    """Drivers and ECC take up to a tenth (the L40S's ECC); no GPU shows more than it has."""
    for name, shown in VISIBLE_BYTES.items():
        assert 0.9 * HARDWARE[name].memory_bytes < shown < HARDWARE[name].memory_bytes
    assert visible_bytes(HARDWARE["laptop-cpu"]) == 16 * GIB


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_a_driver_s_name_finds_its_hardware(name, entry):
    """As torch.cuda.get_device_name gives it."""
    assert hardware_called(name).name == entry


def test_names_that_are_no_hardware():
    """A driver's name may be unknown; one that was typed must not be."""
    assert hardware_called("AMD Instinct MI300X") is None
    assert find_hardware("H100-SXM").name == "h100-sxm"
    with pytest.raises(InputError, match=r"^--hardware: unknown hardware 'h100'; did you mean 'h100-sxm'\?"):
        find_hardware("h100")


def test_defaults_by_version():
    """config/cache.py and envs.py of either version; the class of 160 GiB came between them."""
    assert (gpu_memory_utilization("0.19"), gpu_memory_utilization("0.32")) == (0.9, 0.92)
    assert (counts_graph_memory("0.19"), counts_graph_memory("0.32")) == (False, True)
    b300 = Device("NVIDIA B300", 268 * GIB)
    assert batch_defaults("0.32", b300, 1).tokens == 16_384
    assert batch_defaults("0.19", b300, 1).tokens == 8192
    cpu = Device("cpu", 500 * GIB, is_cpu=True)
    assert (batch_defaults("0.32", cpu, 2).tokens, batch_defaults("0.32", cpu, 2).seqs) == (4096, 256)


@given(st.integers(1, 10**9))
def test_a_plain_number_is_itself(number):
    """However large."""
    assert whole(_flags(max_num_seqs=str(number)), "max-num-seqs") == number


@given(st.integers(1, 999), st.sampled_from("kmgt"))
def test_suffixes_count_in_thousands_or_in_1024s(number, letter):
    """vLLM's human_readable_int: 1k is 1,000 and 1K is 1,024."""
    power = "kmgt".index(letter) + 1
    name = "kv-cache-memory-bytes"
    assert whole(_flags(kv_cache_memory_bytes=f"{number}{letter}"), name) == number * 1000**power
    assert whole(_flags(kv_cache_memory_bytes=f"{number}{letter.upper()}"), name) == number * 1024**power


@pytest.mark.parametrize("text", ["", "-5", "1e3", "0x10", "1 k", "k", "1kk", "9" * 30])
def test_what_is_no_number_is_refused(text):
    """As int() or vLLM's own reading would, and what no machine has."""
    with pytest.raises(InputError, match="--max-num-batched-tokens: must be a whole number ≥ 1, such as 32768 or 32k"):
        whole(_flags(max_num_batched_tokens=text), "max-num-batched-tokens")


def test_an_absent_flag_is_none():
    """So that its default can be taken."""
    assert whole(_flags(), "max-num-seqs") is None
    assert share(_flags(), "watermark", above_zero=False) is None
    assert length(_flags()) is None
    assert length(_flags(max_model_len="AUTO")) == AUTO
