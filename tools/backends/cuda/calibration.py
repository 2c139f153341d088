"""What one GPU was measured to reach: bandwidths, matmul rates, the cost of an empty launch. Kept in a file."""

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from kerneltune.tools.backends.cuda.device import GpuInfo
from kerneltune.tools.schema.codec import DecodeError, decode, encode
from kerneltune.tools.schema.task import CaseSpec
from kerneltune.tools.schema.versions import versions

_METHOD = "2"  # ceilings that were measured in another way are measured again
_PRECISIONS = {"float32": ("float32",), "tf32_ok": ("tf32", "float32"), "float64": ("float64",)}


@dataclass(frozen=True)
class Ceilings:
    """Bandwidths in GB/s (copy: bytes read plus written), dense rates in TFLOP/s by precision ("tf32", "bfloat16"),
    the time of an empty kernel in a CUDA graph in µs."""

    gpu: str
    uuid: str
    driver: str
    torch: str
    date: str
    copy_gbps: float
    read_gbps: float
    write_gbps: float
    tflops: dict[str, float] = field(default_factory=dict)
    null_launch_us: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.copy_gbps, self.read_gbps, self.write_gbps, *self.tflops.values())
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError(f"a measured rate is not a positive number: {rates}")

    @property
    def fastest_gbps(self) -> float:
        """No byte can be faster than this."""
        return max(self.copy_gbps, self.read_gbps, self.write_gbps)

    def rate_tflops(self, precision: str) -> float | None:
        """The highest rate at which that precision can be had, as `roofline.rate_tflops` says; None where it was
        not measured."""
        rates = self.tflops
        if precision == "float32":
            found = [rates.get("float32"), _share(rates.get("tf32"), 3), _share(rates.get("bfloat16"), 6)]
        elif precision.startswith("float8"):
            found = [rates.get("float8")]
        else:
            found = [rates.get(name) for name in _PRECISIONS.get(precision, (precision,))]
        return max((rate for rate in found if rate is not None), default=None)

    def memory_us(self, bytes_read: int, bytes_written: int) -> float:
        """The least time to move so many bytes: pairs of a read and a written byte at the copy's rate, the rest at the
        rate of pure reads or writes."""
        paired = 2 * min(bytes_read, bytes_written)
        rest, rate = abs(bytes_read - bytes_written), self.read_gbps if bytes_read > bytes_written else self.write_gbps
        return (paired / self.copy_gbps + rest / rate) / 1e3

    def light_us(self, case: CaseSpec, output_bytes: int, precision: str) -> float | None:
        """The speed of light of a case on this GPU; None where its contractions' rate was not measured."""
        rate = self.rate_tflops(precision)
        if case.flops and rate is None:
            return None
        compute_us = case.flops / (rate * 1e6) if rate else 0.0
        return max(self.memory_us(max(0, case.bytes_moved - output_bytes), output_bytes), compute_us)


def _share(rate: float | None, of: int) -> float | None:
    return None if rate is None else rate / of


def ceilings_path(cache_dir: Path, uuid: str, driver: str, torch_version: str) -> Path:
    """Where the ceilings of this GPU with this driver and torch belong."""
    name = hashlib.sha256("\0".join((_METHOD, uuid, driver, torch_version)).encode()).hexdigest()[:16]
    return cache_dir / "ceilings" / f"{name}.json"


def ceilings_file(cache_dir: Path, gpu: GpuInfo) -> Path:
    """Where the ceilings of that GPU with the driver and torch of now belong."""
    return ceilings_path(cache_dir, gpu.uuid, gpu.driver, versions()["torch"])


def save_ceilings(path: Path, ceilings: Ceilings) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(encode(ceilings), indent=1) + "\n")
    part.replace(path)


def load_ceilings(path: Path) -> Ceilings | None:
    """The ceilings of that file; None when there is none, or none that makes sense."""
    try:
        return decode(Ceilings, json.loads(path.read_text()))
    except (OSError, DecodeError, ValueError):  # json's error is a ValueError
        return None
