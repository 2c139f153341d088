"""Is what a tracer sent a set of plans at all? The candidate's code ran in its process and may have written the reply
itself: a reply that passes here can be hashed, counted and handed on without raising. Pure.
"""

from collections.abc import Iterator, Sequence

from tools.codec import DecodeError, Json, decode
from tools.plan.schema import DescriptorArg, Launch, Plan, Step, TensorArg, TensorRef
from tools.spec import CaseSpec

MOST_NESTED = 50


def malformed(plans: Sequence[Plan], cases: Sequence[CaseSpec], max_variants: int) -> str | None:
    """What is wrong with a reply's plans, or None."""
    names = [case.name for case in cases]
    if strange := sorted({p.case for p in plans} - set(names)):
        return f"plans for an unknown case {strange[0]!r:.80}"
    for name in names:
        count = sum(p.case == name for p in plans)
        if not 1 <= count <= max(1, max_variants):
            return f"{count} plans for one case, of at most {max_variants}"
    return next(filter(None, map(_problem, plans)), None)


def _problem(plan: Plan) -> str | None:
    if not any(isinstance(step, Launch) and min(step.grid) > 0 for step in plan.run):
        return "a plan that launches no program of a kernel"
    known = {s.id for s in plan.storages if s.nbytes >= 0}
    if len(known) != len(plan.storages):
        return "a plan whose storages are not distinct"
    steps = (*plan.prepare, *plan.run)
    if any(not 0 <= step.kernel < len(plan.kernels) for step in steps if isinstance(step, Launch)):
        return "a launch of a kernel that is not in the plan"
    try:
        refs = [*_tagged(plan.outputs), *(ref for step in steps for ref in _refs(step))]
    except DecodeError as error:
        return f"a plan with a tensor that is none: {error!s:.200}"
    if bad := next((r for r in refs if not _is_sound(r, known)), None):
        return f"a plan with a tensor that is none: {bad!s:.200}"
    inputs = {s.id for s in plan.storages if s.origin == "input"}
    if any(ref.storage in inputs for step in plan.prepare for ref in _refs(step)):
        return "a plan that works on the inputs before it is timed"
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
