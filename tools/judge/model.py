"""The reference of one case: its module with parameters from a seed, run in its own dtype and in float64.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. The in-place
semantics of a reference stay inside: each run gets copies.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tools.errors import OutOfMemory, TaskError
from tools.judge.answers import Answer
from tools.judge.execute import blame, execute, placed, randomise, seed_everything
from tools.judge.precise import default_float64, plain_arithmetic, widened
from tools.judge.room import free_cached, with_room
from tools.judge.ties import Watching
from tools.judge.tree import Tree, dtype_name, map_tensors, stored_as, tensors
from tools.task import CaseDef, TaskFile
from tools.verdict import Limitation, LimitationKind


class ReferenceModel:
    """One case's model on one device. `make_room` frees what can be had again; what finds no memory is tried once more
    after it."""

    def __init__(
        self, task: TaskFile, case: CaseDef, device: str = "cpu", make_room: Callable[[], None] = free_cached
    ) -> None:
        self.task, self.case, self.device, self._make_room = task, case, device, make_room
        self._seed, self._altered = 0, False
        with blame(task, "the task file"):
            self._module = execute(task, case)
        with blame(task, "get_init_inputs()"), torch.device(device):
            seed_everything(0)
            self.init_args: tuple[Any, ...] = tuple(self._call("get_init_inputs", optional=True))
        self.reseed(0)

    @functools.cached_property
    def precision(self) -> str:
        """The declared arithmetic of this case; without a declaration, the narrowest format that it stores."""
        declared = dict(self.case.overrides).get("PRECISION", self.task.precision)
        return str(declared) if declared else self._stored_precision()

    def _stored_precision(self) -> str:
        names = {dtype_name(t.dtype) for t in tensors((self._own(0), self.state())) if t.is_floating_point()}
        order = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32", "float64")
        return next((name for name in order if name in names), "float32")

    def reseed(self, seed: int) -> None:
        """Build the model anew: every parameter and running statistic follows from the seed, none is an identity."""
        if seed == self._seed and hasattr(self, "model") and not self._altered:
            return
        with blame(self.task, "Model(…)"), torch.device(self.device), torch.no_grad():
            seed_everything(seed)
            model = self._module.Model(*map_tensors(Tensor.clone, self.init_args))
            if not isinstance(model, nn.Module):
                raise TypeError("Model is not a torch.nn.Module")
            self.model = placed(model, self.device).eval()
            randomise(self.model, seed)
        self._seed, self._altered = seed, False

    def _put(self, state: Mapping[str, Tensor]) -> None:
        own = self.state()
        self._altered = True
        for name, tensor in state.items():
            own[name].copy_(tensor)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by state_dict key; they change with `reseed`."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items() if isinstance(tensor, Tensor)}

    def _own(self, seed: int) -> tuple[Any, ...]:
        with blame(self.task, "get_inputs()"), torch.device(self.device), torch.no_grad():
            seed_everything(seed)
            return tuple(map_tensors(lambda t: t.detach().to(self.device), self._call("get_inputs")))

    def _call(self, name: str, *, optional: bool = False) -> list[Any]:
        function = getattr(self._module, name, None)
        if function is None and optional:
            return []
        result = function()  # type: ignore[misc]
        if not isinstance(result, list | tuple):
            raise TypeError(f"{name}() returned a {type(result).__name__}, not a list")
        return list(result)

    def native(self, inputs: tuple[Any, ...]) -> Tree:
        """The reference in its own dtype, as trusted as it is imprecise. Raises OutOfMemory when there is no memory."""
        return with_room(lambda: self._run_native(inputs), self._make_room)

    def _run_native(self, inputs: tuple[Any, ...]) -> Tree:
        with blame(self.task, "forward()"), plain_arithmetic(tf32=self.precision == "tf32_ok"), torch.no_grad():
            return self._forward(self.model, map_tensors(Tensor.clone, inputs))

    def reference(self, inputs: tuple[Any, ...], *, whole: bool = False) -> Answer:
        """The reference in float64; in its own dtype, with the reason, when it cannot run so or lacks memory."""
        try:
            return with_room(lambda: self._run_in_float64(inputs, whole), self._make_room)
        except TaskError as error:
            note, limitation = str(error), _without_float64(error)
        return Answer(map_tensors(widened, self.native(inputs)), exact=False, note=note, limitation=limitation)

    def _run_in_float64(self, inputs: tuple[Any, ...], whole: bool) -> Answer:
        with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
            model, arguments = copy.deepcopy(self.model).double(), map_tensors(widened, inputs)
            with Watching((arguments, dict(model.state_dict())), whole=whole) as watching:
                values = self._forward(model, arguments)
            return Answer(values, selections=watching.selections(values), whole=watching.whole)

    def stored_answer(self, inputs: tuple[Any, ...]) -> Tree:
        """The float64 answer, rounded to the formats of the reference's own."""
        return stored_as(self.native(inputs), self.reference(inputs).values)

    def _forward(self, model: nn.Module, inputs: tuple[Any, ...]) -> Tree:
        seed_everything(self._seed)  # dropout and the like: the same draw in every arithmetic
        with torch.device(self.device):
            return map_tensors(Tensor.detach, model(*inputs))


def _without_float64(error: TaskError) -> Limitation:
    if isinstance(error, OutOfMemory):
        return Limitation(LimitationKind.NOT_FLOAT64, error.asked_for)
    return Limitation(LimitationKind.OWN_DTYPE)
