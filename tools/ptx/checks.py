"""What is wrong with a PTX kernel before it runs, as far as its text tells. Pure.

A finding either stops the kernel, or is a note that its author should read: the evaluator's own protections (time
limits, guard pages, a process that may die) hold either way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.gpus import arch_number
from tools.ptx.alignment import misaligned
from tools.ptx.effects import written_variables
from tools.ptx.flow import endless, spins
from tools.ptx.ir import Function, Immediate, Instruction, Module, Variable, leaves
from tools.ptx.words import AHEAD, BULK_PREFETCH, EXTERNAL, EXTERNAL_FUNCTIONS, FORBIDDEN, OPCODES, SLIPS

_MOST_DIGITS = 4  # of an architecture's number
_TABLES = ("global", "const")
_MOST_TABLE_BYTES = 16 << 20  # what the runner restores before each pass


@dataclass(frozen=True)
class Finding:
    """What stands in a line, and what to do about it. `fatal`: the kernel is not run."""

    line: int
    message: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"PTX line {self.line}: {self.message}"


def findings(module: Module, entry: Function, arch: str) -> list[Finding]:
    """Everything that can be said of a kernel without running it, in the order of its lines."""
    found = [*_head(module, arch), *_memory(module), *_functions(module)]
    for function in module.functions:
        found += _instructions(function)
        found += [Finding(line, words) for line, words in (*endless(function), *misaligned(module, function))]
        found += [Finding(line, words, fatal=False) for line, words in spins(function)]
    return sorted([*found, *_unused(entry)], key=lambda f: f.line)


def _head(module: Module, arch: str) -> Iterator[Finding]:
    wanted, number = arch_number(arch), module.target.removeprefix("sm_")
    digits = number.rstrip("af")
    if not module.target.startswith("sm_") or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        yield Finding(module.target_line, f".target {module.target} is no GPU's; write .target sm_{wanted}a")
    elif int(digits) > wanted or (number != digits and int(digits) != wanted):
        yield Finding(
            module.target_line,
            f"the text is for {module.target}, this run's GPU is {arch}; write .target sm_{wanted}a, use what it has",
        )
    if module.address_size != 64:
        yield Finding(module.target_line, f".address_size {module.address_size}: addresses have 64 bits here")


def _memory(module: Module) -> Iterator[Finding]:
    """Variables of the module outlive a launch; tables that nobody can write may."""
    held = (*module.variables, *(v for f in module.functions for v in f.variables))
    tables = [v for v in held if v.space in _TABLES]
    written = written_variables(module) if tables else frozenset()
    if (nbytes := sum(v.nbytes for v in tables)) > _MOST_TABLE_BYTES:
        largest = max(tables, key=lambda v: v.nbytes)
        yield Finding(largest.line, f"{nbytes} bytes of tables; the limit is {_MOST_TABLE_BYTES}: pass a tensor")
    for variable in held:
        yield from (Finding(variable.line, words) for words in _kept(variable, written))


def _kept(variable: Variable, written: frozenset[str] | None) -> Iterator[str]:
    name, space = variable.name, variable.space  # "kept@1" for one of an inner scope
    changes = space in _TABLES and name in (written or ())
    if changes or (space == "global" and (not variable.has_value or written is None)):
        yield _outlives(variable)
    elif variable.extern and space != "shared":
        yield f".extern .{space} {name} is defined nowhere; define it here"
    elif space == "const" and not variable.has_value:
        yield f".const {name} has no value; give it one, or pass a tensor"


def _outlives(variable: Variable) -> str:
    name = variable.name.partition("@")[0]
    return (
        f".{variable.space} {name} is memory that outlives a launch, which no plan knows; pass a tensor (a table must "
        "have a value and only be read)"
    )


def _functions(module: Module) -> Iterator[Finding]:
    defined = {f.name for f in module.functions if f.defined}
    for function in module.functions:
        if function.name not in defined | EXTERNAL_FUNCTIONS:
            reason = EXTERNAL.get(function.name, "it is defined nowhere; define it in this text")
            yield Finding(function.line, f"the function {function.name} comes from elsewhere: {reason}")


def _instructions(function: Function) -> Iterator[Finding]:
    for instruction in function.instructions:
        if instruction.opcode not in OPCODES:
            yield Finding(
                instruction.line, f"{instruction.opcode!r:.60} is no PTX instruction{_near(instruction.opcode)}"
            )
        elif reason := _forbidden(instruction):
            yield Finding(instruction.line, f"{instruction.name}: {reason}")
        elif instruction.opcode == "trap" and instruction.guard is None:
            yield Finding(
                instruction.line, "trap without a condition in front of it ends the launch when it is reached", False
            )


def _near(opcode: str) -> str:
    from difflib import get_close_matches

    if slip := SLIPS.get(opcode):
        return f"; {slip}"
    close = get_close_matches(opcode, OPCODES - FORBIDDEN.keys(), 1)
    return f"; is {close[0]!r} meant?" if close else ""


def _forbidden(instruction: Instruction) -> str | None:
    if instruction.opcode == "prefetch" and not {"param", "const", "tensormap"} & set(instruction.modifiers):
        return AHEAD
    if instruction.opcode == "cp" and instruction.modifiers[:3] == BULK_PREFETCH:
        return AHEAD
    return FORBIDDEN.get(instruction.opcode)


def _unused(entry: Function) -> Iterator[Finding]:
    """A parameter that nobody reads is honest, but most often a slip."""
    operands = (operand for instruction in entry.instructions for operand in instruction.operands)
    named = {leaf.name for operand in operands for leaf in leaves(operand) if not isinstance(leaf, Immediate)}
    for param in entry.params:
        if param.name not in named:
            yield Finding(param.line, f"the parameter {param.name} is never read", False)


def first_fatal(found: Sequence[Finding]) -> list[Finding]:
    """Those that stop a kernel."""
    return [finding for finding in found if finding.fatal]
