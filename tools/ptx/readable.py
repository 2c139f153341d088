"""Triton's PTX made readable and small: what no person needs dropped, names that say what stands in them. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tools.ptx.ir import Function, Param, PtxError, type_bytes
from tools.ptx.lexer import Token
from tools.ptx.parser import parse
from tools.ptx.registers import Register, Registers, dead_moves
from tools.ptx.roles import Roles, Setting, clean_name, register_names
from tools.ptx.statements import Piece, Statement, modifiers_of, opcode_of, pieces, split_element, written
from tools.ptx.stream import Stream

SCRATCH = ("global_scratch", "profile_scratch")  # what Triton passes behind the arguments
SMEM = "smem"  # what dynamic shared memory is called
_MAIN_LOCATION = re.compile(r"([^\s:/@\[]+):(\d+):\d+[ \]]*$")  # the outermost of `a.py:1:2 @[ b.py:3:4 ]`
_MOST_QUOTED = 96


@dataclass(frozen=True)
class Readable:
    """PTX text, and for its lines (from 1) the line of Triton source that each came from, where that is known."""

    text: str
    lines: Mapping[int, int]


def readable(ptx: str, *, names: Sequence[str] | None = None, source: str | None = None) -> Readable:
    """The same kernel as text for a person or a model: assembled, it gives the same machine code.

    `names`: of the arguments that are passed, in order, constexprs left out (else x0, x1, …). `source`: the file that
    the text's locations mean; its lines are then quoted where their instructions begin. Trailing parameters that
    `names` does not cover (Triton's scratch pointers) go where nothing uses them. Raises PtxError for
    text that is no PTX.
    """
    module = parse(ptx)
    page = _Page(source or "")
    entries = {f.name: f for f in module.entries}
    text_lines = ptx.split("\n")
    split = pieces(ptx)
    used = {t.text for piece in split for s in piece.body or () for t in s.tokens}
    for piece in split:
        if piece.body is None:
            _outside(page, piece, used)
        else:
            _Text(page, piece, entries.get(_name_of(piece)), names, text_lines).write()
    return Readable("\n".join(page.lines) + "\n", page.source_lines)


@dataclass
class _Page:
    """What has been written."""

    source: str
    lines: list[str] = field(default_factory=list)
    source_lines: dict[int, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  # variables of the module

    def write(self, text: str, source_line: int | None = None) -> None:
        self.lines.append(text)
        if source_line is not None:
            self.source_lines[len(self.lines)] = source_line


def _outside(page: _Page, piece: Piece, used: set[str]) -> None:
    """What stands outside of functions: debug information goes, and memory that no function names."""
    if piece.first in (".file", ".section") or _is_unused_memory(piece, used):
        return
    if piece.first == ".target":
        page.write(written(piece.head[:2]))  # `, debug` would ask for what was dropped
        return
    texts = [t.text for t in piece.head]
    if ".shared" in texts and ".extern" in texts and "global_smem" in texts:
        page.renamed["global_smem"] = SMEM
    page.write(written([page.renamed.get(t.text, t) for t in piece.head]))


def _is_unused_memory(piece: Piece, used: set[str]) -> bool:
    texts = [t.text for t in piece.head]
    in_memory = {".global", ".const", ".shared"} & set(texts) and ".func" not in texts
    return bool(in_memory) and not any(t.kind == "word" and t.text in used for t in piece.head)


def _name_of(piece: Piece) -> str:
    texts = [t.text for t in piece.head]
    return texts[texts.index(".entry") + 1] if ".entry" in texts else ""


class _Text:
    """One function that is written anew."""

    def __init__(
        self, page: _Page, piece: Piece, entry: Function | None, names: Sequence[str] | None, text_lines: list[str]
    ) -> None:
        self._page, self._piece, self._entry = page, piece, entry
        self._body = piece.body or ()
        self._registers = Registers(self._body)
        self._source_line = _source_lines(self._body, text_lines)
        self._kept = self._params(names)
        self._params_renamed = {p.name: new for p, new in self._kept}
        setting = Setting(self._params_renamed, self._source_line, page.source)
        self._roles = Roles(self._registers, setting)
        self._names = register_names(self._roles)
        self._labels = _labels(self._body, {*self._params_renamed.values(), _name_of(piece), SMEM})
        self._dead = dead_moves(self._registers)
        self._flat = _flat_scopes(self._body)

    def _params(self, names: Sequence[str] | None) -> list[tuple[Param, str]]:
        """The parameters that stay, with their names."""
        if self._entry is None:
            return []
        params = self._entry.params
        used = {t.text for s in self._body for t in s.tokens}
        given = list(names) if names is not None else [f"x{i}" for i in range(max(len(params) - len(SCRATCH), 0))]
        if len(given) > len(params):
            line = self._entry.line
            raise PtxError(line, f"{len(given)} names for {len(params)} parameters of {self._entry.name!r}")
        called = [*given, *SCRATCH[: len(params) - len(given)]]
        called += [f"x{i}" for i in range(len(called), len(params))]
        while len(params) > len(given) and params[-1].name not in used:
            params = params[:-1]
        return list(zip(params, _distinct([clean_name(n) for n in called[: len(params)]]), strict=True))

    def write(self) -> None:
        page = self._page
        page.write("")
        if self._entry is None:
            page.write(written([page.renamed.get(t.text, t) for t in self._piece.head]))
        else:
            self._write_head(self._entry)
        page.write("{")
        for line in _declarations(self._registers, self._names):
            page.write(f"    {line}")
        quoted: int | None = None
        for number, statement in enumerate(self._body):
            quoted = self._write_statement(number, statement, quoted)
        page.write("}")

    def _write_head(self, entry: Function) -> None:
        page = self._page
        for line in self._explained(entry):
            page.write(f"// {line}")
        page.write(f".visible .entry {entry.name}(")
        for i, (param, name) in enumerate(self._kept):
            page.write(f"    {_declared(param, name)}{',' if i + 1 < len(self._kept) else ''}")
        page.write(")")
        for directive, numbers in entry.directives.items():
            page.write(f".{directive} {', '.join(map(str, numbers))}".rstrip())

    def _explained(self, entry: Function) -> Iterator[str]:
        threads = entry.directives.get("reqntid")
        yield f"{entry.name}: {f'{_product(threads)} threads a CTA; ' if threads else ''}what it is given:"
        widest = self._widest_access()
        for param, name in self._kept:
            yield f"  {name}: .{param.type}, {_meaning(param, name, widest.get(name))}"
        if SMEM in self._page.renamed.values():
            yield f"  {SMEM}: dynamic shared memory, whose bytes the launch gives"

    def _widest_access(self) -> dict[str, int]:
        """Bytes of the widest access of global memory that comes from each parameter."""
        found: dict[str, int] = defaultdict(int)
        for statement in self._body:
            if opcode_of(statement) in ("ld", "st") and "global" in (modifiers := modifiers_of(statement)):
                nbytes = _access_bytes(modifiers)
                for register in self._registers.sources(statement):
                    if (param := self._roles.pointers.get(register)) is not None:
                        found[param] = max(found[param], nbytes)
        return found

    def _write_statement(self, number: int, statement: Statement, quoted: int | None) -> int | None:
        page, line = self._page, self._source_line.get(number)
        match statement.kind:
            case "location":
                return quoted
            case "label":
                if (name := self._labels.get((statement.scopes, statement.tokens[0].text))) is not None:
                    page.write(f"{name}:")
                return quoted
            case "open" | "close":
                if statement.scopes[-1] not in self._flat:
                    page.write(f"    {statement.tokens[0].text}")
                return quoted
            case "directive" if statement.directive == ".reg":
                return quoted
        if number in self._dead:
            return quoted
        if line is not None and line != quoted and (text := self._quote(line)):
            page.write(f"    // {text}")
            quoted = line
        page.write(f"    {self._worded(statement)}", line)
        return quoted

    def _quote(self, line: int) -> str:
        lines = self._page.source.splitlines()
        if not 0 < line <= len(lines):
            return ""
        text = "".join(c if " " <= c <= "~" else "?" for c in lines[line - 1].strip())[:_MOST_QUOTED]
        return "" if text.startswith(("def ", "@")) else f"{line}  {text}".rstrip("\\ ")

    def _worded(self, statement: Statement) -> str:
        parts = [self._word(token, statement) for token in _plain_tokens(statement)]
        text = written(parts).replace("+0]", "]")
        notes = [n for t in statement.tokens if (n := _float_of(t))]
        return f"{text}  // {', '.join(notes)}" if notes else text

    def _word(self, token: Token, statement: Statement) -> str | Token:
        register = self._registers.meant(token, statement.scopes)
        if register is not None:
            return self._names[register] + split_element(token.text)[1]
        if token.kind != "word":
            return token
        for end in range(len(statement.scopes), 0, -1):
            if (label := self._labels.get((statement.scopes[:end], token.text))) is not None:
                return label
        return self._params_renamed.get(token.text) or self._page.renamed.get(token.text) or token


def _plain_tokens(statement: Statement) -> Sequence[Token]:
    """Loads and stores of { %x } say %x."""
    tokens = statement.tokens
    if opcode_of(statement) not in ("ld", "st"):
        return tokens
    texts = [t.text for t in tokens]
    lone = {i for i in range(len(texts) - 2) if texts[i] == "{" and texts[i + 2] == "}"}
    return [t for i, t in enumerate(tokens) if i not in lone and i - 2 not in lone]


def _source_lines(body: Sequence[Statement], text_lines: list[str]) -> dict[int, int]:
    """The line of the kernel's own file that each statement came from: that of the call, for a helper of Triton's."""
    found: dict[int, int] = {}
    main: str | None = None
    line: int | None = None
    for number, statement in enumerate(body):
        if statement.kind == "location":
            match = _MAIN_LOCATION.search(text_lines[statement.line - 1])
            if match is not None:
                main = main or match[1]
                line = int(match[2]) if match[1] == main else None
        elif line is not None:
            found[number] = line
    return found


def _labels(body: Sequence[Statement], taken: set[str]) -> dict[tuple[tuple[int, ...], str], str]:
    """A new name for each label that stays, by its scopes and old name."""
    places = {(s.scopes, s.tokens[0].text): n for n, s in enumerate(body) if s.kind == "label"}
    named: dict[tuple[tuple[int, ...], str], int] = {}
    for number, statement in enumerate(body):
        for token in statement.tokens if statement.kind in ("instruction", "directive") else ():
            for end in range(len(statement.scopes), 0, -1):
                if (key := (statement.scopes[:end], token.text)) in places:
                    named[key] = max(named.get(key, -1), number)
                    break
    found: dict[tuple[tuple[int, ...], str], str] = {}
    numbers: dict[str, int] = defaultdict(int)
    for key, place in places.items():
        if key in named or not key[1].startswith("$"):  # LLVM's own; those of a person stay
            kind = "block" if key not in named else "loop" if named[key] > place else "skip"
            kind = "end" if kind == "skip" and _ends(body, place) else kind
            numbers[kind] += 1
            name = f"{kind}_{numbers[kind]}"
            found[key] = f"{name}_" if name in taken else name
    return found


def _ends(body: Sequence[Statement], place: int) -> bool:
    following = [s for s in body[place:] if s.kind == "instruction"]
    return bool(following) and opcode_of(following[0]) in ("ret", "exit")


def _flat_scopes(body: Sequence[Statement]) -> set[int]:
    """Scopes that hold no memory of their own: their braces only kept registers and labels apart."""
    all_scopes = {s.scopes[-1] for s in body if s.kind == "open"}
    return all_scopes - {s.scopes[-1] for s in body if s.directive in (".param", ".local", ".shared")}


def _declarations(registers: Registers, names: Mapping[Register, str]) -> Iterator[str]:
    by_type: dict[str, list[str]] = defaultdict(list)
    for register, name in names.items():
        by_type[registers.uses[register].type].append(name)
    for kind, called in by_type.items():
        line = f".reg .{kind} "
        for text in _families(called):
            if len(line) + len(text) > 110:
                yield line.rstrip(", ") + ";"
                line = f".reg .{kind} "
            line += f"{text}, "
        yield line.rstrip(", ") + ";"


def _families(names: Sequence[str]) -> list[str]:
    """%x0, %x1, %x2 as %x<3>; a family that lacks a member is written out."""
    stems: dict[str, list[int]] = defaultdict(list)
    for name in names:
        stem = name.rstrip("0123456789")
        if stem != name:
            stems[stem].append(int(name[len(stem) :]))
    whole = {
        stem for stem, numbers in stems.items() if sorted(numbers) == list(range(len(numbers))) and len(numbers) > 1
    }
    written_out = dict.fromkeys(
        f"{stem}<{len(stems[stem])}>" if (stem := name.rstrip("0123456789")) in whole and stem != name else name
        for name in names
    )
    return list(written_out)


def _declared(param: Param, name: str) -> str:
    if param.ptr:
        align = f" .align {param.align}" if param.align else ""
        return f".param .{param.type} .ptr .global{align} {name}"
    align = f" .align {param.align}" if param.align else ""
    return f".param{align} .{param.type} {name}{'' if param.count is None else f'[{param.count}]'}"


def _meaning(param: Param, name: str, widest_bytes: int | None) -> str:
    if name in SCRATCH:
        return "pointer to memory that Triton sets aside for a launch"
    if param.count is not None:
        return f"{param.nbytes} bytes"
    if not param.ptr:
        return "number"
    return f"pointer, accessed {widest_bytes} bytes at a time, so aligned to that" if widest_bytes else "pointer"


def _access_bytes(modifiers: Sequence[str]) -> int:
    count = next((int(m[1:]) for m in modifiers if m in ("v2", "v4", "v8")), 1)
    return count * type_bytes(modifiers[-1])


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        while name in found:
            name += "_"
        found.append(name)
    return found


def _product(numbers: Sequence[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _float_of(token: Token) -> str:
    if token.kind != "number" or token.text[:2].lower() not in ("0f", "0d"):
        return ""
    return f"{Stream(token.text).constant().value:.7g}"
