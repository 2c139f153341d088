"""Checks a tracer's reply, which the candidate's code may have written itself: it ran in the same process. Pure.

`malformed`: is it a set of plans, and do they say the truth about themselves? What passes can be hashed, counted and
handed on without raising. `mismatch`: does a plan return what the task's Model returns, as far as structure, shapes and
dtypes tell? Trees are those of a launch plan and of `schema.task`: {"$tensor": …} leaves in lists, {"$tuple"} and
{"$dict"}; a list may stand for a tuple, as the judge allows.
"""

from collections.abc import Callable, Iterator, Sequence

from kerneltune.tools.languages.base import language
from kerneltune.tools.replay.effects import ForwardPass, live_steps
from kerneltune.tools.schema.codec import DecodeError, Json, decode
from kerneltune.tools.schema.plan import (
    DescriptorArg,
    Kernel,
    Launch,
    Plan,
    ScalarArg,
    Step,
    TensorArg,
    TensorRef,
    is_allowed,
    is_library,
)
from kerneltune.tools.schema.task import CaseSpec

MOST_NESTED = 50
MOST_STEPS = 20_000
MOST_BYTES = 1 << 40  # in all storages of a plan
MOST_TEXT_BYTES = 64 << 20  # in all kernels of a reply
LARGEST_GRID = (2**31 - 1, 65_535, 65_535)  # CUDA's
_LARGEST_NUMBER = 2**64


def malformed(plans: Sequence[Plan], cases: Sequence[CaseSpec], max_variants: int) -> str | None:
    """What is wrong with a reply's plans, or None."""
    names = [case.name for case in cases]
    if strange := sorted({p.case for p in plans} - set(names)):
        return f"plans for an unknown case {strange[0]!r:.80}"
    for name in names:
        count = sum(p.case == name for p in plans)
        if not 1 <= count <= max(1, max_variants):
            return f"{count} plans for one case, of at most {max_variants}"
    texts = {k.text: k.language for p in plans for k in p.kernels}
    if sum(map(len, texts)) > MOST_TEXT_BYTES:
        return f"kernels of more than {MOST_TEXT_BYTES >> 20} MB"
    for name in sorted(set(texts.values())):
        known = language(name)
        if sum(len(text) for text, its in texts.items() if its == name) > known.max_bytes:
            return f"more than {known.max_bytes >> 20} MB of {known.title}"
    return next(filter(None, map(_problem, plans)), None)


def _problem(plan: Plan) -> str | None:
    """The first rule that a plan breaks; later rules rely on earlier ones."""
    rules: tuple[Callable[[Plan], str | None], ...] = (
        _sizes, _launches, _overlaps, _operators, _tensors, _inputs, _unused,
    )  # fmt: skip
    return next(filter(None, (rule(plan) for rule in rules)), None)


def _sizes(plan: Plan) -> str | None:
    known = {s.id for s in plan.storages if s.nbytes >= 0}
    if len(known) != len(plan.storages):
        return "a plan whose storages are not distinct"
    if (n_bytes := sum(s.nbytes for s in plan.storages)) > MOST_BYTES:
        return f"a plan that needs {n_bytes / 2**40:.3g} TiB of memory; the limit is {MOST_BYTES / 2**40:g} TiB"
    if (steps := len(plan.prepare) + len(plan.run)) > MOST_STEPS:
        return f"a plan of {steps} steps; the limit is {MOST_STEPS}"
    return None


def _overlaps(plan: Plan) -> str | None:
    """A programmatic dependent launch may begin before the launch before it has ended."""
    launches = [step for step in plan.run if isinstance(step, Launch) and min(step.grid) > 0]
    for step in launches[1:]:
        kernel = plan.kernels[step.kernel]
        known = language(kernel.language)
        if step.pdl and not known.waits(kernel):
            return f"a launch of {kernel.name} with launch_pdl that never waits for the one before ({known.wait})"
    return None


def _launches(plan: Plan) -> str | None:
    if problem := next(filter(None, (language(k.language).forbidden_option(k.options) for k in plan.kernels)), None):
        return f"a kernel that cannot be: {problem}"
    if not any(isinstance(step, Launch) and min(step.grid) > 0 for step in plan.run):
        return "a plan that launches no program of a kernel"
    launches = [step for step in (*plan.prepare, *plan.run) if isinstance(step, Launch)]
    if any(not 0 <= step.kernel < len(plan.kernels) for step in launches):
        return "a launch of a kernel that is not in the plan"
    return next(filter(None, (_launch(step, plan.kernels[step.kernel]) for step in launches)), None)


def _launch(step: Launch, kernel: Kernel) -> str | None:
    if any(not 0 <= size <= most for size, most in zip(step.grid, LARGEST_GRID, strict=True)):
        return f"a launch over the grid {step.grid!s:.100}; the largest that CUDA knows is {LARGEST_GRID}"
    cluster = kernel.options.get("cluster") or (1, 1, 1)
    if any(blocks % size for blocks, size in zip(step.grid, cluster, strict=True)):
        return f"a launch over the grid {step.grid!s:.100}, which clusters of {cluster!s:.100} do not divide"
    if len(step.args) != len(kernel.signature):
        return f"a launch with {len(step.args)} arguments of a kernel that takes {len(kernel.signature)}"
    for argument, kind in zip(step.args, kernel.signature, strict=True):
        if isinstance(argument, ScalarArg) == kind.startswith(("*", "tensordesc")):
            return f"a launch with {type(argument).__name__} for an argument of type {kind!r:.40}"
        if isinstance(argument, ScalarArg) and isinstance(argument.value, int) and _is_huge(argument.value):
            return "a launch with a number of more than 64 bits"
    return None


def _is_huge(value: int) -> bool:
    return not -_LARGEST_NUMBER // 2 <= value < _LARGEST_NUMBER


def _operators(plan: Plan) -> str | None:
    for step in (*plan.prepare, *plan.run):
        if isinstance(step, Launch):
            continue
        if not is_allowed(step.op):
            return f"a plan with operator {step.op!r:.80}, which no plan may hold"
        if step.library != is_library(step.op):
            return f"a plan that counts {step.op} as {'library work' if step.library else 'glue'}, which it is not"
    return None


def _tensors(plan: Plan) -> str | None:
    known = {s.id for s in plan.storages}
    try:
        refs = [*_tagged(plan.outputs), *(ref for step in (*plan.prepare, *plan.run) for ref in _refs(step))]
    except DecodeError as error:
        return f"a plan with a tensor that is none: {error!s:.200}"
    bad = next((r for r in refs if not _is_sound(r, known)), None)
    return f"a plan with a tensor that is none: {bad!s:.200}" if bad else None


def _inputs(plan: Plan) -> str | None:
    inputs = {s.id for s in plan.storages if s.origin == "input"}
    if any(ref.storage in inputs for step in plan.prepare for ref in _refs(step)):
        return "a plan that works on the inputs before it is timed"
    return None


def _unused(plan: Plan) -> str | None:
    """The tracer leaves launches out that no output depends on (`plan.build`); here they are counted again."""
    outputs = {ref.storage for ref in _tagged(plan.outputs)}
    if not outputs:
        return None  # the wrong structure, which is told in other words
    forward = ForwardPass(
        plan.run,
        plan.kernels,
        outputs,
        inputs={s.id for s in plan.storages if s.origin == "input"},
        made={s.id for s in plan.storages if s.origin == "scratch"},
        nbytes={s.id: s.nbytes for s in plan.storages},
    )
    for step, alive in zip(plan.run, live_steps(forward), strict=True):
        if isinstance(step, Launch) and not alive:
            name = plan.kernels[step.kernel].name
            return f"a plan with a launch of {name!r:.60} that no output depends on"
    return None


def _is_sound(ref: TensorRef, known: set[int]) -> bool:
    return ref.storage in known and len(ref.shape) == len(ref.stride) and min((*ref.shape, ref.offset)) >= 0


def _refs(step: Step) -> Iterator[TensorRef]:
    if isinstance(step, Launch):
        yield from (a.tensor for a in step.args if isinstance(a, TensorArg | DescriptorArg))
        return
    yield from filter(None, step.outs)
    yield from _tagged([list(step.args), step.kwargs])


def _tagged(value: Json, depth: int = 0) -> Iterator[TensorRef]:
    """The {"$tensor": …} leaves of a tree. Raises DecodeError for one that is none, and for a bottomless tree."""
    if depth > MOST_NESTED:
        raise DecodeError(f"nested more than {MOST_NESTED} deep")
    if isinstance(value, dict) and "$tensor" in value:
        yield decode(TensorRef, value["$tensor"])
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tagged(item, depth + 1)


MOST_SHOWN = 6


def mismatch(wanted: Json, got: Json) -> str | None:
    """What is returned instead of what, in words; None when it is the same as far as shapes can tell."""
    if wanted is None:
        return None  # a case that was described without its outputs
    ours, theirs = dict(_leaves(wanted)), dict(_leaves(got))
    if list(ours) == list(theirs) and all(_fits(leaf, theirs[path]) for path, leaf in ours.items()):
        return None
    return f"forward returns {shown(got)}; the task's Model returns {shown(wanted)}"


def _leaves(tree: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    items = _items(tree)
    if items is None:
        yield path, tree
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}")


def _items(tree: Json) -> list[tuple[str, Json]] | None:
    """The children of a node; None for a leaf."""
    if isinstance(tree, dict) and "$dict" in tree:
        return list(tree["$dict"].items())
    if isinstance(tree, dict) and "$tuple" in tree:
        tree = tree["$tuple"]
    return [(str(i), value) for i, value in enumerate(tree)] if isinstance(tree, list) else None


def _fits(wanted: Json, got: Json) -> bool:
    """Plain numbers are the judge's to compare; it takes a float for a 0-dim float64 tensor and the reverse."""
    ours, theirs = _tensor(wanted), _tensor(got)
    return ours == theirs or {ours, theirs} == {None, ("float64", ())}


def _tensor(leaf: Json) -> tuple[str, tuple[int, ...]] | None:
    if isinstance(leaf, dict) and "$tensor" in leaf:
        return leaf["$tensor"]["dtype"], tuple(leaf["$tensor"]["shape"])
    return None


def shown(tree: Json) -> str:
    """A tree in short: float32[4, 8], (float32[4], int64[4]), {mean: float32[]}."""
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        return f"{spec['dtype']}{list(spec['shape'])}"
    items = _items(tree)
    if items is None:
        return repr(tree)[:80]
    more = f", … {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else ""
    parts = [(key, shown(value)) for key, value in items[:MOST_SHOWN]]
    if isinstance(tree, dict) and "$dict" in tree:
        return "{" + ", ".join(f"{key}: {text}" for key, text in parts) + more + "}"
    inside = ", ".join(text for _, text in parts) + more
    if isinstance(tree, dict):
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    return f"[{inside}]"
