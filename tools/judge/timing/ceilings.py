"""Measure a GPU's ceilings in a few seconds. A trusted worker's entry; no candidate is near."""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch

from kerneltune.tools.backends import device_backend
from kerneltune.tools.backends.base import Backend
from kerneltune.tools.judge.correctness.float64 import plain_arithmetic
from kerneltune.tools.judge.timing.gpu_use import GpuWatch
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.gpus import Ceilings

_BYTES = 2 << 30
_SIDE = 8192
_WARM_S = 0.5
_REST_S = 0.03
_BEST_OF = 5


def main(channel: Any) -> None:
    """Measure once; the answer is Ceilings, or {"problem": …}."""
    channel.receive()
    try:
        channel.send(encode(measured(device_backend())))
    except (RuntimeError, AssertionError) as error:  # no GPU, or not enough of its memory
        channel.send({"problem": str(error).partition("\n")[0]})


def measured(backend: Backend) -> Ceilings:
    """Bandwidths and matmul rates of the current GPU, with random data. Raises RuntimeError, also where others use the
    GPU meanwhile: honest kernels would beat what is left of it."""
    gpu = backend.describe()
    uuid = gpu["uuid"]
    watch = GpuWatch(backend, uuid if isinstance(uuid, str) else None)
    use = watch.seen()
    with torch.no_grad():
        found = Ceilings(
            gpu=str(gpu["name"]),
            uuid=str(gpu["uuid"]),
            driver=str(gpu.get("driver")),
            torch=str(gpu["torch"]),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            copy_gbps=backend.copy_gbps(),
            read_gbps=_read_gbps(backend),
            write_gbps=_write_gbps(backend),
            tflops=_rates(backend),
            null_launch_us=backend.null_launch_us(),
        )
    if not use.and_then(watch.seen()).quiet:
        raise RuntimeError("others use this GPU; calibrate when it is idle")
    return found


def _best_us(backend: Backend, work: Callable[[], object], calls: int = 8) -> float:
    """The best of several short runs, some after a rest and some after half a second of the same. A GPU at its power
    limit slows down: settled rates alone were no ceiling, products of float8 were screened at 118 % of them (H200)."""
    one_us = backend.warm_passes(2, work).span_us / 2
    rested = [_run_us(backend, work, calls, _REST_S) for _ in range(_BEST_OF)]
    backend.warm_passes(max(1, int(_WARM_S * 1e6 / max(one_us, 1.0))), work)
    return min(*rested, *(_run_us(backend, work, calls) for _ in range(_BEST_OF)))


def _run_us(backend: Backend, work: Callable[[], object], calls: int, rest_s: float = 0.0) -> float:
    """A call's share of one run."""
    time.sleep(rest_s)
    return backend.warm_passes(calls, work).span_us / calls


def _read_gbps(backend: Backend) -> float:
    data = torch.ones(_BYTES // 4, dtype=torch.float32, device=backend.device).view(8192, -1)
    sink = torch.empty(8192, dtype=torch.float32, device=backend.device)
    return _BYTES / _best_us(backend, lambda: torch.amax(data, dim=1, out=sink)) / 1e3


def _write_gbps(backend: Backend) -> float:
    data = torch.empty(_BYTES // 4, dtype=torch.float32, device=backend.device)
    return _BYTES / _best_us(backend, lambda: data.fill_(1.0)) / 1e3


def _rates(backend: Backend) -> dict[str, float]:
    """TFLOP/s of a square matmul by precision; left out where this GPU or torch cannot do it."""
    found: dict[str, float] = {}
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
        ("float16", torch.float16, False),
    ):
        with plain_arithmetic(tf32=tf32):
            left, right = _operands(backend, dtype)
            out = torch.empty(_SIDE, _SIDE, dtype=dtype, device=backend.device)
            found[name] = _tflops(backend, _matmul(left, right, out))
    with contextlib.suppress(RuntimeError, ValueError, AttributeError, TypeError):  # no float8, or another signature
        found["float8"] = _tflops(backend, _scaled(backend))
    return found


def _operands(backend: Backend, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(_SIDE, _SIDE, device=backend.device).to(dtype) for _ in range(2))  # type: ignore[return-value]


def _matmul(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.matmul(left, right, out=out)


def _scaled(backend: Backend) -> Callable[[], object]:
    left, right = _operands(backend, torch.float8_e4m3fn)
    one = torch.ones((), device=backend.device)
    return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _tflops(backend: Backend, work: Callable[[], object]) -> float:
    return float(2 * _SIDE**3 / _best_us(backend, work, calls=4) / 1e6)
