"""Launches PTX on this machine's GPU: for a person who uses a kernel, not for the evaluator, which replays plans."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kerneltune.tools.backends.cuda import driver
from kerneltune.tools.languages.base import language
from kerneltune.tools.languages.ptx.assemble import assemble
from kerneltune.tools.languages.ptx.loader import PtxLaunch, encodings
from kerneltune.tools.schema.messages import Lowered, Program
from kerneltune.tools.schema.plan import is_descriptor


class GpuPtxLauncher:
    """Assembles each text once; measures configs at their first launch for each set of arguments."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[object, ...], int] = {}

    def launch(self, launch: PtxLaunch) -> None:
        """Enqueue on torch's current stream."""
        if 0 in launch.grid:
            return
        kernel = _loaded(launch.text, launch.entry, launch.shared_bytes, torch.cuda.current_device())
        shape = driver.LaunchShape(
            launch.grid, launch.block, launch.shared_bytes, launch.cluster, launch.cooperative, launch.pdl
        )
        parameters = driver.pack(launch.signature, [*map(_value, launch.values)], encodings(launch.values))
        kernel.launch(shape, [*map(driver.encode, parameters)], torch.cuda.current_stream().cuda_stream)

    def lowered(self, program: Program) -> Lowered:
        """By the compiler of its language, for this GPU."""
        return _lowered(program, torch.cuda.current_device())

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """The config that takes the least time on this GPU, measured once for values of these shapes, which are left as
        they were: a kernel may add to its output."""
        if len(configs) == 1:
            return 0
        shapes = tuple(map(_shape, values))
        place = (key, str(configs), shapes, torch.cuda.current_device())
        if place not in self._chosen:
            from triton.testing import do_bench

            tensors = [v.base if is_descriptor(v) else v for v in values]
            kept = [(t, t.clone()) for t in tensors if isinstance(t, torch.Tensor)]
            times = [do_bench(lambda config=config: run(config)) for config in configs]
            for tensor, was in kept:
                tensor.copy_(was)
            self._chosen[place] = times.index(min(times))
        return self._chosen[place]


def _value(argument: Any) -> driver.Value:
    if is_descriptor(argument):
        shape, strides = tuple(argument.shape), tuple(argument.strides)
        address, block = argument.base.data_ptr(), tuple(argument.block_shape)
        return driver.DeviceDescriptor(address, shape, strides, block, argument.padding)
    value: driver.Value = argument.data_ptr() if hasattr(argument, "data_ptr") else argument
    return value


def _shape(argument: Any) -> object:
    if is_descriptor(argument):
        return argument.base.dtype, tuple(argument.shape), tuple(argument.block_shape)
    return (argument.dtype, tuple(argument.shape)) if isinstance(argument, torch.Tensor) else argument


@lru_cache(maxsize=256)
def _lowered(program: Program, device: int) -> Lowered:
    with tempfile.TemporaryDirectory() as folder:
        return language(program.language).lower(program, _arch(device), Path(folder))


def _arch(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@lru_cache(maxsize=256)
def _loaded(text: str, entry: str, shared_bytes: int, device: int) -> driver.LoadedKernel:
    with tempfile.TemporaryDirectory() as folder:
        done = assemble(text, _arch(device), Path(folder))
    static_bytes = done.resources[entry].static_shared_bytes
    return driver.LoadedKernel(done.cubin, entry, shared_bytes, static_bytes=static_bytes, large_cluster=True)
