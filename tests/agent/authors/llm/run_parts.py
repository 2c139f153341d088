"""Attempts of a run as prompts see them: made by hand, with a held-out case whose name and sizes must never show."""

from dataclasses import replace

from kerneltune.agent.attempt import Attempt, Proposal
from kerneltune.agent.events import Event, Reflected
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Timing, Verdict
from tests.agent.test_loop import NoteBench, NoteUpdater

SOURCE = '''"""Rows times a weight."""

import torch
from torch import nn

ROWS, COLS = 4096, 4096


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1) * self.weight
'''
CANDIDATE = '''import torch
import triton
import triton.language as tl
from torch import nn


class ModelNew(nn.Module):
    """Design {number}; it is said in ```backticks``` and {{ braces }}."""
'''
SECRETS = ("zanzibar", "2053", "8675309")  # a name, a size, a value: of the held-out case


def case(name: str, rows: int, cols: int, *, held_out: bool = False) -> CaseSpec:
    """A case of the task."""
    x = {"$tensor": TensorSpec((rows, cols), "float32")}
    weight = TensorSpec((cols,), "float32")
    size = 8 * rows * cols + 4 * cols
    return CaseSpec(name, (x,), (cols,), x, {"weight": weight}, size, held_out=held_out)


TASK = TaskSpec(
    "weighted_softmax",
    "0" * 64,
    "float32",
    SOURCE,
    (case("main", 4096, 4096), case("ragged", 129, 1000), case("zanzibar", 37, 2053, held_out=True)),
)


def workbench(*attempts: Attempt) -> AttemptTracker:
    """A bench that these attempts were made on."""
    events: list[Event] = []
    tools = Evaluator(NoteUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    return AttemptTracker("r", TASK, tools, events.append, list(attempts), len(attempts) + 1)


def with_products() -> AttemptTracker:
    """A bench whose task has contractions."""
    cases = (replace(TASK.main, flops=1 << 40), *TASK.cases[1:])
    return replace(workbench(), task=replace(TASK, cases=cases))


def attempt(number: int, verdict: Verdict, parent: int | None = None, rationale: str = "", source: str = "") -> Attempt:
    """Attempt r/number; what is not timed but right has a rank of bytes, spills, warps and registers."""
    report = KernelReport("rows_kernel", 40 + number, 0, 16 * (number % 3), 0, 32768, 8, 3, 0.75, "f" * 64)
    text = source or CANDIDATE.replace("{number}", str(number))
    proposal = Proposal(text, rationale or f"idea {number}", f"r/{parent}" if parent else None)
    key: tuple[float, ...] = (134_217_728.0, 16.0 * (number % 3), -0.75, 40.0 + number) if verdict.accepted else ()
    if verdict.timing:
        key = (verdict.timing.median_us,)
    return Attempt(
        **vars(proposal), attempt_id=f"r/{number}", number=number, verdict=verdict, kernels=(report,), rank_key=key
    )


def timed(us: float) -> Verdict:
    """Right, and so fast."""
    return Verdict(
        Status.CORRECT,
        "right on 21 comparisons",
        (CaseResult("main", "own", True, 0.1, 1e-7), CaseResult("zanzibar", "own", True, 0.2, 8675309.0)),
        Timing(us, us * 0.99, us * 1.01, 40, 400),
        (Comparison("torch.compile", 50.0, 50 / us, 49 / us, 51 / us),),
        coverage=1.0,
        sol_fraction=28 / us,
        variant="rows_kernel: BLOCK: 4096, num_warps: 8",
        tier="judged",
        receipt={"seeds": {"zanzibar/own": 8675309}},
    )


def wrong(name: str = "ragged") -> Verdict:
    """Wrong in that case."""
    failed = CaseResult(name, "offset", False, 310.0, 8675309.0 if name == "zanzibar" else 0.5, f"{name} [37, 2053]")
    where = f"case {name!r} (37 x 2053) is wrong by 8675309" if name == "zanzibar" else f"case {name!r} is wrong"
    ok = CaseResult("main", "own", True, 0.1, 1e-7)
    return Verdict(Status.WRONG, where, (ok, failed), receipt={"case": name, "seed": 8675309})


def checked() -> Verdict:
    """Right on a machine without a GPU."""
    return Verdict(Status.CHECKED, "right on the small cases")


REJECTED = Verdict(Status.REJECTED, "line 12: forward reads a tensor's value on the host\nKeep it on the device")


def reflected(number: int, outcome: str, predicted: float | None, ratio: float | None, words: str = "") -> Reflected:
    """What was thought of an attempt, and what came of it."""
    facts = {
        "predicted_speedup": predicted,
        "measured_speedup": 1 / ratio if isinstance(ratio, float) and ratio else ratio,
    }
    hypothesis = words or f"the loads of #{number} wait for each other"
    return Reflected("r", f"r/{number}", hypothesis, words or "two loads in flight are faster", facts, outcome)  # type: ignore[arg-type]


def story() -> list[Attempt]:
    """A short run: two designs, a refusal, a child that is faster, two that are wrong (one only in secret)."""
    return [
        attempt(1, timed(41.5), rationale="one program a row | registers"),
        attempt(2, REJECTED, rationale="branch on the maximum"),
        attempt(3, timed(33.25), 1, "16 bytes a thread\nand two rows a program"),
        attempt(4, wrong(), 3, "no mask at the tail"),
        attempt(5, wrong("zanzibar"), 3, "blocks of 1024"),
    ]


THOUGHTS = [
    reflected(3, "confirmed", 1.3, 0.8012),
    reflected(4, "refuted", 2.0, None),
    reflected(1, "open", None, None),
]
