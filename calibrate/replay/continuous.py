"""transformers' continuous batching, served for real: its scheduler, its paged cache, its contexts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
import transformers

from calibrate.clock import Timing, time_on_cpu, time_on_cuda
from calibrate.errors import CalibrationError
from calibrate.replay.ask import AskedRequest, ReplaySettings
from calibrate.replay.driver import EngineIdentity
from calibrate.replay.ledger import Taken

_AUTO: Any = transformers


class TransformersReplay:
    """The engine over ``model`` (attention ``sdpa`` or ``paged|eager``), with its ``fifo`` scheduler, in the calling
    thread. Raises ``CalibrationError`` if this version of transformers cannot do it."""

    def __init__(self, model: Any, settings: ReplaySettings) -> None:  # noqa: ANN401 - a torch module
        self.settings = settings
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.identity = EngineIdentity("transformers continuous batching", versions)
        torch.set_num_threads(settings.threads)
        self._time = time_on_cuda if model.device.type == "cuda" else time_on_cpu
        generation = _AUTO.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        try:
            self._manager: Any = model.init_continuous_batching(generation, _config(settings))
            self._processor: Any = self._manager._create_batch_processor()
        except ValueError as error:
            raise CalibrationError(f"engine: transformers refuses this model or kernel ({error})") from error
        self._manager.batch_processor, self._manager.current_batch = self._processor, 0
        self._seen: set[str] = set()
        self._preempted: list[int] = []
        self._free_blocks = 0
        self._watch()

    def add(self, asked: AskedRequest) -> Timing:
        """Into its input queue; the next step takes it from there."""
        return time_on_cpu(
            lambda: self._manager.add_request(
                list(asked.prompt), str(asked.id), max_new_tokens=asked.num_output_tokens, eos_token_id=-1
            )
        )

    def is_ready(self, more_coming: bool) -> bool:
        """Whenever it has somebody."""
        del more_coming
        return bool(self._processor.scheduler.has_pending_requests() or not self._manager.input_queue.empty())

    def step(self) -> list[Taken]:
        """One body of its generation loop."""
        self._preempted.clear()
        with torch.inference_mode():
            timing = self._time(lambda: self._manager._generation_loop_body(self._processor, bootstrapping=False))
        batch = self._processor.inputs_and_outputs.requests_in_batch
        work = [
            (int(entry.state.request_id), entry.query_length, entry.state.position_offset - entry.query_length)
            for entry in batch
        ]
        left = self._processor.scheduler.active_requests
        finished = frozenset(i for i, _, _ in work if str(i) not in left)
        return [Taken(timing, work, tuple(self._preempted), self._free_blocks, finished=finished)]

    def stop(self) -> None:
        """Let go of the cache."""
        self._manager = self._processor = None

    def _watch(self) -> None:
        """Note free blocks when a batch is ready to run, and who comes back to the waiting queue."""
        processor, scheduler = self._processor, self._processor.scheduler
        prepare, wait = processor.prepare_next_batch, scheduler.add_waiting_request

        def prepare_next_batch() -> bool:
            is_any = bool(prepare())
            self._free_blocks = _free_blocks(processor.cache)
            return is_any

        def add_waiting_request(state: Any) -> None:  # noqa: ANN401
            if state.request_id in self._seen:
                self._preempted.append(int(state.request_id))
            self._seen.add(state.request_id)
            wait(state)

        processor.prepare_next_batch, scheduler.add_waiting_request = prepare_next_batch, add_waiting_request


def _config(settings: ReplaySettings) -> Any:  # noqa: ANN401
    config: Any = getattr(_AUTO, "ContinuousBatchingConfig", None)
    if config is None or "page_size" not in {field.name for field in fields(config)}:
        raise CalibrationError(
            f"engine: needs transformers 5.24 or newer (got {transformers.__version__}); pip install -U transformers"
        )
    return config(
        page_size=settings.block_size,
        num_blocks=settings.num_blocks,
        max_batch_tokens=settings.max_num_batched_tokens,
        max_requests_per_batch=settings.max_num_seqs,
        scheduler_type="fifo",
        safety_margin=settings.safety_margin,
        allow_block_sharing=settings.prefix_caching,
        auto_switch_to_flash=False,
        use_async_batching=False,
        use_cuda_graph=False,
    )


def _free_blocks(cache: Any) -> int:  # noqa: ANN401
    """Blocks of the one kind that a decoder of full attention has, those in free sectors included."""
    share: float = cache.compute_free_capacity()
    return round(share * int(cache.num_blocks))
