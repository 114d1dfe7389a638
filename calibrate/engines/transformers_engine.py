"""transformers' own continuous batching, one step of its loop at a time, in this process.

A step is the body of the engine's generation loop: take in requests, schedule, build inputs and attention mask, forward
over the paged cache, sample, update. It runs in the calling thread, so that the process CPU clock sees it alone.

A context is not computed but declared: a sequence gets the blocks of its cached tokens and the engine is told that they
are filled. Keys and values are then whatever the memory holds; timing does not depend on them.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import transformers

from calibrate.clock import Timer, Timing, time_on_cpu, time_on_cuda
from calibrate.contention import Reading, read_machine
from calibrate.engines.engine import EngineFacts, EngineSize, StepShape
from calibrate.errors import CalibrationError

BLOCK_SIZE = 16
_SPARE_BLOCKS = 4
_NEVER_ENDS = 1 << 20  # tokens that a sequence may still generate
_AUTO: Any = transformers


class TransformersEngine:
    """The engine of ``transformers`` 5.24 over ``model``, whose attention is ``sdpa`` or ``eager`` (paged)."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - a torch module
        self._model = model
        self._time: Timer = time_on_cuda if model.device.type == "cuda" else time_on_cpu
        self._manager: Any = None
        self._processor: Any = None

    def extra_bytes_per_token(self, shapes: Sequence[StepShape]) -> int:
        """The attention mask: a row per new token of the largest step."""
        size = EngineSize.of(shapes, BLOCK_SIZE)
        return size.max_num_batched_tokens * int(self._model.dtype.itemsize)

    def start(self, shapes: Sequence[StepShape]) -> EngineFacts:
        """Make the manager and its batch processor, without the thread that would run them."""
        config = _config(EngineSize.of(shapes, BLOCK_SIZE))
        generation = _AUTO.GenerationConfig(  # eos −1: no token ends a sequence
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=_NEVER_ENDS
        )
        try:
            self._manager = self._model.init_continuous_batching(generation, config)
            self._processor = self._manager.batch_processor = self._manager._create_batch_processor()
        except ValueError as error:
            raise CalibrationError(f"engine: transformers refuses this model or kernel ({error})") from error
        self._manager.current_batch = 0
        return EngineFacts(
            source=f"transformers continuous batching {transformers.__version__}",
            attention=self._model.config._attn_implementation,
            kv_cache=f"paged, blocks of {BLOCK_SIZE}",
            kv_bytes_per_token=_kv_bytes_per_token(self._processor.cache),
            torch_version=torch.__version__,
            transformers_version=transformers.__version__,
            python_version=platform.python_version(),
        )

    def prepare(self, shape: StepShape, num_steps: int = 1) -> None:
        """Free all blocks, then put in sequences that hold their context and wait for their new tokens; they never end,
        so that any number of steps can follow."""
        del num_steps
        scheduler = self._processor.scheduler
        for request_id in list(scheduler.active_requests):
            scheduler.finish_request(request_id)
        for number, (new, context) in enumerate(shape):
            state = self._sequence(f"s{number}", new, context)
            scheduler.active_requests[state.request_id] = state

    def step(self) -> Timing:
        """One body of the generation loop."""
        with torch.inference_mode():
            return self._time(lambda: self._manager._generation_loop_body(self._processor, bootstrapping=False))

    def computed(self) -> StepShape:
        """From the batch that the engine built: query lengths, and positions before them."""
        batch = self._processor.inputs_and_outputs.requests_in_batch
        return tuple((entry.query_length, entry.state.position_offset - entry.query_length) for entry in batch)

    def read_machine(self) -> Reading | None:
        """It runs in this process."""
        return read_machine()

    def stop(self) -> None:
        """Let go of the cache."""
        self._manager = self._processor = None

    def _sequence(self, name: str, new: int, context: int) -> Any:  # noqa: ANN401
        from transformers.generation.continuous_batching import requests

        state: Any = requests.RequestState(name, [0] * new, max_new_tokens=_NEVER_ENDS, eos_token_id=-1)
        if context and not self._processor.cache.can_store_request_tokens(state, context):
            raise CalibrationError(f"engine: its cache must hold {context} tokens more; use a smaller grid")
        state.position_offset = context
        state.status = requests.RequestStatus.PREFILLING
        if new == 1 and context:  # a decode: the last generated token is what the step computes
            state.status = requests.RequestStatus.DECODING
            state.generated_tokens, state.tokens_to_process, state.remaining_prefill_tokens = [0], [0], []
        return state


def _config(size: EngineSize) -> Any:  # noqa: ANN401
    config: Any = getattr(_AUTO, "ContinuousBatchingConfig", None)
    if config is None or "page_size" not in {field.name for field in fields(config)}:
        raise CalibrationError(
            f"engine: needs transformers 5.24 or newer (got {transformers.__version__}); pip install -U transformers"
        )
    return config(
        page_size=BLOCK_SIZE,
        num_blocks=size.num_blocks + _SPARE_BLOCKS,
        max_batch_tokens=size.max_num_batched_tokens,
        max_requests_per_batch=size.max_num_seqs,
        scheduler_type="fifo",
        safety_margin=0.0,
        allow_block_sharing=False,
        auto_switch_to_flash=False,
        use_async_batching=False,
        use_cuda_graph=False,
    )


def _kv_bytes_per_token(cache: Any) -> int:  # noqa: ANN401
    """Bytes of the one tensor that holds all blocks, over the tokens that it has room for, reserved blocks included."""
    tensor = cache.cache_tensor
    num_tokens = (cache.num_sectors + cache.pool.num_reserved_sectors) * cache.tokens_per_sector
    per_token, rest = divmod(tensor.numel() * tensor.element_size(), num_tokens)
    if rest:
        raise CalibrationError(f"engine: a cache of {num_tokens} tokens must be a whole number of bytes per token")
    return int(per_token)
