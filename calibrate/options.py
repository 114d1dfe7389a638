"""What ``simserve calibrate`` can be asked. Imports no torch, so that a command line can build it for free."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "fp32", "bf16", "fp16"]
GridSize = Literal["quick", "standard", "full"]
KvCache = Literal["in-place", "dynamic"]


@dataclass(frozen=True)
class Reach:
    """What a known workload can ask of an engine, at most: sequences in a step, tokens of a prompt, tokens of a step,
    cached tokens of a sequence, and cached tokens before a chunk of a prompt (0: prompts are never cut)."""

    max_batch_size: int
    max_prompt_tokens: int
    max_prefill_tokens: int
    max_context: int
    max_chunk_context: int = 0


@dataclass(frozen=True)
class CalibrateOptions:
    """Options of one calibration; each is a flag of the same name.

    - ``model``: a built-in name, a folder with ``config.json`` (weights optional), or a hub name;
    - ``device``: ``auto`` takes the GPU if there is one;
    - ``dtype``: ``auto`` is fp32 on a CPU, bf16 on a GPU;
    - ``weights``: the linear layers really at ``int8``, ``int4``, ``int4:64`` or ``int4:32``, as torch has kernels here
      (of a server: what it says it runs); default: in ``dtype``;
    - ``kv_heads``: the same model with so many KV heads (multi-query 1, multi-head all), with random weights;
    - ``attn``: the attention kernel, as transformers names them (``sdpa``, ``eager``, ``flash_attention_2``); several,
      separated by commas, are measured in turn and compared, with a profile for each;
    - ``kv_cache``: ``in-place`` writes new keys and values where they stay, as serving engines do; ``dynamic`` is
      transformers' default, which copies the whole cache at every step;
    - ``graphs``: on a GPU, replay decode steps as CUDA graphs over the in-place cache, as serving engines do;
    - ``threads``: CPU threads of torch; with 1 the CPU clock is the step time, which neighbours do not disturb;
    - ``grid``: ``quick`` in seconds, ``standard`` in minutes, ``full`` for a profile to keep;
    - ``repeats``: timed samples of each point, at most (default: 2, 3 and 5 by grid);
    - ``max_batch_size``, ``max_context``, ``max_prefill_tokens``: cut the grid;
    - ``out``: the profile file to write; default ``<model>-<device>-<dtype>.json`` here;
    - ``resume``: continue the partial file that an interrupted run left beside ``out``;
    - ``engine``: time whole steps of a serving engine (``transformers``: its continuous batching; ``vllm``) instead of
      bare forwards;
    - ``engine_python``: the Python that has that engine, for one that runs in an environment of its own;
    - ``overhead_for``: a profile of bare forwards; what the engine's steps take beyond them is fitted and added to it;
    - ``reach``: time only what this can ask of the engine, in several processes one after the other (no flag:
      ``simserve validate --calibrate`` knows its workload);
    - ``url``: calibrate the running OpenAI-compatible server there from outside, instead of a model here; ``model`` and
      ``dtype`` then say what it runs, and ``attn``, ``kv_cache`` and ``threads`` mean nothing;
    - ``served_model``: the name to ask that server for; default: the only one that it lists;
    - ``api_key``: sent to the server and kept nowhere; default: the environment variable ``SIMSERVE_API_KEY``;
    - ``time_limit_s``: when to stop asking a server and fit what is there; ``timeout_s``: how long it may be silent;
    - ``seed``: weights, tokens and the order of the points;
    - ``report``: the HTML page to write about the profile; default beside it;
    - ``command``: what the user typed, for the provenance.
    """

    model: str = "25m"
    device: Device = "auto"
    dtype: Dtype = "auto"
    weights: str | None = None
    kv_heads: int | None = None
    attn: str = "sdpa"
    kv_cache: KvCache = "in-place"
    graphs: bool = False
    threads: int = 1
    grid: GridSize = "quick"
    repeats: int | None = None
    max_batch_size: int | None = None
    max_context: int | None = None
    max_prefill_tokens: int | None = None
    out: Path | None = None
    resume: bool = True
    engine: str | None = None
    engine_python: str | None = None
    overhead_for: Path | None = None
    reach: Reach | None = None
    url: str | None = None
    served_model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    time_limit_s: float = 1800.0
    timeout_s: float = 60.0
    seed: int = 0
    report: Path | None = None
    command: str = ""
