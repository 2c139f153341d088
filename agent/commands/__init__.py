"""The commands of `optimize`, one file each, and the flags that several of them share.

A command's file holds its flags, what it does and what it prints; it imports the store, workers and lexers only when
it runs, since its page waits for what stands at its top.
"""

from importlib import util
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kerneltune.tools.schema.errors import UsageError

DATABASE = "runs.db"  # agent.record.store knows it too, and takes a third of a second to import

Task = Annotated[
    str,
    Parameter(metavar="TASK", help="A built-in task's name or a KernelBench problem file."),
]
Tier = Annotated[Literal["screened", "judged", "confirmed"] | None, Parameter(help="How thoroughly to judge on a GPU.")]
Width = Annotated[int | None, Parameter(metavar="N", help="Candidates under way at a time.")]
Arch = Annotated[str | None, Parameter(metavar="ARCH", help="Compile target when there is no GPU, such as sm_90.")]
Unsandboxed = Annotated[bool | None, Parameter(help="Run candidates even if they cannot be confined.", negative="")]
TrustTask = Annotated[
    bool, Parameter(help="Run the task's Python that came with a merged run, as you would a program.", negative="")
]
Counters = Annotated[
    bool | None, Parameter(help="Have ncu count what kernels judged in full do on the GPU.", negative="")
]
RunsDir = Annotated[Path | None, Parameter(metavar="DIR", help="Where runs are kept.")]
VerdictName = Literal[
    "accepted", "correct", "checked", "unchecked", "wrong", "compile_failed", "crashed", "timed_out", "rejected",
    "impossible",
]  # fmt: skip
Verdict = Annotated[
    VerdictName | None,
    Parameter(
        metavar="VERDICT",
        help="Only those with this verdict: accepted, correct, checked, wrong, rejected, …",
    ),
]
MinSpeedup = Annotated[
    float | None, Parameter(metavar="FACTOR", help="Only those at least this fast, over the fastest baseline.")
]
AsJson = Annotated[bool, Parameter(help="Print one JSON value on stdout.", negative="")]
AsLines = Annotated[bool, Parameter(help="Print one JSON object a line, ending in a result.", negative="")]
NoColour = Annotated[bool, Parameter(help="No colour.", negative="")]


def missing_for_export() -> list[str]:
    """The packages of the extra `export` that are not installed."""
    return [name for name in ("orjson", "pyarrow", "rensa") if util.find_spec(name) is None]


def service_socket(runs_dir: Path) -> Path:
    """Where the service of these runs listens, if there is one and it was told no other place."""
    return runs_dir / "service" / "optimize.sock"


def require_record(runs_dir: Path) -> None:
    """Raise UsageError where nothing is stored: opening a record would make an empty one."""
    if not (runs_dir / DATABASE).is_file():
        raise no_runs(runs_dir)


def no_runs(runs_dir: Path) -> UsageError:
    """Return the error of a command that needs a stored run."""
    return UsageError(f"no runs in {runs_dir}; make one with: optimize --task softmax")
