"""What `optimize show --sass` and `--ptx` show: what an attempt compiles to, or how that differs from another's."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.codec import Json, encode
from tools.plan.sass import LEGEND, Sass, changes, listing, numbered_ptx
from tools.verdict import KernelReport

SCHEMA_VERSION = 2
_MOST_PTX_LINES = 8_000  # of two texts that are compared: the time grows with their product
_PTX_NUMBER = re.compile(r"(%[a-z]+|\$L__[A-Za-z_]+)\d+(?:_\d+)?")


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
    """What the second has otherwise than the first: in counts."""
    return "\n".join([*_heads(before, after), "", *_registers(before, after), changes(before.sass, after.sass), ""])


def ptx_change(before: CompiledAttempt, after: CompiledAttempt) -> str:
    """The lines of PTX that differ by more than numbers of registers and labels."""
    texts = (ptx_of(before), ptx_of(after))
    found = _ptx_difference(*texts, before.attempt_id, after.attempt_id)
    return found or "the same PTX but for the numbers of registers and labels\n"


def _ptx_difference(before: str, after: str, from_name: str, to_name: str) -> str:
    """The lines of PTX that differ by more than numbers of registers and labels, as they are, in the form of a diff;
    empty where none does."""
    old, new = (_ptx_lines(text) for text in (before, after))
    if len(old) + len(new) > _MOST_PTX_LINES:
        return f"# {len(old)} and {len(new)} lines: too many to compare\n"
    keys = [[_PTX_NUMBER.sub(r"\1", line) for line in lines] for lines in (old, new)]
    told: list[str] = []
    for group in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_grouped_opcodes(3):
        told.append(f"@@ -{group[0][1] + 1} +{group[0][3] + 1} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                told += [f" {line}" for line in new[j1:j2]]
            else:
                told += [*(f"-{line}" for line in old[i1:i2]), *(f"+{line}" for line in new[j1:j2])]
    return "".join(f"{line}\n" for line in [f"--- {from_name}", f"+++ {to_name}", *told]) if told else ""


def _ptx_lines(text: str) -> list[str]:
    """Without comments and debug lines."""
    lines = (line.partition("//")[0].strip() for line in text.split("\n"))
    return [" ".join(line.split()) for line in lines if line and not line.startswith((".loc", ".file"))]


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
