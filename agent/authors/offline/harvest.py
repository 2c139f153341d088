"""Takes from Inductor what its output refers to but does not contain: launch configurations and helper functions."""

import ast
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_helpers

from tools.codec import Json

_HELPER = re.compile(r"\btriton_helpers\.(\w+)")


def kernel_sources(code: str) -> dict[str, str]:
    """Kernel name -> the module text that Inductor would compile."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "async_compile.triton":
            name, text = (ast.literal_eval(a) for a in node.args[:2])
            found[name] = text
    return found


def launch_configs(code: str) -> dict[str, Json]:
    """Ask Inductor's own heuristics which configurations they would try for each kernel."""
    return {name: _configs(name, text) for name, text in kernel_sources(code).items()}


def _configs(name: str, text: str) -> dict[str, Json]:
    text = text.replace("triton_helpers.set_driver_to_gpu()", "")  # it would load libcuda
    autotuner = getattr(PyCodeCache.load(text), name)
    configs = [{**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in autotuner.configs]
    return {
        "configs": configs,
        "grid": autotuner.inductor_meta.get("grid_type", "Grid1D"),
        "size_hints": {k: int(v) for k, v in (autotuner.size_hints or {}).items()},
    }


def helpers_of(code: str) -> dict[str, str]:
    """Source of every Triton helper that the code uses, and of those they use, in an order that can be executed."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(_HELPER.findall(code)):
        _add(name, found)
    return found


def _add(name: str, found: dict[str, str]) -> None:
    helper = getattr(triton_helpers, name, None)
    function = getattr(helper, "fn", None)
    if name in found or not isinstance(function, types.FunctionType):
        return
    text = inspect.getsource(function)
    for used in _names(text):
        if used != name:
            _add(used, found)
    found[name] = text


def _names(text: str) -> Iterator[Any]:
    return (node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
