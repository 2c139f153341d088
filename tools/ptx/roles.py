"""What the registers of a kernel stand for, as names: arguments, indices, pointers, variables of the source. Pure."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.ptx.registers import Register, Registers
from tools.ptx.statements import Statement, modifiers_of, opcode_of, operands, written
from tools.ptx.words import OPCODES

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
class Setting:
    """What is known besides the text: parameter -> its new name; statement -> line of the source; that source."""

    params: Mapping[str, str]
    line_of: Mapping[int, int]
    source: str


def register_names(roles: "Roles") -> dict[Register, str]:
    """A name with its % for each register, each name once, in the order in which they are written first."""
    bases = _by_type(roles)
    counts = Counter(bases.values())
    numbers: Counter[str] = Counter()
    taken: set[str] = set()
    names: dict[Register, str] = {}
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


def _by_type(roles: "Roles") -> dict[Register, str]:
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

    def __init__(self, registers: Registers, setting: Setting) -> None:
        self._registers, self._setting = registers, setting
        self._variables = variables_by_line(setting.source)
        self._source_lines = setting.source.splitlines()
        self.pointers: dict[Register, str] = {}
        self._threads: set[Register] = set()  # those that hold tid.x
        self.bases = self._all_bases()

    def _all_bases(self) -> dict[Register, str]:
        found: dict[Register, str] = {}
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

    def _maker(self, number: int, register: Register) -> tuple[int, Statement]:
        """The statement that says most about a register: the first that writes it, but a load before a move."""
        body = self._registers.body
        loads = (n for n in self._registers.uses[register].written if opcode_of(body[n]) == "ld")
        number = next(loads, number) if opcode_of(body[number]) == "mov" else number
        return number, body[number]

    def type_of(self, register: Register) -> str:
        """Its type as declared: "b32"."""
        return self._registers.uses[register].type

    def _follow(self, statement: Statement, register: Register) -> None:
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

    def _base(self, number: int, statement: Statement, register: Register) -> str:
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

    def _variable(self, number: int, statement: Statement, register: Register) -> str:
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

    def _is_loaded(self, register: Register) -> bool:
        body = self._registers.body
        return any(opcode_of(body[n]) == "ld" for n in self._registers.uses[register].written)

    def _pointer(self, register: Register) -> str:
        param = self.pointers.get(register, "")
        return "" if not param else param if "ptr" in param else f"{param}_ptr"

    def _plain(self, statement: Statement, register: Register) -> str:
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

    def _becomes_float(self, register: Register) -> bool:
        readers: Sequence[int] = self._registers.uses[register].read
        moved = opcode_of(self._registers.body[self._registers.uses[register].written[0]]) in ("mov", "selp", "shfl")
        return moved and any(_is_float(self._registers.body[n]) for n in readers)


def _is_float(statement: Statement) -> bool:
    modifiers = modifiers_of(statement)
    typed = [m for m in modifiers if _FLOAT.fullmatch(m) or re.fullmatch(r"[subf]\d+(x2)?", m)]
    wanted = typed[:1] if opcode_of(statement) in ("cvt", "set") else typed[-1:]
    return bool(wanted and _FLOAT.fullmatch(wanted[0]))
