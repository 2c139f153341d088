"""The GPU's state at one moment, read from the data of a `gpu` progress event. Whatever is not told stays None."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.codec import Json

_HOT = 0x20 | 0x40  # software and hardware thermal slowdown
_REASONS = ((0x8, "hardware slowdown"), (_HOT, "thermal"), (0x80, "power brake"), (0x4, "power cap"))  # worst first
BAD = 0x8 | _HOT | 0x80  # NVML's bits that falsify a measurement; a power cap is how a GPU normally works at full load


@dataclass(frozen=True)
class GpuReading:
    """One sample. Clocks in MHz, memory in bytes; `throttle` is NVML's bit mask."""

    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    throttle: int | None = None

    @property
    def throttle_words(self) -> str:
        """What holds the clocks down, in words; "" when it is not told."""
        if self.throttle is None:
            return ""
        return ", ".join(word for bits, word in _REASONS if self.throttle & bits) or "not throttled"

    @property
    def slowed(self) -> bool:
        """Whether a measurement now would be worth less."""
        return bool((self.throttle or 0) & BAD)


def reading(data: Mapping[str, Json]) -> GpuReading | None:
    """The sample in an event's data; None when there is none. Fields of a wrong type count as not told."""
    if not data:
        return None
    power = data.get("power_w")
    return GpuReading(
        utilisation_percent=_whole(data, "utilisation_percent"),
        sm_clock_mhz=_whole(data, "sm_clock_mhz"),
        memory_clock_mhz=_whole(data, "memory_clock_mhz"),
        power_w=float(power) if isinstance(power, int | float) else None,
        temperature_c=_whole(data, "temperature_c"),
        memory_used_bytes=_whole(data, "memory_used_bytes"),
        memory_total_bytes=_whole(data, "memory_total_bytes"),
        throttle=_whole(data, "throttle_reasons"),
    )


def _whole(data: Mapping[str, Json], name: str) -> int | None:
    value = data.get(name)
    return value if isinstance(value, int) else None
