"""Launches cubins for a replay: what Triton's launcher does, from data alone.

A variable of a module outlives a launch: it is memory that a kernel could hide something in between two runs. Which
ones a cubin keeps in device memory is read off its symbol table.
"""

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata as packages

import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.backends.cuda import driver
from kerneltune.tools.backends.cuda.driver import DeviceDescriptor, Parameter, Value, pack, pack_scalar
from kerneltune.tools.backends.cuda.memory import DeviceBuffer, protected_copy, seen
from kerneltune.tools.replay.replay import Argument, ReplayError, TensorDescriptor, poison
from kerneltune.tools.schema.plan import Kernel, Launch, Plan
from kerneltune.tools.schema.sass import sections, text_at

_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _OBJECT = 2, 1
_KEPT = (".nv.global", ".nv.constant3")  # initialised or not, and what the source declared as constant


def variables(cubin: bytes) -> dict[str, int]:
    """Sizes in bytes of the module's variables by name. Raises ValueError when it is no ELF file."""
    found = sections(cubin)
    kept = {i for i, section in enumerate(found) if section.name.startswith(_KEPT)}
    sizes: dict[str, int] = {}
    try:
        for section in (s for s in found if s.type == _SYMTAB):
            texts = found[section.link].offset
            for at in range(section.offset, section.offset + section.nbytes, _SYMBOL.size):
                name, info, _, where, _, nbytes = _SYMBOL.unpack_from(cubin, at)
                if where in kept and info & 0xF == _OBJECT and nbytes:
                    sizes[text_at(cubin, texts + name)] = nbytes
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a cubin whose tables lead outside: {error}") from error
    return sizes


MAX_VARIABLE_BYTES = 16 << 20  # of all modules of a plan; a table for sin() takes 24
SCRATCH = ("global", "profile")
_PORTABLE_CLUSTER = 8


def launch_shape(
    image: CompiledImage, kernel: Kernel, grid: tuple[int, int, int], launch: Launch
) -> driver.LaunchShape:
    """How this kernel is launched over a grid: of blocks for PTX, of clusters in Triton's counting."""
    ctas = image.number("num_ctas", 1)
    block = kernel.options.get("block") or (32 * image.number("num_warps", 4), 1, 1)
    x, y, z = kernel.options.get("cluster") or (ctas, 1, 1)
    return driver.LaunchShape(
        grid=(grid[0] * ctas, grid[1], grid[2]),
        block=(int(block[0]), int(block[1]), int(block[2])),
        shared_bytes=image.number("shared"),
        cluster=(int(x), int(y), int(z)),
        cooperative=launch.cooperative or bool(image.metadata.get("launch_cooperative_grid")),
        pdl=launch.pdl or bool(image.metadata.get("launch_pdl")),
    )


def scratch_bytes(plan: Plan, images: Sequence[CompiledImage]) -> dict[tuple[int, str], int]:
    """What Triton's launcher would allocate beside the tensors: bytes by kernel and kind, for the widest launch."""
    wanted: dict[tuple[int, str], int] = {}
    for step in (*plan.prepare, *plan.run):
        if isinstance(step, Launch) and 0 <= step.kernel < len(images):
            for which in SCRATCH:
                nbytes = _scratch_of(images[step.kernel], plan.kernels[step.kernel], which, step.grid)
                if nbytes > 0:
                    wanted[step.kernel, which] = max(nbytes, wanted.get((step.kernel, which), 0))
    return wanted


def _scratch_of(image: CompiledImage, kernel: Kernel, which: str, grid: tuple[int, int, int]) -> int:
    blocks = grid[0] * grid[1] * grid[2] * image.number("num_ctas", 1)
    return image.number(f"{which}_scratch_size") * blocks if kernel.language == "ttir" else 0


@functools.cache  # 0.4 ms to find out, at each plan that is loaded
def descriptor_flags() -> int:
    """How many i1 the installed Triton gives a descriptor on a target without TMA."""
    major, minor = packages.version("triton").split(".")[:2]
    return 2 if (int(major), int(minor)) >= (3, 7) else 1


class CudaLauncher:
    """Loads the images at once, so that a kernel which does not fit fails before anything runs. Raises ReplayError when
    the modules keep more in variables than MAX_VARIABLE_BYTES."""

    def __init__(self, images: Sequence[CompiledImage], kernels: Sequence[Kernel]) -> None:
        self._images, self._flags = images, descriptor_flags()
        self._first = False
        self._scratch: dict[tuple[int, str], torch.Tensor] = {}
        self._loaded = [self._load(i, k) for i, k in zip(images, kernels, strict=True)]
        self._variables = self._found_variables()

    def _load(self, image: CompiledImage, kernel: Kernel) -> driver.LoadedKernel:
        name = str(image.metadata.get("name") or kernel.name)
        cluster = math.prod(kernel.options.get("cluster") or (image.number("num_ctas", 1),))
        return driver.LoadedKernel(
            image.cubin,
            name,
            image.number("shared"),
            static_bytes=image.number("static_shared"),
            large_cluster=cluster > _PORTABLE_CLUSTER,
        )

    def _found_variables(self) -> list[tuple[torch.Tensor, DeviceBuffer]]:
        """Every variable of the modules, with a copy of what it held when it was loaded."""
        places = [
            place
            for kernel, image in zip(self._loaded, self._images, strict=True)
            for name in variables(image.cubin)
            if (place := kernel.variable(name)) is not None
        ]
        if sum(nbytes for _, nbytes in places) > MAX_VARIABLE_BYTES:
            raise ReplayError(f"the kernels keep more than {MAX_VARIABLE_BYTES >> 20} MiB in variables of their module")
        tensors = [seen(address, nbytes) for address, nbytes in places]
        return [(tensor, protected_copy(tensor)) for tensor in tensors]

    def restore(self) -> None:
        """Enqueue: variables of the modules hold what they held when they were loaded."""
        for tensor, pristine in self._variables:
            tensor.copy_(pristine.tensor[: tensor.numel()])

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
            parameters = [*packed, *(self._scratch_pointer(kernel_index, kernel, which, grid) for which in SCRATCH)]
        stream = torch.cuda.current_stream().cuda_stream
        shape = launch_shape(image, kernel, grid, launch)
        shape, self._first = replace(shape, pdl=shape.pdl and not self._first), False
        self._loaded[kernel_index].launch(shape, [driver.encode(p) for p in parameters], stream)

    def begin_forward(self) -> None:
        """The next launch waits for all before it: a programmatic dependent launch may overlap with other kernels of
        its own forward, but forwards that overlap would make a latency look like a throughput."""
        self._first = True

    def _scratch_pointer(self, kernel_index: int, kernel: Kernel, which: str, grid: tuple[int, int, int]) -> bytes:
        nbytes = _scratch_of(self._images[kernel_index], kernel, which, grid)
        if not nbytes:
            return pack_scalar("*", 0)
        held = self._scratch.get((kernel_index, which))
        if held is None or held.numel() < nbytes:
            # cuMemAlloc'd blocks are aligned to 256 bytes and more; Triton asks for 128 at most
            held = self._scratch[kernel_index, which] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return pack_scalar("*", held.data_ptr())

    def place(self, scratch: Mapping[tuple[int, str], torch.Tensor]) -> None:
        """Other memory for the kernels' scratch from now on."""
        self._scratch = dict(scratch)

    def poison(self, turn: int) -> None:
        """Enqueue: nothing in the scratch memory is what an earlier launch wrote, nor in the modules' variables."""
        for tensor in self._scratch.values():
            poison(tensor, turn)
        self.restore()

    def unload(self) -> None:
        """Free the modules."""
        for _, pristine in self._variables:
            pristine.close()
        for kernel in self._loaded:
            kernel.unload()
        self._variables, self._loaded = [], []


def _value(argument: Argument) -> Value:
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    if isinstance(argument, TensorDescriptor):
        tensor = argument.tensor
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return DeviceDescriptor(tensor.data_ptr(), shape, strides, argument.block_shape, argument.padding)
    return argument
