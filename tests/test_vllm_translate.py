"""What flags mean: vLLM's defaults by version and device, the size of the cache, and what is named as untranslated.

Expected defaults are read off vLLM 0.19.0's and 0.32.0's source (``engine/arg_utils.py``, ``config/cache.py``,
``config/scheduler.py``, ``platforms/cpu.py``), expected block counts off recorded runs.
"""

import json
from pathlib import Path

import pytest
import yaml

from simserve.errors import InputError
from simserve.step_time.hardware import GIB
from simserve.vllm_flags import InitOptions, from_vllm
from simserve.vllm_flags.write import check_runs
from tests.vllm_flag_builders import MODEL, SERVE, engine, scenario, written


@pytest.mark.parametrize(
    ("hardware", "tokens", "seqs"),
    [("h100-sxm", 8192, 1024), ("h200-sxm", 8192, 1024), ("a100-sxm", 2048, 256), ("rtx-4090", 2048, 256)],
)
@pytest.mark.parametrize("version", ["0.19", "0.32"])
def test_limits_of_a_step_default_by_device(hardware, version, tokens, seqs):
    """An OpenAI server on 70 GiB or more that is no A100 gets 8,192 tokens and 1,024 sequences, else 2,048 and 256."""
    found = engine(f"{SERVE} --max-model-len 4096", hardware=hardware, version=version)
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (tokens, seqs)


def test_throughput_mode_doubles_only_the_defaults():
    """performance_mode of arg_utils.py."""
    found = engine(f"{SERVE} --performance-mode throughput --max-num-seqs 100", hardware="rtx-4090")
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (4096, 100)


def test_defaults_are_fitted_to_each_other():
    """Sequences never exceed tokens, and tokens never exceed what all sequences could need; without chunked prefill the
    budget covers the longest prompt."""
    assert engine(f"{SERVE} --max-num-batched-tokens 100", hardware="rtx-4090")["max_num_seqs"] == 100
    assert (
        engine(f"{SERVE} --max-num-seqs 2 --max-model-len 512", hardware="h100-sxm")["max_num_batched_tokens"] == 1024
    )
    whole = engine(f"{SERVE} --no-enable-chunked-prefill --max-model-len 20000", hardware="rtx-4090")
    assert whole["max_num_batched_tokens"] == 20000


def test_the_share_of_memory_defaults_by_version():
    """0.9 in 0.19 and 0.92 in 0.32 (config/cache.py): two percent of the GPU are hundreds of blocks."""
    blocks = [engine(SERVE, hardware="h100-sxm", version=version)["num_blocks"] for version in ("0.19", "0.32")]
    both = [
        engine(f"{SERVE} --gpu-memory-utilization {u}", hardware="h100-sxm", version="0.19")["num_blocks"]
        for u in (0.9, 0.92)
    ]
    assert blocks[0] == both[0]
    graphs = (GIB // 2) // (2 * 2**20)  # which 0.32 leaves room for, and 0.19 does not
    assert blocks[1] == pytest.approx(both[1] - graphs, abs=1)


def test_the_cache_of_the_recorded_run_on_an_rtx_4090():
    """vLLM 0.19, Llama-3.1-8B in bf16, 2,048 tokens, 256 sequences: its meta.json says 2,588 blocks of 16. (The
    constant part of the estimate comes from this very run; the test holds the rest of the sum in place.)"""
    command = f"{SERVE} --max-num-seqs 256 --max-num-batched-tokens 2048 --max-model-len 32768 --dtype bfloat16"
    found = engine(command, hardware="rtx-4090", version="0.19")
    assert (found["num_blocks"], found["block_size"], found["null_blocks"]) == (2588, 16, 1)


def test_tensor_parallel_splits_weights_and_heads_until_there_are_no_more_heads():
    """Two GPUs hold half of each; a block of 16 tokens takes half the bytes on each. Beyond the number of KV heads,
    they are repeated."""
    one, two = (engine(f"{SERVE} --enforce-eager -tp {n}", hardware="h100-sxm", version="0.19") for n in (1, 2))
    assert two["num_blocks"] > 2 * one["num_blocks"]
    fixed = "--kv-cache-memory-bytes 1G"
    blocks = {n: engine(f"{SERVE} {fixed} -tp {n}", hardware="h100-sxm")["num_blocks"] for n in (1, 4, 8, 16)}
    assert blocks == {1: 512, 4: 2048, 8: 4096, 16: 4096}
    assert scenario(f"{SERVE} -tp 2")["step_time"]["tensor_parallel"] == 2


def test_who_tells_the_size_of_the_cache():
    """The server's log beats an override, an override bytes, and bytes the share of the memory."""
    flags = "--gpu-memory-utilization 0.5 --kv-cache-memory-bytes 1G"
    assert engine(f"{SERVE} {flags}")["num_blocks"] == 512
    assert engine(f"{SERVE} {flags} --num-gpu-blocks-override 300")["num_blocks"] == 300
    told = engine(f"{SERVE} {flags} --num-gpu-blocks-override 300", kv_cache_tokens=41_408)
    assert told["num_blocks"] == 2588


def test_types_of_weights_and_cache():
    """fp8 weights leave the cache in the activations' type; fp8 caches are asked for."""
    plain, quantized = scenario(SERVE), scenario(f"{SERVE} --quantization fp8")
    assert (plain["step_time"]["dtype"], plain["engine"]["kv_cache"]["dtype"]) == ("bf16", "bf16")
    assert (quantized["step_time"]["dtype"], quantized["engine"]["kv_cache"]["dtype"]) == ("fp8", "bf16")
    assert engine(f"{SERVE} --kv-cache-dtype fp8_e4m3")["dtype"] == "fp8"
    assert engine(f"{SERVE} --dtype half")["dtype"] == "fp16"
    assert engine(f"{SERVE} --kv-cache-dtype fp8")["num_blocks"] == pytest.approx(
        2 * engine(SERVE)["num_blocks"], abs=1
    )


def test_the_name_of_a_checkpoint_tells_how_it_is_quantized():
    """-FP8 and -AWQ checkpoints need no flag in vLLM, for their config.json tells."""
    assert scenario(f"{SERVE}-Instruct-FP8")["step_time"]["dtype"] == "fp8"
    four_bit = written(f"{SERVE}-Instruct-AWQ")
    assert "4-bit weights" in four_bit.findings.untranslated["quantized weights"]
    assert yaml.safe_load(four_bit.text)["engine"]["kv_cache"]["num_blocks"] > engine(SERVE)["num_blocks"]


def test_4_bit_weights_are_read_as_such_and_multiplied_in_16_bits():
    """Qwen3-8B in AWQ: 36 layers of 192,937,984 weights at 4.25 bits and a head of 622,329,856 at 16 make 5.216 bits;
    a roofline's step reads them so and computes in bf16."""
    made = written("vllm serve Qwen/Qwen3-8B-AWQ", hardware="h100-sxm", version="0.19")
    bits = (36 * 192_937_984 * 4.25 + 622_329_856 * 16) / (36 * 192_937_984 + 622_329_856)
    data = yaml.safe_load(made.text)
    assert (data["weights"], data["step_time"]["dtype"]) == (pytest.approx(bits, abs=5e-4), "bf16")
    assert "unpacked into bf16, which is not counted" in made.findings.untranslated["quantized weights"]
    check_runs(made.text, Path())


def test_a_cache_beside_small_weights_is_cut_to_what_the_roofline_has_room_for():
    """More blocks than fit beside 8,190,735,360 weights at 5.216 bits, which `simserve run` would refuse."""
    made = written("vllm serve Qwen/Qwen3-8B-AWQ --num-gpu-blocks-override 40000", hardware="h100-sxm", version="0.19")
    assert "the roofline keeps all weights in 5.216 bits" in made.findings.untranslated["the size of the cache"]
    cache = yaml.safe_load(made.text)["engine"]["kv_cache"]
    room = 80 * GIB - 8_190_735_360 * 5.216 / 8
    assert cache["num_blocks"] == room // (16 * 147_456)  # 36 layers, 8 heads of 128, keys and values, two bytes
    check_runs(made.text, Path())


def test_fp8_weights_on_a_gpu_without_fp8_are_read_as_such_and_multiplied_in_16_bits():
    """An A100 multiplies no fp8: vLLM unpacks into bf16. Llama-3.1-8B: 32 layers of 218,103,808 at 8 bits, a head of
    525,336,576 at 16."""
    found = written(f"{SERVE} -q fp8", hardware="a100-sxm")
    data = yaml.safe_load(found.text)
    bits = (32 * 218_103_808 * 8 + 525_336_576 * 16) / (32 * 218_103_808 + 525_336_576)
    assert (data["weights"], data["step_time"]["dtype"]) == (pytest.approx(bits, abs=5e-4), "bf16")
    assert "a100-sxm has no fp8 arithmetic" in found.findings.untranslated["quantized weights"]


def test_policies_and_limits_that_only_0_32_has():
    """priority queues; admission below the runner's size; a watermark."""
    flags = "--scheduling-policy priority --max-num-active-seqs 32 --max-num-scheduled-tokens 1k --watermark 0.02"
    found = engine(f"{SERVE} {flags}")
    assert found["queue_order"] == "priority"
    assert (found["max_num_seqs"], found["max_num_batched_tokens"], found["watermark"]) == (32, 1000, 0.02)


def test_prefix_caching_is_on_unless_turned_off():
    """vLLM's v1 caches prefixes by default."""
    assert engine(SERVE)["prefix_caching"] is True
    assert engine(f"{SERVE} --no-enable-prefix-caching")["prefix_caching"] is False


def test_asynchronous_scheduling_is_on_unless_turned_off():
    """By the flag, or by drafts that vLLM cannot make ahead of time (config/vllm.py)."""
    assert engine(SERVE)["async_scheduling"] is True
    assert engine(f"{SERVE} --no-async-scheduling")["async_scheduling"] is False
    assert engine(f"{SERVE} --speculative-config.method ngram")["async_scheduling"] is False
    assert engine(f"{SERVE} --speculative-config.method eagle")["async_scheduling"] is True
    ray = f"{SERVE} --distributed-executor-backend ray"
    assert [engine(ray, version=version)["async_scheduling"] for version in ("0.19", "0.32")] == [False, True]
    on_cpu = engine("VLLM_CPU_KVCACHE_SPACE=1 vllm serve Qwen/Qwen2.5-0.5B --async-scheduling", hardware="laptop-cpu")
    assert on_cpu["async_scheduling"] is False


def test_the_context_is_the_model_s_own_or_fitted_to_the_cache():
    """auto and -1 shrink it to what the cache holds; K is 1,024 and k 1,000."""
    assert engine(SERVE)["max_model_len"] == 131_072
    assert engine(f"{SERVE} --max-model-len 32K")["max_model_len"] == 32_768
    assert engine(f"{SERVE} --max-model-len 25.6k")["max_model_len"] == 25_600
    for spelling in ("auto", "-1"):
        fitted = engine(f"{SERVE} --max-model-len {spelling}", kv_cache_tokens=41_408)
        assert fitted["max_model_len"] == 41_408


def test_a_cache_smaller_than_the_context_is_pointed_out():
    """vLLM would refuse to start."""
    found = written(SERVE, kv_cache_tokens=41_408)
    assert "vLLM would refuse to start unless --max-model-len is lowered" in found.findings.warnings[1]
    assert "Beware: the cache of 41,408 tokens is smaller" in found.text


def test_a_cpu_has_its_own_defaults():
    """Blocks of 128, 128 sequences, 2,048 tokens; the cache is what VLLM_CPU_KVCACHE_SPACE says, in GiB, and in 0.19
    half of the memory without it."""
    command = "vllm serve Qwen/Qwen2.5-0.5B"
    found = engine(f"VLLM_CPU_KVCACHE_SPACE=4 {command}", hardware="laptop-cpu")
    assert (found["block_size"], found["max_num_seqs"], found["max_num_batched_tokens"]) == (128, 128, 2048)
    assert found["num_blocks"] == 4 * GIB // (128 * 12_288)
    half = engine(command, hardware="laptop-cpu", version="0.19")
    assert half["num_blocks"] == 8 * GIB // (128 * 12_288)


def test_a_profile_brings_its_own_device():
    """Measured step times, sized for the GPU that they name; a CPU without a known memory must be told its cache."""
    found = scenario(f"{SERVE} --quantization fp8", profile="h200-llama-3.1-8b-fp8-vllm")
    assert found["step_time"] == {"profile": "h200-llama-3.1-8b-fp8-vllm"}
    assert found["engine"]["max_num_batched_tokens"] == 8192
    with pytest.raises(InputError, match="--kv-cache-tokens: must be given for a server on a CPU"):
        scenario("vllm serve Qwen/Qwen2.5-0.5B", profile="qwen2.5-0.5b-cpu-fp32")
    told = engine("vllm serve Qwen/Qwen2.5-0.5B", profile="qwen2.5-0.5b-cpu-fp32", kv_cache_tokens=4096)
    assert told["num_blocks"] == 32


@pytest.mark.parametrize(
    ("more", "dtypes"),
    [
        ({}, ("bf16", "bf16")),
        ({"torch_dtype": "float16"}, ("fp16", "fp16")),
        ({"dtype": "float32"}, ("bf16", "bf16")),  # vLLM halves what was published in 32 bits
        ({"dtype": "float16", "quantization_config": {"quant_method": "fp8"}}, ("fp8", "fp16")),
    ],
)
def test_a_local_model_is_read_from_its_config(tmp_path, more, dtypes):
    """A folder with a config.json, named by its path from the scenario's folder; type and quantization are in it."""
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config | more))
    made = from_vllm(InitOptions(tmp_path / "out.yaml", f"vllm serve {tmp_path}/mine"))
    data = yaml.safe_load(made.text)
    assert (data["model"], data["engine"]["max_model_len"]) == ("./mine", 4096)
    assert (data["step_time"]["dtype"], data["engine"]["kv_cache"]["dtype"]) == dtypes


def test_what_cannot_be_translated_is_named_with_its_reason():
    """Flags that change timing and have no key, of this version and of others, and variables by name alone."""
    command = (
        f"VLLM_ATTENTION_BACKEND=FLASHINFER VLLM_API_KEY=s3cret {SERVE} --enforce-eager "
        "--long-prefill-token-threshold 512 --swap-space 4 --pipeline-parallel-size 2 --enable-lora"
    )
    found = written(command).findings
    assert list(found.untranslated) == [
        "--enable-lora",
        "--enforce-eager",
        "--long-prefill-token-threshold 512",
        "--pipeline-parallel-size 2",
        "--swap-space 4",
        "VLLM_ATTENTION_BACKEND (variable)",
    ]
    assert "v1 engine never swaps" in found.untranslated["--swap-space 4"]


def test_what_asks_for_the_usual_needs_no_mention():
    """Defaults written out are no loss."""
    command = f"{SERVE} -pp 1 -dp 1 --no-enforce-eager --async-scheduling --stream-interval 1 --swap-space 0"
    assert written(command).findings.untranslated == {}


def test_secrets_stay_out_of_the_file():
    """Keys and tokens appear neither as flags' values nor as variables'."""
    command = f"HF_TOKEN=hf_s3cret VLLM_API_KEY=s3cret {SERVE} --api-key s3cret --hf-token hf_s3cret --port 1"
    made = written(command)
    assert "s3cret" not in made.text
    assert made.findings.immaterial == ("--api-key", "--hf-token", "--port")


def test_an_image_s_tag_chooses_the_rules():
    """v0.19.0 and before follow 0.19's, later ones 0.32's, and another version than these is pointed out."""
    docker = "docker run vllm/vllm-openai:{} --model " + MODEL
    assert written(docker.format("v0.19.0")).findings.version == "0.19"
    other = written(docker.format("v0.12.1")).findings
    assert (other.version, other.warnings[1]) == ("0.19", "the image is vLLM v0.12, the rules are those of 0.19")
    assert written(docker.format("v0.25.0")).findings.version == "0.32"
    assert written(docker.format("latest"), version="0.19").findings.version == "0.19"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--max-num-seqs 0", "--max-num-seqs: must be a whole number ≥ 1 (got '0')"),
        ("--max-num-seqs 1k", "--max-num-seqs: must be a whole number ≥ 1 (got '1k')"),
        ("--max-model-len 1.5K", "--max-model-len: must be a whole number ≥ 1, such as 32768 or 32k (got '1.5K')"),
        ("--gpu-memory-utilization 90", "--gpu-memory-utilization: must be a number > 0 and ≤ 1 (got '90')"),
        ("--gpu-memory-utilization nan", "--gpu-memory-utilization: must be a number > 0 and ≤ 1 (got 'nan')"),
        ("--gpu-memory-utilization 0.2", "vllm serve: finds no room for a cache (of h100-sxm's memory 0.2 is granted"),
        ("--watermark 1", "--watermark: must be a number ≥ 0 and < 1 (got '1')"),
        ("--scheduling-policy sjf", "--scheduling-policy: must be fcfs or priority (got 'sjf')"),
        ("--dtype int4", "--dtype: must be one of auto, half, float16, bfloat16, float, float32 (got 'int4')"),
        ("--num-gpu-blocks-override 1", "--num-gpu-blocks-override: must hold two blocks of 16 tokens"),
        ("--max-num-seqs 9 --max-num-batched-tokens 8", "--max-num-seqs: must be ≤ max_num_batched_tokens 8 (got 9)"),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 4k",
            "--max-num-batched-tokens: must be ≥ max_model_len 131072 without chunked prefill (got 4000)",
        ),
        ("--block-size zero", "--block-size: must be a whole number ≥ 1 (got 'zero')"),
    ],
)
def test_impossible_values_are_refused_in_a_sentence(flags, sentence):
    """Where, the rule, and the value."""
    with pytest.raises(InputError) as refusal:
        scenario(f"{SERVE} {flags}", hardware="h100-sxm")
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


def test_an_unknown_model_or_none_is_refused():
    """The catalogue says what it knows."""
    with pytest.raises(InputError, match="vllm serve: names no model"):
        scenario("vllm serve --port 1")
    with pytest.raises(InputError, match="model: 'a/b-9b' is neither a known name nor a path"):
        scenario("vllm serve a/b-9b")
