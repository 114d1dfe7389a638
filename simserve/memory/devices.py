"""What ``--memory`` names: a size, or a device that the roofline knows."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from simserve.errors import FootprintError
from simserve.memory.sizes import parse_size, size_text
from simserve.step_time.hardware import HARDWARE, visible_bytes

MAX_BYTES = 2**60


@dataclass(frozen=True)
class Memory:
    """One device's memory: as it was named, and in bytes."""

    name: str
    num_bytes: int
    note: str | None = None


def parse_memory(text: str) -> Memory:
    """The memory of a size (``16GiB``, ``16GB``) or of a device (``h100-sxm``). Raises ``FootprintError``.

    A device has what its board carries, read as GiB; drivers keep some of it, which the note states.
    """
    key = text.strip()
    if key.lower() in HARDWARE:
        device = HARDWARE[key.lower()]
        shown = visible_bytes(device)
        note = f"{device.name} shows {shown / 2**30:.2f} of its {device.memory_bytes / 2**30:g} GiB to programs"
        hint = f"{note}; to count with that: --memory {shown / 2**30:.2f}GiB"
        return Memory(device.name, device.memory_bytes, note=hint if shown < device.memory_bytes else None)
    try:
        return Memory(key, _bytes(key, at_least=1))
    except ValueError as error:
        close = get_close_matches(key.lower(), HARDWARE, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}?" if close else f"devices: {', '.join(HARDWARE)}"
        raise FootprintError(f"--memory: {error}, or a known device (got {text!r}); {hint}") from None


def parse_overhead(text: str) -> int:
    """Bytes of ``--overhead``: a size, or 0. Raises ``FootprintError``."""
    if text.strip() == "0":
        return 0
    try:
        return _bytes(text, at_least=0)
    except ValueError as error:
        raise FootprintError(f"--overhead: {error}, or 0 (got {text!r})") from None


def _bytes(text: str, at_least: int) -> int:
    num_bytes = parse_size(text)
    assert isinstance(num_bytes, int), "text is parsed or refused"
    if not at_least <= num_bytes <= MAX_BYTES:
        raise ValueError(f"must be from {at_least} byte to {size_text(MAX_BYTES)}")
    return num_bytes
