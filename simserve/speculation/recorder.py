"""Writes down what an engine that speculates does: passes give several tokens at once, and compute more than stay."""

from __future__ import annotations

from simserve.recorder import Recorder
from simserve.records import Records
from simserve.speculation.schedulers import DraftingPool


class DraftingRecorder(Recorder):
    """Fills a ``Records`` while an engine that speculates runs over ``pool``."""

    def __init__(self, records: Records, pool: DraftingPool) -> None:
        super().__init__(records, pool)
        self._cohort = pool.cohort
        records.draft_tokens = pool.cohort.num_drafts

    def advance(self, begin: int, num_steps: int, num_live: int) -> None:
        """One step passed, in which ``num_live`` sequences decoded or stalled."""
        super().advance(begin, num_steps, num_live)
        if not self._batch.num_decodes:
            return
        records, (num_passes, num_emitted, num_accepted) = self.records, self._cohort.last_pass
        num_more = num_emitted - num_passes  # tokens that came together with another
        assert self._span is not None
        self._span.num_emitted_tokens += num_more
        records.itl_counts[0] += num_more
        records.num_passes += num_passes
        records.num_accepted_tokens += num_accepted
        num_drafted = num_passes * records.draft_tokens
        records.num_computed_tokens += num_drafted
        records.num_rejected_tokens += num_drafted - num_more
