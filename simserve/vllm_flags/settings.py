"""Where a server runs, and a value with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simserve.step_time.hardware import Hardware, visible_bytes
from simserve.vllm_flags.defaults import Device


@dataclass(frozen=True)
class Target:
    """Where the server runs: hardware of a datasheet where known, a CPU or not, variables set for it, the size of its
    cache in tokens where its own log told, and whether a ``roofline`` of that hardware is to time its steps."""

    hardware: Hardware | None
    is_cpu: bool
    environment: Mapping[str, str]
    kv_cache_tokens: int | None = None
    roofline: bool = True

    @property
    def device(self) -> Device:
        """As vLLM sees it; without hardware, a small one."""
        if self.hardware is None:
            return Device("unknown", 0, self.is_cpu)
        return Device(self.hardware.name, visible_bytes(self.hardware), self.is_cpu)


@dataclass(frozen=True)
class Setting:
    """One key's value, and where it comes from."""

    value: int | float | str | bool
    why: str
