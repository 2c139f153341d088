"""The speed of light of the timed case, by this GPU's measured ceilings or else its data sheet. Pure arithmetic."""

from dataclasses import dataclass
from typing import Literal

from tools.calibration import Ceilings
from tools.codec import Json, encode
from tools.gpus import gpu_named
from tools.judge.timing import floor_us
from tools.roofline import speed_of_light
from tools.spec import TaskSpec

_READ_OVER_COPY = 1.15  # a pure read may be that much faster than a measured copy


@dataclass(frozen=True)
class Light:
    """`us` is what a perfect kernel takes; `fastest_gbps` is the rate that no byte exceeds, and `bytes_moved` and
    `output_bytes` what has to move. `source` says whose figures these are."""

    us: float
    fastest_gbps: float
    bytes_moved: int
    output_bytes: int
    source: Literal["measured on this GPU", "data sheet", "measured copy"]
    ceilings: Ceilings | None = None

    def floor_us(self, l2_bytes: int, slots: int) -> float:
        """Below this a time is impossible."""
        return floor_us(self.bytes_moved, self.output_bytes, l2_bytes, slots, self.fastest_gbps)

    def facts(self) -> dict[str, Json]:
        """For the receipt."""
        told: dict[str, Json] = {"us": self.us, "source": self.source, "fastest_gbps": self.fastest_gbps}
        return told | ({"ceilings": encode(self.ceilings)} if self.ceilings else {})


def light_of(task: TaskSpec, gpu_name: str, ceilings: Ceilings | None, output_bytes: int, copy_gbps: float) -> Light:
    """The best that is known: measured ceilings, the data sheet, or the copy that this session measured (GB/s)."""
    case = task.main
    measured = ceilings.light_us(case, output_bytes, task.precision) if ceilings else None
    if ceilings is not None and measured is not None:
        fastest = max(ceilings.fastest_gbps, copy_gbps)
        return Light(measured, fastest, case.bytes_moved, output_bytes, "measured on this GPU", ceilings)
    try:
        gpu = gpu_named(gpu_name)
        us = speed_of_light(case, gpu, task.precision).us
    except KeyError:
        fastest = _READ_OVER_COPY * copy_gbps
        return Light(case.bytes_moved / (fastest * 1e3), fastest, case.bytes_moved, output_bytes, "measured copy")
    return Light(us, max(gpu.bandwidth_gbps, copy_gbps), case.bytes_moved, output_bytes, "data sheet")
