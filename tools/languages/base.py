"""The language seam: what the evaluator asks of a language in which candidates say kernels, and of the device code that
launch plans hold.

A language is a folder beside this file whose module `language` holds the one object LANGUAGE, and whose `prompt.j2`
tells a model how to write it. It records launches of kernels as device code: TTIR or PTX, whatever they were written
in. Triton's object knows TTIR, too, and PTX's knows PTX: the compiler, the interpreter and the supervisor ask only
them. What only one process has (Triton, numpy) is imported where it is used.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from kerneltune.tools.languages import DEVICE_CODE, FOLDERS
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Compiled, Failure, Lowered, Program
from kerneltune.tools.schema.plan import EVERYTHING, ArgEffect, DescriptorArg, Kernel, Launch, TensorArg, TensorRef
from kerneltune.tools.schema.verdict import Verdict

FILE = "candidate.py"  # what Python and compilers are told that the candidate's file is called
OptionCheck = Callable[[Json], bool]  # whether a compile option may have this value


class NotCompiled(Exception):
    """A kernel that is forbidden, or that does not compile."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ExceedsSharedMemory(Exception):
    """No block of the target has the shared memory that the kernel needs."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"needs {needed_bytes} bytes of shared memory per block")
        self.needed_bytes = needed_bytes


class NotInterpreted(Exception):
    """A kernel that does not run to its end on the CPU."""

    problem = "failed"  # as in InterpretReply

    @property
    def detail(self) -> str:
        """Why, with the kind of error where `problem` does not say it."""
        return f"{type(self).__name__}: {self}" if self.problem == NotInterpreted.problem else str(self)


class LaunchRecorder(Protocol):
    """Where a tracer writes launches down."""

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], values: Sequence[Any], types: Sequence[Any]) -> None:
        """Record a launch; `types` are nested as the values are, "constexpr" for what is no argument."""

    def choice(self, key: str, configs: Sequence[str]) -> int:
        """Which config of an autotuned kernel, as text, this trace wants."""

    def facts(self, kernel: Kernel) -> dict[str, Json]:
        """Registers, spills and shared memory of a kernel, asked of the compiler. Raises Refused."""

    def lowered(self, program: Program) -> Lowered:
        """PTX of a program, asked of the compiler. Raises NotCompiled."""


class Language(Protocol):
    """How candidates say kernels in one language."""

    name: str  # as a person calls it
    imports: str  # what candidates may import beside torch, Triton and numpy, in words for a model

    def wrote(self, source: str) -> bool:
        """Whether a candidate that is in no other language is in this one, by what it imports."""

    def record(self, log: LaunchRecorder, target: Any) -> None:
        """In the tracer: make launches go into `log`, for a process that will do nothing else."""

    def describe(self, error: BaseException, source: str) -> Failure | None:
        """In the tracer: an exception of this language's own that host code raised; None for any other."""

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        """In the compiler: PTX of a program that the tracer asked for. Raises NotCompiled, and what its compiler does
        to a text."""


class DeviceCode(Protocol):
    """What the kernels of a plan are in, as `Kernel.language` names it."""

    title: str
    wait: str  # how a kernel waits for the launch before
    max_bytes: int  # of the texts in one tracer's reply
    warm_kernel: Kernel  # compiled once, so that forked compilers start warm

    def forbidden_option(self, options: Mapping[str, Json]) -> str | None:
        """What no kernel may ask of the compiler, in words for the author; None when all options are allowed."""

    def waits(self, kernel: Kernel) -> bool:
        """Whether the kernel waits for the launch before (programmatic dependent launch)."""

    def effects(self, kernel: Kernel) -> tuple[ArgEffect, ...]:
        """One effect per entry of `kernel.signature`; an effect that is not listed is one it cannot have."""

    def less_shared(self, kernel: Kernel) -> str:
        """How to use less shared memory, in words for the author."""

    def in_source(self, failure: Verdict, text: str, source: str) -> Verdict:
        """A failure to compile that text, with its lines as lines of the candidate's source, too."""

    def compile(self, kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
        """In the compiler: the report and the cubin. Raises NotCompiled, ExceedsSharedMemory."""

    def ptx(self, kernel: Kernel, arch: str, folder: Path) -> tuple[str, int]:
        """In the compiler: the kernel as PTX, and the bytes of its dynamic shared memory. Raises NotCompiled."""

    def ttgir(self, kernel: Kernel, arch: str, folder: Path) -> str:
        """In the compiler: the kernel with its layouts, as Triton has it before PTX. Raises NotCompiled."""

    def interpret(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        values: Sequence[Any],
        launch: Launch,
        programs: Sequence[int] | None = None,
        until_s: float = math.inf,
    ) -> bool:
        """In the interpreter: run it on the CPU, or those of its programs; `values` are numbers, Pointer and
        DescriptorValue. Programs that write no element twice may be stopped after `until_s` (by time.process_time).
        Returns whether they ran to their end. Raises NotInterpreted."""


def language(folder: str) -> Language:
    """The language of a folder, "triton". Raises ValueError for one that is not there."""
    if folder not in FOLDERS:
        raise ValueError(f"no language {folder!r}; known: {', '.join(FOLDERS)}")
    found: Language = _object_of(folder)
    return found


def languages() -> list[Language]:
    """Every language that candidates can be in."""
    return [language(folder) for folder in FOLDERS]


def language_of(source: str) -> str:
    """The folder of the language that a candidate is in; Triton where it is in none of the others."""
    return next((folder for folder in FOLDERS[1:] if language(folder).wrote(source)), FOLDERS[0])


def device_code(name: str) -> DeviceCode:
    """What knows the device code that `Kernel.language` names. Raises KeyError."""
    found: DeviceCode = _object_of(DEVICE_CODE[name])
    return found


@cache
def _object_of(folder: str) -> Any:
    return importlib.import_module(f"kerneltune.tools.languages.{folder}.language").LANGUAGE


def effects_of(kernels: Sequence[Kernel]) -> list[tuple[ArgEffect, ...]]:
    """What each kernel may do to the memory behind its arguments. Reads their texts: of TTIR a MB takes 0.7 s, of PTX
    1 s and more."""
    return [device_code(kernel.language).effects(kernel) for kernel in kernels]


def launch_effects(launch: Launch, effects: Sequence[Sequence[ArgEffect]]) -> Iterator[tuple[TensorRef, ArgEffect]]:
    """What a launch may do to each tensor that it is given, where `effects` are those of the plan's kernels."""
    found = effects[launch.kernel]
    for i, argument in enumerate(launch.args):
        if isinstance(argument, TensorArg | DescriptorArg):
            yield argument.tensor, found[i] if len(found) == len(launch.args) else EVERYTHING


def prompt_of(folder: str) -> str:
    """How to write the language of a folder, in words for a model: a template that knows `arch`, and whether attempts
    are `timed`."""
    return (Path(__file__).parent / folder / "prompt.j2").read_text(encoding="utf-8")


def forbidden_option(options: Mapping[str, Json], allowed: Mapping[str, OptionCheck]) -> str | None:
    """The first option that is not allowed, in words; None when all are."""
    for name, value in options.items():
        if name not in allowed:
            return f"the compile option {name!r:.60} is not one that a launch may set; those are {', '.join(allowed)}"
        if not allowed[name](value):
            words = " (only optimisation levels and register limits)" if name == "ptx_options" else ""
            return f"the compile option {name}={value!r:.120} is not allowed{words}"
    return None


def whole(low: int, high: int) -> OptionCheck:
    """Return a check that takes whole numbers from `low` to `high`."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def flag(value: Json) -> bool:
    """Check that an option is True or False."""
    return isinstance(value, bool)
