"""Messages between the judge and a runner, the same for every backend.

Pure data; the runner never learns a seed, an answer or a verdict."""

import math
from dataclasses import dataclass
from typing import Literal

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Launch, Plan

MAX_ROOMS = 512  # descriptors beside one message
MOST_LAUNCHES = 16  # of a forward that have a time each
_OTHERS = "others"


@dataclass(frozen=True)
class BufferRegion:
    """A named stretch of a buffer; so many bytes `behind` it may be read, too."""

    name: str
    offset: int
    nbytes: int
    behind: int = 0


@dataclass(frozen=True)
class Shared:
    """A device buffer of the judge. `handle` is its IPC handle in hexadecimal; where it is "", the buffer comes as a
    file descriptor beside the message, in the order in which the message names such buffers. What is not `writable`
    is mapped for reading only (by descriptor; an IPC handle knows no rights)."""

    nbytes: int
    handle: str = ""
    writable: bool = False


@dataclass(frozen=True)
class Allocation:
    """A tensor in room number `room` of a Load: "storage:<id>", or a kernel's scratch "launcher:<k>:<which>"."""

    name: str
    room: int
    nbytes: int


@dataclass(frozen=True)
class Load:
    """Load a plan to be checked; its cubins are the blobs, in the order of `metadata` and of the plan's kernels. Every
    storage is a piece of one of the judge's rooms, filled by the judge before each RunOnce. The answer is Done."""

    plan: Plan
    metadata: tuple[dict[str, Json], ...]
    rooms: tuple[Shared, ...]
    pieces: tuple[Allocation, ...]
    kind: Literal["load"] = "load"


@dataclass(frozen=True)
class RunOnce:
    """Lay the plan over its pieces at these offsets into their rooms, do what the constructor did, then one forward.
    The answer is Done."""

    offsets: tuple[int, ...]
    kind: Literal["run_once"] = "run_once"


@dataclass(frozen=True)
class Setup:
    """Load a plan (cubins as for Load) to be timed, on shared buffers. The answer is Done.

    Slot i reads its inputs at i * inputs_stride and writes its outputs at i * outputs_stride; the state is shared. Of
    `contents` slots that follow each other no two have the same inputs.
    """

    plan: Plan
    metadata: tuple[dict[str, Json], ...]
    inputs: Shared
    state: Shared
    outputs: Shared
    slots: int
    contents: int
    input_regions: tuple[BufferRegion, ...]
    inputs_stride: int
    state_regions: tuple[BufferRegion, ...]
    outputs_stride: int
    flush_bytes: int
    kind: Literal["setup"] = "setup"


@dataclass(frozen=True)
class GraphCapture:
    """Make a graph of one pass over all slots. The answer is Done."""

    kind: Literal["capture"] = "capture"


@dataclass(frozen=True)
class TimedBlock:
    """Time `passes` cold passes: reset, flush, then the graph between two events. The answer is Times."""

    passes: int
    turn: int
    kind: Literal["block"] = "block"


@dataclass(frozen=True)
class Replays:
    """Replay the graph `passes` times back to back, with nothing in between. The answer is Times (span only)."""

    passes: int
    kind: Literal["replays"] = "replays"


@dataclass(frozen=True)
class Resident:
    """Time `passes` passes of a plan whose large tensors are a few pages again and again, which the L2 holds. Their
    results are rubbish, and the graph has to be made again. The answer is Times; of no pass where it cannot be done."""

    passes: int
    kind: Literal["resident"] = "resident"


@dataclass(frozen=True)
class CopyOut:
    """Copy outputs that do not lie in the judge's buffer into it. The answer is Done."""

    kind: Literal["copy_out"] = "copy_out"


@dataclass(frozen=True)
class Steps:
    """Time the plan's own kernels and its other steps apart, over `passes` passes, and `groups` groups of launches: as
    many as `launch_groups` of the plan has. The answer is Shares."""

    passes: int
    groups: int = 0
    kind: Literal["steps"] = "steps"


@dataclass(frozen=True)
class Drop:
    """Forget the plan and unmap the buffers. The answer is Done."""

    kind: Literal["drop"] = "drop"


Request = Load | RunOnce | Setup | GraphCapture | TimedBlock | Replays | Resident | CopyOut | Steps | Drop


@dataclass(frozen=True)
class Done:
    """It is done, and the device is idle."""

    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class Times:
    """Device times of each pass and of the whole, from the first event to the last."""

    pass_us: tuple[float, ...]
    span_us: float
    kind: Literal["times"] = "times"


@dataclass(frozen=True)
class Shares:
    """Device time per forward in the plan's own kernels, in library operators, and in glue (copies, fills); and in each
    group of launches."""

    own_us: float
    library_us: float
    glue_us: float
    launches_us: tuple[float, ...] = ()
    kind: Literal["shares"] = "shares"


@dataclass(frozen=True)
class Failed:
    """The plan failed, and the runner exits: its context may be lost. `refused`: the plan itself is at fault, before
    anything ran. `no_memory`: the GPU's did not hold it, or the judge's could not be mapped: no fault of the plan's."""

    detail: str
    refused: bool = False
    no_memory: bool = False
    kind: Literal["failed"] = "failed"


Reply = Done | Times | Shares | Failed

# What a runner may answer to each request, besides Failed.
ANSWERS: dict[str, type] = {"block": Times, "replays": Times, "resident": Times, "steps": Shares}


def fits(request: Request, reply: Reply) -> bool:
    """Whether the reply is one that this request can have: its type, its length, and times that are times."""
    if isinstance(reply, Failed):
        return True
    if not isinstance(reply, ANSWERS.get(request.kind, Done)):
        return False
    if isinstance(reply, Times):
        passes = request.passes if isinstance(request, TimedBlock | Resident) else 0
        undone = isinstance(request, Resident) and not reply.pass_us
        return (undone or len(reply.pass_us) == passes) and all(map(_is_time, (*reply.pass_us, reply.span_us)))
    if isinstance(reply, Shares):
        groups = request.groups if isinstance(request, Steps) else 0
        times = (reply.own_us, reply.library_us, reply.glue_us, *reply.launches_us)
        return len(reply.launches_us) == groups and all(map(_is_time, times))
    return True


def _is_time(us: float) -> bool:
    return math.isfinite(us) and us >= 0


def launch_groups(plan: Plan) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What of a forward is timed apart: the name of a kernel, and the numbers of its launches among the steps. Each
    launch is a group; where there are more than MOST_LAUNCHES, those of one name are, and the last takes all others. A
    single launch has no group: its time is the forward's."""
    steps = [(n, s) for n, s in enumerate(plan.run) if isinstance(s, Launch) and 0 not in s.grid]
    if len(steps) < 2:
        return ()
    named = [(plan.kernels[step.kernel].name, number) for number, step in steps]
    if len(named) <= MOST_LAUNCHES:
        return tuple((name, (number,)) for name, number in named)
    groups: dict[str, list[int]] = {}
    for name, number in named:
        known = name in groups or len(groups) < MOST_LAUNCHES - 1
        groups.setdefault(name if known else _OTHERS, []).append(number)
    return tuple((name, tuple(numbers)) for name, numbers in groups.items())
