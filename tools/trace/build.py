"""From what three forwards recorded to one launch plan. Pure: no torch, no triton.

The first forward may pack weights lazily; the second and third must do the same work, and that work is the plan's
`run`. Whatever `run` reads and does not make itself must be an input, a parameter of the reference, a constant, or be
made by `prepare`: the slice of __init__ (and of a lazy first forward) that produces it, which may not read inputs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kerneltune.tools.languages.base import effects_of, launch_effects
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.messages import (
    CACHED_RESULT,
    GIVEN_TO_CONSTRUCTOR,
    NO_LAUNCH,
    UNSTABLE,
    UNUSED_LAUNCHES,
    Refused,
)
from kerneltune.tools.schema.plan import (
    Aten,
    DescriptorArg,
    ForwardPass,
    Kernel,
    Launch,
    Origin,
    Plan,
    Step,
    Storage,
    TensorArg,
    TensorRef,
    live_steps,
    step_refs,
    tensor_refs,
)
from kerneltune.tools.schema.verdict import Cause


@dataclass(frozen=True)
class Segment:
    """One recorded forward: its steps, its input storages by name, and the returned tree."""

    steps: tuple[Step, ...]
    inputs: Mapping[int, str]
    outputs: Json


@dataclass(frozen=True)
class Recording:
    """Everything the tracer saw for one case. `state` maps storages to state_dict keys of the reference."""

    init: tuple[Step, ...]
    first: Segment
    second: Segment
    third: Segment
    state: Mapping[int, str]
    constants: Mapping[int, str]
    nbytes: Mapping[int, int]
    kernels: tuple[Kernel, ...] = field(default=())


def touched(step: Step) -> set[int]:
    """All storages that a step mentions."""
    return {ref.storage for ref in step_refs(step)}


def reads(step: Step) -> set[int]:
    """Storages a step may read."""
    return touched(step) if isinstance(step, Launch) else {r.storage for r in tensor_refs([*step.args, step.kwargs])}


def writes(step: Step) -> set[int]:
    """Storages a step may write: for a launch every tensor argument, whatever its text says."""
    if isinstance(step, Launch):
        return touched(step)
    return {r.storage for r in step.outs if r is not None}


def overwrites(step: Step) -> bool:
    """Whether the step makes its results without reading what was there before."""
    return isinstance(step, Aten) and not writes(step) & reads(step)


def _made_in(steps: Iterable[Step]) -> set[int]:
    """Storages whose first mention among these steps is as the result of one of them."""
    made: set[int] = set()
    seen: set[int] = set()
    for step in steps:
        if overwrites(step):
            made |= writes(step) - seen
        seen |= touched(step)
    return made


def _canonical(segment: Segment, constants: Mapping[int, str]) -> list[Json]:
    """The steps and outputs with inputs, constants and own storages renamed, so that two forwards can be compared."""
    names: dict[int, str] = {number: f"constant {data}" for number, data in constants.items()} | dict(segment.inputs)
    for number in sorted(_made_in(segment.steps)):
        names.setdefault(number, f"t{len(names)}")
    return [_rename(encode(s), names) for s in segment.steps] + [_rename(segment.outputs, names)]


def _rename(value: Json, names: Mapping[int, Any]) -> Json:
    if isinstance(value, dict):
        renamed = {k: _rename(v, names) for k, v in value.items()}
        if "storage" in renamed and "offset" in renamed:
            renamed["storage"] = names.get(value["storage"], value["storage"])
        return renamed
    if isinstance(value, list):
        return [_rename(v, names) for v in value]
    return value


def build_plan(recording: Recording, *, case: str, variant: str, arch: str) -> Plan:
    """The plan of one case. Raises Refused when the recording is not one fixed sequence of work."""
    run = recording.third
    _check_stable(recording)
    if not any(isinstance(s, Launch) for s in run.steps):
        ops = ", ".join(dict.fromkeys(s.op for s in run.steps if isinstance(s, Aten))) or "and no operator"
        raise Refused(NO_LAUNCH.format(ops=ops), Cause.NO_LAUNCH)
    steps = _live(recording)
    if not any(isinstance(s, Launch) for s in steps):
        ops = ", ".join(dict.fromkeys(s.op for s in steps if isinstance(s, Aten) and s.library))
        source = f"comes from library operators ({ops})" if ops else "needs none"
        raise Refused(UNUSED_LAUNCHES.format(source=source), Cause.UNUSED_LAUNCHES)
    external = _external(steps, run) - set(recording.state) - set(recording.constants)
    prepare = _prepare(recording, external)
    if external - set().union(*map(writes, prepare)):
        raise Refused(GIVEN_TO_CONSTRUCTOR, Cause.FOREIGN_MEMORY)
    return _assemble(recording, prepare, steps, case, variant, arch)


def _check_stable(recording: Recording) -> None:
    if stale := set().union(*map(touched, recording.third.steps)) & (
        set(recording.first.inputs) | set(recording.second.inputs)
    ):
        raise Refused(CACHED_RESULT + f" (storage {min(stale)} belongs to an earlier call)", Cause.CACHED_RESULT)
    second, third = (_canonical(s, recording.constants) for s in (recording.second, recording.third))
    if second != third:
        raise Refused(UNSTABLE.format(what=_difference(second, third)), Cause.UNSTABLE_HOST_CODE)


def _difference(a: list[Json], b: list[Json]) -> str:
    if len(a) != len(b):
        return f"{len(a) - 1} steps, then {len(b) - 1}"
    index = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return f"at step {index}: {_short(a[index])} against {_short(b[index])}"


def _short(step: Json) -> str:
    if isinstance(step, dict) and step.get("kind") == "launch":
        return f"launch of kernel {step['kernel']} with grid {step['grid']}"
    return str(step.get("op") if isinstance(step, dict) else step)[:120]


def _live(recording: Recording) -> list[Step]:
    """The steps without those whose results nobody uses (an unused `torch.empty`, a launch into memory that is let go
    of): they are no part of the work, and so no part of the plan."""
    run = recording.third
    outputs = {r.storage for r in tensor_refs(run.outputs)}
    if not outputs:  # that is another mistake, with words of its own
        return list(run.steps)
    effects = effects_of(recording.kernels)
    forward = ForwardPass(
        run.steps,
        lambda launch: launch_effects(launch, effects),
        outputs,
        inputs=set(run.inputs),
        made=_made_in(run.steps),
        nbytes=recording.nbytes,
    )
    return [step for step, alive in zip(run.steps, live_steps(forward), strict=True) if alive]


def _external(steps: list[Step], segment: Segment) -> set[int]:
    mentioned = set().union(*map(touched, steps)) | {r.storage for r in tensor_refs(segment.outputs)}
    return mentioned - _made_in(steps) - set(segment.inputs)


def _prepare(recording: Recording, external: set[int]) -> list[Step]:
    """The slice of __init__ and of the first forward that makes the external storages.

    What the first forward does on every call as well is its work, not preparation: only the steps that it does beyond
    those of the third (packing weights, allocating buffers, capturing a graph) are candidates.
    """
    history = [*recording.init, *_beyond(recording.first, recording.third, external)]
    needed, kept = set(external), []
    for step in reversed(history):
        if writes(step) & needed:
            kept.append(step)
            needed |= reads(step) - set(recording.state)
    if any(touched(s) & set(recording.first.inputs) for s in kept):
        raise Refused(CACHED_RESULT, Cause.CACHED_RESULT)
    return kept[::-1]


def _beyond(first: Segment, steady: Segment, external: set[int]) -> list[Step]:
    def keys(segment: Segment) -> list[str]:
        names: dict[int, str] = dict.fromkeys(_made_in(segment.steps) - external, "scratch") | dict(segment.inputs)
        return [json.dumps(_rename(encode(step), names), sort_keys=True) for step in segment.steps]

    usual = Counter(keys(steady))
    beyond = []
    for step, name in zip(first.steps, keys(first), strict=True):
        if usual[name]:
            usual[name] -= 1
        else:
            beyond.append(step)
    return beyond


def _assemble(recording: Recording, prepare: list[Step], run: list[Step], case: str, variant: str, arch: str) -> Plan:
    segment = recording.third
    order: dict[int, int] = {}
    for number in [*segment.inputs, *recording.state]:
        order.setdefault(number, len(order))
    for step in [*prepare, *run]:
        for number in sorted(touched(step)):
            order.setdefault(number, len(order))
    for ref in tensor_refs(segment.outputs):
        order.setdefault(ref.storage, len(order))
    made = _made_in(run)
    storages = tuple(_storage(recording, old, new, made) for old, new in order.items())
    kernels, numbers = _used_kernels(recording.kernels, [*prepare, *run])
    return Plan(
        case=case,
        variant=variant,
        arch=arch,
        storages=storages,
        kernels=kernels,
        prepare=tuple(_renumber(s, order, numbers) for s in prepare),
        run=tuple(_renumber(s, order, numbers) for s in run),
        outputs=_rename(segment.outputs, order),
    )


def _storage(recording: Recording, old: int, new: int, made: set[int]) -> Storage:
    nbytes = recording.nbytes.get(old, 0)
    origin: Origin
    if old in recording.third.inputs:
        return Storage(new, nbytes, "input", recording.third.inputs[old])
    if old in recording.state:
        return Storage(new, nbytes, "state", recording.state[old])
    if old in recording.constants:
        return Storage(new, nbytes, "constant", data=recording.constants[old])
    origin = "scratch" if old in made else "prepared"
    return Storage(new, nbytes, origin)


def _used_kernels(kernels: tuple[Kernel, ...], steps: list[Step]) -> tuple[tuple[Kernel, ...], dict[int, int]]:
    numbers: dict[int, int] = {}
    for step in steps:
        if isinstance(step, Launch):
            numbers.setdefault(step.kernel, len(numbers))
    return tuple(kernels[old] for old in numbers), numbers


def _renumber(step: Step, order: Mapping[int, int], kernels: Mapping[int, int]) -> Step:
    if isinstance(step, Launch):
        args = tuple(
            replace(a, tensor=replace(a.tensor, storage=order[a.tensor.storage]))
            if isinstance(a, TensorArg | DescriptorArg)
            else a
            for a in step.args
        )
        return replace(step, kernel=kernels[step.kernel], args=args)
    outs = tuple(None if r is None else _moved(r, order) for r in step.outs)
    return replace(step, args=tuple(_rename(list(step.args), order)), kwargs=_rename(step.kwargs, order), outs=outs)


def _moved(ref: TensorRef, order: Mapping[int, int]) -> TensorRef:
    return replace(ref, storage=order[ref.storage])
