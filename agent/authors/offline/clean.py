"""Turns what Inductor wrote for a task into one readable candidate file. Text in, text out; imports no torch.

Several lowerings go into one file: the first is the timed case's, the others serve further shapes or dtypes.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.authors.offline.host import Names, forward_body, fused_operators, launches, library_calls
from agent.authors.offline.kernels import OWN_MATH, Kernel, Role, clean_helper, clean_kernel, runtime_parameters
from agent.authors.offline.module_source import model_parts
from agent.authors.offline.sketch import CannotLower, Sketch
from agent.authors.offline.trailer import Facts, split
from agent.authors.offline.wrap import wrapped
from tools.codec import Json

_MOST_OF_A_NAME = 40
MOST_OF_STATE = 4  # parameters that a forward looks at before it runs; a few tell constructors apart
_LIMITS = {"XBLOCK": 4096, "YBLOCK": 1024, "ZBLOCK": 1024, "R0_BLOCK": 16384}
_HEADER = '''"""{task}: the kernels that TorchInductor writes, made self-contained{scope}.

{does}

Launch parameters are the constants below.
"""'''
_VIEW = '''def view(tensor, size, stride, offset=0):
    """The same memory with another shape."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)'''


@dataclass(frozen=True)
class _Forward:
    """One lowering as a method: when it applies, what it does, and the kernels it launches."""

    name: str
    when: list[str]
    body: list[str]
    kernels: dict[str, Kernel]
    facts: Facts


def clean(task: str, source: str, codes: Sequence[str], name: str = "inductor") -> Sketch:
    """A candidate from one or more lowerings of a task. Raises CannotLower if more than Triton and ATen is needed."""
    statements, model, parameters = model_parts(source)
    arguments = [a.arg for a in [*parameters.posonlyargs, *parameters.args]][1:]
    lowered = [split(code) for code in codes]
    taken: set[str] = set()
    forwards = [_forward(task, i, text, facts, arguments, taken) for i, (text, facts) in enumerate(lowered)]
    kernels = [k for f in forwards for k in f.kernels.values()]
    if not forwards[0].kernels:
        called = library_calls(lowered[0][0])
        why = f"TorchInductor leaves all of it to a library ({called})" if called else "forward makes nothing but views"
        raise CannotLower(f"{why}: there is no kernel to start from")
    scope = "" if any(f.facts.symbols for f in forwards) else "; specialised to the shapes in `forward`"
    parts = [
        _HEADER.format(task=task, scope=scope, does=_does(forwards[0])),
        _imports(statements, kernels, lowered),
        *_plain(statements),
    ]
    parts += [_constants(kernels), *_helpers(lowered, kernels), *(k.text for k in kernels)]
    if any("view(" in line for f in forwards for line in f.body):
        parts.append(_VIEW)
    parts.append(_model(model, parameters, forwards))
    main = forwards[0].kernels.values()
    params = {k.parameter(key): value for k in main for key, value in k.defaults.items()}
    space = {k.parameter(key): values for k in main for key, values in _space(k).items()}
    text = wrapped("\n\n\n".join(p.strip("\n") for p in parts if p)) + "\n"
    return Sketch(name, text, _says(forwards[0]), params, space, tuple(_starts(list(main))))


def _does(forward: _Forward) -> str:
    """The steps of the first forward, in words: what is fused where, and what is left to torch."""
    steps = []
    for line in forward.body:
        if kernel := next((k for k in forward.kernels.values() if line.startswith(f"{k.name}[")), None):
            steps.append(f"{kernel.name}: {kernel.says}")
        elif library := re.search(r"\btorch\.((?:ops\.)?(?!empty|float|int|bfloat|uint|bool|as_)[\w.]+)\(", line):
            steps.append(f"torch.{library[1]}: a library call")
    lines = [textwrap.wrap(f"{n}. {step}", 110, subsequent_indent="   ") for n, step in enumerate(steps, 1)]
    return "\n".join(line for wrapped_step in lines for line in wrapped_step)


def _says(forward: _Forward) -> str:
    names = ", ".join(k.name for k in forward.kernels.values())
    scope = "any shape" if forward.facts.symbols else "specialised to the timed shape"
    return f"TorchInductor's own kernels, {scope}: {names}"


def _forward(task: str, number: int, text: str, facts: Facts, arguments: list[str], taken: set[str]) -> _Forward:
    leaves = _leaf_texts(arguments, facts.inputs)
    if not leaves:
        raise CannotLower("forward takes no tensor")
    tensors = [*map(_state_text, facts.state), *leaves]
    sizes = {symbol: _state_text(path) for path, symbol in facts.sizes.items()}
    symbols = {s: f"{tensors[i]}.shape[{d}]" for s, (i, d) in facts.symbols.items()} | sizes
    name = f"forward_any_{number}" if facts.symbols else f"forward_case_{number}"
    roles = _roles(task, name if number else "", text, facts, [*tensors, *sizes.values()], symbols)
    sources = _kernel_texts(text)
    kernels = {old: clean_kernel(old, body, facts.kernels[old], taken, roles[old]) for old, body in sources.items()}
    names = Names([*tensors, *sizes.values()], symbols, kernels, f"{leaves[0]}.device")
    body = [*_contiguous(arguments, leaves, facts), *forward_body(text, names, facts.outputs)]
    return _Forward(name, _condition(facts, tensors, symbols), body, kernels, facts)


def _roles(
    task: str, forward: str, text: str, facts: Facts, arguments: list[str], symbols: dict[str, str]
) -> dict[str, Role]:
    """What each kernel does. One that does all the work is called after the task, and parameters are called after what
    they are given. `forward`: the method, unless it is the first."""
    given, fused, sources = launches(text, arguments), fused_operators(text), _kernel_texts(text)
    alone = len(sources) == 1 and "extern_kernels." not in text
    stem = re.sub(r"\W+|^\d+_", "", task).strip("_").lower()[:_MOST_OF_A_NAME] if alone else ""
    order = {name: index for index, name in enumerate(facts.operators)}
    roles = {}
    for kernel, source in sources.items():
        pairs = zip(runtime_parameters(source, kernel), given.get(kernel, ()), strict=False)
        names = {old: _parameter(old, value, symbols) for old, value in pairs}
        operators = sorted(fused.get(kernel, ()), key=lambda name: order.get(name, len(order)))
        renamed = {old: new for old, new in names.items() if new != old}
        roles[kernel] = Role(operators, stem, forward.removeprefix("forward"), renamed)
    return roles


def _parameter(old: str, given: str, symbols: dict[str, str]) -> str:
    """`in_ptr0` given `self.norm.weight` -> `weight_ptr`, `ks0` given the symbol of `x.shape[1]` -> `x_size1`."""
    text = symbols.get(given, given)
    if size := re.fullmatch(r"([\w.]+)\.shape\[(\d+)\]", text):
        text = f"{size[1]}_size{size[2]}"
    word = text.rpartition(".")[2]
    if not word.isidentifier() or old.endswith("numel"):
        return old
    return f"{word}_ptr" if "ptr" in old else word


def _kernel_texts(code: str) -> dict[str, str]:
    calls = (n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call))
    found = [c for c in calls if ast.unparse(c.func) == "async_compile.triton"]
    return {ast.literal_eval(c.args[0]): ast.literal_eval(c.args[1]) for c in found}


def _leaf_texts(arguments: list[str], inputs: list[Json]) -> list[str]:
    """How the forward reaches each tensor: `x`, `pair[0]`, `batch['mask']`."""
    found: list[str] = []
    for name, tree in zip(arguments, inputs, strict=False):
        _walk(tree, name, found)
    return found


def _walk(tree: Json, text: str, found: list[str]) -> None:
    if isinstance(tree, list):
        for index, value in enumerate(tree):
            _walk(value, f"{text}[{index}]", found)
    elif isinstance(tree, dict) and "$i" in tree:
        found.append(text)
    elif isinstance(tree, dict):
        for key, value in tree["$dict"].items():
            _walk(value, f"{text}[{key!r}]", found)


def _state_text(path: str) -> str:
    text = "self"
    for part in path.split("."):
        text += f".{part}" if part.isidentifier() else f"[{part}]"
    return text


def _contiguous(arguments: list[str], leaves: list[str], facts: Facts) -> list[str]:
    rows = [leaf for leaf, (_, _, row_major) in zip(leaves, facts.tensors, strict=True) if row_major]
    return [f"{leaf} = {leaf}.contiguous()" for leaf in rows if leaf in arguments]


def _condition(facts: Facts, tensors: list[str], symbols: dict[str, str]) -> list[str]:
    """What has to hold for these kernels: dtypes, sizes and attributes that they were written for."""
    count, free = len(facts.state), set(facts.symbols.values())
    telling = [index for index, path in enumerate(facts.state) if path in facts.differs][:MOST_OF_STATE]
    dtypes: dict[str, list[str]] = {}
    shapes: dict[tuple[int, ...], list[str]] = {}
    tests = []
    for index in [*range(count, len(tensors)), *telling]:
        text, (shape, dtype) = tensors[index], facts.own[index]
        dtypes.setdefault(dtype, []).append(f"{text}.dtype")
        fixed = [d for d in range(len(shape)) if (index, d) not in free]
        if len(fixed) == len(shape):
            shapes.setdefault(shape, []).append(f"{text}.shape")
        else:
            tests += [f"{text}.dim() == {len(shape)}", *(f"{text}.shape[{d}] == {shape[d]}" for d in fixed)]
    alike = [" == ".join([*texts, f"torch.{dtype}"]) for dtype, texts in dtypes.items()]
    alike += [" == ".join([*texts, str(shape)]) for shape, texts in shapes.items()]
    baked = [f"{_state_text(path)} == {text}" for path, text in facts.baked.items()]
    guards = [_substitute(guard, symbols) for guard in facts.guards]
    return list(dict.fromkeys([*alike, *tests, *baked, *guards]))


def _substitute(text: str, symbols: dict[str, str]) -> str:
    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.parse(symbols[node.id], mode="eval").body if node.id in symbols else node

    return ast.unparse(Names().visit(ast.parse(text, mode="eval")))


def _imports(statements: list[str], kernels: list[Kernel], lowered: list[tuple[str, Facts]]) -> str:
    own = [s for s in statements if s.startswith(("import ", "from ")) and "__future__" not in s]
    lines = ["import torch", *own, "import triton", "import triton.language as tl"]
    texts = [*(k.text for k in kernels), *(clean_helper(t) for _, f in lowered for t in f.helpers.values())]
    if any("libdevice." in text for text in texts):
        lines.append("from triton.language.extra import libdevice")
    return "\n".join(dict.fromkeys(lines))


def _plain(statements: list[str]) -> list[str]:
    return [s for s in statements if not s.startswith(("import ", "from "))]


def _constants(kernels: list[Kernel]) -> str:
    return "\n".join(f"{k.parameter(key)} = {value}" for k in kernels for key, value in k.defaults.items())


def _helpers(lowered: list[tuple[str, Facts]], kernels: list[Kernel]) -> list[str]:
    found = {name: clean_helper(text) for _, facts in lowered for name, text in facts.helpers.items()}
    used = "\n".join([*found.values(), *(k.text for k in kernels)])
    own = [text.rstrip() for name, text in OWN_MATH.items() if f"{name}(" in used]
    return [*own, *found.values()]


def _model(model: ast.ClassDef, parameters: ast.arguments, forwards: list[_Forward]) -> str:
    arguments = [a.arg for a in [*parameters.posonlyargs, *parameters.args]]
    lines = [ast.unparse(model)] if model.body else [f"class ModelNew({', '.join(map(ast.unparse, model.bases))}):"]
    lines.append(f"\n    def forward({_signature(parameters)}):")
    for forward in forwards:
        lines += [f"        if ({forward.when[0]}", *(f"                and {test}" for test in forward.when[1:])]
        lines[-1] += "):"
        lines.append(f"            return self.{forward.name}({', '.join(arguments[1:])})")
    shapes = ", ".join(f"tuple({leaf}.shape)" for leaf in _leaf_texts(arguments[1:], forwards[0].facts.inputs))
    lines.append(f'        raise NotImplementedError(f"no kernels for inputs of shape {{({shapes},)}} in this dtype")')
    for forward in forwards:
        lines.append(f"\n    def {forward.name}({', '.join(arguments)}):")
        lines.append(textwrap.indent("\n".join(forward.body), " " * 8))
    return "\n".join(lines)


def _signature(parameters: ast.arguments) -> str:
    copy = ast.parse(f"def f({ast.unparse(parameters)}): pass").body[0]
    assert isinstance(copy, ast.FunctionDef)
    for argument in [*copy.args.posonlyargs, *copy.args.args, *copy.args.kwonlyargs]:
        argument.annotation = None
    return ast.unparse(copy.args)


def _space(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """Powers of two around Inductor's choice, and what else its heuristics would try."""
    space: dict[str, tuple[int, ...]] = {}
    for key, value in kernel.defaults.items():
        offered = {c[key] for c in kernel.facts.configs if key in c}
        if key == "num_stages":
            near = {1, 2, 3, 4} if "R0_BLOCK" in kernel.defaults else {value}  # only loops are pipelined
        elif key == "num_warps":
            near = {w for w in (value // 4, value // 2, value, value * 2, value * 4) if 1 <= w <= 32}
        else:
            limit = _LIMITS.get(key, value)
            near = {b for b in (value // 4, value // 2, value, value * 2, value * 4) if 1 <= b <= limit}
        space[key] = tuple(sorted(near | offered))
    return space


def _starts(kernels: Sequence[Kernel]) -> Iterator[dict[str, int]]:
    """What Inductor's heuristics would time beside the first choice: the second one of each kernel, the third, …"""
    for at in range(1, max(len(k.facts.configs) for k in kernels)):
        chosen = [(k, k.facts.configs[min(at, len(k.facts.configs) - 1)]) for k in kernels]
        yield {k.parameter(key): config.get(key, value) for k, config in chosen for key, value in k.defaults.items()}
