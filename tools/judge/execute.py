"""Runs a task file's own code: its functions, its model, and what of it goes wrong in one line."""

import contextlib
import io
import random
import sys
import types
import warnings
from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tools.errors import OutOfMemory, TaskError
from tools.judge.room import asked_for, is_out_of_memory
from tools.task import CaseDef, TaskFile, with_overrides

_STATISTICS = ("running_mean", "running_var")


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, and numpy's when a task file has loaded it."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def execute(task: TaskFile, case: CaseDef) -> types.ModuleType:
    """Run the file as a module of its own; dataclasses and scripting look it up in sys.modules."""
    module = types.ModuleType(f"kerneltune_task_{task.name}")
    module.__file__ = str(task.path)
    sys.modules[module.__name__] = module
    exec(compile(with_overrides(task.source, dict(case.overrides)), str(task.path), "exec"), module.__dict__)
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


@contextlib.contextmanager
def blame(task: TaskFile, what: str) -> Iterator[None]:
    """Swallow what the task's code prints and warns; turn what it raises into one line with its place in the file:
    TaskError, and OutOfMemory where the memory ran out."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:  # a person's file may raise anything
        text = (str(error).strip().splitlines() or [""])[0]
        place = _place(task, error)
        message = f"{task.path}{place}: {what} failed: {type(error).__name__}: {text:.300}"
        if is_out_of_memory(error):
            raise OutOfMemory(message, asked_for(error)) from error
        raise TaskError(message) from error


def _place(task: TaskFile, error: BaseException) -> str:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(task.path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
