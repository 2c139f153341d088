"""What a packaged file does in somebody's program: run in a process of its own, on a GPU, in Triton's interpreter, or
where the kernel cannot run.

`python -m tests.tools.package.stand_in FOLDER [NAME…]` prints a line of JSON for each file: {"name", "check": problem}.
"""

import contextlib
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def smallest(op: ModuleType) -> int:
    """The entry of a forward with the fewest elements."""
    return min((n for n, entry in enumerate(op.VERIFIED) if not entry.backward), key=op._elements)


def same(one: Any, other: Any, op: ModuleType) -> bool:
    """Whether two answers are equal to the last bit."""
    pairs = zip(op._tensors(one), op._tensors(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(_bits(a), _bits(b)) for a, b in pairs)


def _bits(t: Tensor) -> Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.contiguous().view(kinds[t.itemsize])


class StandIn:
    """One packaged file at its smallest entry: its module, and the reference with the same parameters."""

    def __init__(self, op: ModuleType) -> None:
        self.op, self.number = op, smallest(op)
        self.entry = op.VERIFIED[self.number]
        self.inputs = op._drawn(self.number, DEVICE)
        self.plain = op._made(op._reference(self.number).Model, self.entry.init, DEVICE)
        self.model = op._made(op._reference(self.number).Model, self.entry.init, DEVICE)
        self.model.load_state_dict(self.plain.state_dict())
        self.place = op._place_of(self.model, "Model", is_own=True)
        op._stand_in(self.model, self.place)

    def floats(self) -> list[Tensor]:
        """The inputs that may have a gradient."""
        return [t for t in self.op._tensors(self.inputs) if t.is_floating_point() and t.itemsize > 1]

    @contextlib.contextmanager
    def with_gradients(self) -> Iterator[list[Tensor]]:
        """All that may have a gradient asks for one."""
        asked = [*self.floats(), *(p for m in (self.model, self.plain) for p in m.parameters())]
        for tensor in asked:
            if tensor.is_floating_point():
                tensor.requires_grad_()
        yield [t for t in asked if t.requires_grad]
        for tensor in asked:
            tensor.requires_grad_(requires_grad=False).grad = None


def answers(its: StandIn) -> str:
    with torch.no_grad():
        found, wanted = its.model(*its.inputs), its.plain(*its.inputs)
    if its.op._runs_on(DEVICE):
        off = its.op._off(its.op._tensors(found), its.op._tensors(wanted), its.op.TOLERANCE)
        return (
            "" if off <= 1 and its.place.calls == {"kernel": 1} else f"{off:.2f} of what is allowed, {its.place.calls}"
        )
    return "" if same(found, wanted, its.op) and its.place.calls == {"reference": 1} else "not the reference's answer"


def compiles_whole(its: StandIn) -> str:
    torch.compiler.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(its.model, fullgraph=True, backend="aot_eager")
        found, wanted = compiled(*its.inputs), its.model(*its.inputs)
    return "" if same(found, wanted, its.op) else "another answer than in eager mode"


def is_checkpointed(its: StandIn) -> str:
    """Without gradients whoever answers; with gradients the reference gives the same ones, and the kernel refuses."""
    with torch.no_grad():
        if not same(checkpoint(its.model, *its.inputs, use_reentrant=False), its.model(*its.inputs), its.op):
            return "another answer than without"
    with its.with_gradients() as asked:
        if not asked:
            return ""
        if not its.op._runs_on(DEVICE):
            return _same_gradients(its)
        if its.op._backwards:  # `trains` asks for them
            return ""
        return _refused(lambda: checkpoint(its.model, *its.inputs, use_reentrant=False))


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return "" if "--backward" in str(error) else str(error)[:200]
    return "gradients are dropped"


def _same_gradients(its: StandIn) -> str:
    floats = its.floats()

    def gradients(call: Callable[[], Any], model: torch.nn.Module) -> list[Tensor | None] | None:
        torch.manual_seed(0)
        out = [t for t in its.op._tensors(call()) if t.requires_grad]
        asked = [t for t in (*floats, *model.parameters()) if t.requires_grad]
        if not out or not asked:
            return None
        return list(torch.autograd.grad(sum(t.float().square().sum() for t in out), asked, allow_unused=True))

    found = gradients(lambda: checkpoint(its.model, *its.inputs, use_reentrant=False), its.model)
    wanted = gradients(lambda: its.plain(*its.inputs), its.plain)
    if found is None or wanted is None:
        return "" if found is wanted else "gradients for one of them only"
    pairs = zip(found, wanted, strict=True)
    close = all(a is b if a is None or b is None else torch.allclose(a, b) for a, b in pairs)
    return "" if close else "other gradients"


def keeps_dtypes_under_autocast(its: StandIn) -> str:
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        found, wanted = (its.op._tensors(model(*its.inputs)) for model in (its.model, its.plain))
    return "" if [t.dtype for t in found] == [t.dtype for t in wanted] else "other dtypes than the reference's"


def operator_is_sound(its: StandIn) -> str:
    """opcheck runs the operator itself, so only where the kernel can run."""
    if not its.op._runs_on(DEVICE):
        return ""
    state = [its.op._held(its.model, key) for key in its.place.paths.values()]
    arguments = (its.op._tensors(its.inputs), state, its.number, its.place.number)
    torch.library.opcheck(its.op._operator, arguments)
    return ""


def replays_in_a_graph(its: StandIn) -> str:
    """A CUDA graph of a call reads what its inputs hold then."""
    if DEVICE.type != "cuda":
        return ""
    cuda: Any = torch.cuda
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(stream):
        its.model(*its.inputs)
        with torch.cuda.graph(graph, stream=stream):
            found = its.model(*its.inputs)
        for tensor in its.floats():
            tensor.mul_(0.5)
        graph.replay()
        stream.synchronize()
        off = its.op._off(its.op._tensors(found), its.op._tensors(its.plain(*its.inputs)), its.op.TOLERANCE)
    return "" if off <= 1 else f"{off:.2f} of what is allowed"


def compiles_with_inductor(its: StandIn) -> str:
    """On a GPU, where Inductor sees a triton_op's launches."""
    if DEVICE.type != "cuda":
        return ""
    torch.compiler.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(its.model, fullgraph=True)
        found, wanted = compiled(*its.inputs), its.plain(*its.inputs)
    off = its.op._off(its.op._tensors(found), its.op._tensors(wanted), its.op.TOLERANCE)
    return "" if off <= 1 else f"{off:.2f} of what is allowed"


def trains(its: StandIn) -> str:
    """With a kernel of gradients: in eager mode, checkpointed, and where Inductor sees the launches of both."""
    if not its.op._backwards or not its.op._runs_on(DEVICE):
        return ""

    def step(model: torch.nn.Module, call: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(1)  # not as the inputs are drawn: the gradient of rope's sines would be 0
        outputs = its.op._tensors(call(*its.inputs))
        asked = [*its.floats(), *model.parameters()]
        return [*torch.autograd.grad(outputs, asked, [torch.randn_like(t) for t in outputs])]

    torch.compiler.reset()
    compiled: Any = torch.compile(
        its.model, fullgraph=True, backend="inductor" if DEVICE.type == "cuda" else "aot_eager"
    )
    calls = {
        "eager": its.model,
        "checkpointed": lambda *inputs: checkpoint(its.model, *inputs, use_reentrant=False),
        "compiled": compiled,
    }
    with its.with_gradients():
        wanted = step(its.plain, its.plain)
        for how, call in calls.items():
            for found, one in zip(step(its.model, call), wanted, strict=True):
                far = float((found.double() - one.double()).norm() / one.double().norm())
                if not far < its.op.TOLERANCE:
                    return f"{how}: a gradient is {far:.3g} of it away"
    return "" if its.place.calls["gradients"] else f"no kernel answered: {its.place.calls}"


CHECKS = (
    answers,
    compiles_whole,
    is_checkpointed,
    keeps_dtypes_under_autocast,
    operator_is_sound,
    replays_in_a_graph,
    compiles_with_inductor,
    trains,
)


def problems(op: ModuleType) -> dict[str, str]:
    """Check -> what is wrong, "" where nothing is."""
    found = {}
    for check in CHECKS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[check.__name__] = check(StandIn(op))
        except Exception as error:  # noqa: BLE001 - the finding
            found[check.__name__] = f"{type(error).__name__}: {error}"[:300]
    return found


def main(folder: str, *names: str) -> None:
    sys.path.insert(0, folder)
    for path in sorted(Path(folder).glob("*.py")):
        if not names or path.stem in names:
            print(json.dumps({"name": path.stem, **problems(importlib.import_module(path.stem))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
