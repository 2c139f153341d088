"""Writes a verified kernel as one file that can be put into a model. Pure: nothing of the task or the kernel is run.

The two sources are texts in the file, byte for byte; what is said of them here is read from their syntax trees.
"""

import ast
import builtins
import hashlib
import json
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from kerneltune.tools.languages.base import language_of
from kerneltune.tools.schema.codec import Json, decode, encode, literal, syntax_tree
from kerneltune.tools.schema.errors import CannotPackage, TaskError
from kerneltune.tools.schema.task import (
    POINTER_ALIGNMENT,
    CaseSpec,
    Contract,
    TaskSpec,
    TensorSpec,
    contract_of,
    tensors_of,
)
from kerneltune.tools.task.load import assignments, class_named, lineage, method_named, replaced_by_cases
from kerneltune.tools.task.write import (
    backward_source,
    gives_outputs,
    joined_halves,
    parts_of,
    with_forward_names,
)

_TOLERANCES = {
    "float64": 1e-9,
    "float32": 1e-3,
    "tf32_ok": 1e-2,
    "float16": 1e-2,
    "bfloat16": 3e-2,
}  # else that of 8 bits
_OF_8_BITS = 0.25


def file_name(task: TaskSpec) -> str:
    """What the file is called unless somebody says otherwise; a module can be imported by it."""
    return f"{op_name(task.name)}_op.py"


def op_name(task: str) -> str:
    """A task's name as one of Python's."""
    name = re.sub(r"\W+", "_", task.removesuffix("_task"), flags=re.ASCII).strip("_") or "kernel"
    return f"op_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


@dataclass(frozen=True)
class VerifiedKernel:
    """A candidate that was accepted on all cases of a task. `times_us`: by the names of the cases that were timed;
    `saves`: of a kernel of a training step, which counts as one of gradients, the outputs that it gives before them."""

    task: TaskSpec
    source: str
    times_us: Mapping[str, float] = field(default_factory=dict)
    saves: int = 0


def packaged(
    kernels: Sequence[VerifiedKernel],
    *,
    arch: str,
    header: str,
    module: str = "",
    backward: Sequence[VerifiedKernel] = (),
) -> str:
    """The file for a kernel; or for several of one op: where sizes were timed, the one answers that was the fastest
    at the nearest of them, else one whose task has the shape. `header`: comments; `module`: by what name it will be
    imported, where that is not the task's; `backward`: kernels of the task of its gradients. Raises CannotPackage."""
    its, first = [replace(k, source=k.source.removeprefix("\ufeff")) for k in kernels], kernels[0].task
    name, forward, called = op_name(first.name), _forward_parameters(first), _called(first)
    for other in its[1:]:
        if (_forward_parameters(other.task), _called(other.task)) != (forward, called):
            raise CannotPackage(f"{other.task.name} is not called as {first.name} is; they are not one op")
    for gradients in backward:
        _require_gradients(gradients.task, first)
    of_gradients = (replace(k, source=k.source.removeprefix("\ufeff")) for k in backward)
    count, its = len(its), [*its, *(_without_outputs(k, first) for k in of_gradients)]
    before, _, rest = _text("op.py").partition("# facts")
    after = rest.partition("# end of facts\n")[2]
    if any(language_of(one.source) == "ptx" for one in its):
        after = _text("ptx.py").partition("\n\n")[2].replace("# loader\n", "") + "\n" + after
    # Inductor keeps compiled code by the operator's name, and what the operator gives back is up to our code as well
    texts = "".join([before, after, *(one.source + one.task.source for one in its)])
    facts = {
        "NAME": repr(name),
        "OP": repr(f"{name}_{hashlib.sha256(texts.encode(errors='replace')).hexdigest()[:12]}"),
        "ARCH": repr(arch),
        "PARAMETERS": _dict({n: _value(v) for n, v in forward.items()}),
        "CALLED, CALLED_WITH": f"{called[0]!r}, {_dict({n: _value(v) for n, v in called[1].items()})}",
        "TOLERANCE": repr(max(_TOLERANCES.get(one.task.precision, _OF_8_BITS) for one in its)),
        "VERIFIED": "[\n" + "".join(f"    {entry},\n" for entry in _all_entries(its, count)) + "]",
        "KERNELS": "[\n" + "".join(map(_kernel, its)) + "]",
    }
    said = "".join(f"{fact} = {value}\n" for fact, value in facts.items())
    exported = f"{called[0]}_op" if called[0] in _names_in(before + after) else called[0]
    docstring = _docstring(name, module or file_name(first).removesuffix(".py"), exported)
    return header + docstring + before.partition('"""\n\n')[2] + said + after + _ending(exported)


@cache
def _names_in(text: str) -> frozenset[str]:
    """What our own code means by a name; parsed once, since a service packages the best of each rollout."""
    nodes = list(ast.walk(syntax_tree(text)))
    named = {n.id for n in nodes if isinstance(n, ast.Name)} | set(dir(builtins))
    return frozenset(named | {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)})


_TENSOR_MAP = re.compile(r"\.param\s+\.align\s+\d+\s+\.b8\s+[^\s,]+\[128\]")


def _kernel(its: VerifiedKernel) -> str:
    if language_of(its.source) == "cuda":
        raise CannotPackage(
            f"the kernel of {its.task.name} is in CUDA C++, which needs NVRTC where it runs; "
            "a file that imports torch and triton alone cannot hold it"
        )
    if language_of(its.source) == "ptx" and _TENSOR_MAP.search(its.source):
        raise CannotPackage(
            f"the kernel of {its.task.name} takes tensor maps in PTX, which the loader in a packaged file cannot make; "
            "import it as it is, with kerneltune installed"
        )
    folds = its.task.batch is not None and its.task.batch.folds
    facts = f"folds={folds}, keeps={keeps(its.source)}, launched={launched(its.source)!r}"
    facts += f", saves={its.saves}" if its.saves else ""
    texts = f"source={_literal(its.source)},\n    reference={_literal(its.task.source)}"
    return f"    PackagedKernel({facts},\n    {texts}),\n"


def _all_entries(kernels: Sequence[VerifiedKernel], forwards: int) -> list[str]:
    """First for what several kernels were verified for, by what was measured. Then those of all kernels, timed cases
    first: of two kernels for a shape that answers which was timed at it. Those of gradients come last."""
    found = [list(_groups(its.task, number)) for number, its in enumerate(kernels)]
    timed, others = ([group for its in found[:forwards] for group in its[part]] for part in (slice(1), slice(1, None)))
    ordered = [*timed, *others]
    regimes = [_entry(group) for group in _regimes(kernels, ordered)]
    gradients = [_entry(group, backward=True) for its in found[forwards:] for group in its]
    return [*dict.fromkeys([*regimes, *map(_entry, ordered)]), *gradients]


def _require_gradients(task: TaskSpec, forward: TaskSpec) -> None:
    """Raise CannotPackage where a task is not that of the other one's gradients."""
    wanted = syntax_tree(with_forward_names(forward.source)).body
    found = syntax_tree(task.source).body[: len(wanted)]

    def code(body: Sequence[ast.stmt]) -> list[str]:
        names = ("CASES", "WEIGHT")  # cases may be left out
        assigned = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names]
        return [ast.dump(node) for node in body if node not in assigned and not isinstance(node, ast.Expr)]

    if code(found) != code(wanted):
        raise CannotPackage(f"{task.name} is not the task of the gradients of {forward.name}; make it with --backward")


def _without_outputs(its: VerifiedKernel, forward: TaskSpec) -> VerifiedKernel:
    """A kernel of a training step as one of gradients alone, whatever it saves; one of gradients as it is."""
    model = method_named("forward", class_named(syntax_tree(its.task.source), "Model"))
    if model is None or not gives_outputs(model):
        return its
    count = len(list(tensors_of(forward.main.outputs)))
    if not _is_in_halves(its.source, len(forward.main.inputs)):
        raise CannotPackage(
            f"the kernel of {its.task.name} is not in two halves; the first lines of that task say how it has to be"
        )
    cases = tuple(replace(case, outputs={"$tuple": _row(case.outputs)[count:]}) for case in its.task.cases)
    task = replace(its.task, source=backward_source(forward, forward.source), cases=cases)
    return replace(its, task=task, saves=count)


def _row(outputs: Json) -> list[Json]:
    row = outputs["$tuple"] if isinstance(outputs, dict) else None
    assert isinstance(row, list)  # what the task of a step returns
    return row


def _is_in_halves(source: str, inputs: int) -> bool:
    """Whether the forward of a ModelNew only joins what its `save` and its `gradients` return. `inputs`: how many
    arguments are the first one's."""
    forward = method_named("forward", class_named(syntax_tree(source), "ModelNew"))
    if forward is None:
        return False
    names = [a.arg for a in forward.args.args]
    first, second = ", ".join(names[1 : 1 + inputs]), ", ".join(names[1 + inputs :])
    wanted = syntax_tree("\n".join(joined_halves(first, second, itself=names[0] if names else "")))
    return [ast.dump(n) for n in forward.body] == [ast.dump(n) for n in wanted.body]


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _docstring(name: str, module: str, exported: str) -> str:
    names = ", ".join(filter(None, [exported, "ModelNew", "calls", "patch", "unpatch"]))
    how = [f"    {exported}(…)  # what the task calls, with the same arguments"] if exported else []
    return "\n".join(
        [
            f'"""{name}: a verified kernel that stands in for the PyTorch code that it was verified against.',
            "",
            f"    from {module} import {names}",
            "",
            *how,
            '    patch(model, "layers.*.NAME")  # modules of that name, if they compute the same; unpatch(model)',
            "    calls(model)  # which of them the kernel has answered, and how often",
            "    ModelNew(…)  # the task's Model, with the arguments of its constructor",
            "",
            "What was not verified (shapes, dtypes, strides, another GPU) goes to PyTorch, and a warning says so once.",
            f"`python {module}.py` checks and times the kernel on the machine it is on.",
            '"""',
            "",
            "",
        ]
    )


def _ending(exported: str) -> str:
    lines = [f"{exported} = _function\n"] if exported else []
    names = [*filter(None, [exported]), "ModelNew", "calls", "patch", "unpatch"]
    return "\n\n" + "\n".join(
        [*lines, f"__all__ = {names!r}\n", 'if __name__ == "__main__":', "    sys.exit(_check())", ""]
    )


# Values as Python -----------------------------------------------------------------------------------------------------


def _literal(text: str) -> str:
    """The text as a literal that can be read and that is this text, byte for byte."""
    raw = f"r'''{text}'''"
    try:
        if ast.literal_eval(raw) == text and all(c in "\n\t" or c.isprintable() for c in text):
            return raw
    except (SyntaxError, ValueError):
        pass
    return "(\n" + "".join(f"    {line!r}\n" for line in text.splitlines(keepends=True)) + ")" if text else "''"


def _dict(items: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key!r}: {value}" for key, value in items.items()) + "}"


_INPUT, _UNKNOWN = object(), object()  # an argument that is a tensor; a default that is no literal


@dataclass(frozen=True)
class _Given:
    """A value that must be given: the function has no default, or another one."""

    value: object


def _value(value: object) -> str:
    if isinstance(value, _Given):
        return f"Given({_value(value.value)})"
    return "INPUT" if value is _INPUT else "object()" if value is _UNKNOWN else repr(value)


def _tree(tree: Json, batched: Callable[[str], int], path: str = "", contracts: Sequence[Contract] = ()) -> str:
    """A described tree as Python. `batched`: how many batch dimensions the tensor at a path has."""
    if isinstance(tree, dict) and "$tensor" in tree:
        return _spec(decode(TensorSpec, tree["$tensor"]), batched(path), contract_of(contracts, path))
    if isinstance(tree, dict) and "$dtype" in tree:
        return f"torch.{tree['$dtype']}"
    if isinstance(tree, dict) and "$float" in tree:
        return literal(float(tree["$float"]))
    if isinstance(tree, dict) and "$tuple" not in tree:
        parts = tree.get("$dict", tree).items()
        return _dict({key: _tree(part, batched, f"{path}.{key}" if path else key, contracts) for key, part in parts})
    if isinstance(tree, dict | list):
        parts = tree["$tuple"] if isinstance(tree, dict) else tree
        inside = [_tree(part, batched, f"{path}.{i}" if path else str(i), contracts) for i, part in enumerate(parts)]
        return (
            f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
            if isinstance(tree, dict)
            else f"[{', '.join(inside)}]"
        )
    return literal(tree)


def _spec(spec: TensorSpec, batched: int, contract: Contract | None = None) -> str:
    shape = (*[None] * batched, *spec.shape[batched:])
    words = f", {tuple(spec.stride)!r}" if spec.stride else ""
    if contract and contract.readable(spec.shape):
        words += f", slack={contract.readable(spec.shape)}"
    if contract and contract.alignment != POINTER_ALIGNMENT:
        words += f", alignment={contract.alignment}"
    return f"Spec(torch.{spec.dtype}, {shape!r}{words})"


# What was verified ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Cases of a kernel's task that differ in batch dimensions alone. `key`: what they have in common, as Python;
    `lead`: the smallest and the largest size of each batch dimension."""

    kernel: int
    task: TaskSpec
    key: tuple[str, ...]
    cases: tuple[CaseSpec, ...]
    lead: tuple[tuple[int, int], ...]

    def within(self, ranges: Sequence[tuple[int, int]]) -> "_Group":
        """The part of it that lies in these ranges of batch dimensions, and the cases that are there."""
        pairs = zip(self.lead, ranges, strict=True)
        lead = tuple((max(mine[0], its[0]), min(mine[1], its[1])) for mine, its in pairs)
        inside = [
            case
            for case in self.cases
            if all(low <= n <= high for n, (low, high) in zip(_lead(case, self.task), lead, strict=True))
        ]
        return replace(self, cases=tuple(inside), lead=lead)


def _groups(task: TaskSpec, kernel: int) -> Iterator[_Group]:
    """The cases that an author may know, those together that differ in batch dimensions alone; the timed one first."""
    constants = replaced_by_cases(syntax_tree(task.source))
    groups: dict[tuple[str, ...], list[CaseSpec]] = {}
    for case in task.cases:
        if case.name in constants and not case.held_out:
            groups.setdefault(_key(case, task), []).append(case)
    for key, cases in groups.items():
        sizes = zip(*(_lead(case, task) for case in cases), strict=True)
        yield _Group(kernel, task, key, tuple(cases), tuple((min(its), max(its)) for its in sizes))


def _entry(group: _Group, *, backward: bool = False) -> str:
    """A group as Python."""
    init, state, inputs, outputs = group.key
    constants = replaced_by_cases(syntax_tree(group.task.source))
    least = min(group.cases, key=lambda case: (case.bytes_moved + case.flops, case.name))
    words = [repr(", ".join(case.name for case in group.cases)), repr(constants[least.name])]
    words += [f"init={init}", f"state={state}", f"inputs={inputs}", f"outputs={outputs}"]
    if group.lead:
        words.append(f"lead={group.lead!r}")
    if not _names_reached(group.task.source).isdisjoint(constants[least.name]):
        words.append("alters=True")
    if group.kernel:
        words.append(f"kernel={group.kernel}")
    if backward:
        words.append("backward=True")
    return "Entry(" + ", ".join(words) + ")"


def _regimes(kernels: Sequence[VerifiedKernel], groups: Sequence[_Group]) -> Iterator[_Group]:
    """Where several kernels were verified for shapes that differ in batch dimensions alone: for each stretch of sizes
    the kernel that was the fastest at the nearest size that was timed, as far as it was verified."""
    by_key: dict[tuple[str, ...], dict[int, _Group]] = {}
    for group in groups:
        by_key.setdefault(group.key, {})[group.kernel] = group
    for its in by_key.values():
        fastest: dict[tuple[int, ...], tuple[float, int]] = {}
        for number, group in its.items():
            for case in group.cases:
                if (us := kernels[number].times_us.get(case.name)) is not None:
                    size = _lead(case, group.task)
                    fastest[size] = min(fastest.get(size, (math.inf, 0)), (us, number))
        if len(its) > 1 and fastest:
            for number, ranges in _stretches({size: number for size, (_, number) in fastest.items()}):
                yield its[number].within(ranges)


def _stretches(fastest: Mapping[tuple[int, ...], int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The kernel of each timed size, with the ranges of sizes that are nearest to it: their limits are geometric means.
    Where the sizes differ in more than one dimension nothing is said of what lies between them."""
    sizes = sorted(fastest)
    varied = [axis for axis in range(len(sizes[0])) if len({size[axis] for size in sizes}) > 1]
    if len(varied) > 1:
        for size in sizes:
            yield fastest[size], [(n, n) for n in size]
        return
    runs = [(number, list(its)) for number, its in groupby(sizes, key=lambda size: fastest[size])]
    cuts = [math.isqrt(a[-1][axis] * b[0][axis]) for axis in varied for (_, a), (_, b) in pairwise(runs)]
    for (number, _), low, high in zip(runs, [0, *(cut + 1 for cut in cuts)], [*cuts, _ANY_SIZE], strict=True):
        yield number, [(low, high) if axis in varied else (0, _ANY_SIZE) for axis in range(len(sizes[0]))]


_ANY_SIZE = 1 << 62


def _key(case: CaseSpec, task: TaskSpec) -> tuple[str, ...]:
    """What cases of one entry have in common, as Python."""
    count, paths = _batch(case, task)
    init = _tree(list(case.init_args), lambda _: 0)
    if "Spec(" in init:
        raise CannotPackage(f"the constructor of {task.name} takes tensors, which a file cannot hold")
    inputs = _tree(list(case.inputs), lambda path: count if path in paths else 0, contracts=task.contracts)
    state = _dict({key: _spec(spec, 0) for key, spec in case.state.items()})
    return init, state, inputs, _tree(case.outputs, lambda _: count)


def _batch(case: CaseSpec, task: TaskSpec) -> tuple[int, tuple[str, ...]]:
    """How many batch dimensions a case has, and which inputs; none where a stride would have to follow them."""
    text = json.dumps([encode(case.inputs), case.outputs])
    if task.batch is None or '"stride": [' in text:
        return 0, ()
    return task.batch.count, task.batch.paths


def _lead(case: CaseSpec, task: TaskSpec) -> tuple[int, ...]:
    count, paths = _batch(case, task)
    found = (spec.shape for way, spec in tensors_of(case.inputs) if count and ".".join(map(str, way)) == paths[0])
    return next(found, ())[:count]


def _names_reached(source: str) -> frozenset[str]:
    """The names that Model means something by, itself or in what it calls."""
    try:
        return parts_of(source, "Model", Path("task.py")).names
    except TaskError:  # it inherits its forward, or is imported: then all may be
        return frozenset(name for name, _ in assignments(syntax_tree(source)))


# How the reference is called ------------------------------------------------------------------------------------------


def _literal_of(node: ast.expr | None) -> object:
    try:
        return _UNKNOWN if node is None else ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN


def _defaults(function: ast.FunctionDef) -> dict[str, object]:
    """Parameter -> its default; a tensor where there is none."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args)]
    defaults = [_INPUT] * (len(names) - len(args.defaults)) + [_literal_of(node) for node in args.defaults]
    keyword = [_literal_of(node) if node else _INPUT for node in args.kw_defaults]
    return dict(zip([*names, *(a.arg for a in args.kwonlyargs)], [*defaults, *keyword], strict=True))


def _adapted(tree: ast.Module) -> tuple[ast.expr, dict[str, object]] | None:
    """What Model.forward calls, if it does nothing but return `f(x, 1, bias=bias)`, and how it names the arguments that
    it gives: a number stands for a place."""
    forward = method_named("forward", class_named(tree, "Model"))
    body = [n for n in forward.body if not isinstance(n, ast.Expr)] if forward else []
    if (
        forward is None
        or len(body) != 1
        or not isinstance(body[0], ast.Return)
        or not isinstance(call := body[0].value, ast.Call)
    ):
        return None
    names = list(_defaults(forward))[1:]
    given: dict[Any, ast.expr] = dict(enumerate(call.args)) | {k.arg: k.value for k in call.keywords}
    told = {key: _INPUT if isinstance(v, ast.Name) and v.id in names else _literal_of(v) for key, v in given.items()}
    tensors = [v.id for key, v in given.items() if told[key] is _INPUT and isinstance(v, ast.Name)]
    return (call.func, told) if tensors == names else None


def _given(parameters: dict[str, object], told: Mapping[Any, object]) -> dict[str, object]:
    """The parameters of a function with what it is called with."""
    by_name = {
        list(parameters)[key] if isinstance(key, int) and key < len(parameters) else key: v for key, v in told.items()
    }

    def its(name: str, default: object) -> object:
        value = by_name.get(name, default)
        return value if value is _INPUT or name not in by_name or value == default else _Given(value)

    return {name: its(name, default) for name, default in parameters.items()}


def _forward_parameters(task: TaskSpec) -> dict[str, object]:
    """Those of the forward that the kernel stands in for: of the module that the task was made from, if it was. The
    task gives the first ones, whether they have a default or not."""
    tree = syntax_tree(task.source)
    own = method_named("forward", *lineage(tree, "Model"))
    if own is None:
        raise CannotPackage("the forward of its Model is not in the task file, so nobody knows how it is called")
    if own.args.vararg or own.args.kwarg:
        raise CannotPackage("the forward of its Model takes *args or **kwargs, so nobody knows how it is called")
    defaults, count = list(_defaults(own).items())[1:], len(task.main.inputs)
    parameters = {name: _INPUT if n < count else its for n, (name, its) in enumerate(defaults)}
    adapted = _adapted(tree)
    theirs = method_named("forward", *lineage(tree, "Model")[1:])
    if theirs and adapted and ast.unparse(adapted[0]) == "super().forward":
        return _given(dict(list(_defaults(theirs).items())[1:]), adapted[1])
    return parameters


def _called(task: TaskSpec) -> tuple[str, dict[str, object]]:
    """The function that Model.forward only calls, and its parameters; "" if there is none."""
    tree = syntax_tree(task.source)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    adapted = _adapted(tree)
    if task.main.state or adapted is None or not isinstance(adapted[0], ast.Name) or adapted[0].id not in functions:
        return "", {}
    return adapted[0].id, _given(_defaults(functions[adapted[0].id]), adapted[1])


# What a kernel's host code does --------------------------------------------------------------------------------------

_KEEPING = (
    "append",
    "appendleft",
    "extend",
    "insert",
    "setdefault",
    "update",
    "add",
    "register_buffer",
    "setattr",
    "cache",
    "lru_cache",
    "cached_property",
)
_NOT_TRACED = (
    "data_ptr", "item", "tolist", "cpu", "numpy", "stream", "Stream", "CUDAGraph", "set_allocator", "TensorDescriptor",
    "from_tensor", "warmup", "run", "custom_op", "triton_op", "wrap_triton", "Function", "compile", "untyped_storage",
    "register_buffer", "do_bench", "cache_clear", "fn",
)  # fmt: skip


def _is_kernel(node: ast.AST) -> bool:
    words = [ast.unparse(d) for d in getattr(node, "decorator_list", ())]
    return any(re.search(r"\bjit\b", word) for word in words)


def keeps(source: str) -> bool:
    """Whether host code outside of a constructor may keep something from one call for the next."""
    tree = syntax_tree(source)
    around = [n for one in tree.body if not isinstance(one, ast.FunctionDef | ast.ClassDef) for n in ast.walk(one)]
    if any(getattr(n, "attr", getattr(n, "id", "")) in ("cache", "lru_cache") for n in around):
        return True
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and not _is_kernel(n)]
    for function in functions:
        if function.name == "__init__":
            continue
        for node in ast.walk(function):
            stored = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
            named = getattr(node, "attr", getattr(node, "id", "")) in _KEEPING
            if stored or named or isinstance(node, ast.Global | ast.Nonlocal):
                return True
    return False


def launched(source: str) -> tuple[str, ...]:
    """The Triton kernels that host code launches, if a compiler can see all that it does: it does nothing else with
    them, keeps nothing, and asks for nothing that a tensor without data lacks."""
    tree = syntax_tree(source)
    kernels = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and _is_kernel(n)}
    if language_of(source) != "triton" or keeps(source):
        return ()
    host = [n for n in tree.body if not _is_kernel(n)]
    within = {n.id for k in tree.body if _is_kernel(k) for n in ast.walk(k) if isinstance(n, ast.Name)}
    used = [n.id for one in host for n in ast.walk(one) if isinstance(n, ast.Name) and n.id in kernels]
    names = {getattr(n, "attr", getattr(n, "id", "")) for one in host for n in ast.walk(one)}
    launches = [
        n.func.value.id
        for one in host
        for n in ast.walk(one)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript) and isinstance(n.func.value, ast.Name)
    ]
    plain = sorted(n for n in launches if n in kernels) == sorted(used) and not set(used) & (within - kernels | within)
    return tuple(sorted(set(used))) if plain and names.isdisjoint(_NOT_TRACED) else ()
