"""Runs inside the interpreter that has vLLM: drives its engine by JSON lines on stdin, answers on stdout.

Imports vLLM and nothing of ours, because that environment holds nothing of ours. One request, one answer:

    {"do": "start", "model": folder, "dtype": …, "max_num_seqs": …, "max_num_batched_tokens": …, "max_model_len": …,
     "num_blocks": …, "block_size": …, "kv_bytes_per_block": …, "seed": …}    -> {"source": …, "attention": …, …}
    {"do": "prepare", "sequences": [[new, cached], …]}                        -> {}
    {"do": "step"}                     -> {"wall_s": …, "cpu_s": …, "sequences": [[new, cached], …]}
    anything that fails                -> {"error": "one line"}

It ends when stdin does. Contexts are declared, not computed: a KV connector tells the scheduler that the first tokens
of a prompt lie in the cache already, which is how a disaggregated prefill hands over its work. A server that is
measured has none, and with one each step took up to 3 % longer: so the workers have none here, and the scheduler has
one while it admits sequences with a context.
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
    import transformers
    import vllm
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer import kv_transfer_state
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
    from vllm.v1.engine.llm_engine import LLMEngine
except Exception as problem:  # an ImportError, or whatever a broken installation raises
    print(json.dumps({"error": f"vLLM cannot be imported there ({problem!r:.200})"}), file=ANSWERS, flush=True)
    sys.exit(3)


_LEAD = 2  # steps that a decode has been in before it is timed, its admission among them
_ENDLESS = 64  # tokens: more than any chain of steps takes


class DeclaredContext(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM lives in another environment: Any to mypy
    """Says that as many tokens of a new prompt are cached as its request id declares (``s7c1024`` declares 1,024)."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens beyond ``num_computed_tokens`` that need not be computed, and that they come at once."""
        declared = int(request.request_id.split("c")[1].split("-")[0])
        return max(0, declared - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The blocks are there; their content does not matter."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Nothing to hand to the worker."""
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **_: object) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: object) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""


class Driver:
    """One engine and the step that it is brought to."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(
            vllm.EngineArgs(
                model=asked["model"],
                load_format="dummy",
                dtype=asked["dtype"],
                skip_tokenizer_init=True,
                max_model_len=asked["max_model_len"],
                max_num_seqs=asked["max_num_seqs"],
                max_num_batched_tokens=max(asked["max_num_batched_tokens"], asked["max_num_seqs"]),
                block_size=asked["block_size"],
                kv_cache_memory_bytes=asked["num_blocks"] * asked["kv_bytes_per_block"],
                enforce_eager=True,
                enable_prefix_caching=False,
                enable_chunked_prefill=True,
                async_scheduling=False,
                disable_log_stats=True,
                seed=asked["seed"],
                kv_transfer_config=KVTransferConfig(
                    kv_connector="DeclaredContext", kv_role="kv_both", kv_connector_module_path="__main__"
                ),
            )
        )
        core = self._engine.engine_core.engine_core
        self._scheduler, self._worker = core.scheduler, core.model_executor.driver_worker
        kv_transfer_state._KV_CONNECTOR_AGENT = None
        self._connector = self._scheduler.connector
        self._decision: Any = None
        self._schedule = core.scheduler.schedule
        self._scheduler.schedule = self._remember
        self._count = 0

    def _remember(self, *args: Any, **kwargs: Any) -> Any:
        self._decision = self._schedule(*args, **kwargs)
        return self._decision

    def facts(self) -> dict[str, Any]:
        """What the provenance wants to know; bytes are counted in the cache's own tensors."""
        runner = getattr(self._worker, "worker", self._worker).model_runner
        cache = self._engine.vllm_config.cache_config
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in runner.kv_caches)
        return {
            "source": f"vLLM {vllm.__version__}",
            "attention": runner.attn_groups[0][0].backend.get_name(),
            "kv_cache": f"paged, blocks of {cache.block_size}",
            "kv_bytes_per_token": num_bytes / (cache.num_gpu_blocks * cache.block_size),
            "device": torch.device(runner.device).type,
            "torch_version": torch.__version__,
            "transformers_version": transformers.__version__,
            "python_version": platform.python_version(),
        }

    def prepare(self, sequences: list[list[int]]) -> None:
        """Drop everything and lead up to the step as serving does: decodes were admitted and have decoded once, as
        running sequences; a prefill waits to be admitted in the step, in the slot of one that has just ended."""
        self._scheduler.connector = self._connector
        live = list(self._engine.output_processor.request_states)
        self._engine.abort_request(live, internal=True)
        decodes = [context for new, context in sequences if new == 1 and context]
        prefills = [(new, context) for new, context in sequences if new > 1 or not context]
        lead = min(_LEAD, *decodes) if decodes else 1
        for _ in prefills:
            self._add(1, 0)
        ending = list(self._engine.output_processor.request_states)
        for context in decodes:
            self._add(1, context - lead)
        for _ in range(lead):
            self._engine.step()
        self._engine.abort_request(ending, internal=True)
        for new, context in prefills:
            self._add(new, context)
        if not any(context for _, context in prefills):
            self._scheduler.connector = None

    def _add(self, new: int, context: int) -> None:
        self._count += 1
        endless = vllm.SamplingParams(
            max_tokens=_ENDLESS, min_tokens=_ENDLESS, ignore_eos=True, temperature=0.0, detokenize=False
        )
        prompt = {"prompt_token_ids": [5] * (new + context)}
        self._engine.add_request(f"s{self._count}c{context}-", prompt, endless)

    def step(self) -> dict[str, Any]:
        """One step of the engine, and what it computed by the scheduler's own account."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._engine.step()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        sequences = [
            [new, self._scheduler.requests[name].num_computed_tokens - new]
            for name, new in self._decision.num_scheduled_tokens.items()
        ]
        return {"wall_s": wall, "cpu_s": cpu, "sequences": sequences}


def main() -> None:
    """Answer until stdin ends."""
    driver: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "start":
                driver = Driver(asked)
                answer = driver.facts()
            elif asked["do"] == "prepare":
                driver.prepare(asked["sequences"])
                answer = {}
            else:
                answer = driver.step()
        except Exception as problem:  # the parent says it in a sentence; the traceback is for whoever reads stderr
            sys.excepthook(*sys.exc_info())
            answer = {"error": " ".join(f"{type(problem).__name__}: {problem}".split())[:300]}
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
