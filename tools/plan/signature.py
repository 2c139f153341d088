"""Does a candidate take what the task gives? Asked before the call, so that the answer names both signatures."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tools.plan.refusal import Refused

MOST_SHOWN = 8


def require_call(function: Callable[..., Any], arguments: Sequence[Any], message: str) -> None:
    """Raise Refused with `message` ({takes}, {given} filled in) when `function` does not take these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have none: the call itself will tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        takes = ", ".join(str(p) for p in signature.parameters.values())
        given = ", ".join(shown(a) for a in arguments)
        raise Refused(message.format(takes=takes, given=given)) from error


def require_module(model: Any) -> None:
    """Raise Refused when what ModelNew made is no nn.Module with a forward of its own."""
    if not isinstance(model, torch.nn.Module):
        raise Refused(
            f"ModelNew(...) makes a {type(model).__name__}, which is not an nn.Module: write "
            "class ModelNew(torch.nn.Module), so that parameters can be given to it"
        )
    if type(model).forward is torch.nn.Module.forward:
        raise Refused("ModelNew defines no forward; give it the arguments of the task's Model.forward")


def shown(value: Any) -> str:
    """An argument in short: float32[4, 8] for a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in list(value.items())[:MOST_SHOWN]) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value[:MOST_SHOWN]))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return repr(value)[:80]
