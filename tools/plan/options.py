"""The compile options that a kernel of a plan may have, and their values. Pure.

Triton's options reach the compiler and the assembler as they are: some name files, some are command lines. So this is
a closed list; a plan with any other option is refused wherever it is met.
"""

import math
import re
from collections.abc import Callable, Mapping

from tools.codec import Json

# What `ptx_options` may hold: optimisation and register limits, nothing that names a file.
_ASSEMBLER = re.compile(
    r"-O[0-3]|--opt-level=[0-3]|--?maxrregcount=[0-9]{1,3}|--fmad=(true|false)|-v|--verbose|--warn-on-spills|"
    r"--allow-expensive-optimizations=(true|false)|--disable-optimizer-constants|--suppress-stack-size-warning|"
    r"--(def-load-cache|def-store-cache|dlcm|dscm)=(ca|cg|cs|lu|cv|wb|wt)"
)
_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _whole(low: int, high: int) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


def _assembler(value: Json) -> bool:
    return isinstance(value, str) and all(_ASSEMBLER.fullmatch(word) for word in value.split(" ") if word)


_ALLOWED: Mapping[str, Callable[[Json], bool]] = {
    "num_warps": lambda value: value in (1, 2, 4, 8, 16, 32, 64) and not isinstance(value, bool | float),
    "num_stages": _whole(0, 64),
    "num_ctas": _whole(1, 16),
    "maxnreg": lambda value: value is None or _whole(1, 1024)(value),
    "cluster_dims": lambda value: isinstance(value, list | tuple) and list(map(_whole(1, 16), value)) == [True] * 3,
    "enable_fp_fusion": _flag,
    "launch_cooperative_grid": _flag,
    "launch_pdl": _flag,
    "sanitize_overflow": _flag,
    "default_dot_input_precision": lambda value: value in _PRECISIONS,
    "ptx_options": lambda value: value is None or _assembler(value),
    "minRegAutoWS": _whole(0, 1024),
    "maxRegAutoWS": _whole(0, 1024),
}


def _sizes(most: int, product: int) -> Callable[[Json], bool]:
    def check(value: Json) -> bool:
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(map(_whole(1, most), value)):
            return False
        return math.prod(value) <= product

    return check


_ALLOWED_PTX: Mapping[str, Callable[[Json], bool]] = {
    "block": _sizes(1024, 1024),
    "shared_bytes": _whole(0, 1 << 20),
    "cluster": _sizes(16, 16),
    "launch_cooperative_grid": _flag,
    "launch_pdl": _flag,
}


def forbidden_option(options: Mapping[str, Json], language: str = "ttir") -> str | None:
    """What no kernel may ask of the compiler, in words for the author; None when all options are allowed."""
    known = _ALLOWED_PTX if language == "ptx" else _ALLOWED
    if language == "ptx" and "block" not in options:
        return "a launch of PTX that does not say how many threads a block has"
    for name, value in options.items():
        if name not in known:
            return f"the compile option {name!r:.60} is not one that a launch may set; those are {', '.join(known)}"
        if not known[name](value):
            words = " (only optimisation levels and register limits)" if name == "ptx_options" else ""
            return f"the compile option {name}={value!r:.120} is not allowed{words}"
    return None
