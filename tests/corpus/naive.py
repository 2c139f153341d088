"""A naive harness in the manner of KernelBench's: to show what each attack does to an evaluator that is not ours.

Own code, after the behaviour of KernelBench's eval: the candidate is executed in the harness's process; inputs follow
from seed 42; the reference runs first, on the same objects; one `allclose` with atol = rtol = 1e-4 decides; the timed
loop reuses the same inputs and nothing is looked at afterwards. On a GPU by CUDA events, else by Triton's
interpreter and the host clock. It runs hostile code: start it as a process of its own (`python naive.py TASK CANDIDATE
[TASK CANDIDATE …]`); every candidate gets a forked, confined child, and nothing it says may be trusted.
"""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SMALL = {"ROWS": 16, "COLS": 128, "M": 32, "N": 32, "K": 64}  # for the interpreter; powers of two, as people use
OWN_SIZES = ("softmax_uniform",)  # what it shows needs its long rows
TOLERANCE = 1e-4
TIME_LIMIT_S = 20.0
ON_GPU = torch.cuda.is_available()


def load(path: Path, name: str) -> Any:
    """Execute a file as a module, as KernelBench does with candidates."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_task(path: Path) -> Any:
    """The reference; without a GPU at sizes that the interpreter can do."""
    task = load(path, "reference")
    if path.stem in OWN_SIZES:
        task.ROWS = 1
    elif not ON_GPU:
        for constant in set(SMALL) & set(vars(task)):
            setattr(task, constant, SMALL[constant])
    return task


def set_seed(seed: int) -> None:
    """As KernelBench: one generator for everything."""
    torch.manual_seed(seed)


def moved(values: list[Any]) -> list[Any]:
    """Tensors to where the work is done."""
    device = "cuda" if ON_GPU else "cpu"
    return [v.to(device) if isinstance(v, torch.Tensor) else v for v in values]


def build(factory: Any, arguments: list[Any]) -> Any:
    """A model from seed 42, so that parameters agree."""
    set_seed(42)
    model = factory(*arguments)
    return model.cuda() if ON_GPU else model


def equal(expected: Any, output: Any) -> bool:
    """Shapes, then allclose; of a structure the parts."""
    if isinstance(expected, dict):
        return all(equal(expected[key], output[key]) for key in expected)
    if isinstance(expected, tuple | list):
        return all(equal(a, b) for a, b in zip(expected, output, strict=True))
    if expected.shape != output.shape:
        return False
    return bool(torch.allclose(expected, output, atol=TOLERANCE, rtol=TOLERANCE))


def timed_us(work: Callable[[], object], calls: int) -> float:
    """Median of `calls` calls after three to warm up."""
    for _ in range(3):
        work()
    samples = [_event_us(work) if ON_GPU else _host_us(work) for _ in range(calls)]
    return statistics.median(samples)


def _host_us(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def _event_us(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def evaluate(task_path: Path, candidate_path: Path, calls: int = 5) -> dict[str, Any]:
    """{"correct", "us", "reference_us", "error"}, as a harness that trusts its own process finds them."""
    task = load_task(task_path)
    set_seed(42)
    arguments = moved(task.get_init_inputs())
    model = build(task.Model, arguments)
    model_new = build(load(candidate_path, "candidate").ModelNew, arguments)
    set_seed(42)
    seed = int(torch.randint(0, 2**32 - 1, (1,)).item())
    set_seed(seed)
    inputs = moved(task.get_inputs())
    with torch.no_grad():
        output = model(*inputs)
        output_new = model_new(*inputs)
        if not equal(output, output_new):
            return {"correct": False, "us": None, "reference_us": None, "error": "outputs differ"}
        us = timed_us(lambda: model_new(*inputs), calls)
        reference_us = timed_us(lambda: model(*inputs), calls)
    return {"correct": True, "us": us, "reference_us": reference_us, "error": ""}


def evaluated_in_a_child(task: Path, candidate: Path) -> dict[str, Any]:
    """Fork, confine, evaluate copies of the files; what the child writes into its pipe is believed, which is the
    point."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder, kind, path.name) for kind, path in (("task", task), ("candidate", candidate))]
        for path, copy in zip((task, candidate), names, strict=True):
            copy.parent.mkdir()
            shutil.copy(path, copy)
        return _evaluated(names[0], names[1], Path(folder))


def _evaluated(task: Path, candidate: Path, folder: Path) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(task, candidate, folder, write_end)
    os.close(write_end)
    told = _told(read_end)
    os.close(read_end)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    first = told.splitlines()[0] if told else b'{"correct": false, "us": null, "error": "no answer"}'
    try:
        result: dict[str, Any] = json.loads(first)
    except ValueError:
        return {"correct": False, "us": None, "error": f"not JSON: {first[:100]!r}"}
    return result


def _told(read_end: int) -> bytes:
    """The first line that arrives within the time limit."""
    told, deadline = b"", time.monotonic() + TIME_LIMIT_S
    while b"\n" not in told and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([read_end], [], [], left)
        chunk = os.read(read_end, 4096) if ready else b""
        if not chunk:
            break
        told += chunk
    return told


def _child(task: Path, candidate: Path, folder: Path, write_end: int) -> None:
    try:
        _confine(write_end, folder)
        result = evaluate(task, candidate)
    except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is its failure
        result = {"correct": False, "us": None, "error": f"{type(error).__name__}: {error}"[:300]}
    try:
        os.write(write_end, json.dumps(result).encode() + b"\n")
    finally:
        os._exit(0)


def _confine(write_end: int, folder: Path) -> None:
    """No files but those of `folder`, no network or processes; a GPU needs another profile."""
    from kerneltune.tools.sandbox.confine import enter
    from kerneltune.tools.sandbox.rules import Profile
    from kerneltune.tools.sandbox.wire import ResourceLimits

    limits = ResourceLimits(memory_bytes=8 << 30, file_bytes=1 << 20, cpu_s=60, open_files=64)
    profile = Profile.RUNNER if ON_GPU else Profile.INTERPRETER
    enter(profile, scratch=folder, limits=limits, keep_fds=[0, 1, 2, write_end])


def main(arguments: list[str]) -> None:
    """Print one line of JSON for each pair of files."""
    # before the forks; a kernel's first argument loads the first of them
    import triton.experimental.gluon.nvidia.hopper
    import triton.runtime.interpreter  # noqa: F401

    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    for task, candidate in pairs:
        found = evaluated_in_a_child(Path(task), Path(candidate))
        sys.stdout.write(json.dumps({"name": Path(candidate).stem, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
