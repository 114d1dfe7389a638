"""Devices by the names that vLLM users and drivers have for them."""

from __future__ import annotations

from simserve.errors import InputError, ScenarioError
from simserve.step_time.hardware import HARDWARE, Hardware, load_hardware

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
