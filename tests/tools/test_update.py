"""The `update` tool against honest, broken and hostile candidates, in the real workers."""

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from kerneltune.tools.receipt import author_view
from kerneltune.tools.reflect import facts_of
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import KernelEffects
from kerneltune.tools.schema.plan import ArgEffect, Kernel, Launch, Plan, Storage, TensorArg, TensorRef
from kerneltune.tools.schema.sass import facts_in_words
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Cause, Status
from kerneltune.tools.update import HELD_OUT_FAILS, KernelCompiler, Update, UpdateLimits, Updater, untrue
from tests.tools.conftest import COPY_KERNEL, HEADER, tensor

PRODUCT = """\
    i = tl.arange(0, B)
    p = x + i[:, None] * B + i[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, 8):
        acc += tl.dot(tl.load(p + k), tl.load(p + 2 * k))
    tl.store(p, acc)
"""  # with 9 stages of 64 x 64 it needs more shared memory than a block can have
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


def test_what_triton_has_before_ptx_is_told_of_each_kernel(machine: Machine) -> None:
    case = CaseSpec("main", (tensor(1000),), (), tensor(1000))
    task = TaskSpec("scale", "0" * 64, "float32", "", (case,))
    updater = Updater(task, "sm_90", machine.tracer, machine.compiler, UpdateLimits(trace_s=30.0, compile_s=60.0))
    reply = updater.ttgir(updater.update(HEADER + COPY_KERNEL + GOOD))
    assert (reply.problem, len(reply.texts)) == ("", 1)
    assert "#ttg.blocked<" in reply.texts[0]
    assert "tt.func public @scale_kernel" in reply.texts[0]


def test_the_same_kernel_moved_down_a_line_is_the_same_work(update: Updates) -> None:
    assert update(GOOD).sha256 == update("\n\n# a comment\n" + GOOD).sha256


def test_a_kernel_that_needs_too_much_shared_memory_says_how_much(update: Updates) -> None:
    source = (
        """
@triton.jit
def big(x, B: tl.constexpr):
"""
        + PRODUCT
        + """

class ModelNew(nn.Module):
    def forward(self, x):
        big[(1,)](x, B=64, num_stages=9)
        return x
"""
    )
    failure = update(source).failure
    assert failure is not None
    assert failure.status is Status.COMPILE_FAILED
    assert "shared memory" in failure.detail


def test_a_block_of_more_threads_than_any_gpu_starts_is_refused_before_it_is_judged(update: Updates) -> None:
    """Triton and ptxas compile it, and without a GPU its programs are right."""
    launch = "scale_kernel[(4,)](x, y, x.numel(), 2.0, B=256, num_warps=64)"
    forward = f"    def forward(self, x):\n        y = torch.empty_like(x)\n        {launch}\n        return y\n"
    failure = update("class ModelNew(nn.Module):\n" + forward).failure
    assert failure is not None
    assert failure.status is Status.COMPILE_FAILED
    assert "num_warps=64 is a block of 2048 threads; the most is 1024" in failure.detail
    assert update("class ModelNew(nn.Module):\n" + forward.replace("=64", "=32")).failure is None


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


FORGED: dict[str, dict[str, Json]] = {
    "a failure that is accepted": {"failure": {"status": "checked", "message": "right", "line": None}},
    "a failure that is timed": {"failure": {"status": "correct", "message": "fast", "line": None}},
    "a failure in no case": {"failure": {"status": "crashed", "message": "x", "line": 1}, "failed_case": "nowhere"},
    "no plans": {"plans": []},
    "a plan of nothing": {
        "plans": [
            {
                "case": "main", "variant": "default", "arch": "sm_90", "storages": [], "kernels": [], "prepare": [],
                "run": [], "outputs": {"$tensor": {"dtype": "float32", "shape": [1000]}}, "schema_version": 1,
            }
        ]
    },
}  # fmt: skip


EDITS = {
    "all work is done before the clock runs": (
        "replace(plan, prepare=plan.run, storages=tuple("
        "replace(s, origin='prepared') if s.origin == 'scratch' else s for s in plan.storages))",
        "works on the inputs before it is timed",
    ),
    "a launch of no programs": (
        "replace(plan, run=tuple(replace(s, grid=(0, 1, 1)) if s.kind == 'launch' else s for s in plan.run))",
        "launches no program",
    ),
    "a kernel that is not there": (
        "replace(plan, run=tuple(replace(s, kernel=7) if s.kind == 'launch' else s for s in plan.run))",
        "not in the plan",
    ),
    "a tensor in no storage": (
        "replace(plan, outputs={'$tensor': {'storage': 99, 'dtype': 'float32', 'shape': [1000], 'stride': [1]}})",
        "a tensor that is none",
    ),
    "two storages of one name": ("replace(plan, storages=plan.storages * 2)", "not distinct"),
    "another case": ("replace(plan, case='nowhere')", "unknown case 'nowhere'"),
    "more outputs than are counted": (
        "replace(plan, outputs=[plan.outputs] * 2000)",
        "a plan of more than 1000 outputs",
    ),
    "more kernels than are compiled": ("replace(plan, kernels=plan.kernels * 3000)", "3000 kernels; the limit is 2048"),
    "more steps than a tracer records": (
        "replace(plan, run=(*plan.run, *plan.run[:1] * 10_000))",
        "a plan of 10002 steps; the limit is 10000",
    ),
    "more text than is read": (
        "replace(plan, kernels=tuple(replace(k, text=k.text + ' ' * (9 << 20)) for k in plan.kernels))",
        "kernels of more than 8 MB",
    ),
    "bytes that no float holds": (
        "replace(plan, storages=tuple(replace(s, nbytes=10**4000) for s in plan.storages))",
        "the limit is 1 TiB",
    ),
    "sizes that nobody could multiply": (
        "replace(plan, outputs={'$tensor': {'storage': 0, 'dtype': 'float32', 'shape': [10**4000], 'stride': [1]}})",
        "a tensor that is none",
    ),
    "a name of a megabyte": (
        "replace(plan, kernels=tuple(replace(k, name='k' * (1 << 20)) for k in plan.kernels))",
        "a kernel whose name has 1048576 characters; the limit is 2000",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_plan_that_the_candidate_edited_is_refused_where_it_makes_no_sense(update: Updates, name: str) -> None:
    edit, words = EDITS[name]
    source = f"""
from dataclasses import replace
from kerneltune.tools.trace import tracer as trace
real = trace.build_plan

def edited(*args, **kwargs):
    plan = real(*args, **kwargs)
    return {edit}

trace.build_plan = edited
"""
    failure = update(source + GOOD).failure
    assert failure is not None
    assert failure.status is Status.REJECTED
    assert words in failure.detail


@pytest.mark.parametrize("words", ["return self.__str__()", "raise ValueError", "raise SystemExit"])
def test_an_exception_that_cannot_say_what_it_is_is_the_candidate_s_own(update: Updates, words: str) -> None:
    forward = f"    def forward(self, x):\n        class Odd(Exception):\n            def __str__(self): {words}\n"
    failure = update(f"class ModelNew(nn.Module):\n{forward}        raise Odd").failure
    assert failure is not None
    assert (failure.status, failure.cause) == (Status.CRASHED, Cause.HOST_EXCEPTION)


def test_of_a_process_that_fails_an_author_reads_what_was_raised_and_no_line_of_ours(update: Updates) -> None:
    source = """
from kerneltune.tools.trace import tracer as trace
real = trace.build_plan

def edited(*args, **kwargs):
    plan, tree = real(*args, **kwargs), 0
    for _ in range(5000):
        tree = {"a": tree}
    return trace.replace(plan, outputs=tree)

trace.build_plan = edited
"""
    failure = update(source + GOOD).failure
    assert failure is not None
    words = "while tracing, the process exited with status 1: RecursionError: maximum recursion depth exceeded"
    assert failure.detail.startswith(words)
    assert "|" not in failure.detail


def sending(frame: bytes, pause_s: float = 0.0) -> str:
    """A candidate that writes a frame to its supervisor by itself, in one go or byte by byte."""
    return f"""
import os, socket, struct, time
frame = struct.pack("<Q", {len(frame)}) + {frame!r}
step = 1 if {pause_s} else len(frame)
for fd in range(3, 64):
    try:
        socket.socket(fileno=os.dup(fd)).getpeername()
        for at in range(0, len(frame), step):
            os.write(fd, frame[at : at + step])
            time.sleep({pause_s})
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize("name", FORGED)
def test_a_reply_that_the_candidate_wrote_itself_is_never_accepted(update: Updates, name: str) -> None:
    reply: dict[str, Json] = {
        "plans": [],
        "failure": None,
        "failed_case": None,
        "dropped_variants": [],
        "kind": "trace_reply",
    }
    frame = json.dumps({"m": reply | FORGED[name], "b": []}).encode()
    failure = update(sending(frame) + GOOD).failure
    assert failure is not None
    assert not failure.accepted
    assert failure.status in (Status.REJECTED, Status.CRASHED)


def test_a_process_that_sends_too_much_is_told_of_with_the_limit(update: Updates) -> None:
    failure = update(sending(b"").replace('struct.pack("<Q", 0)', 'struct.pack("<Q", 1 << 40)') + GOOD).failure
    assert failure is not None
    assert "the process sent a header of 1099511627776 bytes; the limit is 67108864" in failure.detail


def test_names_of_outputs_are_not_written_before_each_of_them(update: Updates) -> None:
    """Nine hundred paths of a megabyte were a gigabyte."""
    source = """
from dataclasses import replace
from kerneltune.tools.trace import tracer as trace
real = trace.build_plan

def edited(*args, **kwargs):
    plan = real(*args, **kwargs)
    return replace(plan, outputs={"$dict": {"n" * (1 << 20): [plan.outputs] * 900}})

trace.build_plan = edited
"""
    tracemalloc.start()
    failure = update(source + GOOD).failure
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert failure is not None
    assert failure.cause is Cause.RETURNS
    assert len(failure.detail) < 2000
    assert peak_bytes < 100 << 20


def test_a_chain_of_memory_that_is_kept_is_followed_in_bounded_time() -> None:
    """Each launch reads what the next one wrote in an earlier call; one round learns of one more."""

    def link(i: int) -> Launch:
        read, write = (TensorArg(TensorRef(n, "float32", (4,), (1,))) for n in (i + 2, i + 1))
        return Launch(0, (1, 1, 1), (read, write))

    kernel = Kernel("k", "ttir", "", ("*fp32", "*fp32"))
    storages = tuple(Storage(n, 16, "prepared") for n in range(9_002))
    run = tuple(map(link, range(9_000)))
    outputs = {"$tensor": {"storage": 1, "dtype": "float32", "shape": [4], "stride": [1]}}
    plan = Plan("main", "default", "sm_90", storages, (kernel,), (), run, outputs)
    effects = KernelEffects((ArgEffect(True, False), ArgEffect(False, True)), waits=False)
    began_s = time.process_time()
    assert untrue([plan], {kernel.sha256: effects}) is None
    assert time.process_time() - began_s < 5.0


MALFORMED = {
    "more blobs than any machine holds": json.dumps({"m": {}, "b": [1 << 35]}).encode(),
    "brackets without end": b"[" * 100_000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_frame_that_would_hurt_its_reader_is_a_verdict(update: Updates, name: str) -> None:
    failure = update(sending(MALFORMED[name]) + GOOD).failure
    assert failure is not None
    assert not failure.accepted
    assert update(GOOD).failure is None


def test_a_reply_that_only_trickles_in_is_timed_out(update: Updates) -> None:
    started = time.monotonic()
    failure = update(sending(b"x" * 1000, pause_s=0.5) + GOOD).failure
    assert failure is not None
    assert failure.status is Status.TIMED_OUT
    assert time.monotonic() - started < 20


def module(body: str, init: str = "self") -> str:
    return f"class ModelNew(nn.Module):\n    def __init__({init}):\n        super().__init__()\n{body}"


def returning(value: str) -> str:
    return f"class ModelNew(nn.Module):\n    def forward(self, x):\n        y = scale(x)\n        return {value}\n"


FORWARD = "    def forward(self, x):\n        return scale(x)\n"
REFUSED = {
    "a class that is no nn.Module": ("class ModelNew:\n" + FORWARD, "not an nn.Module"),
    "a function that makes no module": ("def ModelNew():\n    return scale\n", "not an nn.Module"),
    "a constructor of other arguments": (
        module(FORWARD, "self, width"),
        "ModelNew takes (width); the task makes its Model",
    ),
    "a forward of more arguments": (
        "class ModelNew(nn.Module):\n    def forward(self, x, y):\n        return scale(x)\n",
        "forward takes (x, y); the task calls it with (float32[1000])",
    ),
    "no forward": (module("        pass\n"), "defines no forward"),
    "a tensor on the CPU": (returning("y.cpu()"), "on the cpu device"),
    "a generator": (returning("(yield y)"), "forward returns generator"),
    "an array": (returning("__import__('numpy').zeros(3)"), "forward returns ndarray"),
    "a parser's nightmare": ("x = " + "-" * 100_000 + "1", "nested too deeply"),
    "tabs and spaces": ("if 1:\n\tx = 1\n        y = 2\n", "TabError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_candidate_that_cannot_be_called_is_told_what_was_expected(update: Updates, name: str) -> None:
    source, words = REFUSED[name]
    failure = update(source).failure
    assert failure is not None
    assert failure.status is Status.REJECTED
    assert words in failure.detail


OTHER = {
    "(y,)": "(float32[1000],)",
    "{'a': y}": "{a: float32[1000]}",
    "y[:10]": "float32[10]",
    "y.half()": "float16[1000]",
    "y.reshape(10, 100)": "float32[10, 100]",
    "None": "None",
    "[y] * 1000": "… 994 more]",
}


@pytest.mark.parametrize("value", OTHER)
def test_another_structure_shape_or_dtype_is_wrong_and_both_are_named(update: Updates, value: str) -> None:
    failure = update(returning(value)).failure
    assert failure is not None
    assert failure.status is Status.WRONG
    assert OTHER[value] in failure.detail
    assert failure.detail.endswith("; the task's Model returns float32[1000]")


def test_several_outputs_dicts_and_integers_may_be_returned(machine: Machine) -> None:
    outputs = {"$tuple": [tensor(1000), {"$dict": {"n": tensor(1000, dtype="int64")}}, 3]}
    task = TaskSpec("t", "0" * 64, "float32", "", (CaseSpec("main", (tensor(1000),), (), outputs),))
    source = returning("[y, {'n': torch.arange(1000, device=x.device)}, 3]")
    assert (
        Updater(task, "sm_90", machine.tracer, machine.compiler).update(HEADER + COPY_KERNEL + source).failure is None
    )


def test_a_failure_names_the_case_that_it_happened_in_for_the_record(machine: Machine) -> None:
    cases = (CaseSpec("main", (tensor(8),), (), tensor(8)), CaseSpec("odd", (tensor(9),), (), tensor(9), held_out=True))
    source = HEADER + COPY_KERNEL + returning("y if x.numel() == 8 else y[:1]")
    task = TaskSpec("t", "0" * 64, "float32", "", cases)
    failure = Updater(task, "sm_90", machine.tracer, machine.compiler).update(source).failure
    assert failure is not None
    assert failure.receipt == {"case": "odd"}
    assert failure.detail == HELD_OUT_FAILS


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("x = 1", "no class ModelNew"),
        ("def f(:", "line 1: SyntaxError"),
        ("x = 1\n\0", "NUL bytes (line 2)"),
        ("x = '\udcff'", "not valid Unicode"),
        ("#" * (1 << 20) + "x", "1048577 bytes"),
    ],
)
def test_a_file_that_is_no_candidate_is_refused_with_the_reason(machine: Machine, source: str, words: str) -> None:
    task = TaskSpec("t", "0" * 64, "float32", "", (CaseSpec("main", (tensor(8),), (), tensor(8)),))
    failure = Updater(task, "sm_90", machine.tracer, machine.compiler).update(source).failure
    assert failure is not None
    assert failure.status is Status.REJECTED
    assert words in failure.detail


SECRET_ROWS = 131
TELLS = {
    "raises": "if x.shape[0] == 131: raise RuntimeError(f'rows {x.shape[0]}')",
    "exits": "if x.shape[0] == 131: raise SystemExit('rows 131')",
    "returns another shape": "if x.shape[0] == 131: return x[:1]",
    "asks for a missing kernel": "if x.shape[0] == 131: tell[(1,)](x, x.shape[0])",
    "compiles what ptxas refuses": "if x.shape[0] == 131: refused_131[(1,)](x)",
    "prints and dies": "if x.shape[0] == 131: print('rows 131', flush=True); import os; os._exit(3)",
    "hangs": "if x.shape[0] == 131: import time; time.sleep(60)",
    "forges a failure": "if x.shape[0] == 131: forge({'status': 'crashed', 'message': 'rows 131', 'line': 131})",
    "forges a variant": "if x.shape[0] == 131: forge(None, ['rows 131'])",
    "needs too much": "if x.shape[0] == 131: big_131[(1,)](x, B=64, num_stages=9)",
}
TELLTALES = (
    """
@triton.jit
def big_131(x, B: tl.constexpr):
"""
    + PRODUCT
    + """

@triton.jit
def tell(x, ROWS: tl.constexpr):
    tl.static_assert(ROWS != 131, "rows 131")


@triton.jit
def refused_131(x):
    v = tl.inline_asm_elementwise("no.such.instruction_131 $0, $1;", "=f,f", [tl.load(x)], tl.float32, False, 1)
    tl.store(x, v)


def forge(failure, dropped=()):
    import os, sys
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("channel"), "send"):
        frame = frame.f_back
    reply = {"plans": [], "failure": failure, "failed_case": "1", "dropped_variants": list(dropped)}
    frame.f_locals["channel"].send({**reply, "kind": "trace_reply"})
    os._exit(0)

"""
)


def a_task(*cases: CaseSpec) -> TaskSpec:
    return TaskSpec("scale", "0" * 64, "float32", "", cases)


def rows_of(n_rows: int, name: str, *, held_out: bool = False) -> CaseSpec:
    return CaseSpec(name, (tensor(n_rows, 8),), (), tensor(n_rows, 8), held_out=held_out)


@pytest.mark.parametrize("way", TELLS)
def test_of_a_failure_in_a_held_out_case_an_author_learns_only_that_it_failed(machine: Machine, way: str) -> None:
    task = a_task(rows_of(4, "main"), rows_of(5, "odd"), rows_of(SECRET_ROWS, "secret", held_out=True))
    limits = UpdateLimits(trace_s=4.0, compile_s=60.0, max_variants=2)
    forward = f"class ModelNew(nn.Module):\n    def forward(self, x):\n        {TELLS[way]}\n        return scale(x)\n"
    update = Updater(task, "sm_90", machine.tracer, machine.compiler, limits).update(
        HEADER + COPY_KERNEL + TELLTALES + forward
    )
    assert update.failure is not None
    assert update.failure.detail == HELD_OUT_FAILS
    assert update.failure.receipt == {"case": "secret"}
    assert "131" not in repr(update.dropped_variants)
    told = author_view(update.failure, task)
    assert "131" not in repr(told)
    assert "secret" not in repr(told)


def test_the_process_that_traces_visible_cases_holds_nothing_of_the_others(machine: Machine) -> None:
    source = """
import sys
def found():
    frame = sys._getframe()
    while frame is not None:
        if "request" in frame.f_locals:
            return repr(frame.f_locals["request"].cases)
        frame = frame.f_back
class ModelNew(nn.Module):
    def forward(self, x):
        raise RuntimeError(found())
"""
    task = a_task(rows_of(4, "main"), rows_of(SECRET_ROWS, "secret", held_out=True), rows_of(5, "odd"))
    failure = Updater(task, "sm_90", machine.tracer, machine.compiler).update(HEADER + source).failure
    assert failure is not None
    assert "'shape': [4, 8]" in failure.detail
    assert "'shape': [5, 8]" in failure.detail
    for private in ("131", "secret", "main", "odd", "held_out", "runs_on_cpu", "flops", "outputs"):
        assert private not in failure.detail


def test_plans_come_back_under_their_cases_names_in_the_task_s_order(machine: Machine) -> None:
    task = a_task(rows_of(4, "main"), rows_of(SECRET_ROWS, "secret", held_out=True), rows_of(5, "odd"))
    source = HEADER + COPY_KERNEL + GOOD
    update = Updater(task, "sm_90", machine.tracer, machine.compiler).update(source)
    assert update.failure is None
    assert {name: [p.case for p in plans] for name, plans in update.plans.items()} == {
        "main": ["main"],
        "secret": ["secret"],
        "odd": ["odd"],
    }
    assert all(k.sha256 in update.artefacts for plans in update.plans.values() for p in plans for k in p.kernels)


HOSTILE_WORDS = {
    "thirty megabytes": "'x' * 30_000_000",
    "surrogates": "'\\ud800' * 9",
    "escapes": "'\\x1b]0;owned\\x07\\0'",
}


@pytest.mark.parametrize(
    ("forward", "cause"),
    [
        ("return scale(x * x.sum().item())", Cause.READS_VALUE),
        ("return x + 1", Cause.NO_LAUNCH),
        ("return scale(x)[:5]", Cause.RETURNS),
        ("return scale(x) +", Cause.SOURCE),
        ("raise KeyError('reads_value')", Cause.HOST_EXCEPTION),
    ],
)
def test_why_a_candidate_was_refused_is_a_fact_of_its_verdict(update: Updates, forward: str, cause: Cause) -> None:
    found = update(f"class ModelNew(nn.Module):\n    def forward(self, x):\n        {forward}\n").failure
    assert found is not None
    assert found.cause is cause


@pytest.mark.parametrize("kind", HOSTILE_WORDS)
def test_a_forged_failure_s_message_is_made_plain(update: Updates, kind: str) -> None:
    failure = update(
        TELLTALES + f"forge({{'status': 'crashed', 'message': {HOSTILE_WORDS[kind]}, 'line': 10**30}})\n"
    ).failure
    assert failure is not None
    assert failure.status is Status.CRASHED
    assert len(failure.detail) <= 2000
    assert failure.detail.encode()
    assert failure.detail.replace("\n", "").isprintable()
    assert "line" not in failure.receipt


def test_what_was_compiled_is_disassembled_by_a_confined_worker(machine: Machine) -> None:
    forward = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return scale(x)\n"
    updater = Updater(a_task(rows_of(4, "main")), "sm_90", machine.tracer, machine.compiler)
    update = updater.update(HEADER + COPY_KERNEL + forward)
    assert update.failure is None
    told = updater.sass(update)
    assert told.problem == ""
    assert told.assembler.startswith("ptxas ")
    assert told.disassembler.startswith("nvdisasm ")
    (sass,) = told.kernels
    assert sass.name == update.kernels[0].name
    assert sum(sass.whole.classes.values()) == len(sass.instructions) > 5
    assert any(name.startswith("global load") for name in sass.whole.classes)
    kernel_lines = range(1, (HEADER + COPY_KERNEL).count("\n") + 1)
    assert {i.line for i in sass.instructions if i.file == "candidate.py"} <= set(kernel_lines)
    assert any(i.file == "candidate.py" for i in sass.instructions)
    assert ".visible .entry" in sass.ptx
    assert updater.sass(update, "no such variant").kernels == told.kernels
    assert updater.sass(replace(update, artefacts={})).problem == "nothing was compiled"


DESCRIBED = """
@triton.jit
def product(a, b, c, n, B: tl.constexpr, K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [n, n], [n, 1], [B, K])
    right = tl.make_tensor_descriptor(b, [n, n], [n, 1], [K, B])
    i, j = tl.program_id(0) * B, tl.program_id(1) * B
    acc = tl.zeros((B, B), tl.float32)
    for k in tl.range(0, n, K, warp_specialize=True):
        acc = tl.dot(left.load([i, k]), right.load([k, j]), acc)
    tl.make_tensor_descriptor(c, [n, n], [n, 1], [B, B]).store([i, j], acc.to(tl.bfloat16))

class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(a)
        product[(16, 16)](a, b, c, 2048, B=128, K=64, num_warps=4, num_stages=3)
        return c
"""


ASKED = "warp_specialize=True"
DID = {
    ASKED: "; specialised from 4 warps; 4 HGMMA.64x128x16.F32.BF16 in the loop; TMA (bulk load and bulk store)",
    "": "3 stages; 2 blocks/SM, 256 programs: 0.97 waves (last 97 %); 8 HGMMA.64x128x16.F32.BF16 in the loop; TMA",
}


@pytest.mark.parametrize("asked", DID)
def test_what_the_compiler_did_with_descriptors_and_specialised_warps_is_said(machine: Machine, asked: str) -> None:
    square = tensor(2048, 2048, dtype="bfloat16")
    task = TaskSpec("product", "0" * 64, "bfloat16", "", (CaseSpec("main", (square, square), (), square),))
    updater = Updater(task, "sm_90", machine.tracer, machine.compiler)
    update = updater.update(HEADER + DESCRIBED.replace(ASKED, asked))
    assert update.failure is None
    (sass,), (facts,) = updater.sass(update).kernels, facts_of(update, update.main_plan)
    said = facts_in_words(facts, sass)
    assert DID[asked] in said
    assert len(facts_in_words(facts)) <= 160


def test_a_cubin_that_cannot_be_read_is_a_problem_in_words(machine: Machine) -> None:
    updater = Updater(a_task(rows_of(4, "main")), "sm_90", machine.tracer, machine.compiler)
    update = updater.update(HEADER + COPY_KERNEL + GOOD)
    broken = {key: replace(a, cubin=b"no cubin") for key, a in update.artefacts.items()}
    told = updater.sass(replace(update, artefacts=broken))
    assert told.kernels == ()
    assert "cannot read this cubin" in told.problem


@pytest.mark.parametrize("width", [1, 3])
def test_kernels_compiled_side_by_side_are_the_same_as_one_after_another(machine: Machine, width: int) -> None:
    case = CaseSpec("main", (tensor(1000),), (), tensor(1000))
    task = TaskSpec("scale", "0" * 64, "float32", "", (case,))
    source = HEADER + COPY_KERNEL + GOOD.replace("scale(x)", "scale(scale(x), 3)")
    updater = Updater(task, "sm_90", machine.tracer, machine.compiler)
    plan = updater.update(source).main_plan
    assert plan is not None
    compiling = KernelCompiler(machine.compiler, "sm_90", compile_s=60.0, width=width)
    good, bad = list(plan.kernels), [replace(plan.kernels[0], text="no ttir")]
    built = compiling.compile([good, bad])
    assert set(built.artefacts) == {kernel.sha256 for kernel in plan.kernels}
    assert built.failure is not None
    assert (built.failure.status, built.failed_group) == (Status.COMPILE_FAILED, 1)
    assert [compiling.compile(groups).failed_group for groups in ([bad, good], [bad, bad], [good, bad])] == [0, 0, 1]
    assert compiling.compile([]).failure is None


def test_a_compilers_answer_is_remembered_for_the_very_set_of_kernels_that_it_was_given(machine: Machine) -> None:
    updater = Updater(a_task(rows_of(4, "main")), "sm_90", machine.tracer, machine.compiler)
    plan = updater.update(HEADER + COPY_KERNEL + GOOD.replace("scale(x)", "scale(scale(x), 3)")).main_plan
    assert plan is not None
    one, other = plan.kernels
    begun: list[Worker] = []

    def compiler() -> Worker:
        begun.append(machine.compiler())
        return begun[-1]

    compiling = KernelCompiler(compiler, "sm_90", compile_s=60.0, width=1)
    both = compiling.compile([[one, other]])
    assert compiling.compile([[one, other]]) == both
    assert len(begun) == 1
    assert set(compiling.compile([[one]]).artefacts) == {one.sha256}
    assert len(begun) == 2, "one that was compiled beside others says nothing of the same alone"
    bad = replace(one, text="no ttir")
    assert [compiling.compile([[bad]]).failure is None for _ in range(2)] == [False, False]
    assert len(begun) == 4, "a failure may be the machine's"


def test_runs_on_one_task_share_what_compilers_answered_and_none_of_their_workers_or_limits(machine: Machine) -> None:
    task, source = a_task(rows_of(4, "main")), HEADER + COPY_KERNEL + GOOD
    first = Updater(task, "sm_90", machine.tracer, machine.compiler)
    begun: list[Worker] = []

    def compiler() -> Worker:
        begun.append(machine.compiler())
        return begun[-1]

    second = first.apart(machine.tracer, compiler, UpdateLimits(trace_s=7.0))
    compiled = first.update(source)
    first.sass(compiled)
    again = second.update(source + "# once more")
    assert (second.limits.trace_s, first.limits.trace_s) == (7.0, 60.0)
    assert again.plans_sha256 == compiled.plans_sha256
    assert [again.artefacts[name] is artefact for name, artefact in compiled.artefacts.items()] == [True]
    assert second.sass(again) == first.sass(compiled)
    assert len(begun) == 1, "a reader of texts alone: what it says of one it may say for the sake of another"


def test_configs_that_no_block_has_room_for_are_passed_over_as_an_autotuner_does(machine: Machine) -> None:
    source = (
        """
@triton.autotune([triton.Config({"B": 64}, num_stages=9), triton.Config({"B": 16}, num_stages=2)], key=[])
@triton.jit
def product(x, B: tl.constexpr):
"""
        + PRODUCT
        + """

class ModelNew(nn.Module):
    def forward(self, x):
        y = scale(x)
        product[(1,)](y)
        return y
"""
    )
    task = a_task(rows_of(4, "main"), rows_of(SECRET_ROWS, "secret", held_out=True))
    limits = UpdateLimits(trace_s=4.0, compile_s=60.0, max_variants=4)
    update = Updater(task, "sm_90", machine.tracer, machine.compiler, limits).update(HEADER + COPY_KERNEL + source)
    assert update.failure is None
    assert {name: len(plans) for name, plans in update.plans.items()} == {"main": 1, "secret": 1}
    assert update.main_plan is not None
    assert "16" in update.main_plan.variant
    assert any("shared memory" in words for words in update.dropped_variants)
