"""What a GPU's clocks did while it was measured: a device that throttles measures its cooling, not the model."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from simserve.step_time.profile_schema import GpuClocks

# Bits of NVML's clock event reasons that mean "slower than it could be"; idle and chosen application clocks do not.
SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_QUERY = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_throttle_reasons.active"
_TIMEOUT_S = 5.0


class ClockReading(NamedTuple):
    """MHz, °C and watts; ``reasons`` are those of ``SLOWED`` that held."""

    sm_mhz: float
    memory_mhz: float
    temperature_c: float
    power_w: float | None
    reasons: tuple[str, ...]


def read_clocks(gpu: str = "0") -> ClockReading | None:
    """Ask ``nvidia-smi`` about a GPU, by index or UUID; ``None`` where it is not there or does not answer."""
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return parse_clocks(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def parse_clocks(line: str) -> ClockReading:
    """One line of the answer, such as ``1980, 2619, 41, 312.50, 0x0000000000000004``. Raises ``ValueError``."""
    sm, memory, temperature, power, mask = (word.strip() for word in line.strip().splitlines()[0].split(","))
    bits = int(mask, 16)
    reasons = tuple(name for bit, name in SLOWED.items() if bits & bit)
    watts = float(power) if power.replace(".", "", 1).isdigit() else None
    return ClockReading(float(sm), float(memory), float(temperature), watts, reasons)


@dataclass
class ClockWatch:
    """Call ``look`` between samples, now and then; the reading itself takes no GPU time."""

    read: Callable[[], ClockReading | None]
    readings: list[ClockReading] = field(default_factory=list)

    def look(self) -> None:
        """Take one reading, if there is one."""
        reading = self.read()
        if reading is not None:
            self.readings.append(reading)


def summarize_clocks(readings: Sequence[ClockReading]) -> GpuClocks | None:
    """For the profile; ``None`` without readings."""
    if not readings:
        return None
    clocks = [reading.sm_mhz for reading in readings]
    counts = Counter(reason for reading in readings for reason in reading.reasons)
    return GpuClocks(
        num_readings=len(readings),
        min_sm_mhz=min(clocks),
        median_sm_mhz=median(clocks),
        max_sm_mhz=max(clocks),
        max_temperature_c=max(reading.temperature_c for reading in readings),
        slowed={reason: count / len(readings) for reason, count in sorted(counts.items())},
    )


def note_slowed(clocks: GpuClocks | None) -> list[str]:
    """What the reader must know about the clocks, if anything."""
    if clocks is None:
        return ["the GPU's clocks could not be read: whether it throttled is not known"]
    if not clocks.slowed:
        return []
    why = ", ".join(f"{reason} in {share:.0%}" for reason, share in clocks.slowed.items())
    return [f"the GPU was slowed ({why} of {clocks.num_readings} readings; {clocks.min_sm_mhz:.0f} MHz at the lowest)"]


def gpu_name(properties: Any) -> str:  # noqa: ANN401 - of torch, which need not be there
    """What ``nvidia-smi`` calls the GPU that torch uses: its UUID, whatever subset of GPUs torch was shown."""
    uuid = getattr(properties, "uuid", None)
    return f"GPU-{uuid}" if uuid else "0"
