"""Does a kernel bring memory of its own, that outlives a launch and that no plan mentions? Pure: reads text.

Inline assembly can declare variables of the module (`.global`, `.const`) or of the multiprocessor (`.shared`, which
holds what the kernel before left there), take in others (`.extern`), or close the function and begin something else.
The compiler writes all that it declares itself (strings of device_print and device_assert, libdevice's tables) before
the first function, and says in the text where assembly begins; so whatever is declared behind the first assembly comes
from there.
"""

import re

_ASSEMBLY = "// begin inline asm"
_HIDDEN = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_DIRECTIVE = re.compile(
    r"(?:(?<![\w$.])|(?<=\.visible)|(?<=\.weak)|(?<=\.extern)|(?<=\.common))"  # but not ld.global
    r"\.(global|const|shared|local|extern|common|weak|visible|version|target|address_size|alias|"
    r"texref|samplerref|surfref|tex|entry|func)(?![\w$])"
)
_UNSET = re.compile(r"(?<![\w$.])\.(?:global|const)(?![\w$])([^;={]*);")
_POINTER = re.compile(r"\.ptr\s+\.(global|const|shared|local)\b")  # what a parameter points to, not a declaration
_FOREIGN = re.compile(r"(?<![\w.$#!@%^-])llvm\.(?!intr\.assume\b)[\w.$]+(?![\w.$]|\s*=)")
_QUOTED_FOREIGN = re.compile(r'"(llvm\.(?!intr\.assume")[\w.$]+)"\s*[(<]')
_AHEAD = re.compile(
    r"(?<![\w$.%])(?:prefetchu?\.(?:global\.|local\.)?L[12]|applypriority|discard|cp\.async\.bulk\.prefetch)"
)
_PRIVATE = re.compile(r"\btt\.func\s+(?:private|nested)\b|\btt\.func\s+@")
WORDS = "inline assembly declares {what}: memory that outlives a launch, or functions from elsewhere, belong to no plan"


def foreign_ttir(text: str) -> str | None:
    """An operation of LLVM's own in TTIR, which Triton never writes there and which can declare module variables; in
    words, or None."""
    bare = _HIDDEN.sub(" ", text)
    found = _FOREIGN.search(bare)
    name = found[0] if found else next((m[1] for m in _QUOTED_FOREIGN.finditer(text)), None)
    return f"the kernel holds an operation {name!r:.60}, which is not one of Triton's" if name else None


def module_memory(ptx: str, ttir: str) -> str | None:
    """What a compiled kernel declares besides what the compiler declares, in words for the author; or None."""
    head, _, tail = ptx.partition(_ASSEMBLY)
    for unset in _UNSET.finditer(_bare(head)):
        return f"the kernel has a module variable without a value ({unset[1].strip()[:60]}): it is in no plan"
    names = [m[1] for m in _DIRECTIVE.finditer(_bare(tail))]
    entries, functions = int(".entry" not in _bare(head)), len(_PRIVATE.findall(ttir))  # each is written once
    allowed = {"entry": entries, "func": functions, "visible": entries + functions, "local": entries + functions}
    for name in names:
        allowed[name] = allowed.get(name, 0) - 1
        if allowed[name] < 0:
            return WORDS.format(what=f".{name}")
    if ahead := _AHEAD.search(_bare(tail)):
        return (
            f"inline assembly holds {ahead[0]!r}: what it brings into the L2 may be another run's, so it is not timed"
        )
    return None


def _bare(ptx: str) -> str:
    """PTX without comments, strings and the state spaces of pointer parameters."""
    return _POINTER.sub(".ptr", _HIDDEN.sub(" ", ptx))
