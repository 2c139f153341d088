"""PTX as a language: candidates launch texts by `PtxKernel`, ptxas assembles them as they are written."""

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerneltune.tools.languages import ptx
from kerneltune.tools.languages.base import (
    LaunchRecorder,
    NotCompiled,
    NotInterpreted,
    OptionCheck,
    flag,
    forbidden_option,
    whole,
)
from kerneltune.tools.languages.ptx.assemble import assemble, candidate_lines, with_candidate_lines
from kerneltune.tools.languages.ptx.checks import effects, findings, waits_for_earlier
from kerneltune.tools.languages.ptx.ir import PtxError, parse
from kerneltune.tools.languages.ptx.loader import (
    PtxLaunch,
    PtxLaunchError,
    block_of,
    encodings,
    entry_of,
    imports_loader,
    mismatch,
    parameters_of,
    use,
)
from kerneltune.tools.languages.ptxas import Resources, report
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Compiled, Failure, Lowered, Program
from kerneltune.tools.schema.plan import EVERYTHING, NOTHING, ArgEffect, Kernel, Launch
from kerneltune.tools.schema.verdict import Cause, Status, Verdict

MOST_FINDINGS = 8
MAX_WORK = 2_000_000  # batched instructions; those of an endless loop take 10 to 20 µs each


def _sizes(most: int, product: int) -> OptionCheck:
    def check(value: Json) -> bool:
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(map(whole(1, most), value)):
            return False
        return math.prod(value) <= product

    return check


_OF_A_MAP: Mapping[str, OptionCheck] = {
    "swizzle": whole(0, 16),
    "elem_size": whole(1, 16),
    "elem_type": whole(0, 64),
    "fp4_padded": flag,
    "block_size": lambda value: isinstance(value, list) and len(value) <= 5 and all(map(whole(1, 1024), value)),
}


def _maps(value: Json) -> bool:
    """What the compiler chose for each descriptor: how its tensor map is encoded."""
    return isinstance(value, list) and all(
        isinstance(its, dict) and its.keys() == _OF_A_MAP.keys() and all(fits(its[k]) for k, fits in _OF_A_MAP.items())
        for its in value
    )


_OPTIONS: Mapping[str, OptionCheck] = {
    "block": _sizes(1024, 1024),
    "shared_bytes": whole(0, 1 << 20),
    "cluster": _sizes(16, 16),
    "launch_cooperative_grid": flag,
    "launch_pdl": flag,
    "tensordesc_meta": _maps,
}


class PtxLanguage:
    """See `languages.base.Language` and `DeviceCode`."""

    name = "PTX"
    imports = "`kerneltune` (`PtxKernel`)"
    title = "PTX"
    wait = "griddepcontrol.wait"
    max_bytes = 4 << 20  # to read a MB takes a second
    warm_kernel = Kernel(
        "warm",
        "ptx",
        ".version 8.0\n.target sm_90\n.visible .entry warm()\n{\n    ret;\n}\n",
        (),
        {"block": [32, 1, 1]},
    )

    def wrote(self, source: str) -> bool:
        return imports_loader(source, "PtxKernel")

    def forbidden_option(self, options: Mapping[str, Json]) -> str | None:
        if "block" not in options:
            return "a launch of PTX that does not say how many threads a block has"
        return forbidden_option(options, _OPTIONS)

    def waits(self, kernel: Kernel) -> bool:
        return waits_for_earlier(kernel.text, kernel.name)

    def effects(self, kernel: Kernel) -> tuple[ArgEffect, ...]:
        found = effects(kernel.text, kernel.name)
        places = itertools.accumulate((len(its) for its in parameters_of(kernel.signature)), initial=0)
        return tuple(
            (ArgEffect(*found[at]) if found and at < len(found) else EVERYTHING)
            if kind.startswith(("*", "tensordesc"))
            else NOTHING
            for kind, at in zip(kernel.signature, places, strict=False)
        )

    def less_shared(self, kernel: Kernel) -> str:
        return f"launch with less than shared_bytes={int(kernel.options.get('shared_bytes', 0))}"

    def in_source(self, failure: Verdict, text: str, source: str) -> Verdict:
        known = candidate_lines(text, source)
        lines = tuple(dict.fromkeys(known[n] for n in failure.ptx_lines if n in known))
        detail = with_candidate_lines(failure.detail, text, source)
        return replace(failure, detail=detail, lines=(*failure.lines, *lines))

    def record(self, log: LaunchRecorder, target: Any) -> None:
        use(PtxRecorder(log))
        for name in (
            "tools",
            "tools.ptx",
        ):  # where candidates that were recorded before the package had one name find it
            sys.modules[name] = ptx

    def describe(self, error: BaseException, source: str) -> Failure | None:
        if not isinstance(error, PtxError | PtxLaunchError):
            return None
        words = with_candidate_lines(str(error), error.whole, source)
        if isinstance(error, PtxError):
            return Failure(Status.COMPILE_FAILED, words, ptx_lines=error.lines, cause=Cause.COMPILER_ERROR)
        return Failure(Status.REJECTED, words)

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        raise NotCompiled(Failure(Status.REJECTED, "PTX comes out of the tracer as it is compiled"))

    def compile(self, kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
        try:
            return _assembled(kernel, arch, folder)
        except PtxLaunchError as error:
            raise NotCompiled(Failure(Status.REJECTED, str(error))) from error
        except PtxError as error:
            raise NotCompiled(
                Failure(Status.COMPILE_FAILED, str(error), ptx_lines=error.lines, cause=Cause.COMPILER_ERROR)
            ) from error

    def ptx(self, kernel: Kernel, arch: str, folder: Path) -> tuple[str, int]:
        raise NotCompiled(Failure(Status.REJECTED, "is PTX already"))

    def ttgir(self, kernel: Kernel, arch: str, folder: Path) -> str:
        raise NotCompiled(Failure(Status.REJECTED, "is PTX, which Triton does not see"))

    def interpret(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        values: Sequence[Any],
        launch: Launch,
        programs: Sequence[int] | None = None,
        until_s: float = math.inf,
    ) -> bool:
        from kerneltune.tools.languages.ptx.sim.launch import run
        from kerneltune.tools.languages.ptx.sim.values import Unsupported

        if programs is not None:
            raise Unsupported("blocks of PTX are emulated all together")
        choices = iter(kernel.options.get("tensordesc_meta") or ())
        values = _named(kernel, [given for value in values for given in _given(value, choices)])
        started = PtxLaunch(
            kernel.text,
            kernel.name,
            grid,
            _three(kernel.options["block"]),
            tuple(values),
            kernel.signature,
            int(kernel.options.get("shared_bytes") or 0),
            _three(kernel.options.get("cluster") or (1, 1, 1)),
            launch.cooperative,
        )
        try:
            run(started, max_work=MAX_WORK)
        except NotInterpreted as error:
            error.args = (with_candidate_lines(str(error), kernel.text, source=""), *error.args[1:])
            raise
        return True


LANGUAGE = PtxLanguage()


class PtxRecorder:
    """Records launches of PTX kernels while tracing."""

    def __init__(self, log: LaunchRecorder) -> None:
        self._log = log
        self._lowered: dict[Program, Lowered] = {}

    def launch(self, launch: PtxLaunch) -> None:
        """Record one launch."""
        options: dict[str, Json] = {"block": list(launch.block), "shared_bytes": launch.shared_bytes}
        if launch.cluster != (1, 1, 1):
            options["cluster"] = list(launch.cluster)
        options |= {"launch_cooperative_grid": True} if launch.cooperative else {}
        options |= {"launch_pdl": True} if launch.pdl else {}
        options |= {"tensordesc_meta": maps} if (maps := encodings(launch.values)) else {}
        kernel = Kernel(launch.entry, "ptx", launch.text, launch.signature, options)
        self._log.launch(kernel, launch.grid, launch.values, launch.signature)

    def lowered(self, program: Program) -> Lowered:
        """Asked once: forward is traced three times, for each case and config."""
        if program not in self._lowered:
            self._lowered[program] = self._log.lowered(program)
        return self._lowered[program]

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """No timing; the trace says which config is wanted."""
        texts = [", ".join(f"{k}: {v}" for k, v in c.items()) for c in configs]
        return self._log.choice(key, texts)


def _assembled(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    """PTX as its author wrote it. Raises PtxError, PtxLaunchError too."""
    started = time.perf_counter()
    module = parse(kernel.text)
    entry = entry_of(module, kernel.name)
    if problem := mismatch(entry, kernel.signature):
        raise NotCompiled(Failure(Status.REJECTED, problem))
    block = block_of(kernel.options["block"], entry.directives, entry.name)
    found = findings(module, entry, arch)
    if fatal := [finding for finding in found if finding.fatal][:MOST_FINDINGS]:
        lines = tuple(finding.line for finding in fatal)
        raise NotCompiled(Failure(Status.REJECTED, "\n".join(map(str, fatal)), ptx_lines=lines))
    done = assemble(kernel.text, arch, folder)
    used = done.resources.get(entry.name, Resources())
    if set(done.resources) != {e.name for e in module.entries}:
        words = f"ptxas reads entries {sorted(done.resources)!s:.200} where this text seems to have others"
        raise NotCompiled(Failure(Status.REJECTED, words))
    dynamic = int(kernel.options.get("shared_bytes", 0))
    made = report(
        entry.name,
        arch,
        done.cubin,
        used,
        shared_bytes=used.static_shared_bytes + dynamic,
        num_warps=-(-math.prod(block) // 32),
        num_stages=0,
        started_s=started,
    )
    metadata: dict[str, Json] = {"name": entry.name, "shared": dynamic, "static_shared": used.static_shared_bytes}
    metadata["tensordesc_meta"] = kernel.options.get("tensordesc_meta")
    notes = tuple(str(finding) for finding in found if not finding.fatal)
    return Compiled(made, metadata, notes[:MOST_FINDINGS]), done.cubin


def _named(kernel: Kernel, values: Sequence[Any]) -> list[Any]:
    """The parameters of a launch, pointers under the names that the kernel has for them."""
    from kerneltune.tools.languages.triton.ttir.memory import Pointer

    try:
        params = next((entry.params for entry in parse(kernel.text).entries if entry.name == kernel.name), ())
    except PtxError:  # the emulator will say so
        return list(values)
    if len(params) != len(values):
        return list(values)
    pairs = zip(values, params, strict=True)
    return [replace(value, name=param.name) if isinstance(value, Pointer) else value for value, param in pairs]


def _given(value: Any, choices: Iterator[Mapping[str, Any]]) -> tuple[Any, ...]:
    """What the emulator is given for an argument."""
    from kerneltune.tools.languages.ptx.sim.launch import HostMap
    from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue

    if not isinstance(value, DescriptorValue):
        return (value,)
    return (HostMap(value, next(choices)), *value.shape, *value.strides)


def _three(numbers: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (int(n) for n in numbers)
    return x, y, z
