"""A candidate around PTX that came without host code: which argument is what is guessed, and marked LOOK. Pure."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kerneltune.tools.languages.ptx.checks import followed_params
from kerneltune.tools.languages.ptx.host_code import device_of, forward_of, row_major, tensors_in, tuple_of
from kerneltune.tools.languages.ptx.ir import Address, Function, Module, Param, Register
from kerneltune.tools.languages.ptx.loader import entry_of
from kerneltune.tools.languages.ptx.parser import parse
from kerneltune.tools.schema.task import CaseSpec, TaskSpec

LOOK = "# LOOK: "
_ROWS = re.compile(r"^(n_?|num_?)?(rows?|m|batch|b)(_\w+)?$", re.IGNORECASE)
_ALL = re.compile(r"^(n_?|num_?)?(elements?|elems?|numel|total|size)$", re.IGNORECASE)
_DEFAULT_BLOCK = 256


def guessed_candidate(ptx: str, task: TaskSpec, name: str) -> str:
    """A Python file that launches the only entry of a PTX text for a task. `name`: of the file that the text is from.
    Pointers are taken to be the inputs of forward, then the parameters, then what is returned, which those are that the
    kernel stores to; numbers are taken to be sizes. Raises PtxError and PtxLaunchError."""
    module = parse(ptx)
    entry = entry_of(module, None)
    forward = forward_of(task.source, "Model", len(task.main.inputs))
    lines = [
        f'"""{_one_line(name)}, with host code that was guessed from its parameters: see the lines that say LOOK."""',
        "",
        *_imports(task),
        "",
        f'{_called(entry)} = PtxKernel(r"""\n{ptx.strip().replace(chr(34) * 3, "")}\n""")',
        "",
        "",
        f"class ModelNew({'Model' if task.main.state else 'nn.Module'}):",
        f"    def forward({forward.signature}):",
        *(
            f"        {line}"
            for line in _GuessedForward(module, entry, _pointers(entry), task.main, forward.inputs).lines()
        ),
    ]
    return "\n".join(lines) + "\n"


def _imports(task: TaskSpec) -> Iterator[str]:
    yield from ("import torch", "from torch import nn", "", "from kerneltune import PtxKernel")
    if not task.main.state:
        return
    yield from ("", "", "# The task's module, for its parameters.")
    tree = ast.parse(task.source)
    for node in tree.body:
        is_constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        is_needed = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) or is_constant
        if is_needed and getattr(node, "name", "") not in ("get_inputs", "get_init_inputs"):
            yield ast.get_source_segment(task.source, node) or ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ("", "", ast.get_source_segment(task.source, node) or "", "")


def _called(entry: Function) -> str:
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', entry.name).strip('_') or 'kernel'}_ptx"


def _one_line(name: str) -> str:
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in name)[:80]


@dataclass(frozen=True)
class _Pointers:
    """Names of the parameters that are addresses; of those that the kernel stores to."""

    all: frozenset[str]
    stored: frozenset[str]


def _pointers(entry: Function) -> _Pointers:
    """Return the pointers, by their declarations and by the addresses that are made of them."""
    origins = followed_params(entry)
    used: set[str] = set()
    stored: set[str] = set()
    for instruction in entry.instructions:
        for at, operand in enumerate(instruction.operands):
            if isinstance(operand, Address) and isinstance(operand.base, Register) and operand.base.name in origins:
                used.add(origins[operand.base.name])
                if instruction.opcode == "atom" or (at == 0 and instruction.opcode in ("st", "red", "cp")):
                    stored.add(origins[operand.base.name])
    wide = {p.name for p in entry.params if p.type in ("u64", "b64", "s64") and (p.ptr or p.name in used)}
    return _Pointers(frozenset(wide), frozenset(stored & wide))


@dataclass
class _GuessedForward:
    """Writes the body of a guessed forward."""

    module: Module
    entry: Function
    pointers: _Pointers
    case: CaseSpec
    inputs: Sequence[str]

    def lines(self) -> Iterator[str]:
        given = [p for n, t in zip(self.inputs, self.case.inputs, strict=True) for p, _ in tensors_in(n, t)]
        given += [f"self.{key}" for key in self.case.state]
        outputs = self._outputs(given)
        for name, made in outputs:
            yield f"{name} = {made}"
        passed = self._passed(given, [name for name, _ in outputs])
        yield f"{LOOK}what each parameter of the kernel is given, in its order"
        yield "arguments = ("
        for param, value, why in passed:
            yield f"    {value},  # {param.name}, .{param.type}: {why}"
        yield ")"
        yield f"{LOOK}how many blocks there are; threads of one, bytes of shared memory, where they are said here"
        yield f"{_called(self.entry)}[{self._grid(given)}](*arguments{self._options()})"
        names = [name for name, _ in outputs]
        tree = self.case.outputs
        many = isinstance(tree, list) or (isinstance(tree, dict) and "$tuple" in tree)
        yield f"return {tuple_of(names) if many else ', '.join(names)}"

    def _outputs(self, given: Sequence[str]) -> list[tuple[str, str]]:
        specs = [spec for _, spec in tensors_in("", self.case.outputs)]
        shapes = {
            path: spec for n, t in zip(self.inputs, self.case.inputs, strict=True) for path, spec in tensors_in(n, t)
        }
        found = []
        for i, spec in enumerate(specs):
            like = next((p for p, s in shapes.items() if (s.shape, s.dtype) == (spec.shape, spec.dtype)), None)
            name = "y" if len(specs) == 1 else f"y{i}"
            name = f"{name}_out" if name in self.inputs else name
            if like is not None and shapes[like].stride in (None, row_major(spec.shape)):
                found.append((name, f"torch.empty_like({like})"))
            else:
                device = device_of(self.inputs, self.case)
                made = f"torch.empty({tuple_of(spec.shape)}, dtype=torch.{spec.dtype}, device={device})"
                found.append((name, f"{made}  {LOOK}the shape of one case"))
        return found

    def _passed(self, given: Sequence[str], outputs: Sequence[str]) -> Iterator[tuple[Param, str, str]]:
        reads, writes = list(given), list(outputs)
        for param in self.entry.params:
            if param.name in self.pointers.all:
                first, second = (writes, reads) if param.name in self.pointers.stored else (reads, writes)
                value = first.pop(0) if first else second.pop(0) if second else "None"
                yield param, value, "stored to" if param.name in self.pointers.stored else "read"
            elif param.type.startswith("f"):
                yield param, "1.0", "a number that nothing tells"
            else:
                yield param, *self._size(param.name, given)

    def _size(self, name: str, given: Sequence[str]) -> tuple[str, str]:
        if not given:
            return "1", "a number that nothing tells"
        first = given[0]
        if _ALL.match(name) or len(self._shape()) < 2:
            return f"{first}.numel()", "how many elements there are"
        if _ROWS.match(name):
            return f"{first}.shape[0]", "how many rows there are"
        return f"{first}.shape[-1]", "how long a row is"

    def _shape(self) -> tuple[int, ...]:
        return next((spec.shape for tree in self.case.inputs for _, spec in tensors_in("", tree)), ())

    def _threads(self) -> int:
        threads = 1
        for size in self.entry.directives.get("reqntid", (_DEFAULT_BLOCK,)):
            threads *= size
        return threads

    def _grid(self, given: Sequence[str]) -> str:
        sizes = [self._size(p.name, given)[0] for p in self.entry.params if p.name not in self.pointers.all]
        if not given:
            return "(1,)"
        by_rows = any(".shape" in size for size in sizes) or (not sizes and len(self._shape()) > 1)
        return f"({given[0]}.shape[0],)" if by_rows else f"(-(-{given[0]}.numel() // {self._threads()}),)"

    def _options(self) -> str:
        block = "" if "reqntid" in self.entry.directives else f", block={_DEFAULT_BLOCK}"
        dynamic = any(v.extern and v.space == "shared" for v in self.module.variables)
        return f"{block}{', shared_bytes=1024' if dynamic else ''}"
