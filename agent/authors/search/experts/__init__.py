"""Expert kernels, one idea a file: kernels and a host function, read as text and never imported. `torch`, `triton` and
`tl` are imported for all of them; those in PTX, `ptx_*.py`, have `torch` and `PtxKernel`.

A file's first comments say for which tasks it is and what may be searched:

    # says: one program a row            the idea, for a person
    # order: 1                           among experts for one task, the smallest first
    # fits: rms_norm(x, weight, eps) = F.rms_norm(x, _, weight, eps)      what to call where `forward` computes that
    # fits: ... where x: R C, weight: C       only for these shapes (a letter a size, `...` leading ones)
    # gradients: x, weight = f(gradient, x, weight) of FORMULA        for a task of `--backward` whose forward computes
                                        that: what to call, and the operands whose gradients it returns, in their order
    # step: x, weight = f(saved, gradient) after g(x, weight) of FORMULA        for a task of `--step`: g returns a
                                        tuple of outputs and one of all that f needs, `saved`
    # task: NAME = call                  for a built-in task whose forward is no formula, under whatever name: for
                                        copies of its Model; of its gradients, NAME_backward_task
    # takes: torch.mm            library calls whose places functions `split_mm` take in what TorchInductor writes
    # search: NUM_WARPS = 1 2 4 8        values of a `NAME = value` line that are worth trying

`PRECISION` in a call is the task's. The candidate is the file with the task's own constructor below it, so every task
file whose forward is one of those formulas gets the expert, whatever it is called. The judge finds what does not suit.

The choices of those in PTX are the configs of their kernels, so a judge that times finds the best of them.
"""

import functools
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerneltune.agent.authors.search.model_source import (
    Fit,
    TaskFormula,
    essence,
    fits_of,
    gradients_model,
    with_forward,
)
from kerneltune.agent.authors.search.neighbours import CannotLower, Sketch
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import find_task

_HERE = Path(__file__).parent


def experts(task: TaskSpec) -> list[Sketch]:
    """The expert candidates in Triton for a task, best guess first; none where no formula fits."""
    return _fitting(task, in_ptx=False)


def ptx_experts(task: TaskSpec) -> list[Sketch]:
    """Those in PTX."""
    return _fitting(task, in_ptx=True)


def _fitting(task: TaskSpec, *, in_ptx: bool) -> list[Sketch]:
    seen = TaskFormula.of(task)
    files = [(name, text) for name, text in _files() if name.startswith("ptx_") == in_ptx]
    return [sketch for name, text in files if (sketch := _sketch(name, text, seen, task))]


@functools.cache
def _files() -> list[tuple[str, str]]:
    """Name and text of each expert's file, by order. A service asks for every rollout: reading the files and parsing
    their formulas each time was a fifth of what its process did."""
    files = [(path.stem, path.read_text()) for path in sorted(_HERE.glob("*.py")) if path.name != "__init__.py"]
    return sorted(files, key=lambda file: _order(file[1]))


def float32_products() -> Sketch:
    """Functions for float32 products, which take the places of library calls in a candidate: no candidate by itself."""
    return _functions("split_products")


def recurrent_layers() -> Sketch:
    """A function for the steps of recurrent layers, which takes the place of `inductor`'s operator: no candidate by
    itself."""
    return _functions("recurrent_steps")


def _functions(name: str) -> Sketch:
    return _parameters(name, *(_HERE / f"{name}.py").read_text().split('"""', 2))


_MOST_PARAMETERS, _MOST_VALUES = 16, 64  # of a person's own search


def own_sketch(name: str, source: str) -> Sketch | None:
    """A person's own candidate as something to search: the parameters are those of its `# search:` lines, the defaults
    what the file says. None for a file without such lines. Raises UsageError for lines that cannot be obeyed."""
    named = _tagged(source, r"search:[ \t]*(.*)")
    if not named:
        return None
    space: dict[str, tuple[int, ...]] = {}
    for line in named:
        parameter, _, values = line.partition("=")
        numbers = re.findall(r"-?\d+", values)
        if not parameter.strip().isidentifier() or " ".join(numbers) != " ".join(values.split()) or not numbers:
            raise UsageError(f"{name}: `# search: {line[:80]}` is not as in `# search: NUM_WARPS = 4 8 16`")
        space[parameter.strip()] = tuple(map(int, numbers[:_MOST_VALUES]))
    if len(space) > _MOST_PARAMETERS:
        raise UsageError(f"{name}: `# search:` names {len(space)} parameters; at most {_MOST_PARAMETERS} work")
    params = {}
    for parameter in space:
        lines = re.findall(rf"(?m)^{parameter} = (.*)$", source)
        found = [re.fullmatch(r"(-?\d+)[ \t]*(#.*)?", line) for line in lines]
        if len(found) != 1 or found[0] is None:  # of `4 * 256` only the 4 would be replaced
            raise UsageError(
                f"{name}: `# search: {parameter}` needs one line `{parameter} = NUMBER`; it has "
                + (f"`{parameter} = {lines[0][:40]}`" if len(lines) == 1 else f"{len(lines)}")
            )
        params[parameter] = int(found[0][1])
    return Sketch(Path(name).stem, source, f"{Path(name).name} at other parameters", params, space)


def _says(head: str, otherwise: str) -> str:
    return next(iter(re.findall(r"(?m)^# says: (.*)$", head)), otherwise)


def _order(text: str) -> int:
    found = re.search(r"(?m)^# order: (\d+)$", text)
    return int(found[1]) if found else 0


def _sketch(name: str, whole: str, seen: TaskFormula | None, task: TaskSpec) -> Sketch | None:
    head, about, text = whole.split('"""', 2)
    named = (call for of, call in _tagged(head, r"task: (\w+) = (.*)") if _is_builtin(task.source, of))
    fitting = (call for fit in _fits(head) if seen and (call := seen.call(fit)))
    if (call := next(itertools.chain(named, fitting), None)) is None:
        return None
    try:
        source = with_forward(f'"""{about}"""', text, task.source, call)
    except CannotLower:
        return None
    return replace(_parameters(name, head, about, text), source=source)


@functools.lru_cache(4096)
def _is_builtin(source: str, name: str) -> bool:
    """Whether a task file, under whatever name and at whatever sizes, is a built-in task, or the gradients of one where
    the name is NAME_backward_task."""
    builtin = name.removesuffix("_backward_task")
    try:
        of_gradients = gradients_model(source)
        text = of_gradients.forward if of_gradients else source
        if of_gradients and of_gradients.step:
            return False
        return (of_gradients is None) == (builtin == name) and essence(text) == _essence_of(builtin)
    except (SyntaxError, ValueError, RecursionError):
        return False


@functools.cache
def _essence_of(builtin: str) -> frozenset[str]:
    return essence(find_task(builtin).source)


def _parameters(name: str, head: str, about: str, text: str) -> Sketch:
    """The text as it is, and what may be searched in it."""
    space = {key: tuple(int(v) for v in values.split()) for key, values in _tagged(head, r"search: (\w+) = (.*)")}
    found = {key: re.search(rf"(?m)^{key} = (\d+)", text) for key in space}
    return Sketch(name, text, _says(head, name), {key: int(m[1]) for key, m in found.items() if m}, space)


@functools.cache
def _fits(head: str) -> list[Fit]:
    return [fits_of(text) for text in re.findall(r"(?m)^# (?:fits|gradients|step): (.*)$", head)]


def _tagged(head: str, pattern: str) -> list[Any]:
    return re.findall(rf"(?m)^# {pattern}$", head)
