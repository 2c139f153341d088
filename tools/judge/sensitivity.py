"""Does each operand of a task matter? A kernel may leave out an operand whose change stays below the tolerance.

Part of admission: says something about a task, never about a candidate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from tools.errors import TaskError
from tools.judge.compare import Expected, compare
from tools.judge.gates import element_ratios
from tools.judge.problem import Drawn
from tools.judge.reference import Problem
from tools.judge.tree import Tree, leaves, map_leaves, tensors

_WIDE = ("float32", "float64")
_STEPS = {True: 0.01, False: 0.25}  # relative change, by whether the arithmetic is wide
_ENOUGH = {True: 20.0, False: 1.0}  # budgets that half of the elements that move at all must move by


@dataclass(frozen=True)
class Sensitivity:
    """How far the output moves when one operand ("input:0", "state:weight") changes a little: `touched`, the share of
    elements that move at all, and `budgets`, the median over those of movement / tolerance. `dead`: even quite other
    values of it are within the tolerance."""

    operand: str
    touched: float
    budgets: float
    dead: bool
    enough: float

    @property
    def weak(self) -> bool:
        """Whether an error of about one per cent in this operand could go unnoticed."""
        return self.budgets < self.enough


def sensitivities(problem: Problem, seed: int = 1) -> list[Sensitivity]:
    """Of every operand, on the task's own inputs. Empty when the task gives none."""
    drawn = problem.draw(seed)
    if drawn is None:
        return []
    expected = problem.expect(drawn.inputs)
    return list(_all(problem, drawn, expected))


def _all(problem: Problem, drawn: Drawn, expected: Expected) -> Iterator[Sensitivity]:
    floats = [t.dtype for t in tensors(expected.native) if t.is_floating_point()]
    wide = problem.precision in _WIDE and all(dtype in (torch.float32, torch.float64) for dtype in floats)
    other = problem.inputs(drawn.seed + 1) or ()
    for operand, tensor in _operands(drawn):
        generator = Generator(tensor.device).manual_seed(drawn.seed)
        little = _moved(problem, drawn, operand, _nudged(tensor, _STEPS[wide], generator))
        quite = _moved(problem, drawn, operand, _other(operand, tensor, other, generator))
        if little is None or quite is None:
            continue  # outside of what the reference is defined for
        touched, budgets = _movement(expected, little)
        dead = compare(expected, quite).ok
        yield Sensitivity(operand, touched, budgets, dead, _ENOUGH[wide] if tensor.is_floating_point() else 0.0)


def _operands(drawn: Drawn) -> Iterator[tuple[str, Tensor]]:
    named = [(f"input:{path}", leaf) for path, leaf in leaves(drawn.inputs)]
    named += [(f"state:{name}", tensor) for name, tensor in drawn.state.items() if tensor.is_floating_point()]
    for name, leaf in named:
        if isinstance(leaf, Tensor) and leaf.numel() and not leaf.is_complex():
            yield name, leaf


def _nudged(tensor: Tensor, step: float, generator: Generator) -> Tensor:
    """Relative changes of random sign; integers stay."""
    if not tensor.is_floating_point():
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
    return tensor.double() * (1 + step * signs)


def _other(operand: str, tensor: Tensor, other: Tree, generator: Generator) -> Tensor:
    """Other values of the same sign, up to three times as large; of an integer input, those of another draw."""
    if tensor.is_floating_point():
        return tensor.double() * (torch.rand(tensor.shape, generator=generator, device=tensor.device) * 2.5 + 0.5)
    found = dict(leaves(other)).get(operand.removeprefix("input:")) if operand.startswith("input:") else None
    return found if isinstance(found, Tensor) and found.shape == tensor.shape else tensor


def _moved(problem: Problem, drawn: Drawn, operand: str, values: Tensor) -> Tree | None:
    """The reference's float64 answer with one operand replaced, in the formats that the task stores it in."""
    origin, _, name = operand.partition(":")
    inputs, state = drawn.inputs, dict(drawn.state)
    if origin == "input":
        inputs = map_leaves(lambda path, t: values.to(t.dtype) if path == name else t, inputs)
    else:
        state[name] = values.to(state[name].dtype)
    try:
        problem.restore(Drawn(drawn.seed, drawn.battery, inputs, state, alters=origin == "state"))
        return problem.stored_answer(inputs)
    except TaskError:
        return None
    finally:
        problem.restore(drawn)


def _movement(expected: Expected, moved: Tree) -> tuple[float, float]:
    shares, ratios = [], []
    pairs = zip(tensors(expected.native), tensors(expected.values), tensors(moved), strict=True)
    noise = list(tensors(expected.noise)) if expected.noise is not None else []
    for place, (native, exact, got) in enumerate(pairs):
        if not native.is_floating_point() or not native.numel():
            continue
        found = element_ratios(expected, native, exact, got, {"noise": noise[place]} if noise else {})
        touched = got.double() != exact.to(native.dtype).double()
        shares.append(touched.double().flatten())
        ratios.append(found[touched])
    if not shares:
        return 0.0, 0.0
    every = torch.cat(ratios)
    return float(torch.cat(shares).mean()), float(every.median()) if every.numel() else 0.0
