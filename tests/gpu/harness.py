"""A small supervisor for tests on a GPU: forks judge and runners from this process, which must not touch CUDA.

Does by hand, and without confinement, what `tools.sandbox.workers` does for the product.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kerneltune.tools.backends import RUNNER
from kerneltune.tools.judge.execution.runner_link import Runners
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import (
    BenchRequest,
    EndRunner,
    JudgeMessage,
    KernelImage,
    NeedRunner,
    OpenTask,
    Ready,
    Rules,
    SupervisorMessage,
)
from kerneltune.tools.schema.plan import (
    Aten,
    DescriptorArg,
    Kernel,
    Launch,
    LaunchArg,
    Plan,
    ScalarArg,
    Step,
    Storage,
    TensorArg,
)
from kerneltune.tools.schema.plan import TensorRef as Ref
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Verdict

WAIT_S = 600.0
SOFTMAX_TASK = """
import torch
from torch import nn

ROWS, COLUMNS = 4096, 4096
CASES = [{"name": "odd", "ROWS": 257, "COLUMNS": 1023}]


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""


class Channel:
    """What a worker's entry is given."""

    def __init__(self, sock: socket.socket, sockets: list[socket.socket]) -> None:
        self._sock, self.sockets = sock, sockets

    def receive(self, timeout_s: float | None = None) -> wire.WireMessage:
        """The next message."""
        self._sock.settimeout(timeout_s)
        return wire.receive(self._sock)

    def send(self, body: dict[str, Any], blobs: list[Any] | None = None) -> None:
        """Answer."""
        self._sock.settimeout(None)
        wire.send(self._sock, body, blobs)


def forked(entry: Callable[[Channel], None], extra: Sequence[socket.socket]) -> tuple[int, socket.socket]:
    """Run an entry in a forked child: its pid and our end of its channel."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    status = 1
    try:
        ours.close()
        entry(Channel(theirs, list(extra)))
        status = 0
    except wire.WireError:
        status = 0
    except BaseException:  # noqa: BLE001 - the last line of a forked child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _forked_runner(line: socket.socket) -> int:
    from kerneltune.tools.backends.cuda.runner import main

    pid, sock = forked(main, [line])
    sock.close()
    return pid


class Supervisor:
    """One judge and its runners; `entry` plays the judge."""

    def __init__(self, entry: Callable[[Any], None] | None = None) -> None:
        from kerneltune.tools.judge.service.session import main

        self._door, theirs = socket.socketpair()
        self._judge, self._sock = forked(entry or main, [theirs])
        theirs.close()
        self.runners: Runners[Any] = Runners(self._door, _forked_runner, kill)

    def call(self, message: SupervisorMessage, blobs: list[bytes] | None = None) -> Any:
        """Send and wait for the answer, giving the judge runners as it asks for them."""
        wire.send(self._sock, encode(message), blobs)
        while True:
            self._sock.settimeout(WAIT_S)
            answer: Any = decode(JudgeMessage, wire.receive(self._sock).body)  # type: ignore[arg-type]
            if isinstance(answer, EndRunner):
                self.runners.end()
            elif isinstance(answer, NeedRunner):
                self.runners.need()
            else:
                return answer

    def open(self, path: Path, task: TaskSpec, baselines: tuple[str, ...]) -> Ready:
        """Load a task."""
        ready: Ready = self.call(OpenTask(str(path), task, baselines))
        return ready

    def bench(self, plans: Sequence[Plan], images: dict[str, "Image"], rules: Rules | None = None) -> Verdict:
        """Judge plans whose kernels are all among the images."""
        used = {k.sha256 for p in plans for k in p.kernels}
        listed = [(sha, image) for sha, image in images.items() if sha in used]
        named = tuple(KernelImage(sha, image[0]) for sha, image in listed)
        request = BenchRequest(tuple(plans), named, rules or Rules())
        verdict: Verdict = self.call(request, [image[1] for _, image in listed]).verdict
        return verdict

    def close(self) -> None:
        """End everything."""
        self.runners.close()
        kill(self._judge)
        self._sock.close()
        self._door.close()


class Confined(Supervisor):
    """The same with the product's own processes: runners under Landlock and the system-call filter."""

    def __init__(self) -> None:
        from kerneltune.tools.sandbox.workers import Worker, started_base

        self._stack = contextlib.ExitStack()
        machine = self._stack.enter_context(started_base())
        self._door, theirs = socket.socketpair()
        self._worker = machine.trusted("kerneltune.tools.judge.service.session:main", extra=[theirs])
        theirs.close()
        self._worker.enforced()  # its first word; what follows is the judge's
        self._sock = self._worker.detach()
        self.runners = Runners(self._door, lambda line: machine.runner(RUNNER, line), Worker.close)

    def close(self) -> None:
        """End everything."""
        self.runners.close()
        self._worker.close()
        self._door.close()
        self._stack.close()


Image = tuple[dict[str, Any], bytes]  # metadata, cubin


def kill(pid: int) -> None:
    """SIGKILL and reap."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


METADATA = (
    "name shared num_warps num_ctas cluster_dims global_scratch_size global_scratch_align profile_scratch_size "
    "tensordesc_meta launch_cooperative_grid launch_pdl"
).split()


def compiled(
    name: str, signature: dict[str, str], constants: dict[str, int], num_warps: int = 8
) -> tuple[Kernel, Image]:
    """One of our test kernels, compiled without touching a device."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests.gpu import kernels

    source = ASTSource(getattr(kernels, name), signature | dict.fromkeys(constants, "constexpr"), constants)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    metadata = {key: getattr(built.metadata, key) for key in METADATA if hasattr(built.metadata, key)}
    kernel = Kernel(name, "ttir", built.asm["ttir"], tuple(signature.values()), {"num_warps": num_warps, **constants})
    return kernel, (encode_plain(metadata), built.asm["cubin"])


def assembled(name: str, text: str, signature: tuple[str, ...], num_warps: int = 8) -> tuple[Kernel, Image]:
    """A kernel in PTX."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text)
        subprocess.run([triton.knobs.nvidia.ptxas.path, "-arch=sm_90", str(source), "-o", str(target)], check=True)
        cubin = target.read_bytes()
    return Kernel(name, "ptx", text, signature, {"num_warps": num_warps}), (
        {"name": name, "num_warps": num_warps},
        cubin,
    )


def encode_plain(value: Any) -> Any:
    """Metadata as JSON values."""
    if isinstance(value, dict):
        return {str(k): encode_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode_plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def ref(storage: int, *shape: int, dtype: str = "float32") -> Ref:
    """A row-major tensor from the start of a storage."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return Ref(storage, dtype, shape, tuple(reversed(stride)), 0)


def tagged(tensor: Ref) -> dict[str, Any]:
    """A tensor inside an output tree or an operator's arguments."""
    return {"$tensor": encode(tensor)}


def empty(out: Ref) -> Aten:
    """torch.empty."""
    return Aten("aten::empty.memory_format", (list(out.shape),), {"dtype": {"$dtype": out.dtype}}, (out,))


def row_plan(case: str, rows: int, columns: int, kernel: Kernel, *, library: bool = False) -> Plan:
    """One program per row of x, into a fresh y; with `library`, softmax is torch's and the kernel comes after it."""
    x, y = ref(0, rows, columns), ref(1, rows, columns)
    nbytes = rows * columns * 4
    args: tuple[LaunchArg, ...] = (TensorArg(x), TensorArg(y), ScalarArg(columns, "i32"))
    steps: list[Step] = [empty(y), Launch(0, (rows, 1, 1), args)]
    if library:
        after: tuple[LaunchArg, ...] = (TensorArg(y), ScalarArg(rows * columns, "i32"))
        softmax = Aten("aten::_softmax", (tagged(x), 1, False), {}, (y,), library=True)
        steps = [softmax, Launch(0, (-(-rows * columns // 4096), 1, 1), after)]
    storages = (Storage(0, nbytes, "input", "0"), Storage(1, nbytes, "scratch"))
    return Plan(case, "", "sm_90", storages, (kernel,), (), tuple(steps), tagged(y))


def chain_plan(case: str, rows: int, columns: int, copy: Kernel, kernel: Kernel, links: int) -> Plan:
    """The input handed through so many scratch tensors before the rows' kernel sees it."""
    tensors = [ref(i, rows, columns) for i in range(links + 2)]
    number, grid = ScalarArg(rows * columns, "i32"), (-(-rows * columns // 4096), 1, 1)
    steps: list[Step] = [empty(t) for t in tensors[1:]]
    for source, target in pairwise(tensors[:-1]):
        steps.append(Launch(0, grid, (TensorArg(source), TensorArg(target), number)))
    steps.append(Launch(1, (rows, 1, 1), (TensorArg(tensors[-2]), TensorArg(tensors[-1]), ScalarArg(columns, "i32"))))
    nbytes = rows * columns * 4
    storages = (Storage(0, nbytes, "input", "0"), *(Storage(t.storage, nbytes, "scratch") for t in tensors[1:]))
    return Plan(case, "", "sm_90", storages, (copy, kernel), (), tuple(steps), tagged(tensors[-1]))


def descriptor_plan(case: str, rows: int, columns: int, kernel: Kernel) -> Plan:
    """Twice the input, tile by tile, by TMA."""
    x, y = ref(0, rows, columns), ref(1, rows, columns)
    args: tuple[LaunchArg, ...] = (DescriptorArg(x, (32, 64)), DescriptorArg(y, (32, 64)))
    grid = (-(-rows // 32), -(-columns // 64), 1)
    storages = (Storage(0, rows * columns * 4, "input", "0"), Storage(1, rows * columns * 4, "scratch"))
    return Plan(case, "", "sm_90", storages, (kernel,), (), (empty(y), Launch(0, grid, args)), tagged(y))


def task_file(text: str) -> Path:
    """A task file in a folder of its own."""
    path = Path(tempfile.mkdtemp()) / "task.py"
    path.write_text(text)
    return path


@functools.cache
def spec_of(path: Path) -> TaskSpec:
    """The task as the supervisor knows it; described in a child, so that nothing here touches CUDA."""
    from kerneltune.tools.judge.correctness.problem import describe
    from kerneltune.tools.task.load import find_task

    pid, sock = forked(lambda channel: channel.send({"task": encode(describe(find_task(str(path))))}), [])
    with sock:
        body = wire.receive(sock).body
    os.waitpid(pid, 0)
    return decode(TaskSpec, body["task"])
