"""The input batteries: which of them a case of a task is checked with, and how a case is named to an author. Pure."""

from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Tier

CORE = ("own", "zero_mean", "scaled")  # every case is checked with them
PROBES = (
    "one_hot_left",
    "one_hot_right",
)  # tools.judge.correctness.inputs makes them: how many bits a contraction keeps
EXOTIC = ("spikes", "offset", "integers", "structure", "tiny", "huge", "specials", "indices", "one_index")
BATTERIES = (*CORE, *PROBES, *EXOTIC)  # tools.judge.correctness.inputs makes the rest; one may not apply to a case
_FEW = 2  # cases that share the exotic batteries


def batteries_of(task: TaskSpec, case: str, tier: Tier = "judged") -> tuple[str, ...]:
    """The batteries that a case is checked with.

    Judged: every case with the task's own, zero-mean and scaled inputs; the main case also with the probes, since a
    kernel may choose another path for it; the rest is shared by the cheapest cases, each battery on one of them.
    Confirmed: each on all of those. (Screening chooses for itself: `tools.judge.service.quick_check`.)
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
