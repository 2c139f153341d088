"""Hardware counters of a plan's own launches, read by NVIDIA's ncu.

ncu can only watch a process that it has started. So a process of ours replays the plan once under it, with inputs of
its own, and lets ncu look at the first launch of each kernel. It decides nothing: it holds no answer and no clock of
the judge, and what it prints becomes evidence beside a verdict that was reached without it.

    with CounterReader() as reader:  # imports torch while the judge works
        found = reader.read(plan, metadata, cubins, task_path)
    found[0].values["dram_read_bytes"]  # 2.7e8

Metric names are those of `ncu --query-metrics`; the values here are in bytes, percent, cycles or plain numbers.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.tools.backends import start_driver
from kerneltune.tools.sandbox import wire
from kerneltune.tools.sandbox.workers import environment, isolated
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, plain
from kerneltune.tools.schema.errors import KerneltuneError
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import STALLS, KernelCounters

MOST_KERNELS = 8
READ_TIMEOUT_S = 60.0
_MOST_OUTPUT = 1 << 20  # characters of ncu's report as we print it

# ours -> ncu's. Sums are of the whole launch; a share is of what this GPU could do in the time that the launch took.
METRICS = {
    "time_ns": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
    "shared_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu.sum",
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


class CountersUnavailable(KerneltuneError):
    """There are no counters, and why."""


@dataclass(frozen=True)
class CountRequest:
    """Replay the plan once on inputs of that case and seed; its cubins are the blobs, in the order of `metadata`."""

    plan: Plan
    metadata: tuple[dict[str, Json], ...]
    task_path: str
    case: str
    seed: int


@dataclass(frozen=True)
class Counted:
    """It is done: the kernels that were launched under ncu's eyes, in that order; or why it could not be done."""

    kernels: tuple[str, ...] = ()
    problem: str = ""


def find_ncu() -> Path | None:
    """NVIDIA's profiler, on the PATH or where its packages put it."""
    if found := shutil.which("ncu"):
        return Path(found).resolve()
    places = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    return max(places, default=None)


def for_administrators() -> bool:
    """Whether the driver keeps the counters from this user: it asks for CAP_SYS_ADMIN, and this process lacks it."""
    parameters, status = Path("/proc/driver/nvidia/params"), Path("/proc/self/status").read_text()
    closed = parameters.exists() and "RmProfilingAdminOnly: 1" in parameters.read_text()
    return closed and not int(status.partition("CapEff:")[2].split()[0], 16) >> 21 & 1


class CounterReader:
    """A process that waits under ncu for one plan, and then is used up: ncu writes its report when the process ends.

    Raises CountersUnavailable where there is no ncu, or nothing for it to read. Close it in the end, or leave the
    `with`."""

    def __init__(self) -> None:
        program = find_ncu()
        if program is None:
            raise CountersUnavailable("ncu is not installed: sudo apt install nsight-compute")
        if for_administrators():
            raise CountersUnavailable(
                "the driver allows them to administrators only; `optimize doctor` prints the command that changes this"
            )
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="kerneltune-counters-"))
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_ncu(program, self._folder / "report"), *isolated(_entry(theirs.fileno()))],
                pass_fds=[theirs.fileno()],
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def read(
        self,
        plan: Plan,
        metadata: Sequence[Mapping[str, Json]],
        cubins: Sequence[bytes],
        task_path: Path,
        seed: int = 1,
    ) -> tuple[KernelCounters, ...]:
        """Counters of the first launch of each of the plan's kernels, at most MOST_KERNELS, in the order of launching.
        Raises CountersUnavailable, with what ncu said."""
        request = CountRequest(plan, tuple(map(dict, metadata)), str(task_path), plan.case, seed)
        try:
            wire.send(self._line, encode(request), list(cubins))
            reply = wire.receive(self._line, max_blob_bytes=0, timeout_s=READ_TIMEOUT_S)
            counted = decode(Counted, reply.body)
            self._line.close()  # it ends, and ncu writes the report
            self._process.wait(READ_TIMEOUT_S)
        except (OSError, DecodeError, subprocess.TimeoutExpired) as error:
            raise CountersUnavailable(self._said() or f"the process under ncu failed: {error}") from error
        if counted.problem:
            raise CountersUnavailable(plain(counted.problem, 300))
        return _named(counted.kernels, _report(self._program, self._folder / "report.ncu-rep"), self._said)

    def _said(self) -> str:
        """The first error of ncu, else its last line; the process is ended for it."""
        self._end()
        output = self._process.stdout.read(_MOST_OUTPUT) if self._process.stdout else b""
        lines = [line.strip() for line in plain(output.decode(errors="replace"), _MOST_OUTPUT).splitlines() if line]
        return next((line for line in lines if line.startswith("==ERROR==")), lines[-1] if lines else "")[:300]

    def _end(self) -> None:
        """Kill ncu and what it watches: a kernel may run for ever."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process, and remove what it wrote."""
        self._line.close()
        self._end()
        if self._process.stdout:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "CounterReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _entry(fd: int) -> str:
    return f"from kerneltune.tools.judge.timing.counters import main; main({fd})"


def _ncu(program: Path, report: Path) -> list[str]:
    """The clocks are left alone, as in every measurement of ours; ncu empties the caches before each replay."""
    metrics = [*METRICS.values(), *(_STALL.format(name) for name in STALLS)]
    return [
        str(program), "--target-processes", "application-only", "--profile-from-start", "off",
        "--clock-control", "none", "--metrics", ",".join(metrics), "--force-overwrite", "--export", str(report),
    ]  # fmt: skip


def _report(program: Path, path: Path) -> list[dict[str, float]]:
    """The values of each launch in a report by ncu's names, as ncu's own Python interface reads them. Raises
    CountersUnavailable."""
    folders = [parent / "extras" / "python" for parent in program.parents]
    folder = next((f for f in folders if (f / "ncu_report.py").exists()), _packaged())
    if folder is None:
        raise CountersUnavailable(f"ncu's Python interface (extras/python/ncu_report.py) is not beside {program}")
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {_PRINT_REPORT}"
    command = [sys.executable, "-I", "-B", "-c", code, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=True)
        launches = json.loads(done.stdout[:_MOST_OUTPUT])
        return [{str(name): float(value) for name, value in launch.items()} for launch in launches]
    except subprocess.CalledProcessError as error:
        raise CountersUnavailable(f"ncu's report cannot be read: {plain(error.stderr.decode()[-300:], 300)}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError, AttributeError, TypeError) as error:
        raise CountersUnavailable(f"ncu's report cannot be read: {error}") from error


def _packaged() -> Path | None:
    found = Path("/opt/nvidia/nsight-compute").glob("*/extras/python/ncu_report.py")
    return max((path.parent for path in found), default=None)


_PRINT_REPORT = """
import json, ncu_report
launches = [action for part in ncu_report.load_report(sys.argv[1]) for action in part]
found = [{name: launch[name].value() for name in launch.metric_names()} for launch in launches]
print(json.dumps([{n: v for n, v in one.items() if isinstance(v, int | float)} for one in found]))
"""


def _named(
    kernels: Sequence[str], launches: Sequence[Mapping[str, float]], said: Callable[[], str]
) -> tuple[KernelCounters, ...]:
    if len(launches) != len(kernels):
        raise CountersUnavailable(said() or f"ncu saw {len(launches)} launches of {len(kernels)}")
    return tuple(
        KernelCounters(name, _of(METRICS, launch), _of(_BY_STALL, launch))
        for name, launch in zip(kernels, launches, strict=True)
    )


_BY_STALL = {name: _STALL.format(name) for name in STALLS}


def _of(names: Mapping[str, str], launch: Mapping[str, float]) -> dict[str, float]:
    return {ours: round(launch[theirs], 3) for ours, theirs in names.items() if theirs in launch}


def main(fd: int) -> None:
    """Entry of the process under ncu: replay one plan, say so, end when the other side closes."""
    # On an H200 the imports take 1.4 s and the driver's start under ncu 0.4 s, which need not wait for the plan. A
    # context does, and its 0.2 s: the judge may be timing
    start_driver()
    for name in _MODULES:
        importlib.import_module(f"kerneltune.tools.{name}")
    line = socket.socket(fileno=fd)
    with contextlib.suppress(wire.WireError):
        message = wire.receive(line)
        signal.alarm(int(READ_TIMEOUT_S))  # should a kernel hang, and nobody be left to end this process
        wire.send(line, encode(_counted(decode(CountRequest, message.body), message.blobs)))
        wire.receive(line)
    line.close()


_MODULES = ("judge.correctness.problem", "replay.replay", "task.load")


def _counted(request: CountRequest, cubins: Sequence[bytes]) -> Counted:
    try:
        return Counted(tuple(_replayed(request, cubins)))
    except Exception as error:  # noqa: BLE001 - the task's code, the plan or the device: whatever it is, there are no counters
        return Counted(problem=f"{type(error).__name__}: {error}"[:2000])


def _replayed(request: CountRequest, cubins: Sequence[bytes]) -> Iterator[str]:
    from kerneltune.tools.backends import device_backend
    from kerneltune.tools.backends.base import CompiledImage
    from kerneltune.tools.judge.correctness.problem import Problem
    from kerneltune.tools.judge.correctness.tree import promised
    from kerneltune.tools.task.load import find_task

    plan, backend = request.plan, device_backend()
    drawn = Problem.load(find_task(request.task_path), request.case, device=backend.device).draw(request.seed)
    if drawn is None:
        raise ValueError("the task gives no inputs")
    storages = {name: promised(its, drawn.contract(name), drawn.seed) for name, its in drawn.named().items()}
    images = [CompiledImage(metadata, cubin) for metadata, cubin in zip(request.metadata, cubins, strict=True)]
    yield from backend.replay_profiled(plan, images, storages, MOST_KERNELS)
