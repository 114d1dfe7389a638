"""Our prefix cache beside vLLM's own ``KVCacheManager``, in random runs of both:

    python -m tests.validation.vllm_prefix_cache --seed 0 --seconds 20

under an interpreter that has vLLM 0.32; of what we need it asks for numpy only. A run is a small cache, prompts that
begin alike in one of three ways, and random steps: a request comes, the first that waits is admitted if it fits, those
that run compute chunks of their prompts or decode, one of them ends or is preempted. Both sides number their blocks
alike, so after every step they must show the same tables and free queues, block for block, and find as much for
everybody who waits.

Prints one line of JSON: how many runs, hit tokens and evictions there were until the CPU time was up, or the
first difference with its seed and both states (``--seed N --seconds 0`` repeats it alone).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random

import torch
import vllm
from vllm.distributed.kv_events import BlockRemoved
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request as VllmRequest

from simserve.kv_cache import PrefixCachingAllocator
from simserve.request import Request, Sequence
from tests.validation.prompts_alike import KINDS, Prompt

NUM_STEPS = 120  # of a run
MAX_MODEL_LEN = 4096
State = dict[str, object]


class Difference(Exception):
    """The two sides answer differently, or are no longer in the same state."""


def same(what: str, ours: bool, theirs: bool) -> None:
    if ours != theirs:
        raise Difference(f"{what}: ours says {ours}, vLLM {theirs}")


@dataclass(eq=False)
class Asked:
    """One request on both sides."""

    ours: Sequence
    theirs: VllmRequest
    prompt: Prompt

    @property
    def num_left(self) -> int:
        """Known tokens that are not computed."""
        return self.ours.num_uncomputed_tokens

    def set_computed(self, num_tokens: int) -> None:
        self.ours.num_computed_tokens = self.theirs.num_computed_tokens = num_tokens

    def emit(self) -> None:
        self.ours.num_generated_tokens += 1
        self.theirs.append_output_token_ids([next(self.prompt.answer)])


class Caches:
    """The two caches under the same calls, in the same state after each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        self.ours = PrefixCachingAllocator(
            num_blocks, block_size, max_model_len=MAX_MODEL_LEN, watermark=0.0, null_blocks=1, nameless_first=True
        )
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.theirs = KVCacheManager(
            KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_kv_cache_events=True,
        )
        self.num_hit_tokens = self.num_evictions = 0

    def admit(self, asked: Asked, rng: Random) -> bool:
        """Admit who waits with some of its prompt, if all of it fits."""
        blocks, num_hits, _ = self.theirs.get_computed_blocks(asked.theirs)
        fits, left = self.ours.can_admit(asked.ours), asked.num_left - num_hits
        num_new = rng.choice([left, rng.randint(1, left)])
        taken = self.theirs.allocate_slots(asked.theirs, num_new, num_hits, blocks, full_sequence_must_fit=True)
        same(f"request {asked.ours.id} fits", fits, taken is not None)
        if fits:
            asked.set_computed(num_hits)
            self.ours.allocate(asked.ours, num_hits + num_new)
            asked.set_computed(num_hits + num_new)
            self.num_hit_tokens += num_hits
        return fits

    def compute(self, asked: Asked, num_new: int) -> None:
        """Compute more of a prompt, if there are blocks for it."""
        num_tokens = asked.theirs.num_computed_tokens + num_new
        fits = self.ours.blocks_to_reach(asked.ours, num_tokens) <= self.ours.num_free_blocks
        taken = self.theirs.allocate_slots(asked.theirs, num_new)
        same(f"request {asked.ours.id} can go on", fits, taken is not None)
        if fits:
            self.ours.allocate(asked.ours, num_tokens)
            asked.set_computed(num_tokens)

    def begin_growth(self, asked: Asked) -> None:
        """All that is known is computed: it emits a token, and decodes from here on."""
        asked.emit()
        self.ours.start_growth(asked.ours, asked.ours.num_computed_tokens)

    def decode(self, growing: list[Asked], num_steps: int) -> None:
        """Up to ``num_steps`` decode steps in one: as many as there are blocks for."""
        num_steps = self.ours.growth_limit(num_steps)
        self.ours.grow(num_steps)
        for _ in range(num_steps):
            for asked in growing:
                taken = self.theirs.allocate_slots(asked.theirs, 1)
                same(f"request {asked.ours.id} can decode", True, taken is not None)
                asked.set_computed(asked.theirs.num_computed_tokens + 1)
                asked.emit()

    def free(self, asked: Asked) -> None:
        self.ours.free(asked.ours)
        self.theirs.free(asked.theirs)

    def states(self, waiting: list[Asked], running: list[Asked]) -> tuple[State, State]:
        """Of ours and vLLM's: free blocks in their order, how many of these could be found, evictions so far, tables,
        and how many tokens those who wait would find."""
        removed = [event for event in self.theirs.take_events() if isinstance(event, BlockRemoved)]
        self.num_evictions += len(removed)
        free = self.theirs.block_pool.free_block_queue.get_all_free_blocks()
        ours: State = {
            "free": self.ours.free_blocks(),
            "findable": self.ours.cached_free_tokens // self._size,
            "evictions": self.ours.num_evictions,
            "tables": {asked.ours.id: list(self.ours.table(asked.ours)) for asked in running},
            "hits": {asked.ours.id: self.ours.num_cached_tokens(asked.ours) for asked in waiting},
        }
        theirs: State = {
            "free": [block.block_id for block in free],
            "findable": sum(block.block_hash is not None for block in free),
            "evictions": self.num_evictions,
            "tables": {asked.ours.id: self.theirs.get_block_ids(asked.theirs.request_id)[0] for asked in running},
            "hits": {asked.ours.id: self.theirs.get_computed_blocks(asked.theirs)[1] for asked in waiting},
        }
        return ours, theirs


class Run:
    """One random run: who waits, who runs, and who of these decodes, in the order in which they began to."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(seed)
        block_size, num_blocks = rng.randint(1, 4), rng.randint(4, 24)
        self._capacity_tokens = block_size * (num_blocks - 1)
        self._prompts = rng.choice(KINDS)(rng)
        self._hasher, self._ids = get_request_block_hasher(block_size, sha256), count()
        self._waiting: list[Asked] = []
        self._running: list[Asked] = []
        self._growing: list[Asked] = []
        self.caches = Caches(num_blocks, block_size)

    def step(self) -> None:
        (act,) = self._rng.choices((self._come, self._admit, self._work, self._leave), (3, 3, 3, 1))
        act()
        ours, theirs = self.states()
        if ours != theirs:
            raise Difference(", ".join(key for key in ours if ours[key] != theirs[key]))

    def states(self) -> tuple[State, State]:
        return self.caches.states(self._waiting, self._running)

    def _come(self) -> None:
        """A request comes, unless many wait or it could never fit."""
        if len(self._waiting) < 4:
            prompt = self._prompts.draw()
            if len(prompt.tokens) <= self._capacity_tokens:
                self._waiting.append(self._asked(prompt))

    def _asked(self, prompt: Prompt) -> Asked:
        number, tokens = next(self._ids), prompt.tokens
        ours = Sequence(Request(number, 0, len(tokens), MAX_MODEL_LEN, MAX_MODEL_LEN, content=prompt.chain))
        params = SamplingParams(max_tokens=MAX_MODEL_LEN)
        theirs = VllmRequest(str(number), tokens, params, None, block_hasher=self._hasher)
        return Asked(ours, theirs, prompt)

    def _admit(self) -> None:
        if self._waiting and self.caches.admit(self._waiting[0], self._rng):
            self._running.append(self._waiting.pop(0))

    def _work(self) -> None:
        """Those who have computed all they know decode, all others compute some more of it."""
        for asked in self._running:
            if asked not in self._growing and not asked.num_left:
                self.caches.begin_growth(asked)
                self._growing.append(asked)
        if self._growing:
            self.caches.decode(self._growing, self._rng.choice([1, 1, self._rng.randint(2, 9)]))
        for asked in self._running:
            if asked not in self._growing:
                self.caches.compute(asked, self._rng.randint(1, asked.num_left))

    def _leave(self) -> None:
        """Somebody ends, or is preempted and waits again before all others."""
        if not self._running:
            return
        asked = self._running.pop(self._rng.randrange(len(self._running)))
        if asked in self._growing:
            self._growing.remove(asked)
        self.caches.free(asked)
        if asked.theirs.num_tokens <= self._capacity_tokens and self._rng.random() < 0.6:
            asked.set_computed(0)
            self._waiting.insert(0, asked)
        else:
            self._prompts.ended(asked.prompt.chain, asked.theirs.num_tokens)


def differential(first_seed: int, seconds: float) -> dict[str, object]:
    """Runs of seeds from ``first_seed`` on until so much CPU time is up: counts, or the first difference."""
    counts: Counter[str] = Counter()
    end = time.process_time() + seconds
    for seed in count(first_seed):
        run = Run(seed)
        for step in range(NUM_STEPS):
            try:
                run.step()
            except Difference as difference:
                ours, theirs = run.states()
                return {"difference": str(difference), "seed": seed, "step": step, "ours": ours, "vllm": theirs}
            except Exception as error:
                error.add_note(f"in step {step} of seed {seed}")
                raise
        counts.update(runs=1, hit_tokens=run.caches.num_hit_tokens, evictions=run.caches.num_evictions)
        if time.process_time() >= end:
            break
    return {"vllm": vllm.__version__, "first_seed": first_seed, **counts}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next one has the next")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU time after which no run begins")
    asked = parser.parse_args()
    init_none_hash(sha256)
    print(json.dumps(differential(asked.seed, asked.seconds)))


if __name__ == "__main__":
    main()
