"""One case of a task, loaded: its inputs, its parameters, and its answer in float64.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. It never sees
a candidate. The in-place semantics of a reference stay inside: each run gets copies.
"""

import contextlib
import copy
import io
import random
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import FlopCounterMode

from tools.errors import TaskError
from tools.judge.compare import Expected
from tools.judge.inputs import derived
from tools.judge.precise import NOISE, WithNoise, default_float64, in_float64, plain_arithmetic
from tools.judge.protocol import BATTERIES
from tools.judge.tree import Tree, dtype_name, is_finite, leaves, map_tensors, numel, raw_bytes, tensors
from tools.task import CaseDef, TaskFile, with_overrides

MOST_DISTURBED = 1 << 28  # output elements; above, disturbed copies in float64 take tens of gigabytes each
NOISE_SAMPLES = 6  # of an 8-sample estimate for the sum of 1,000 terms, 1 element in 10^4 is low by a factor of 4
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Answer:
    """A reference's outputs. `exact`: computed in float64; else `note` says why not."""

    values: Tree
    exact: bool = True
    note: str = ""


@dataclass(frozen=True)
class Drawn:
    """Inputs and parameters for one check, made from one seed."""

    seed: int
    battery: str
    inputs: tuple[Any, ...]
    state: dict[str, Tensor]

    def blobs(self) -> dict[str, memoryview]:
        """The bytes of every tensor, by origin and name as a launch plan says them ("input:0", "state:weight")."""
        inputs = {f"input:{path}": leaf for path, leaf in leaves(self.inputs) if isinstance(leaf, Tensor)}
        state = {f"state:{name}": tensor for name, tensor in self.state.items()}
        return {name: raw_bytes(tensor) for name, tensor in (inputs | state).items()}


class LoadedCase:
    """One case of one task on one device, as declared; `tools.judge.reference.Problem.load` finds it by name."""

    def __init__(self, task: TaskFile, case: CaseDef, device: str = "cpu") -> None:
        self.task, self.case, self.device = task, case, device
        self._seed = 0
        with blame(task, "the task file"):
            self._module = _execute(task, case)
        with blame(task, "get_init_inputs()"), torch.device(device):
            seed_everything(0)
            self.init_args: tuple[Any, ...] = tuple(self._call("get_init_inputs", optional=True))
        self.reseed(0)

    @property
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
        if seed == self._seed and hasattr(self, "model"):
            return
        with blame(self.task, "Model(…)"), torch.device(self.device), torch.no_grad():
            seed_everything(seed)
            model = self._module.Model(*map_tensors(Tensor.clone, self.init_args))
            if not isinstance(model, nn.Module):
                raise TypeError("Model is not a torch.nn.Module")
            self.model = _on(model, self.device).eval()
            _randomise(self.model, seed)
        self._seed = seed

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by state_dict key; they change with `reseed`."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items() if isinstance(tensor, Tensor)}

    def inputs(self, seed: int, battery: str = "own") -> tuple[Any, ...] | None:
        """The arguments of forward; None when the battery adds nothing to the task's own inputs."""
        drawn = derived(self._own(seed), battery, seed)
        return None if drawn is None else tuple(drawn)

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

    def draw(self, seed: int, battery: str = "own") -> Drawn | None:
        """Inputs and parameters for one check; None where the battery does not apply: it would repeat the task's own
        inputs, or the reference itself is not finite on it while it is on those."""
        self.reseed(seed)
        inputs = self.inputs(seed, battery)
        if inputs is None or (battery != "own" and not is_finite(self._results(inputs))):
            return None
        return Drawn(seed, battery, inputs, {name: tensor.clone() for name, tensor in self.state().items()})

    def _results(self, inputs: tuple[Any, ...]) -> Tree:
        return self.native(inputs), self.reference(inputs).values

    def batteries(self, seed: int = 0) -> tuple[str, ...]:
        """The batteries that apply to this case."""
        return tuple(b for b in BATTERIES if self.draw(seed, b) is not None)

    def native(self, inputs: tuple[Any, ...]) -> Tree:
        """The reference in its own dtype, as trusted as it is imprecise."""
        with blame(self.task, "forward()"), plain_arithmetic(tf32=self.precision == "tf32_ok"), torch.no_grad():
            return self._forward(self.model, map_tensors(Tensor.clone, inputs))

    def reference(self, inputs: tuple[Any, ...]) -> Answer:
        """The reference in float64; in its own dtype, with a note, when it cannot run so."""
        try:
            with blame(self.task, "forward() in float64"), default_float64(), in_float64(), torch.no_grad():
                model = copy.deepcopy(self.model).double()
                return Answer(self._forward(model, map_tensors(widened, inputs)))
        except TaskError as error:
            return Answer(map_tensors(widened, self.native(inputs)), exact=False, note=str(error))

    def _forward(self, model: nn.Module, inputs: tuple[Any, ...]) -> Tree:
        seed_everything(self._seed)  # dropout and the like: the same draw in every arithmetic
        with torch.device(self.device):
            return map_tensors(Tensor.detach, model(*inputs))

    def expect(self, inputs: tuple[Any, ...], *, noise_samples: int = NOISE_SAMPLES) -> Expected:
        """What a right candidate may return for these inputs and the present parameters."""
        with FlopCounterMode(display=False) as counter:
            native = self.native(inputs)
        answer = self.reference(inputs)
        wanted = answer.exact and noise_samples and numel(answer.values) <= MOST_DISTURBED
        noise = self._noise_if_it_fits(inputs, answer, noise_samples) if wanted else None
        longest = reduction_length_of((inputs, self.state()), native, int(counter.get_total_flops()))
        return Expected(answer.values, native, self.precision, longest, noise)

    def _noise_if_it_fits(self, inputs: tuple[Any, ...], answer: Answer, samples: int) -> Tree | None:
        """None when the memory does not hold it: the tolerance is then what the other terms give, which is tighter."""
        try:
            return self._noise(inputs, answer, samples)
        except torch.OutOfMemoryError:
            pass
        except TaskError as error:
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
        torch.cuda.empty_cache()
        return None

    def _noise(self, inputs: tuple[Any, ...], answer: Answer, samples: int) -> Tree | None:
        """Root mean square change of each output, relative to the rounding that causes it."""
        total = map_tensors(torch.zeros_like, answer.values)
        generator = Generator(self.device).manual_seed(self._seed)
        for _ in range(samples):
            for so_far, disturbed, exact in zip(
                tensors(total), tensors(self._disturbed(inputs, generator)), tensors(answer.values), strict=True
            ):
                if exact.is_floating_point():
                    so_far += torch.nan_to_num((disturbed - exact) / NOISE, 0.0, 0.0, 0.0).square()
        return map_tensors(lambda t: (t / samples).sqrt() if t.is_floating_point() else t, total)

    def _disturbed(self, inputs: tuple[Any, ...], generator: Generator) -> Tree:
        noise = WithNoise(generator)
        with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
            model = copy.deepcopy(self.model).double()
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.copy_(noise.disturb(tensor))
            arguments = map_tensors(lambda t: noise.disturb(widened(t)), inputs)
            with noise:
                return self._forward(model, arguments)


def widened(tensor: Tensor) -> Tensor:
    """A copy, in float64 when it is floating."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, and numpy's when a task file has loaded it."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def reduction_length_of(operands: Tree, outputs: Tree, flops: int = 0) -> int:
    """How many terms the longest sum of an output can have, guessed from sizes: the operands' longest last dimension,
    elements read per element written, and multiply-adds per element written."""
    lasts = [t.shape[-1] for t in tensors(operands) if t.dim() and t.is_floating_point()]
    per_output = max((t.numel() for t in tensors(operands)), default=1) // max(1, numel(outputs))
    return max(1, *lasts, per_output, flops // (2 * max(1, numel(outputs))))


def _execute(task: TaskFile, case: CaseDef) -> types.ModuleType:
    """Run the file as a module of its own; dataclasses and scripting look it up in sys.modules."""
    module = types.ModuleType(f"kerneltune_task_{task.name}")
    module.__file__ = str(task.path)
    sys.modules[module.__name__] = module
    exec(compile(with_overrides(task.source, dict(case.overrides)), str(task.path), "exec"), module.__dict__)
    return module


def _randomise(model: nn.Module, seed: int) -> None:
    """Replace parameters and running statistics that are constant (ones, zeros): a kernel that leaves them out must
    not pass. Anything else that a model made is kept."""
    chosen: list[Tensor] = list(model.parameters())
    chosen += [tensor for name, tensor in model.named_buffers() if name.endswith(_STATISTICS)]
    for index, tensor in enumerate(chosen):
        if _is_constant(tensor):
            generator = Generator(tensor.device).manual_seed(seed + index)
            factor = torch.rand(tensor.shape, generator=generator, device=tensor.device) + 0.5  # keeps the sign
            tensor.copy_(tensor * factor if float(tensor.flatten()[0]) else factor - 1)


def _is_constant(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0 or isinstance(tensor, FakeTensor):
        return False
    return bool((tensor == tensor.flatten()[0]).all())


def _on(model: nn.Module, device: str) -> nn.Module:
    """The model on the device; left alone when it is there, since fake parameters cannot be moved."""
    wanted = torch.device(device).type
    there = all(tensor.device.type == wanted for tensor in (*model.parameters(), *model.buffers()))
    return model if there else model.to(device)


@contextlib.contextmanager
def blame(task: TaskFile, what: str) -> Iterator[None]:
    """Swallow what the task's code prints and warns; turn what it raises into one line with its place in the file."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:  # a person's file may raise anything
        text = (str(error).strip().splitlines() or [""])[0]
        place = _place(task, error)
        raise TaskError(f"{task.path}{place}: {what} failed: {type(error).__name__}: {text:.300}") from error


def _place(task: TaskFile, error: BaseException) -> str:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(task.path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
