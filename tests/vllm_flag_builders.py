"""Ways to write the same vLLM command, and a short path from a command to the scenario it means."""

from pathlib import Path

import yaml
from hypothesis import strategies as st

from simserve.vllm_flags import InitOptions, from_vllm

MODEL = "meta-llama/Llama-3.1-8B"
SERVE = f"vllm serve {MODEL}"


def written(command, **options):
    """What init would write for a command."""
    return from_vllm(InitOptions(Path("scenario.yaml"), command, **options))


def scenario(command, **options):
    """The scenario's plain data."""
    return yaml.safe_load(written(command, **options).text)


def engine(command, **options):
    """Its engine, the cache's keys beside the others."""
    data = scenario(command, **options)["engine"]
    return {**data, **data["kv_cache"]}


# (name, short form or None, value or None for a switch, whether the switch is turned round)
PIECES = (
    ("max-num-seqs", None, "64", False),
    ("max-num-batched-tokens", None, "4k", False),
    ("max-model-len", None, "8192", False),
    ("block-size", None, "32", False),
    ("gpu-memory-utilization", None, "0.8", False),
    ("tensor-parallel-size", "tp", "2", False),
    ("quantization", "q", "fp8", False),
    ("kv-cache-dtype", None, "fp8", False),
    ("scheduling-policy", None, "priority", False),
    ("enable-prefix-caching", None, None, True),
    ("enable-chunked-prefill", None, None, False),
    ("pipeline-parallel-size", "pp", "2", False),
    ("port", None, "8000", False),
    ("served-model-name", None, "mine", False),
)


@st.composite
def spelt(draw, piece):
    """One flag in one of its spellings, as words."""
    name, short, value, turned = piece
    name = f"no-{name}" if turned else name
    dashed = draw(st.sampled_from([name, name.replace("-", "_")]))
    if value is None:
        return [f"--{dashed}"]
    key = f"-{short}" if short and draw(st.booleans()) else f"--{dashed}"
    return [f"{key}={value}"] if draw(st.booleans()) else [key, value]


@st.composite
def same_command(draw):
    """The flags of PIECES in any order and spelling, behind any of the ways to start a server."""
    pieces = draw(st.permutations(PIECES))
    words = [word for piece in pieces for word in draw(spelt(piece))]
    start = draw(st.sampled_from(["serve", "serve-late", "module", "docker", "wrapped"]))
    flags = " ".join(words)
    if start == "serve-late":
        return f"vllm serve {flags} --model {MODEL}"
    if start == "module":
        return f"python3 -m vllm.entrypoints.openai.api_server --model={MODEL} {flags}"
    if start == "docker":
        return f"docker run --rm --gpus all -e HF_TOKEN=x -p 8000:8000 vllm/vllm-openai:v0.32.0 --model {MODEL} {flags}"
    if start == "wrapped":
        return f"cd /srv && CUDA_VISIBLE_DEVICES=0,1 nohup {SERVE} \\\n  {flags} > server.log 2>&1 &"
    return f"{SERVE} {flags}"
