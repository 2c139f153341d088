"""The speed of light: how fast a case could be on a GPU at best, and what holds it back. Pure arithmetic."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import Gpu
from kerneltune.tools.schema.task import CaseSpec

_ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int64": 8}
_ITEMSIZE |= {"uint64": 8, "float64": 8, "complex64": 8, "complex128": 16}


@dataclass(frozen=True)
class SpeedOfLight:
    """Lower bounds of the time of one forward with cold caches, in microseconds.

    memory_us    every byte once at the data sheet's bandwidth
    compute_us   every multiply-add at the data sheet's rate of the declared precision
    measured_us  as the larger of the two, but at the measured copy bandwidth; None where nobody measured it
    least_us     below this a time is impossible: outputs that fit the L2 need not have left it when the clock stops,
                 and multiply-adds are left out, since an algorithm may need fewer than the reference does
    """

    memory_us: float
    compute_us: float
    measured_us: float | None
    least_us: float

    @property
    def us(self) -> float:
        """The floor by the data sheet."""
        return max(self.memory_us, self.compute_us)

    @property
    def target_us(self) -> float:
        """What a perfect kernel could be expected to take: the measured floor, else the data sheet's."""
        return self.us if self.measured_us is None else self.measured_us

    @property
    def bound(self) -> Literal["memory", "compute"]:
        """What limits a perfect kernel."""
        return "memory" if self.memory_us >= self.compute_us else "compute"


def speed_of_light(case: CaseSpec, gpu: Gpu, precision: str) -> SpeedOfLight:
    """The floor of a case at its declared precision."""
    memory_us = case.bytes_moved / (gpu.bandwidth_gbps * 1e3)
    compute_us = case.flops / (rate_tflops(gpu, precision) * 1e6)
    measured = None
    if gpu.measured_copy_gbps is not None:
        measured = max(case.bytes_moved / (gpu.measured_copy_gbps * 1e3), compute_us)
    kept = min(tree_bytes(case.outputs), gpu.l2_bytes)
    return SpeedOfLight(memory_us, compute_us, measured, (case.bytes_moved - kept) / (gpu.bandwidth_gbps * 1e3))


def rate_tflops(gpu: Gpu, precision: str) -> float:
    """The highest rate at which that precision can be had: float32 also from three TF32 or six bfloat16 products."""
    rates = gpu.tflops
    if precision == "float64":
        return rates.get("float64", rates["float32"])
    if precision == "float32":
        return max(rates["float32"], rates["tf32"] / 3, rates["bfloat16"] / 6)
    if precision == "tf32_ok":
        return max(rates["float32"], rates["tf32"])
    if precision.startswith("float8"):
        return rates.get("float8", rates["bfloat16"])
    return rates[precision]


def tree_bytes(tree: Json) -> int:
    """Bytes of all tensors of a spec tree."""
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        shape, dtype = (spec["shape"], spec["dtype"]) if isinstance(spec, dict) else (spec.shape, spec.dtype)
        return prod(shape) * (1 if dtype.startswith("float8") else _ITEMSIZE.get(dtype, 4))
    if isinstance(tree, dict):
        return sum(map(tree_bytes, tree.values()))
    return sum(map(tree_bytes, tree)) if isinstance(tree, list | tuple) else 0
