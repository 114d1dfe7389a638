"""What a turn keeps of the context before it, as ids of its prompt: contexts that grow, shrink, or begin anew."""

from __future__ import annotations

import numpy as np

from simserve.clients.plan import NOBODY
from simserve.request import IntColumn
from simserve.workload.columns import Column
from simserve.workload.prompt_ids import HASH_BYTES
from simserve.workload.prompts import TOKENS_PER_BLOCK, PromptIds
from simserve.workload.sessions import SessionColumns


def kept_ids(kept: Column, told: SessionColumns, num_prompt_tokens: IntColumn) -> PromptIds:
    """An id per whole block of 16 tokens: those of the prompt before in the session as far as they are kept, and new
    ones for the rest. What is kept of that prompt's answer counts as new, for answers are unknown content."""
    num_kept = kept.whole_numbers()
    rows: list[bytes] = []
    num_ids = 0
    for i, num_blocks in enumerate((num_prompt_tokens // TOKENS_PER_BLOCK).tolist()):
        before = int(told.before[i])
        old = b"" if before == NOBODY else rows[before]
        old = old[: HASH_BYTES * min(num_blocks, int(num_kept[i]) // TOKENS_PER_BLOCK)]
        num_new = num_blocks - len(old) // HASH_BYTES
        rows.append(old + np.arange(num_ids, num_ids + num_new, dtype="<i8").tobytes())
        num_ids += num_new
    return PromptIds(kept.where, kept.name, rows, HASH_BYTES, TOKENS_PER_BLOCK, covers_prompt=False)
