"""The slots of the slow, obvious engine: who sat where, and since when doing what."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference_types import NEVER


@dataclass
class SlotRow:
    """One stay of a request in a slot: from when it was there, decoded, had nothing more to compute, and was gone."""

    request_id: int
    slot: int
    admitted_ns: int
    decoding_ns: int = NEVER
    idle_ns: int = NEVER
    released_ns: int = NEVER


@dataclass
class SlotRows:
    """``num_slots`` of them; whoever comes takes the lowest that is free."""

    num_slots: int
    rows: list[SlotRow] = field(default_factory=list)

    def change(self, preempted: tuple[int, ...], admitted: tuple[int, ...], decoding: list[int], now_ns: int) -> None:
        """A decision puts some out and lets others in, of whom those that were swapped decode at once."""
        for request_id in preempted:
            self.close(request_id, now_ns)
        for request_id in admitted:
            taken = {row.slot for row in self.rows if row.released_ns == NEVER}
            lowest = min(set(range(self.num_slots)) - taken)
            self.rows.append(SlotRow(request_id, lowest, now_ns, now_ns if request_id in decoding else NEVER))

    def decodes(self, request_id: int, now_ns: int) -> None:
        """Its prefill is complete."""
        self.open_row(request_id).decoding_ns = now_ns

    def idles(self, request_id: int, now_ns: int) -> None:
        """It has nothing more to compute."""
        row = self.open_row(request_id)
        if row.idle_ns == NEVER:
            row.idle_ns = now_ns

    def close(self, request_id: int, now_ns: int) -> None:
        """It is gone."""
        self.open_row(request_id).released_ns = now_ns

    def open_row(self, request_id: int) -> SlotRow:
        found = [row for row in self.rows if row.request_id == request_id and row.released_ns == NEVER]
        assert len(found) == 1, f"request {request_id} sits in {len(found)} slots"
        return found[0]
