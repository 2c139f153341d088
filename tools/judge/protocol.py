"""Messages between the supervisor and the judge's desk: what is asked, and what is told. Values never leave with them
except as blobs of inputs; a seed leaves with the result for its inputs, answers never leave at all."""

from dataclasses import dataclass
from typing import Literal

from tools.codec import Json
from tools.spec import TaskSpec
from tools.verdict import CaseResult


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
