"""How much cache fits, and which points of a grid that leaves."""

from __future__ import annotations

from pathlib import Path

from calibrate.grid import Point

_SHARE_OF_FREE = 0.5  # the rest is for activations and for whoever else runs here


def free_bytes(device: str) -> int | None:
    """Memory that could be taken now; ``None`` where the system does not tell."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def fit_points(points: list[Point], kv_bytes_per_token: int, free: int | None) -> tuple[list[Point], list[str]]:
    """The points whose cache fits in half of the free memory, and a note if some do not. A process that asks for too
    much is killed on most systems, not told, so the grid shrinks beforehand."""
    if free is None:
        return points, []
    budget = int(free * _SHARE_OF_FREE) // kv_bytes_per_token
    kept = [point for point in points if point.cache_tokens <= budget]
    if len(kept) == len(points):
        return points, []
    lost = len(points) - len(kept)
    note = f"{lost} of {len(points)} points need a cache of more than {budget:,} tokens, half of the free memory"
    return kept, [f"{note}: left out"]
