"""Launches cubins for a replay: what Triton's launcher does, from data alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as packages

import torch

from tools.codec import Json
from tools.plan.replay import Argument, Descriptor, poison
from tools.plan.schema import Kernel, Launch
from tools.runner import driver
from tools.runner.packing import DeviceDescriptor, Parameter, Value, pack, pack_scalar


@dataclass(frozen=True)
class Image:
    """A compiled kernel and what its launcher must know, as `triton.compile` says it."""

    cubin: bytes
    metadata: Mapping[str, Json]

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the metadata; absent or None means the default."""
        value = self.metadata.get(name)
        return default if value is None else int(value)

    def shape(self, kernel: Kernel, grid: tuple[int, int, int], launch: Launch) -> driver.LaunchShape:
        """How this kernel is launched over a grid (of clusters, in Triton's counting)."""
        ctas = self.number("num_ctas", 1)
        block = self.metadata.get("block") or kernel.options.get("block") or (32 * self.number("num_warps", 4), 1, 1)
        return driver.LaunchShape(
            grid=(grid[0] * ctas, grid[1], grid[2]),
            block=(int(block[0]), int(block[1]), int(block[2])),
            shared_bytes=self.number("shared"),
            cluster=ctas,
            cooperative=launch.cooperative or bool(self.metadata.get("launch_cooperative_grid")),
            pdl=launch.pdl or bool(self.metadata.get("launch_pdl")),
        )


def descriptor_flags() -> int:
    """How many i1 the installed Triton gives a descriptor on a target without TMA."""
    major, minor = packages.version("triton").split(".")[:2]
    return 2 if (int(major), int(minor)) >= (3, 7) else 1


class CudaLauncher:
    """Loads the images at once, so that a kernel which does not fit fails before anything runs."""

    def __init__(self, images: Sequence[Image], kernels: Sequence[Kernel]) -> None:
        self._images, self._flags = images, descriptor_flags()
        self._scratch: dict[tuple[int, str], torch.Tensor] = {}
        self._loaded = [self._load(i, k) for i, k in zip(images, kernels, strict=True)]

    def _load(self, image: Image, kernel: Kernel) -> driver.Kernel:
        name = str(image.metadata.get("name") or kernel.name)
        return driver.Kernel(image.cubin, name, image.number("shared"), large_cluster=image.number("num_ctas", 1) > 8)

    def launch(
        self,
        kernel_index: int,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: Sequence[Argument],
        launch: Launch,
    ) -> None:
        """Enqueue the kernel on torch's current stream."""
        if 0 in grid:
            return
        image = self._images[kernel_index]
        packed = pack(kernel.signature, [_value(a) for a in args], image.metadata.get("tensordesc_meta"), self._flags)
        parameters: list[Parameter] = packed
        if kernel.language == "ttir":
            blocks = grid[0] * grid[1] * grid[2] * image.number("num_ctas", 1)
            parameters = [
                *packed,
                *(self._scratch_pointer(kernel_index, which, blocks) for which in ("global", "profile")),
            ]
        stream = torch.cuda.current_stream().cuda_stream
        self._loaded[kernel_index].launch(
            image.shape(kernel, grid, launch), [driver.encode(p) for p in parameters], stream
        )

    def _scratch_pointer(self, kernel_index: int, which: str, blocks: int) -> bytes:
        nbytes = self._images[kernel_index].number(f"{which}_scratch_size") * blocks
        if not nbytes:
            return pack_scalar("*", 0)
        held = self._scratch.get((kernel_index, which))
        if held is None or held.numel() < nbytes:
            # cuMemAlloc'd blocks are aligned to 256 bytes and more; Triton asks for 128 at most
            held = self._scratch[kernel_index, which] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return pack_scalar("*", held.data_ptr())

    def poison(self, turn: int) -> None:
        """Leave nothing in the scratch memory that an earlier launch wrote."""
        for tensor in self._scratch.values():
            poison(tensor, turn)

    def unload(self) -> None:
        """Free the modules."""
        for kernel in self._loaded:
            kernel.unload()
        self._loaded = []


def _value(argument: Argument) -> Value:
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    if isinstance(argument, Descriptor):
        tensor = argument.tensor
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return DeviceDescriptor(tensor.data_ptr(), shape, strides, argument.block_shape, argument.padding)
    return argument
