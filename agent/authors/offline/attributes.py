"""Plain values that a model keeps from its constructor, which differ between a task's cases: a lowering that took them
for constants would be wrong in the other cases."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

Path = str  # "groups", "norm.num_groups", "layers.0.eps"

_OF_EVERY_MODULE = {*vars(nn.Module()), "training"}
_SAID_BY_PARAMETERS = {  # of torch's own modules, whose forward does not read them
    *("in_features", "out_features", "in_channels", "out_channels", "num_features", "num_channels"),
    *("num_embeddings", "embedding_dim"),
}


def plain(model: nn.Module) -> dict[Path, Any]:
    """Numbers, texts, dtypes and sequences of them that the model and its submodules hold, by path."""
    found = {}
    for prefix, module in model.named_modules():
        torchs_own = type(module).__module__.startswith("torch.nn.")
        left_out = _OF_EVERY_MODULE | (_SAID_BY_PARAMETERS if torchs_own else set())
        for name, value in vars(module).items():
            if name not in left_out and _is_plain(value):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def varying(models: Mapping[str, nn.Module]) -> dict[str, dict[Path, str]]:
    """What is not the same in all the models, by the model's name and as Python text."""
    held = {name: {path: text(value) for path, value in plain(model).items()} for name, model in models.items()}
    common = set.intersection(*map(set, held.values())) if held else set()
    differ = sorted(path for path in common if len({values[path] for values in held.values()}) > 1)
    return {name: {path: values[path] for path in differ} for name, values in held.items()}


def different_tensors(models: Iterable[nn.Module]) -> list[Path]:
    """Parameters and buffers that have not the same shape and dtype in all the models."""
    held = [{name: (t.shape, t.dtype) for name, t in model.state_dict().items()} for model in models]
    return [name for name, fact in (held[0] if held else {}).items() if any(h.get(name) != fact for h in held)]


def text(value: Any) -> str:
    """A plain value as Python."""
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def put(model: nn.Module, path: Path, value: Any) -> None:
    """Set an attribute by its path."""
    prefix, _, name = path.rpartition(".")
    setattr(model.get_submodule(prefix), name, value)
