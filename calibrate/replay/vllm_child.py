"""Runs inside the interpreter that has vLLM: its v1 engine, one step per line of JSON on stdin, answers on stdout.

Imports vLLM and nothing of ours, because that environment holds nothing of ours. One request, one answer:

    {"do": "start", "model": folder, "dtype": …, "max_num_seqs": …, "max_num_batched_tokens": …, "max_model_len": …,
     "num_blocks": …, "kv_bytes_per_block": …, "block_size": …, "prefix_caching": …, "async_scheduling": …, "seed": …}
                                                                            -> {"versions": …, …}
    {"do": "add", "id": …, "prompt": [token, …], "num_output_tokens": …}    -> {"wall_s": …, "cpu_s": …}
    {"do": "step"}    -> {"wall_s": …, "cpu_s": …, "work": [[id, new, cached], …], "preempted": […], "free_blocks": …,
                          "finished": […]}
    {"do": "reset"}   -> {}    forget what the prefix cache holds
    anything that fails    -> {"error": "one line"}

It ends when stdin does.
"""

# ruff: noqa: ANN401 - what vLLM passes around has no stable type of its own

import json
import os
import platform
import sys
import time
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # whatever the engine prints goes to stderr, out of the protocol's way

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process: its CPU clock is the step's
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

try:
    import torch
    import vllm
    from vllm.v1.engine.llm_engine import LLMEngine
except Exception as problem:  # an ImportError, or whatever a broken installation raises
    print(json.dumps({"error": f"vLLM cannot be imported there ({problem!r:.200})"}), file=ANSWERS, flush=True)
    sys.exit(3)


class Server:
    """One engine, and what its scheduler decided last."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(
            vllm.EngineArgs(
                model=asked["model"],
                load_format="dummy",
                dtype=asked["dtype"],
                skip_tokenizer_init=True,
                max_model_len=asked["max_model_len"],
                max_num_seqs=asked["max_num_seqs"],
                max_num_batched_tokens=asked["max_num_batched_tokens"],
                block_size=asked["block_size"],
                kv_cache_memory_bytes=asked["num_blocks"] * asked["kv_bytes_per_block"],
                enforce_eager=True,
                enable_prefix_caching=asked["prefix_caching"],
                enable_chunked_prefill=True,
                async_scheduling=asked["async_scheduling"],
                disable_log_stats=True,
                seed=asked["seed"],
            )
        )
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._schedule, self._scheduler.schedule = self._scheduler.schedule, self._remember
        self._decided: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """Versions, and the settings as the engine resolved them."""
        config = self._engine.vllm_config
        return {
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "num_blocks": config.cache_config.num_gpu_blocks,
            "block_size": config.cache_config.block_size,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        }

    def add(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Hand a request over, with a forced length."""
        count = asked["num_output_tokens"]
        wall, cpu = time.perf_counter(), time.process_time()
        forced = vllm.SamplingParams(
            max_tokens=count, min_tokens=count, ignore_eos=True, temperature=0.0, detokenize=False
        )
        self._engine.add_request(f"{asked['id']}-", {"prompt_token_ids": asked["prompt"]}, forced)
        return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}

    def step(self) -> dict[str, Any]:
        """One step of the engine."""
        self._decided = {"work": []}
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = self._engine.step()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        finished = [_number(output.request_id) for output in outputs if output.finished]
        return {"wall_s": wall, "cpu_s": cpu, "finished": finished, **self._decided}

    def reset(self) -> dict[str, Any]:
        """Forget cached prefixes."""
        self._engine.reset_prefix_cache()
        return {}

    def _remember(self, *args: Any, **kwargs: Any) -> Any:
        decision = self._schedule(*args, **kwargs)
        requests = self._scheduler.requests
        work = [
            (_number(name), new, requests[name].num_computed_tokens - new)
            for name, new in decision.num_scheduled_tokens.items()
        ]
        self._decided = {
            "work": work,
            "preempted": sorted(_number(name) for name in decision.preempted_req_ids or ()),
            "free_blocks": self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        return decision


def _number(name: str) -> int:
    """The request that an engine's own name stands for: it appends to the one that it was given."""
    return int(name.split("-", maxsplit=1)[0])


def main() -> None:
    """Answer until stdin ends."""
    server: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "start":
                server = Server(asked)
                answer = server.told()
            elif asked["do"] == "add":
                answer = server.add(asked)
            elif asked["do"] == "reset":
                answer = server.reset()
            else:
                answer = server.step()
        except Exception as problem:  # the parent says it in a sentence; the traceback is for whoever reads stderr
            sys.excepthook(*sys.exc_info())
            answer = {"error": " ".join(f"{type(problem).__name__}: {problem}".split())[:300]}
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
