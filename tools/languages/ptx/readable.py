"""Makes Triton's PTX readable: arguments and branch targets get names, lines of the Triton source are quoted, and what
no person needs is left out. Registers keep their numbers. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from kerneltune.tools.languages.ptx.checks import OPCODES, access_bytes, followed_params
from kerneltune.tools.languages.ptx.ir import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    PtxError,
    Register,
    Stream,
    Variable,
    leaves,
    parse,
    tokens,
    without_comments,
)

SCRATCH = ("global_scratch", "profile_scratch")  # what Triton passes behind the arguments
LONGEST_NAME = 24
_MOST_QUOTED = 96
_MAIN_LOCATION = re.compile(r"([^\s:/@\[]+):(\d+):\d+[ \]]*$")  # the outermost of `a.py:1:2 @[ b.py:3:4 ]`
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")
_FLOAT = re.compile(r"\b0[fF][0-9A-Fa-f]{8}\b|\b0[dD][0-9A-Fa-f]{16}\b")
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)\s*:")
_LONE_VALUE = re.compile(r"\{ *([^{},]*?) *\}")  # `ld … { %r3 }, […]`


def readable(ptx: str, *, names: Sequence[str] | None = None, source: str | None = None) -> str:
    """The same kernel as text for a person or a model: assembled, it gives the same machine code.

    `names`: of the arguments that are passed, in order, constexprs left out (else x0, x1, …). `source`: the file that
    the text's locations mean; its lines are then quoted where their instructions begin. Trailing parameters that
    `names` does not cover (Triton's scratch pointers) go where nothing uses them. Raises PtxError for
    text that is no PTX.
    """
    return "\n".join(_Readable(ptx, names, (source or "").splitlines()).lines()) + "\n"


class _Readable:
    """A text in LLVM's layout (a statement has lines of its own), rewritten line by line."""

    def __init__(self, ptx: str, names: Sequence[str] | None, source: Sequence[str]) -> None:
        self._module, self._source = parse(ptx), source
        self._raw, self._plain = ptx.split("\n"), without_comments(ptx).split("\n")
        self._end = max((f.end_line for f in self._module.functions), default=0)
        self._braces: dict[int, int] = {}  # line of an entry -> line of the brace that opens its body
        inside: list[str] = []
        everything = tokens(ptx)
        for function in filter(lambda f: f.defined, self._module.functions):
            at = next(i for i, t in enumerate(everything) if t.line >= function.line and t.text == "{")
            inside += [t.text for t in everything[at:] if t.line <= function.end_line]
            if function.entry:
                self._braces[function.line] = everything[at].line
        self._params = {f.line: _kept_params(f, names, inside) for f in self._module.entries}
        self._dropped = _dead_moves(self._module) | _unused_memory(self._module, inside)
        self._renamed: dict[str, str] = {p.name: name for kept in self._params.values() for p, name in kept}
        for function in self._module.functions:
            self._renamed |= _label_names(function, {*inside, *self._renamed.values()})
        self._main: str | None = None  # the file of the first location: the kernel's own
        self._line = self._quoted = 0

    def _head_lines(self) -> set[int]:
        return {n for first, last in self._braces.items() for n in range(first, last + 1)}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the new text."""
        entries, heads = {f.line: f for f in self._module.entries}, self._head_lines()
        for number, line in enumerate(self._plain, 1):
            line = " ".join(line.split())
            if number in entries:
                yield from self._head(entries[number])
                if rest := self._plain[self._braces[number] - 1].partition("{")[2].strip():
                    yield from self._written(rest, True)
            elif number > self._end and line.startswith(".section"):
                return  # debug information, to the end
            elif line.startswith(".loc "):
                self._locate(number)
            elif line and number not in heads | self._dropped and not line.startswith(".file"):
                yield from self._written(line, any(f.line < number < f.end_line for f in self._module.functions))

    def _head(self, entry: Function) -> Iterator[str]:
        kept = self._params[entry.line]
        threads = entry.directives.get("reqntid")
        yield ""
        yield f"// {entry.name}: {f'{math.prod(threads)} threads a CTA; ' if threads else ''}what it is given:"
        widest = _widest_access(entry)
        for param, name in kept:
            yield f"//   {name}: .{param.type}, {_meaning(param, name, widest.get(param.name))}"
        for variable in self._module.variables:
            if variable.extern and variable.space == "shared" and variable.line not in self._dropped:
                yield f"//   {variable.name}: dynamic shared memory, whose bytes the launch gives"
        yield f".visible .entry {entry.name}("
        yield ",\n".join(f"    {_declared(param, name)}" for param, name in kept)
        yield ")"
        yield from (f".{name} {', '.join(map(str, numbers))}".rstrip() for name, numbers in entry.directives.items())
        yield "{"

    def _locate(self, number: int) -> None:
        """Take a location: the line of the call, for what a helper of Triton's was inlined from."""
        if match := _MAIN_LOCATION.search(self._raw[number - 1]):
            self._main = self._main or match[1]
            self._line = int(match[2]) if match[1] == self._main else 0

    def _written(self, line: str, inside: bool) -> Iterator[str]:
        if label := _LABEL.fullmatch(line):
            if name := self._renamed.get(label[1], label[1]):
                yield f"{name}:"
            return
        line = re.sub(r"^(\.target \w+).*", r"\1", line)  # `, debug` would ask for what was dropped
        line = _WORD.sub(lambda m: self._renamed.get(m[0], m[0]), line)
        line = re.sub(r" ?\+ ?(?=\d+ ?\])", "+", re.sub(r"\[ ", "[", line)).replace(" ]", "]").replace("+0]", "]")
        if re.match(r"(@!?\S+ )?(ld|st)\.", line):
            line = _LONE_VALUE.sub(r"\1", line)
        if inside and line[0] not in ".{}":
            yield from self._quote()
        floats = ", ".join(f"{Stream(text).constant().value:.7g}" for text in _FLOAT.findall(line))
        yield f"{'    ' if inside else ''}{line}{f'  // {floats}' if floats and inside else ''}"

    def _quote(self) -> Iterator[str]:
        if self._line == self._quoted or not 0 < self._line <= len(self._source):
            return
        text = "".join(c if " " <= c <= "~" else "?" for c in self._source[self._line - 1].strip())[:_MOST_QUOTED]
        if text and not text.startswith(("def ", "@")):
            self._quoted = self._line
            yield f"    // {self._line}  {text}".rstrip("\\ ")


# Words that PTX keeps for itself: names that a parameter cannot have.
_SPECIAL = """
WARP_SZ tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid clusterid nclusterid clock clock64 clock_hi
globaltimer globaltimer_lo globaltimer_hi pm0 pm1 pm2 pm3 pm4 pm5 pm6 pm7 cluster_ctaid cluster_nctaid cluster_ctarank
cluster_nctarank is_explicit_cluster dynamic_smem_size total_smem_size aggr_smem_size lanemask_eq lanemask_le
lanemask_lt lanemask_ge lanemask_gt
"""
_RESERVED = frozenset(_SPECIAL.split()) | OPCODES


def _clean_name(name: str) -> str:
    """A name that PTX takes, made of one of Python."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:LONGEST_NAME] or "x"
    plain = f"x{plain}" if plain[0].isdecimal() or set(plain) == {"_"} else plain
    return f"{plain}_" if plain in _RESERVED or plain.startswith("envreg") else plain


def _kept_params(entry: Function, names: Sequence[str] | None, used: Sequence[str]) -> list[tuple[Variable, str]]:
    """The parameters that stay, with their new names, each distinct from every word of the bodies."""
    params = entry.params
    given = list(names) if names is not None else [f"x{i}" for i in range(max(len(params) - len(SCRATCH), 0))]
    if len(given) > len(params):
        raise PtxError(entry.line, f"{len(given)} names for {len(params)} parameters of {entry.name!r}")
    called = [*given, *SCRATCH[: len(params) - len(given)]]
    called += [f"x{i}" for i in range(len(called), len(params))]
    while len(params) > len(given) and params[-1].name not in used:
        params = params[:-1]
    taken = {entry.name, *used} - {p.name for p in params}
    kept = []
    for param, name in zip(params, map(_clean_name, called), strict=False):
        while name in taken:
            name += "_"
        taken.add(name)
        kept.append((param, name))
    return kept


def _label_names(function: Function, taken: set[str]) -> dict[str, str]:
    """A new name for each of LLVM's labels that a branch goes to, by its old one; an empty one for the others."""
    places = {item.name.partition("@")[0]: n for n, item in enumerate(function.body) if isinstance(item, Label)}
    last_use: dict[str, int] = {}
    for number, item in enumerate(function.body):
        for operand in item.operands if isinstance(item, Instruction) else ():
            for leaf in leaves(operand):
                last_use[getattr(leaf, "name", "").partition("@")[0]] = number
    found: dict[str, str] = {}
    for label, place in places.items():
        if label.startswith("$"):  # LLVM's own; those of a person stay
            kind = "loop" if last_use.get(label, -1) > place else "end" if _ends(function, place) else "skip"
            number = sum(name.startswith(kind) for name in found.values()) + 1
            while f"{kind}_{number}" in taken:
                number += 1
            found[label] = f"{kind}_{number}" if label in last_use else ""
    return found


def _ends(function: Function, place: int) -> bool:
    following = next((item for item in function.body[place:] if isinstance(item, Instruction)), None)
    return following is not None and following.opcode in ("ret", "exit")


def _dead_moves(module: Module) -> set[int]:
    """Lines of the moves that give a register a value which the load right behind them replaces.

    Triton puts zeros before every load; only those of guarded loads are ever seen.
    """
    found: set[int] = set()
    for function in module.functions:
        waiting: dict[str, int] = {}
        for item in function.body:
            match item:
                case Instruction("mov", _, (Register(name), Immediate()), line, None):
                    waiting[name] = line
                case Instruction("ld" | "createpolicy", modifiers, (result, *sources), _, None):
                    results = [leaf.name for leaf in leaves(result) if isinstance(leaf, Register)]
                    read = {leaf.name for o in sources for leaf in leaves(o) if isinstance(leaf, Register)}
                    if "param" not in modifiers and not read & waiting.keys():
                        found |= {waiting[name] for name in results if name in waiting}
                    waiting.clear()
                case Instruction() | Label():
                    waiting.clear()
    return found


def _unused_memory(module: Module, used: Sequence[str]) -> set[int]:
    """Lines of the variables that no function names."""
    lines: dict[int, bool] = {}
    for variable in module.variables:
        lines[variable.line] = lines.get(variable.line, False) or variable.name in used
    return {line for line, is_used in lines.items() if not is_used}


def _widest_access(entry: Function) -> Mapping[str, int]:
    """Bytes of the widest access of global memory that comes from each parameter."""
    origins = followed_params(entry)
    found: dict[str, int] = {}
    for instruction in entry.instructions:
        if instruction.opcode in ("ld", "st") and "global" in instruction.modifiers:
            for operand in instruction.operands:
                base = operand.base if isinstance(operand, Address) else None
                if isinstance(base, Register) and (param := origins.get(base.name)):
                    found[param] = max(found.get(param, 0), access_bytes(instruction))
    return found


def _declared(param: Variable, name: str) -> str:
    align = f" .align {param.align}" if param.align else ""
    if param.ptr:
        return f".param .{param.type} .ptr .global{align} {name}"
    return f".param{align} .{param.type} {name}{'' if param.count is None else f'[{param.count}]'}"


def _meaning(param: Variable, name: str, widest_bytes: int | None) -> str:
    if name in SCRATCH:
        return "pointer to memory that Triton sets aside for a launch"
    if param.count is not None:
        return f"{param.nbytes} bytes"
    if not param.ptr:
        return "number"
    return f"pointer, accessed {widest_bytes} bytes at a time, so aligned to that" if widest_bytes else "pointer"
