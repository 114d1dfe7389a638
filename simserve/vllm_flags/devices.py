"""How much memory a GPU shows to CUDA: vLLM's share is taken of that, not of the datasheet's figure.

The RTX 4090's is from a recorded run (``device_total_memory_bytes`` of a vLLM 0.19 run). The others are the
``total capacity of … GiB`` in PyTorch's out-of-memory messages as people report them; drivers differ by ± 0.1 GiB.
"""

from __future__ import annotations

from simserve.errors import InputError, ScenarioError
from simserve.step_time.hardware import GIB, HARDWARE, Hardware, load_hardware

VISIBLE_BYTES: dict[str, int] = {
    "a100-sxm": round(79.25 * GIB),
    "h100-sxm": round(79.19 * GIB),
    "h200-sxm": round(139.80 * GIB),
    "l40s": round(44.40 * GIB),
    "rtx-4090": 25_250_627_584,
}
CPU = "laptop-cpu"
_WORDS = {"a100": "a100-sxm", "h100": "h100-sxm", "h200": "h200-sxm", "l40s": "l40s", "4090": "rtx-4090"}


def find_hardware(name: str) -> Hardware:
    """As ``load_hardware``, for ``--hardware``. Raises InputError."""
    try:
        return load_hardware(name)
    except ScenarioError as error:
        raise InputError(f"--hardware: {str(error).partition(': ')[2]}") from None


def hardware_called(device_name: str) -> Hardware | None:
    """The entry that a driver's name for a device, such as ``NVIDIA H200``, speaks of."""
    words = device_name.lower()
    return next((HARDWARE[name] for word, name in _WORDS.items() if word in words), None)


def visible_bytes(hardware: Hardware) -> int:
    """Bytes of one device that CUDA shows."""
    return VISIBLE_BYTES.get(hardware.name, hardware.memory_bytes)
