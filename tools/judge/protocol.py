"""Messages between the supervisor and the judge's desk: what is asked, and what is told. Values never leave with them
except as blobs of inputs; a seed leaves with the result for its inputs, answers never leave at all."""

from dataclasses import dataclass
from typing import Literal

from tools.codec import Json
from tools.spec import TaskSpec
from tools.verdict import CaseResult, Tier

CORE = ("own", "zero_mean", "scaled")  # every case is checked with them
PROBES = ("one_hot_left", "one_hot_right")  # tools.judge.probe makes them: how many bits a contraction keeps
EXOTIC = ("spikes", "offset", "integers", "structure", "tiny", "huge", "specials", "indices", "one_index")
BATTERIES = (*CORE, *PROBES, *EXOTIC)  # tools.judge.inputs makes the rest; one may not apply to a case
_FEW = 2  # cases that share the exotic batteries


def batteries_of(task: TaskSpec, case: str, tier: Tier = "judged") -> tuple[str, ...]:
    """The batteries that a case is checked with.

    Judged: every case with the task's own, zero-mean and scaled inputs; the main case also with the probes, since a
    kernel may choose another path for it; the rest is shared by the cheapest cases, each battery on one of them.
    Confirmed: each on all of those. (Screening chooses for itself: `tools.judge.screening`.)
    """
    main = task.main.name
    cheapest = [c.name for c in sorted(task.cases, key=lambda c: (c.bytes_moved + c.flops, c.name))]
    sharing = cheapest[:_FEW]
    shared: tuple[str, ...] = ()
    if case in sharing:
        shared = EXOTIC if tier == "confirmed" else EXOTIC[sharing.index(case) :: len(sharing)]
    wanted = {*CORE, *shared, *(PROBES if case in (main, sharing[0]) else ())}
    return tuple(b for b in BATTERIES if b in wanted)


HIDDEN_CASE = "a held-out case"


def case_in_words(task: TaskSpec, case: str, battery: str = "") -> str:
    """A case as an author may read of it, with the inputs of a visible one if they are given."""
    if task.case(case).held_out:
        return HIDDEN_CASE
    return f"case {case} ({battery} inputs)" if battery else f"case {case}"


@dataclass(frozen=True)
class Open:
    """Load a task file. The answer is Opened."""

    name: str
    path: str
    kind: Literal["open"] = "open"


@dataclass(frozen=True)
class Opened:
    """The task as seen from outside, or why it cannot be used. `notes`: how far verdicts on it can be trusted."""

    task: TaskSpec | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True)
class NewInputs:
    """Draw inputs for a frozen plan: the seed depends on the plan's hash and the judge's secret."""

    case: str
    battery: str
    plan_sha256: str
    kind: Literal["new_inputs"] = "new_inputs"


@dataclass(frozen=True)
class PreparedInputs:
    """Names of the blobs that follow ("input:0", "state:weight"); None of them when the battery does not apply, or is
    left out because the memory is `short`."""

    names: tuple[str, ...]
    applies: bool = True
    short: bool = False
    kind: Literal["prepared_inputs"] = "prepared_inputs"


@dataclass(frozen=True)
class Compare:
    """Judge outputs: the tree has {"$blob": i, "dtype", "shape"} leaves; the blobs follow."""

    case: str
    battery: str
    plan_sha256: str
    outputs: Json
    kind: Literal["compare"] = "compare"


@dataclass(frozen=True)
class Judgement:
    """The result of a comparison, and the seed that its inputs were drawn from, which is no secret any more."""

    result: CaseResult
    seed: int = 0
    kind: Literal["judgement"] = "judgement"
