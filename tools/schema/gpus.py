"""What is known of each GPU: limits that decide occupancy, data-sheet rates that decide the speed of light, and the
ceilings that one GPU was measured to reach, kept in a file.

Sources: NVIDIA data sheets (dense rates, no sparsity) and the CUDA C++ Programming Guide's table of compute
capabilities. `bandwidth_gbps` and `tflops` are data-sheet figures; `measured_copy_gbps` is measured: a device-to-device
copy, bytes read plus written, where somebody has run one (H200: design.md section 6). L2 sizes of H200 are what the
driver reports. GeForce rates are those with float32 accumulation.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode
from kerneltune.tools.schema.plan import item_bytes
from kerneltune.tools.schema.task import CaseSpec, tensors_of

DEFAULT_ARCH = "sm_90"
LARGEST_BLOCK = 1024  # threads


@dataclass(frozen=True)
class Gpu:
    """One GPU model. Rates in TFLOP/s by torch dtype name ("tensor core" rates but for float32 and float64)."""

    name: str
    arch: int
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    bandwidth_gbps: float
    tflops: dict[str, float] = field(hash=False)
    shared_per_sm_bytes: int = 228 << 10
    shared_per_block_bytes: int = 227 << 10
    warps_per_sm: int = 64
    blocks_per_sm: int = 32
    measured_copy_gbps: float | None = None
    registers_per_sm: int = 65536

    def served(self) -> dict[str, Json]:
        """The fields of torch.cuda.get_device_properties that host code asks for."""
        return {
            "name": f"NVIDIA {self.name}",
            "multi_processor_count": self.multiprocessors,
            "total_memory": self.memory_bytes,
            "L2_cache_size": self.l2_bytes,
            "shared_memory_per_block": 48 << 10,
            "shared_memory_per_block_optin": self.shared_per_block_bytes,
            "shared_memory_per_multiprocessor": self.shared_per_sm_bytes,
            "max_threads_per_multi_processor": self.warps_per_sm * 32,
        }


def _rates(fp32: float, tf32: float, half: float, fp8: float | None = None) -> dict[str, float]:
    rates = {"float32": fp32, "tf32": tf32, "float16": half, "bfloat16": half}
    return rates | ({"float8": fp8} if fp8 else {})


_GIB = 1 << 30
_MIB = 1 << 20
_AMPERE = {"shared_per_sm_bytes": 164 << 10, "shared_per_block_bytes": 163 << 10}
_ADA = {"shared_per_sm_bytes": 100 << 10, "shared_per_block_bytes": 99 << 10, "warps_per_sm": 48, "blocks_per_sm": 24}

GPUS: tuple[Gpu, ...] = (
    Gpu("H200", 90, 132, 141 * _GIB, 60 * _MIB, 4800, _rates(67, 494, 989, 1979), measured_copy_gbps=4300),
    Gpu("H100 SXM", 90, 132, 80 * _GIB, 50 * _MIB, 3350, _rates(67, 494, 989, 1979)),
    Gpu("H100 PCIe", 90, 114, 80 * _GIB, 50 * _MIB, 2039, _rates(51, 378, 756, 1513)),
    Gpu("A100 80GB SXM", 80, 108, 80 * _GIB, 40 * _MIB, 2039, _rates(19.5, 156, 312), **_AMPERE),
    Gpu("A100 40GB SXM", 80, 108, 40 * _GIB, 40 * _MIB, 1555, _rates(19.5, 156, 312), **_AMPERE),
    Gpu("L40S", 89, 142, 48 * _GIB, 96 * _MIB, 864, _rates(91.6, 183, 362, 733), **_ADA),
    Gpu("L4", 89, 58, 24 * _GIB, 48 * _MIB, 300, _rates(30.3, 60, 121, 242), **_ADA),
    Gpu("RTX 4090", 89, 128, 24 * _GIB, 72 * _MIB, 1008, _rates(82.6, 82.6, 165, 330), **_ADA),
    Gpu("B200", 100, 148, 180 * _GIB, 126 * _MIB, 8000, _rates(75, 1100, 2250, 4500)),
)

_DRIVER_NAMES = {r"H100 80GB HBM3": "H100 SXM", r"A100.*80GB": "A100 80GB SXM", r"A100.*40GB": "A100 40GB SXM"}


def gpu_named(name: str) -> Gpu:
    """The GPU that the driver calls `name` ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"). Raises KeyError: a close relative
    ("RTX 4090 Laptop GPU") has other rates, so near is not good enough."""
    bare = name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    bare = next((ours for theirs, ours in _DRIVER_NAMES.items() if re.fullmatch(theirs, bare)), bare)
    for gpu in GPUS:
        if gpu.name == bare:
            return gpu
    raise KeyError(f"no data for GPU {name!r}; known: {', '.join(g.name for g in GPUS)}")


def arch_number(arch: str) -> int:
    """90 of "sm_90" and of "sm_90a". Raises ValueError."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def target_arch(text: str) -> str:
    """The compile target ("sm_90") that a person means by "sm_90", "SM90a", "90", "9.0", "compute_90", "h100", "H200",
    "RTX 4090" and the like. Raises ValueError that lists what works."""
    key = _bare(text)
    number = re.fullmatch(r"(?:sm|compute|cc)?(\d{1,4})[af]?", key)
    for gpu in GPUS:
        if key in _spellings(gpu) or (number and int(number[1]) == gpu.arch):
            return f"sm_{gpu.arch}"
    known = {f"sm_{gpu.arch}": [g.name for g in GPUS if g.arch == gpu.arch] for gpu in GPUS}
    listed = "; ".join(
        f"{arch} ({', '.join(names)})" for arch, names in sorted(known.items(), key=lambda one: arch_number(one[0]))
    )
    raise ValueError(f"no compile target {text!r}; known: {listed}")


def _bare(text: str) -> str:
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    return letters.removeprefix("nvidia").removeprefix("geforce")


def _spellings(gpu: Gpu) -> set[str]:
    """What a person may call a GPU: its whole name, or the word of it that has a number."""
    first_with_digit = next(word for word in gpu.name.split() if any(c.isdigit() for c in word))
    return {_bare(gpu.name), _bare(first_with_digit)}


def gpu_for_arch(arch: str) -> Gpu:
    """The first known GPU of a compile target ("sm_90"). Raises KeyError."""
    for gpu in GPUS:
        if f"sm_{gpu.arch}" == arch:
            return gpu
    raise KeyError(f"unknown target {arch!r}; known: {', '.join(sorted({f'sm_{g.arch}' for g in GPUS}))}")


def occupancy(arch: str, registers: int, shared_bytes: int, num_warps: int) -> float:
    """Resident warps / maximum, after the CUDA occupancy calculator: registers are given out per warp in units of 256,
    from a quarter of the file for each of four schedulers; shared memory in units of 128 bytes, and 1 KiB more a block.
    Raises KeyError for an unknown target."""
    gpu = gpu_for_arch(arch)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = 4 * (gpu.registers_per_sm // 4 // per_warp) // num_warps
    by_shared = gpu.shared_per_sm_bytes // (-(-shared_bytes // 128) * 128 + 1024)
    blocks = min(gpu.blocks_per_sm, gpu.warps_per_sm // num_warps, by_registers, by_shared)
    return max(blocks, 0) * num_warps / gpu.warps_per_sm


@dataclass(frozen=True)
class SpeedOfLight:
    """Lower bounds of the time of one forward with cold caches, in microseconds.

    memory_us    every byte once at the data sheet's bandwidth
    compute_us   every multiply-add at the data sheet's rate of the declared precision
    measured_us  as the larger of the two, but at the measured copy bandwidth; None where nobody measured it
    """

    memory_us: float
    compute_us: float
    measured_us: float | None

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
    return SpeedOfLight(memory_us, compute_us, measured)


# precision -> the rates by which it can be had, and how many products of that kind one takes. A float16 has the 11 bits
# of a TF32, and its range where rows are scaled by powers of two first, so a pair of them has the 22 bits of two TF32
# (benchmarks/sessions/mlp_float32.jsonl).
_WAYS = {
    "float32": {"float32": 1, "tf32": 3, "float16": 3, "bfloat16": 6},
    "tf32_ok": {"float32": 1, "tf32": 1, "float16": 1},
}


def _rate(rates: Mapping[str, float], precision: str) -> float | None:
    """The highest rate at which that precision can be had; None where there is none."""
    name = "float8" if precision.startswith("float8") else precision
    ways = _WAYS.get(name, {name: 1})
    return max((rates[way] / products for way, products in ways.items() if way in rates), default=None)


def rate_tflops(gpu: Gpu, precision: str) -> float:
    """The highest rate at which that precision can be had: float32 also from three products of TF32 or float16."""
    wider = "bfloat16" if precision.startswith("float8") else "float32"  # where the data sheet has no rate of its own
    return _rate(gpu.tflops, precision) or gpu.tflops[wider]


def tree_bytes(tree: Json) -> int:
    """Bytes of all tensors of a spec tree."""
    return sum(prod(spec.shape) * item_bytes(spec.dtype) for _, spec in tensors_of(tree))


_METHOD = "2"  # ceilings that were measured in another way are measured again


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
        """The highest rate at which that precision can be had here; None where it was not measured."""
        return _rate(self.tflops, precision)

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


def compiled_path(cache_dir: Path, sha256: str) -> Path:
    """Where torch.compile's work on a task is kept. Each has its own: what one leaves there another would execute."""
    return cache_dir / "compiled" / sha256[:16]


def ceilings_path(cache_dir: Path, uuid: str, driver: str, torch_version: str) -> Path:
    """Where the ceilings of this GPU with this driver and torch belong."""
    name = hashlib.sha256("\0".join((_METHOD, uuid, driver, torch_version)).encode()).hexdigest()[:16]
    return cache_dir / "ceilings" / f"{name}.json"


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
