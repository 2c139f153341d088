"""What `optimize show --sass` and `--ptx` show: what an attempt compiles to, or how that differs from another's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.codec import Json, encode
from tools.plan.sass_diff import difference, ptx_difference
from tools.plan.sass_ir import Sass
from tools.plan.sass_text import LEGEND, listing, numbered_ptx
from tools.verdict import KernelReport

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class CompiledAttempt:
    """An attempt's kernels, compiled again. `versions_then`: of the run; `same_cubins`: whether they are those that
    were judged, byte for byte; None where nobody knows. `ptx`, `reports` and `sass` have one entry per kernel."""

    attempt_id: str
    variant: str
    timed_variant: str
    arch: str
    versions_then: Mapping[str, str]
    versions_now: Mapping[str, str]
    assembler: str
    disassembler: str
    same_cubins: bool | None
    ptx: tuple[str, ...]
    reports: tuple[KernelReport, ...]
    sass: tuple[Sass, ...]

    @property
    def provenance(self) -> tuple[str, ...]:
        """What was compiled by what, and how far that is what was judged; a line each."""
        return tuple(self._provenance())

    def _provenance(self) -> Iterator[str]:
        now, then = self.versions_now.get("triton"), self.versions_then.get("triton")
        yield (
            f"attempt {self.attempt_id}, variant {self.variant}: compiled for {self.arch} by triton {now} "
            f"with {self.assembler}, disassembled by {self.disassembler}"
        )
        if self.variant != self.timed_variant:
            yield f"the variant that was timed, {self.timed_variant}, does not come of the source here"
        if self.same_cubins:
            yield "the same cubins, byte for byte, as those that were judged"
        elif self.same_cubins is False:
            yield f"other cubins than those that were judged, which triton {then} compiled"


def sass_of(shown: CompiledAttempt) -> str:
    """The listing of every kernel, under what compiled it."""
    head = [f"// {line}" for line in shown.provenance]
    return "\n".join([*head, LEGEND, "", *(listing(kernel) for kernel in shown.sass)])


def ptx_of(shown: CompiledAttempt) -> str:
    """The PTX of the only kernel as its line numbers count, fit to be assembled; several below each other."""
    if len(shown.ptx) == 1:
        return shown.ptx[0]
    named = zip(shown.reports, shown.ptx, strict=True)
    return "\n".join(f"// kernel {report.name}\n{text}" for report, text in named)


def ptx_in_window(shown: CompiledAttempt) -> str:
    """The same for a person: every kernel with its line numbers, under what compiled it."""
    head = [f"// {line}" for line in shown.provenance]
    named = zip(shown.reports, shown.ptx, strict=True)
    return "\n".join([*head, *(f"// kernel {report.name}\n{numbered_ptx(text)}" for report, text in named)])


def sass_change(before: CompiledAttempt, after: CompiledAttempt) -> str:
    """What the second has otherwise than the first: numbers, then the hot loops."""
    return "\n".join([*_heads(before, after), "", *_registers(before, after), difference(before.sass, after.sass), ""])


def ptx_change(before: CompiledAttempt, after: CompiledAttempt) -> str:
    """The lines of PTX that differ by more than numbers of registers and labels."""
    texts = (ptx_of(before), ptx_of(after))
    found = ptx_difference(*texts, before.attempt_id, after.attempt_id)
    return found or "the same PTX but for the numbers of registers and labels\n"


def _heads(before: CompiledAttempt, after: CompiledAttempt) -> Iterator[str]:
    for sign, shown in (("-", before), ("+", after)):
        first, *rest = shown.provenance
        yield f"{sign * 3} {first}"
        yield from (f"    {line}" for line in rest)


def _registers(before: CompiledAttempt, after: CompiledAttempt) -> Iterator[str]:
    old = {report.name: report for report in before.reports}
    for report in after.reports:
        if (other := old.get(report.name)) is not None:
            yield f"{report.name}: {_resources(other)} -> {_resources(report)}"


def _resources(report: KernelReport) -> str:
    spilled = report.spill_store_bytes + report.spill_load_bytes
    return (
        f"{report.registers} registers, {spilled} B spilled, {report.shared_bytes} B shared, "
        f"{report.num_warps} warps, occupancy {report.occupancy:.0%}"
    )


def compiled_json(shown: CompiledAttempt, parts: Sequence[str], against: CompiledAttempt | None) -> dict[str, Json]:
    """The one object of --json. `parts`: "sass", "ptx" or both."""
    names = ("attempt_id", "variant", "timed_variant", "arch", "assembler", "disassembler", "same_cubins")
    found: dict[str, Json] = {
        "type": "compiled",
        "schema_version": SCHEMA_VERSION,
        **{name: encode(getattr(shown, name)) for name in names},
        "versions": dict(shown.versions_now),
        "kernels": encode(shown.reports),
    }
    if "sass" in parts:
        found["sass"] = [_sass_json(kernel) for kernel in shown.sass]
    if "ptx" in parts:
        found["ptx"] = list(shown.ptx)
    if against is not None:
        found["against"] = against.attempt_id
        found["difference"] = {
            name: change(against, shown)
            for name, change in (("sass", sass_change), ("ptx", ptx_change))
            if name in parts
        }
    return found


def _sass_json(kernel: Sass) -> dict[str, Json]:
    return {name: value for name, value in encode(kernel).items() if name != "ptx"}
