"""The `update` tool against honest, broken and hostile candidates, in the real workers."""

import time
from collections.abc import Callable

import pytest

from tests.tools.plan.conftest import COPY_KERNEL, HEADER, tensor
from tools.machine import Machine
from tools.spec import CaseSpec, TaskSpec
from tools.update import Update, UpdateLimits, Updater
from tools.verdict import Status

GOOD = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return scale(x)\n"

Updates = Callable[[str], Update]


@pytest.fixture
def update(machine: Machine) -> Updates:
    """Update a source (header and scale() in front) on a task with one input of 1000 floats."""
    case = CaseSpec("main", (tensor(1000),), (), tensor(1000))
    task = TaskSpec("scale", "0" * 64, "float32", "", (case,))
    updater = Updater(task, "sm_90", machine.tracer, machine.compiler, UpdateLimits(trace_s=4.0, compile_s=60.0))
    return lambda source: updater.update(HEADER + COPY_KERNEL + source)


def test_a_good_candidate_is_traced_and_compiled_with_a_report(update: Updates) -> None:
    result = update(GOOD)
    assert result.failure is None
    (report,) = result.kernels
    assert (report.name, report.spill_store_bytes) == ("scale_kernel", 0)
    assert report.registers > 0
    assert result.traffic_bytes == 8000


def test_the_same_kernel_moved_down_a_line_is_the_same_work(update: Updates) -> None:
    assert update(GOOD).sha256 == update("\n\n# a comment\n" + GOOD).sha256


def test_a_kernel_that_needs_too_much_shared_memory_says_how_much(update: Updates) -> None:
    source = """
@triton.jit
def big(x, B: tl.constexpr):
    i = tl.arange(0, B)
    p = x + i[:, None] * B + i[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, 8):
        acc += tl.dot(tl.load(p + k), tl.load(p + 2 * k))
    tl.store(p, acc)


class ModelNew(nn.Module):
    def forward(self, x):
        big[(1,)](x, B=128, num_stages=8)
        return x
"""
    failure = update(source).failure
    assert failure is not None
    assert failure.status is Status.COMPILE_FAILED
    assert "shared memory" in failure.detail


def test_host_code_may_ask_for_registers_and_shared_memory_as_the_softmax_tutorial_does(update: Updates) -> None:
    source = """
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel = scale_kernel.warmup(x, y, x.numel(), 2.0, B=256, grid=(1,))
        kernel._init_handles()
        programs = 4 if kernel.n_regs > 0 and kernel.metadata.shared >= 0 else 1
        kernel[(programs, 1, 1)](x, y, x.numel(), 2.0, 256)
        return y
"""
    result = update(source)
    assert result.failure is None
    assert result.main_plan is not None
    assert result.main_plan.launches[0].grid == (4, 1, 1)


HOSTILE = {
    "loops forever at import": ("while True: pass", {Status.TIMED_OUT}),
    "crashes the process": ("import ctypes; ctypes.string_at(0)", {Status.CRASHED}),
    "exits": ("import os; os._exit(0)", {Status.CRASHED}),
    "raises SystemExit": ("raise SystemExit", {Status.CRASHED}),
    "forks": ("import os\nwhile True: os.fork()", {Status.CRASHED}),
    "opens a socket": ("import socket; socket.create_connection(('127.0.0.1', 1))", {Status.CRASHED}),
    "runs a program": ("import subprocess; subprocess.run(['ls'])", {Status.CRASHED}),
    "writes a file": ("open('/tmp/kerneltune-planted', 'w')", {Status.CRASHED}),
    "reads a file": ("open('/etc/hostname').read()", {Status.CRASHED}),
    "eats memory": ("blocks = []\nwhile True: blocks.append(bytearray(1 << 24))", {Status.CRASHED, Status.TIMED_OUT}),
    "kills everybody": ("import os; os.kill(-1, 9)", {Status.CRASHED}),
    "floods its output": ("while True: print('x' * 10000)", {Status.TIMED_OUT}),
    "sends a forged plan": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass",
        {Status.REJECTED, Status.CRASHED},
    ),
    "never returns from threads": (
        "import threading, time\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\ntime.sleep(99)",
        {Status.TIMED_OUT},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_candidate_ends_as_a_verdict_within_its_limit(update: Updates, name: str) -> None:
    source, expected = HOSTILE[name]
    started = time.monotonic()
    failure = update(source + "\n" + GOOD).failure
    assert failure is not None
    assert failure.status in expected, failure.detail
    assert time.monotonic() - started < 30
    assert update(GOOD).failure is None  # and the next candidate is unharmed


@pytest.mark.parametrize(
    ("source", "words"), [("", "empty"), ("x = 1", "no class ModelNew"), ("def f(:", "SyntaxError"), ("\0", "NUL")]
)
def test_a_file_that_is_no_candidate_is_refused_with_the_reason(machine: Machine, source: str, words: str) -> None:
    task = TaskSpec("t", "0" * 64, "float32", "", (CaseSpec("main", (tensor(8),), (), tensor(8)),))
    failure = Updater(task, "sm_90", machine.tracer, machine.compiler).update(source).failure
    assert failure is not None
    assert words in failure.detail
