"""Compilers' PTX made readable: registers are called after what they hold, and debug information is left out. Pure."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kerneltune.tools.languages.ptx.checks import OPCODES
from kerneltune.tools.languages.ptx.ir import Function, Param, PtxError, type_bytes
from kerneltune.tools.languages.ptx.parser import PtxToken, Stream, line_of, parse, tokens

# ---
# PTX text as statements of tokens, for tools that keep the wording and change the names. Pure.
#
# `parse` says what a text means; this says how it is written. Text that `parse` takes is taken here.

_ELEMENT = re.compile(r"(?P<base>[^.]+)(?P<element>\.[xyzwrgba])?")


@dataclass(frozen=True)
class Statement:
    """`kind`: open, close, label, location, directive or instruction. `tokens` end with the semicolon, where there is
    one. `scopes`: the numbers of the braces around it, outermost (0, the function's own) first."""

    kind: str
    tokens: tuple[PtxToken, ...]
    scopes: tuple[int, ...]

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.tokens[0].line

    @property
    def directive(self) -> str:
        """ ".reg" and the like; empty for what is no directive."""
        return self.tokens[0].text if self.kind == "directive" else ""


@dataclass(frozen=True)
class TextPiece:
    """What stands outside of all functions, or a function: `head` up to its brace, then its statements without the
    braces of its own."""

    head: tuple[PtxToken, ...]
    body: tuple[Statement, ...] | None = None

    @property
    def first(self) -> str:
        """The directive that it begins with."""
        return self.head[0].text


@dataclass
class _Cursor:
    text: str
    tokens: list[PtxToken]
    at: int = 0
    opened: int = field(default=0)

    @property
    def next(self) -> PtxToken:
        return self.tokens[self.at]

    def take(self) -> PtxToken:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise PtxError(token.line, "the text ends within a statement", line_of(self.text, token.line))
        self.at += 1
        return token

    def through(self, closing: str) -> tuple[PtxToken, ...]:
        """Tokens up to the next `closing` outside of braces, and that."""
        found, depth = [self.take()], 0
        while found[-1].text != closing or depth:
            depth += (found[-1].text == "{") - (found[-1].text == "}")
            if found[-1].text == closing and not depth:
                break
            found.append(self.take())
        return tuple(found)

    def line_rest(self) -> tuple[PtxToken, ...]:
        """Tokens that stand in the line of the next one."""
        found = [self.take()]
        while self.next.kind != "end" and self.next.line == found[0].line:
            found.append(self.take())
        return tuple(found)


def pieces(text: str) -> list[TextPiece]:
    """The parts of a file in order. Raises PtxError."""
    cursor = _Cursor(text, tokens(text))
    found: list[TextPiece] = []
    while cursor.next.kind != "end":
        found.append(_piece(cursor))
    return found


def _piece(cursor: _Cursor) -> TextPiece:
    first = cursor.next.text
    if first in (".version", ".target", ".address_size", ".file"):
        return TextPiece(cursor.line_rest())
    if first == ".section":
        head = []
        while cursor.next.text != "{":
            head.append(cursor.take())
        return TextPiece((*head, *cursor.through("}")))
    head = []
    while cursor.next.text != ";":
        if cursor.next.text == "{" and any(t.text in (".entry", ".func") for t in head):
            cursor.take()
            return TextPiece(tuple(head), tuple(_statements(cursor)))
        head.append(cursor.take())
        if head[-1].text == "=":
            return TextPiece((*head, *cursor.through(";")))
    return TextPiece((*head, cursor.take()))


def _statements(cursor: _Cursor) -> Iterator[Statement]:
    scopes: tuple[int, ...] = (0,)
    opened = 0
    while True:
        token = cursor.next
        if token.text == "{":
            opened += 1
            scopes = (*scopes, opened)
            yield Statement("open", (cursor.take(),), scopes)
        elif token.text == "}":
            closing = cursor.take()
            if scopes == (0,):
                return
            yield Statement("close", (closing,), scopes)
            scopes = scopes[:-1]
        elif token.text == ";":
            cursor.take()
        else:
            yield _statement(cursor, scopes)


def _statement(cursor: _Cursor, scopes: tuple[int, ...]) -> Statement:
    token = cursor.next
    if token.text == ".loc":
        return Statement("location", cursor.line_rest(), scopes)
    if token.kind == "dot":
        return Statement("directive", cursor.through(";"), scopes)
    if token.kind == "word" and cursor.tokens[min(cursor.at + 1, len(cursor.tokens) - 1)].text == ":":
        return Statement("label", (cursor.take(), cursor.take()), scopes)
    return Statement("instruction", cursor.through(";"), scopes)


def split_element(word: str) -> tuple[str, str]:
    """("%v", ".x") of "%v.x"; the element is empty where there is none."""
    match = _ELEMENT.fullmatch(word)
    return (match["base"], match["element"] or "") if match else (word, "")


def operands(statement: Statement) -> list[tuple[PtxToken, ...]]:
    """The operands of an instruction as tokens, in order; without guard, opcode and modifiers."""
    body = statement.tokens[opcode_at(statement) + 1 : -1]
    while body and body[0].kind == "dot" and body[0].glued:
        body = body[1:]
    found: list[list[PtxToken]] = [[]]
    depth = 0
    for token in body:
        depth += (token.text in "[{(") - (token.text in "]})")
        if token.text == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [tuple(one) for one in found if one]


def opcode_at(statement: Statement) -> int:
    """Where the opcode stands among the tokens of an instruction: behind its guard."""
    if statement.tokens[0].text != "@":
        return 0
    return 3 if statement.tokens[1].text == "!" else 2


def guard_of(statement: Statement) -> str:
    """The guard's register; empty where there is none."""
    at = opcode_at(statement)
    return statement.tokens[at - 1].text if at else ""


def opcode_of(statement: Statement) -> str:
    """The opcode without modifiers: "ld"."""
    return statement.tokens[opcode_at(statement)].text.partition(".")[0]


def modifiers_of(statement: Statement) -> list[str]:
    """Modifiers without dots: ["global", "v4", "b32"]."""
    found = []
    for token in statement.tokens[opcode_at(statement) + 1 :]:
        if token.kind != "dot" or not token.glued:
            break
        found.append(token.text[1:])
    return found


def written(parts: Sequence[str | PtxToken]) -> str:
    """Tokens as one line of text, in one style; strings among them are names that stand for tokens."""
    line = ""
    for part in parts:
        text = part if isinstance(part, str) else part.text
        glued = not isinstance(part, str) and part.glued and (part.kind == "dot" or text in "[<")
        line += text if glued or not _spaced(line, text) else " " + text
    return line


def _spaced(line: str, text: str) -> bool:
    if not line or text in ",;:)]}|>" or line[-1] in "@!([{|<":
        return False
    if text == "-" or text == "+":
        return line[-1] in ",="
    return line[-1] not in "+-"


# ---
# Which register each word of a function's text means, and what defines and uses it. Pure.

# Instructions whose first operand is nothing that they write.
_WITHOUT_RESULT = frozenset(
    "st stmatrix red bar barrier bra brx ret exit trap membar fence cp prefetch prefetchu call nanosleep discard "
    "applypriority setmaxnreg griddepcontrol pmevent brkpt".split()
)


@dataclass(frozen=True)
class RegisterUse:
    """A register by the scope that declares it (0: the function) and its name there."""

    scope: int
    name: str


@dataclass
class Uses:
    """Of one register: its type, and the numbers of the statements that write and read it, in order."""

    type: str
    written: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)


@dataclass
class _Scope:
    names: dict[str, str] = field(default_factory=dict)  # -> type
    families: dict[str, tuple[int, str]] = field(default_factory=dict)  # prefix -> how many, type

    def type_of(self, name: str) -> str | None:
        prefix = name.rstrip("0123456789")
        count, kind = self.families.get(prefix, (0, ""))
        digits = name[len(prefix) :]
        if digits and str(int(digits)) == digits and int(digits) < count:
            return kind
        # a family's prefix may end in digits itself ("%x1_<4>" does not, "%v2<4>" does)
        for other, (size, typed) in self.families.items():
            rest = name.removeprefix(other)
            if rest != name and rest.isdecimal() and str(int(rest)) == rest and int(rest) < size:
                return typed
        return self.names.get(name)


class Registers:
    """The registers of one function."""

    def __init__(self, body: Sequence[Statement]) -> None:
        self.body = body
        self._scopes: dict[int, _Scope] = {}
        for statement in body:
            if statement.directive == ".reg":
                self._declare(statement)
        self.uses: dict[RegisterUse, Uses] = {}
        for number, statement in enumerate(body):
            if statement.kind == "instruction":
                self._note(number, statement)

    def meant(self, token: PtxToken, scopes: tuple[int, ...]) -> RegisterUse | None:
        """The register that a token means there; None for all else, special registers too."""
        if token.kind != "word":
            return None
        name = split_element(token.text)[0]
        for scope in reversed(scopes):
            if scope in self._scopes and self._scopes[scope].type_of(name) is not None:
                return RegisterUse(scope, name)
        return None

    def in_tokens(self, tokens: Sequence[PtxToken], scopes: tuple[int, ...]) -> Iterator[RegisterUse]:
        """The registers that stand there, in order."""
        for token in tokens:
            if (register := self.meant(token, scopes)) is not None:
                yield register

    def results(self, statement: Statement) -> list[RegisterUse]:
        """What an instruction writes."""
        if opcode_of(statement) in _WITHOUT_RESULT or not (found := operands(statement)):
            return []
        if found[0][0].text == "[":
            return []
        return list(self.in_tokens(found[0], statement.scopes))

    def sources(self, statement: Statement) -> list[RegisterUse]:
        """What it reads, its guard included. An accumulator that stands among the results is not named."""
        found = operands(statement)
        parts = found[1:] if self.results(statement) else found
        guard = [t for t in statement.tokens[:3] if t.text == guard_of(statement)] if guard_of(statement) else []
        return [
            *self.in_tokens(guard, statement.scopes),
            *(r for p in parts for r in self.in_tokens(p, statement.scopes)),
        ]

    def _declare(self, statement: Statement) -> None:
        scope = self._scopes.setdefault(statement.scopes[-1], _Scope())
        tokens = [t for t in statement.tokens if t.text not in (".v2", ".v4")]
        kind = tokens[1].text[1:]
        at = 2
        while at < len(tokens):
            name = tokens[at].text
            if tokens[min(at + 1, len(tokens) - 1)].text == "<":
                scope.families[name] = (int(tokens[at + 2].text), kind)
                at += 4
            else:
                scope.names[name] = kind
                at += 1
            at += 1  # a comma or the semicolon

    def _note(self, number: int, statement: Statement) -> None:
        for register in self.results(statement):
            self._of(register).written.append(number)
        for register in self.sources(statement):
            self._of(register).read.append(number)

    def _of(self, register: RegisterUse) -> Uses:
        if register not in self.uses:
            self.uses[register] = Uses(self._scopes[register.scope].type_of(register.name) or "")
        return self.uses[register]


def dead_moves(registers: Registers) -> set[int]:
    """Numbers of the statements that give a register a value which a load replaces before anything reads it.

    Triton puts zeros before every load; only those of guarded loads are ever seen.
    """
    found = set()
    for number, statement in enumerate(registers.body):
        if statement.kind == "instruction" and opcode_of(statement) == "mov" and not guard_of(statement):
            results = registers.results(statement)
            if len(results) == 1 and _replaced(registers, number, results[0]):
                found.add(number)
    return found


def _replaced(registers: Registers, number: int, register: RegisterUse) -> bool:
    for statement in registers.body[number + 1 :]:
        if statement.kind == "location":
            continue
        if statement.kind != "instruction" or opcode_of(statement) in ("bra", "brx", "call", "ret", "exit"):
            return False
        if register in registers.sources(statement):
            return False
        if register in registers.results(statement):
            plain = opcode_of(statement) in ("ld", "createpolicy") and not guard_of(statement)
            return plain and "param" not in modifiers_of(statement)
    return False


# ---
# What the registers of a kernel stand for, as names: arguments, indices, pointers, variables of the source. Pure.

# Words that PTX keeps for itself: names that a parameter or a register cannot have.
_SPECIAL = """
WARP_SZ tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid clusterid nclusterid clock clock64 clock_hi
globaltimer globaltimer_lo globaltimer_hi pm0 pm1 pm2 pm3 pm4 pm5 pm6 pm7 cluster_ctaid cluster_nctaid cluster_ctarank
cluster_nctarank is_explicit_cluster dynamic_smem_size total_smem_size aggr_smem_size lanemask_eq lanemask_le
lanemask_lt lanemask_ge lanemask_gt smem
"""
RESERVED = frozenset(_SPECIAL.split()) | frozenset(OPCODES)
_BY_TYPE = {"pred": "p", "b16": "h", "u16": "h", "s16": "h", "f16": "h", "b64": "w", "u64": "w", "s64": "w"}
_FLOAT = re.compile(r"f(16|32|64)(x2)?|bf16(x2)?")
_POINTER_STEPS = frozenset("add sub mad mov cvta selp or".split())
_OF_THREAD = {("and", "31"): "lane", ("shr", "5"): "warp"}  # what is done with tid.x
LONGEST_NAME = 24


def clean_name(name: str) -> str:
    """A name that PTX takes, made of one of Python."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:LONGEST_NAME] or "x"
    plain = f"x{plain}" if plain[0].isdecimal() or set(plain) == {"_"} else plain
    return f"{plain}_" if plain in RESERVED or plain.startswith("envreg") else plain


def variables_by_line(source: str) -> dict[int, str]:
    """The variable that each line of a source assigns, where it is one; empty for a source that is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and isinstance(targets[0], ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = targets[0].id
    return found


@dataclass(frozen=True)
class NamingContext:
    """What is known besides the text: parameter -> its new name; statement -> line of the source; that source."""

    params: Mapping[str, str]
    line_of: Mapping[int, int]
    source: str


def register_names(roles: "Roles") -> dict[RegisterUse, str]:
    """A name with its % for each register, each name once, in the order in which they are written first."""
    bases = _by_type(roles)
    counts = Counter(bases.values())
    numbers: Counter[str] = Counter()
    taken: set[str] = set()
    names: dict[RegisterUse, str] = {}
    for register, base in bases.items():
        stem = f"{base}_" if base[-1].isdecimal() else base
        name = base if counts[base] == 1 else f"{stem}{numbers[base]}"
        while name in taken:
            numbers[base] += 1
            name = f"{stem}{numbers[base]}"
        numbers[base] += 1
        taken.add(name)
        names[register] = f"%{name}"
    return names


def _by_type(roles: "Roles") -> dict[RegisterUse, str]:
    """The bases, of which each stands for registers of one type: 32-bit values keep the name, others get a letter."""
    types: dict[str, list[str]] = defaultdict(list)
    for register, base in roles.bases.items():
        types[base].append(roles.type_of(register))
    kept = {base: min(kinds, key=lambda kind: not kind.endswith("32")) for base, kinds in types.items()}
    return {
        register: base if (kind := roles.type_of(register)) == kept[base] else f"{base}_{_BY_TYPE.get(kind, kind)}"
        for register, base in roles.bases.items()
    }


class Roles:
    """`pointers`: for each register that points, the parameter that it comes from."""

    def __init__(self, registers: Registers, setting: NamingContext) -> None:
        self._registers, self._setting = registers, setting
        self._variables = variables_by_line(setting.source)
        self._source_lines = setting.source.splitlines()
        self.pointers: dict[RegisterUse, str] = {}
        self._threads: set[RegisterUse] = set()  # those that hold tid.x
        self.bases = self._all_bases()

    def _all_bases(self) -> dict[RegisterUse, str]:
        found: dict[RegisterUse, str] = {}
        for number, statement in enumerate(self._registers.body):
            if statement.kind != "instruction":
                continue
            for register in self._registers.results(statement):
                self._follow(statement, register)
                if register not in found:
                    found[register] = clean_name(self._base(*self._maker(number, register), register))
        for register in self._registers.uses:  # read, never written
            found.setdefault(register, "undefined")
        return found

    def _maker(self, number: int, register: RegisterUse) -> tuple[int, Statement]:
        """The statement that says most about a register: the first that writes it, but a load before a move."""
        body = self._registers.body
        loads = (n for n in self._registers.uses[register].written if opcode_of(body[n]) == "ld")
        number = next(loads, number) if opcode_of(body[number]) == "mov" else number
        return number, body[number]

    def type_of(self, register: RegisterUse) -> str:
        """Its type as declared: "b32"."""
        return self._registers.uses[register].type

    def _follow(self, statement: Statement, register: RegisterUse) -> None:
        """Note that a register points where one of its operands points, or where a parameter says."""
        if opcode_of(statement) == "mov" and statement.tokens[-2].text == "%tid.x":
            self._threads.add(register)
        if self._registers.uses[register].type not in ("b64", "u64", "s64"):
            return
        if param := self._loaded_param(statement):
            self.pointers[register] = param
        elif opcode_of(statement) in _POINTER_STEPS:
            sources = [self.pointers[r] for r in self._registers.sources(statement) if r in self.pointers]
            if len(set(sources)) == 1:
                self.pointers[register] = sources[0]

    def _loaded_param(self, statement: Statement) -> str:
        parts = operands(statement)
        if opcode_of(statement) != "ld" or "param" not in modifiers_of(statement) or len(parts) < 2:
            return ""
        names = [self._setting.params[t.text] for t in parts[1] if t.text in self._setting.params]
        return names[0] if names else ""

    def _base(self, number: int, statement: Statement, register: RegisterUse) -> str:
        if param := self._loaded_param(statement):
            return param
        variable = self._variable(number, statement, register)
        return (
            self._special(statement, variable)
            or variable
            or self._pointer(register)
            or self._plain(statement, register)
        )

    def _special(self, statement: Statement, variable: str) -> str:
        """tid_x, lane and the like; a program's own word for which CTA it is comes first."""
        parts = operands(statement)
        of_thread = len(parts) == 3 and self._threads.issuperset(self._registers.in_tokens(parts[1], statement.scopes))
        if of_thread and (name := _OF_THREAD.get((opcode_of(statement), written(parts[2])))) is not None:
            return name
        if opcode_of(statement) == "mov" and len(parts) == 2 and parts[1][0].text.startswith("%"):
            special = re.fullmatch(r"%(tid|ctaid|ntid|nctaid)\.([xyz])", parts[1][0].text)
            if special:
                return variable if variable and special[1] == "ctaid" else f"{special[1]}_{special[2]}"
        return ""

    def _variable(self, number: int, statement: Statement, register: RegisterUse) -> str:
        """The variable of the source that a value belongs to: one that other lines of the source read."""
        line = self._setting.line_of.get(number)
        name = self._variables.get(line or 0, "")
        if not name:
            return ""
        text = self._source_lines[(line or 0) - 1]
        if ".load(" in text and opcode_of(statement) not in ("ld", "cvt") and not self._is_loaded(register):
            return ""
        readers = {self._setting.line_of.get(n) for n in self._registers.uses[register].read}
        return name if readers - {line, None} else ""

    def _is_loaded(self, register: RegisterUse) -> bool:
        body = self._registers.body
        return any(opcode_of(body[n]) == "ld" for n in self._registers.uses[register].written)

    def _pointer(self, register: RegisterUse) -> str:
        param = self.pointers.get(register, "")
        return "" if not param else param if "ptr" in param else f"{param}_ptr"

    def _plain(self, statement: Statement, register: RegisterUse) -> str:
        kind = self._registers.uses[register].type
        space = modifiers_of(statement)[:1]
        if opcode_of(statement) == "ld" and kind != "pred":
            return "shared" if space and space[0].startswith("shared") else self._memory(statement)
        if opcode_of(statement) == "createpolicy":
            return "policy"
        if kind in _BY_TYPE:
            return _BY_TYPE[kind]
        return "f" if _is_float(statement) or self._becomes_float(register) else "i"

    def _memory(self, statement: Statement) -> str:
        pointers = [self.pointers[r] for r in self._registers.sources(statement) if r in self.pointers]
        return re.sub(r"_?ptr$", "", pointers[0]) or "v" if pointers else "v"

    def _becomes_float(self, register: RegisterUse) -> bool:
        readers: Sequence[int] = self._registers.uses[register].read
        moved = opcode_of(self._registers.body[self._registers.uses[register].written[0]]) in ("mov", "selp", "shfl")
        return moved and any(_is_float(self._registers.body[n]) for n in readers)


def _is_float(statement: Statement) -> bool:
    modifiers = modifiers_of(statement)
    typed = [m for m in modifiers if _FLOAT.fullmatch(m) or re.fullmatch(r"[subf]\d+(x2)?", m)]
    wanted = typed[:1] if opcode_of(statement) in ("cvt", "set") else typed[-1:]
    return bool(wanted and _FLOAT.fullmatch(wanted[0]))


# ---
# Triton's PTX made readable and small: what no person needs dropped, names that say what stands in them. Pure.

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


def _outside(page: _Page, piece: TextPiece, used: set[str]) -> None:
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


def _is_unused_memory(piece: TextPiece, used: set[str]) -> bool:
    texts = [t.text for t in piece.head]
    in_memory = {".global", ".const", ".shared"} & set(texts) and ".func" not in texts
    return bool(in_memory) and not any(t.kind == "word" and t.text in used for t in piece.head)


def _name_of(piece: TextPiece) -> str:
    texts = [t.text for t in piece.head]
    return texts[texts.index(".entry") + 1] if ".entry" in texts else ""


class _Text:
    """One function that is written anew."""

    def __init__(
        self, page: _Page, piece: TextPiece, entry: Function | None, names: Sequence[str] | None, text_lines: list[str]
    ) -> None:
        self._page, self._piece, self._entry = page, piece, entry
        self._body = piece.body or ()
        self._registers = Registers(self._body)
        self._source_line = _source_lines(self._body, text_lines)
        self._kept = self._params(names)
        self._params_renamed = {p.name: new for p, new in self._kept}
        setting = NamingContext(self._params_renamed, self._source_line, page.source)
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

    def _word(self, token: PtxToken, statement: Statement) -> str | PtxToken:
        register = self._registers.meant(token, statement.scopes)
        if register is not None:
            return self._names[register] + split_element(token.text)[1]
        if token.kind != "word":
            return token
        for end in range(len(statement.scopes), 0, -1):
            if (label := self._labels.get((statement.scopes[:end], token.text))) is not None:
                return label
        return self._params_renamed.get(token.text) or self._page.renamed.get(token.text) or token


def _plain_tokens(statement: Statement) -> Sequence[PtxToken]:
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


def _declarations(registers: Registers, names: Mapping[RegisterUse, str]) -> Iterator[str]:
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


def _float_of(token: PtxToken) -> str:
    if token.kind != "number" or token.text[:2].lower() not in ("0f", "0d"):
        return ""
    return f"{Stream(token.text).constant().value:.7g}"
