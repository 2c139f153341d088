"""What is known of a kernel's launches from launch plans. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import gcd

from tools.plan.effects import item_bytes
from tools.plan.schema import Launch, Plan, ScalarArg, TensorArg
from tools.ptx.rewrites import Launched

MOST_ALIGN_BYTES = 16  # what the files that we make of plans check; the widest access of a thread needs no more


def launches_of(plans: Iterable[Plan], *, only: bool = True) -> dict[str, Launched]:
    """What is known of each kernel, by its sha256, over all launches in all plans (one for each case).
    `only`: there are no other launches; else the block alone counts, and what shares memory is not known."""
    found: dict[str, list[Launch]] = defaultdict(list)
    blocks: dict[str, tuple[int, int, int] | None] = {}
    for plan in plans:
        for step in (*plan.prepare, *plan.run):
            if isinstance(step, Launch):
                kernel = plan.kernels[step.kernel]
                found[kernel.sha256].append(step)
                blocks[kernel.sha256] = _block(kernel.options)
    if not only:
        return {sha256: Launched(blocks[sha256]) for sha256 in found}
    return {sha256: _together(steps, blocks[sha256]) for sha256, steps in found.items()}


def _block(options: Mapping[str, object]) -> tuple[int, int, int] | None:
    match options.get("block"), options.get("num_warps"):
        case [int(x), int(y), int(z)], _:
            return x, y, z
        case None, int(warps) if warps > 0 and not options.get("num_consumer_groups"):
            return warps * 32, 1, 1
    return None


def _together(steps: Sequence[Launch], block: tuple[int, int, int] | None) -> Launched:
    grid = tuple(max(step.grid[i] for step in steps) for i in range(3))
    scalars: dict[int, tuple[int, int]] = {}
    aligned: dict[int, int] = {}
    shares: dict[int, set[int]] = defaultdict(set)
    for number in range(min(len(step.args) for step in steps)):
        args = [step.args[number] for step in steps]
        values = [int(a.value) for a in args if isinstance(a, ScalarArg) and _is_whole(a)]
        if len(values) == len(args):
            scalars[number] = (min(values), max(values))
        offsets = [_offset_bytes(a) for a in args if isinstance(a, TensorArg)]
        if len(offsets) == len(args):
            aligned[number] = gcd(MOST_ALIGN_BYTES, *offsets)
    for step in steps:
        for (i, a), (j, b) in combinations(enumerate(step.args), 2):
            if isinstance(a, TensorArg) and isinstance(b, TensorArg) and a.tensor.storage == b.tensor.storage:
                shares[i].add(j)
                shares[j].add(i)
    return Launched(
        block,
        (grid[0], grid[1], grid[2]),
        scalars,
        aligned,
        {number: frozenset(others) for number, others in shares.items()},
        known=all(isinstance(a, TensorArg | ScalarArg) for step in steps for a in step.args),
        early=any(step.pdl for step in steps),
    )


def _is_whole(arg: ScalarArg) -> bool:
    """Whether a number is passed as an integer: 2 for a float is other bits."""
    return isinstance(arg.value, int) and not arg.type.startswith(("f", "bf"))


def _offset_bytes(arg: TensorArg) -> int:
    """How far a pointer stands behind its storage's beginning."""
    return arg.tensor.offset * item_bytes(arg.tensor.dtype)
