"""The reference of one case: its module with parameters from a seed, run in its own dtype and in float64.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. The in-place
semantics of a reference stay inside: each run gets copies. What finds no memory is tried once more with room made.
"""

import contextlib
import copy
import functools
import gc
import io
import math
import os
import random
import re
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from kerneltune.tools.judge.correctness.float64 import (
    NOISE,
    InFloat64,
    Rounding,
    Selection,
    Watching,
    default_float64,
    plain_arithmetic,
    widened,
)
from kerneltune.tools.judge.correctness.tree import (
    Tree,
    dtype_name,
    leaves,
    map_leaves,
    map_tensors,
    named,
    pitched,
    raw_bytes,
    tensors,
)
from kerneltune.tools.sandbox.rules import MOST_ENTRIES
from kerneltune.tools.schema.errors import CaseFailed, OutOfMemory, TaskError
from kerneltune.tools.schema.task import Contract, contract_of
from kerneltune.tools.schema.verdict import Limitation, LimitationKind
from kerneltune.tools.task.load import CaseDef, TaskFile, with_overrides

T = TypeVar("T")
LONGEST_CALL_S = (
    50.0  # of a task's function; twice that, with and without data, is less than a task may take to be described
)
_SLOW_CONVOLUTIONS_S = 0.05  # of a forward in float64, of which a judgement needs some hundred
_SIGNS = re.compile(r"out of memory|can't allocate memory|_ALLOC_FAILED", re.IGNORECASE)
_ASKED = re.compile(r"(?:tried to allocate|asked for) ([\d.]+ \w+)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether that is why: torch has an exception for its own GPU allocator only, not for CPUs, cuBLAS or cuDNN."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_SIGNS.search(str(error)))


def asked_for(error: BaseException) -> str:
    """The memory that torch says it wanted; "" where it does not say."""
    found = _ASKED.search(str(error))
    return found[1] if found else ""


def empty_cache() -> None:
    """Give memory back that torch keeps for later on a GPU."""
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()


def without_cudnn(seconds: Callable[[bool], float]) -> bool:
    """Whether float64 convolutions are worth trying without cuDNN, and faster so: its kernels for them need not use the
    tensor cores that a matrix product in float64 does. On an H200 transposed convolutions of 0.4 TFLOP were not judged
    within 60 s. `seconds` of a forward with cuDNN (True) or without; the first of either also loads libraries."""
    first_s = seconds(True)
    if first_s <= _SLOW_CONVOLUTIONS_S:
        return False
    other_s = min(seconds(False) for _ in range(2))
    return other_s < first_s and other_s < seconds(True)


def free_cached() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    empty_cache()


def with_room(make: Callable[[], T], make_room: Callable[[], None]) -> T:
    """What `make` returns, tried once more with room made when there was no memory for it. Raises OutOfMemory."""
    try:
        return make()
    except OutOfMemory:
        pass  # here still, it would hold the tensors of the frames that it came through
    gc.collect()  # from Python 3.12 on those frames are a cycle: a context manager raised that error from another
    make_room()
    return make()


@dataclass(frozen=True)
class Answer:
    """A reference's outputs. `exact`: computed in float64; else `note` says why not and `limitation` what
    a comparison with it does without.
    `selections`: of outputs that are indices. `whole`: every value on the way was an integer that float32 holds (looked
    at only when asked for)."""

    values: Tree
    exact: bool = True
    note: str = ""
    limitation: Limitation | None = None
    selections: Mapping[str, Selection | Rounding] = field(default_factory=dict)
    whole: bool = False

    @property
    def lacked_memory(self) -> bool:
        """Whether the memory for float64 was missing."""
        return self.limitation is not None and self.limitation.kind is LimitationKind.NOT_FLOAT64


@dataclass(frozen=True)
class Regime:
    """How strictly a battery is judged: see `tools.judge.correctness.gates.Expected`. `longest`: the reduction
    length, when the battery knows it better than the shapes; `one_hot`: an operand of a contraction is; `flushes`:
    denormal inputs may count as zeros; `lenience`: a factor on the arithmetic's share of the tolerance; `equal_terms`:
    sums may be of those alone, whose roundings are alike."""

    one_hot: bool = False
    bits: float | None = None
    longest: int | None = None
    exact_operands: bool = False
    flushes: bool = False
    lenience: float = 1.0
    equal_terms: bool = False


@dataclass(frozen=True)
class Drawn:
    """Inputs and parameters for one check, made from one seed. `alters`: the parameters are not the model's own;
    `contracts`: what is promised of the inputs' memory."""

    seed: int
    battery: str
    inputs: tuple[Any, ...]
    state: dict[str, Tensor]
    regime: Regime = Regime()
    alters: bool = False
    contracts: tuple[Contract, ...] = ()

    def named(self) -> dict[str, Tensor]:
        """Every tensor, by origin and name as a launch plan says them ("input:0", "state:weight")."""
        return named(self.inputs, self.state)

    def contract(self, name: str) -> Contract | None:
        """The contract of the tensor of such a name."""
        return contract_of(self.contracts, name)

    def blobs(self) -> dict[str, memoryview]:
        """The bytes of every tensor, and of what may be read behind it, which is undefined."""
        return {name: raw_bytes(tensor, self.contract(name), self.seed) for name, tensor in self.named().items()}


_STATISTICS = ("running_mean", "running_var")


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, and numpy's when a task file has loaded it."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.accelerator.is_available():  # else torch.manual_seed keeps three formatted stacks a call, for no device
        torch.get_device_module().manual_seed_all(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def execute(task: TaskFile, case: CaseDef) -> types.ModuleType:
    """Run the file as a module of its own; dataclasses and scripting look it up in sys.modules."""
    module = types.ModuleType(f"kerneltune_task_{task.name}")
    module.__file__ = str(task.path)
    sys.modules[module.__name__] = module
    exec(compile(with_overrides(task.source, dict(case.overrides)), str(task.path), "exec"), module.__dict__)  # noqa: S102 - the task is code
    return module


def randomise(model: nn.Module, seed: int) -> None:
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


def placed(model: nn.Module, device: str) -> nn.Module:
    """The model on the device; left alone when it is there, since fake parameters cannot be moved."""
    wanted = torch.device(device).type
    there = all(tensor.device.type == wanted for tensor in (*model.parameters(), *model.buffers()))
    return model if there else model.to(device)


class CallState:
    """The tensors in a module's attributes and buffers at one moment, to be put back: a recurrent module may replace
    its hidden state in each call, and the next call would answer otherwise. What is written in place stays written.
    `places`: of those that are put back; without them whatever was replaced, for which all are looked at."""

    def __init__(self, model: nn.Module, places: Sequence[tuple[int, str]] | None = None) -> None:
        self._parts: list[dict[str, Any]] = [p for module in model.modules() for p in (vars(module), module._buffers)]
        self._kept = [dict(part) for part in self._parts]  # this holds their memory, too, where a graph reads it
        self.places = places

    def replaced(self) -> list[tuple[int, str]]:
        """Where another tensor is now."""
        pairs = enumerate(zip(self._parts, self._kept, strict=True))
        return [(i, n) for i, (p, k) in pairs for n, v in p.items() if isinstance(v, Tensor) and k.get(n) is not v]

    def put_back(self) -> None:
        """Undo what was replaced."""
        for part, name in self.replaced() if self.places is None else self.places:
            if name in self._kept[part]:
                self._parts[part][name] = self._kept[part][name]
            else:
                self._parts[part].pop(name, None)


@contextlib.contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Put back what tensors the block replaces in the module."""
    state = CallState(model)
    try:
        yield
    finally:
        state.put_back()


def settled(model: nn.Module, call: Callable[[], object]) -> CallState:
    """The state that each call of the model should begin with, after two calls: as it is now, with what the first one
    made and the second left alone (a table that is built once). What it puts back costs a timed pass nothing else."""
    before = CallState(model)
    call()
    after = CallState(model)
    call()
    before.places = after.replaced()
    before.put_back()
    return CallState(model, before.places)


class Overdue(BaseException):
    """Code of a task runs for longer than it may. Not an Exception: it might catch those. `what`: which code."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s, self.what = limit_s, ""

    def __str__(self) -> str:
        return f"{self.what or 'judging'} takes longer than {self.limit_s:g} s"


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[bool]:
    """Raise Overdue in the block after so many seconds: in the main thread, and where nobody else has set the alarm.
    Yields whether it is set here."""
    free = threading.current_thread() is threading.main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0]
    if not free or limit_s == math.inf:
        yield False
        return

    def ring(_signal: int, _frame: types.FrameType | None) -> None:
        raise Overdue(limit_s)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_end_process = os._exit


@contextlib.contextmanager
def _staying() -> Iterator[None]:
    """Make `os._exit` in the block an error of whoever calls it, as sys.exit is."""

    def refuse(status: int) -> NoReturn:
        raise SystemExit(f"os._exit({status})")

    before = os._exit
    os._exit = refuse
    try:
        yield
    finally:
        os._exit = before


@contextlib.contextmanager
def blame(
    task: TaskFile, what: str, *, limit_s: float = LONGEST_CALL_S, failed: Callable[[str], TaskError] = TaskError
) -> Iterator[None]:
    """Swallow what the task's code prints and warns; turn what it raises, and that it does not end, into one line with
    its place in the file: `failed` of it, TaskError where it does not end, and OutOfMemory where the memory ran out. A
    process that it forks ends here."""
    process, ours = os.getpid(), False
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), limited(limit_s) as ours, _staying():
            warnings.simplefilter("ignore")
            yield
    except TaskError:
        raise
    except Overdue as error:
        error.what = error.what or f"{task.path}{_place(task, error)}: {what}"
        if ours:
            raise TaskError(str(error)) from error
        raise  # the limit is that of more than this call
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        words = f"needs the package {package}, which is not installed; if it is on PyPI, pip install {package}"
        raise TaskError(f"{task.path}{_place(task, error)}: {what} {words}") from error
    except (Exception, SystemExit) as error:  # a person's file may raise anything
        text = (str(error).strip().splitlines() or [""])[0]
        place = _place(task, error)
        message = f"{task.path}{place}: {what} failed: {type(error).__name__}: {text:.300}"
        if isinstance(error, PermissionError):
            message += (
                "; a task's code has no network, and may read libraries and the folder of its file, nothing hidden; "
                f"of more than {MOST_ENTRIES:,} files there, those that lie deepest cannot be read"
            )
        if is_out_of_memory(error):
            raise OutOfMemory(message, asked_for(error)) from error
        raise failed(message) from error
    finally:
        if os.getpid() != process:
            _end_process(0)  # as a second judge on the same socket it would answer for us


def _place(task: TaskFile, error: BaseException) -> str:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(task.path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


class _NormsWrittenOut(TorchFunctionMode):
    """Batch normalisation by running statistics as a formula: torch has no derivative of it by these."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.batch_norm or kwargs.get("training"):  # all but three of its arguments by name
            return func(*args, **kwargs)
        x, mean, variance = args
        sizes = [-1, *[1] * (x.dim() - 2)]
        made = (x - mean.view(sizes)) * torch.rsqrt(variance + kwargs["eps"]).view(sizes)
        made = made if kwargs["weight"] is None else made * kwargs["weight"].view(sizes)
        return made if kwargs["bias"] is None else made + kwargs["bias"].view(sizes)


class ReferenceModel:
    """One case's model on one device. `make_room` frees what can be had again; what finds no memory is tried once more
    after it."""

    def __init__(
        self, task: TaskFile, case: CaseDef, device: str = "cpu", make_room: Callable[[], None] = free_cached
    ) -> None:
        self.task, self.case, self.device, self._make_room = task, case, device, make_room
        self._seed, self._altered = 0, False
        self._by_cudnn: bool | None = None  # float64 convolutions; None: not looked at yet
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
            own = tuple(map_tensors(lambda t: t.detach().to(self.device), self._call("get_inputs")))
            return tuple(map_leaves(self._promised, own)) if self.task.contracts else own

    def _promised(self, path: str, tensor: Tensor) -> Tensor:
        """An input as its contract has it lie in memory."""
        if (contract := contract_of(self.task.contracts, path)) is None:
            return tensor
        said, size = f"{self.task.path}: INPUTS[{contract.name!r}]", tensor.element_size()
        if contract.alignment < size:
            raise TaskError(f"{said}: an alignment of {contract.alignment} bytes, but its elements have {size}")
        if contract.pitch > 1 and not tensor.is_contiguous():
            raise TaskError(f"{said}: a pitch is for tensors that get_inputs makes row-major")
        return pitched(tensor, contract)

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
        failed = functools.partial(CaseFailed, case=self.case.name)
        plain = plain_arithmetic(tf32=self.precision == "tf32_ok")
        with blame(self.task, "forward()", failed=failed), plain, torch.no_grad():
            return self._forward(self.model, map_tensors(Tensor.clone, inputs))

    def draws_numbers(self, inputs: tuple[Any, ...]) -> bool:
        """Whether the answer follows from more than inputs and parameters: a seed repeats it, another does not."""
        own, first = self._seed, self._bytes(inputs)
        try:
            self._seed = own + 1  # of what forward draws; the parameters stay
            other = self._bytes(inputs)
        finally:
            self._seed = own
        return other != first == self._bytes(inputs)  # the third only where the second differs: it is every opening

    def _bytes(self, inputs: tuple[Any, ...]) -> list[bytes]:
        answer = tensors(self.native(inputs))
        return [bytes(t.cpu().contiguous().flatten().view(torch.uint8).numpy()) for t in answer]

    def reference(self, inputs: tuple[Any, ...], *, whole: bool = False) -> Answer:
        """The reference in float64; in its own dtype, with the reason, when it cannot run so or lacks memory."""
        try:
            return with_room(lambda: self._run_in_float64(inputs, whole), self._make_room)
        except TaskError as error:
            note, limitation = str(error), _without_float64(error)
        return Answer(map_tensors(widened, self.native(inputs)), exact=False, note=note, limitation=limitation)

    def _run_in_float64(self, inputs: tuple[Any, ...], whole: bool) -> Answer:
        if self._by_cudnn is None:
            self._by_cudnn = not self._faster_without_cudnn(inputs)
        with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
            model, arguments = copy.deepcopy(self.model).double(), map_tensors(widened, inputs)
            with Watching((arguments, dict(model.state_dict())), whole=whole) as watching:
                values = self._forward_in_float64(model, arguments)
            return Answer(values, selections=watching.selections(values), whole=watching.whole)

    def first_order(
        self, inputs: tuple[Any, ...], moved: Callable[[str], Tensor], at: int, weights: Sequence[Tensor]
    ) -> tuple[dict[str, list[float]], list[float]]:
        """By how much the sum of output `at`, by each of the weights, changes in float64 and to first order, when each
        floating operand ("input:0", "state:weight") is replaced by what is `moved`; and by how much all these together
        miss a difference of two runs, since a forward that detaches, or has a backward of its own, may have other
        gradients than values. Raises TaskError where there is no gradient."""
        with blame(self.task, "the gradient of forward()"), default_float64(), torch.no_grad():
            model, arguments = copy.deepcopy(self.model).double(), map_tensors(widened, inputs)
            operands = {f"input:{path}": t for path, t in leaves(arguments) if isinstance(t, Tensor)}
            operands |= {f"state:{name}": t for name, t in model.state_dict(keep_vars=True).items()}
            operands = {n: t.requires_grad_() for n, t in operands.items() if t.is_floating_point() and t.numel()}

            wide = InFloat64()  # type: ignore[no-untyped-call]

            def sums() -> list[Tensor]:
                seed_everything(self._seed)
                with torch.device(self.device), state_kept(model), _NormsWrittenOut(), wide:
                    output = [*tensors(model(*map_tensors(Tensor.clone, arguments)))][at]
                    return [(output * weight).sum() for weight in weights]

            moves = {name: moved(name) - tensor for name, tensor in operands.items()}
            changes: dict[str, list[float]] = {name: [] for name in operands}
            with torch.enable_grad():
                before = sums()
            for total in before:
                slopes = torch.autograd.grad(total, [*operands.values()], retain_graph=True, materialize_grads=True)
                for (name, move), slope in zip(moves.items(), slopes, strict=True):
                    changes[name].append(float((slope * move).sum()))
            for name, tensor in operands.items():
                tensor.add_(moves[name], alpha=NOISE)
            differences = [float(after - total) / NOISE for after, total in zip(sums(), before, strict=True)]
            told = map(sum, zip(*changes.values(), strict=True))
            return changes, [abs(a - b) for a, b in zip(differences, told, strict=True)]

    def _faster_without_cudnn(self, inputs: tuple[Any, ...]) -> bool:
        if self.device == "cpu" or not any(isinstance(module, _ConvNd) for module in self.model.modules()):
            return False
        try:
            with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
                return without_cudnn(lambda cudnn: self._float64_s(inputs, cudnn))
        except TaskError:  # whoever needs the answer is told
            return False

    def _float64_s(self, inputs: tuple[Any, ...], cudnn: bool) -> float:
        """Seconds of a forward in float64; infinite where there is no memory for it."""
        model, arguments = copy.deepcopy(self.model).double(), map_tensors(widened, inputs)
        torch.get_device_module(self.device).synchronize()
        began_s = time.perf_counter()
        try:
            with torch.backends.cudnn.flags(enabled=cudnn):
                self._forward(model, arguments)
            torch.get_device_module(self.device).synchronize()
        except torch.OutOfMemoryError:
            return math.inf
        return time.perf_counter() - began_s

    def _forward_in_float64(self, model: nn.Module, inputs: tuple[Any, ...]) -> Tree:
        """One forward of a model in float64, by the faster convolutions; by cuDNN's from when others find no memory."""
        try:
            with torch.backends.cudnn.flags(enabled=self._by_cudnn is not False):
                return self._forward(model, inputs)
        except torch.OutOfMemoryError:
            self._by_cudnn = True
            raise

    def _forward(self, model: nn.Module, inputs: tuple[Any, ...]) -> Tree:
        seed_everything(self._seed)  # dropout and the like: the same draw in every arithmetic
        with torch.device(self.device), state_kept(model):
            return map_tensors(Tensor.detach, model(*inputs))


def _without_float64(error: TaskError) -> Limitation:
    if isinstance(error, OutOfMemory):
        return Limitation(LimitationKind.NOT_FLOAT64, error.asked_for)
    return Limitation(LimitationKind.OWN_DTYPE)
