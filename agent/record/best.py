"""The best kernel of a run as a file that a person can use: source under a header that says what was proved."""

from pathlib import Path

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.folder import receipt_path, write_whole
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Verdict


def write_best(folder: Path, attempt: Attempt, run: RunStarted, task: TaskSpec) -> Path:
    """Write `folder`/best.py atomically and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "best.py"
    source = attempt.source.removeprefix("\ufeff")  # legal at the start of a file only
    write_whole(path, (header(attempt, run, task) + source).encode())
    return path


def header(attempt: Attempt, run: RunStarted, task: TaskSpec) -> str:
    """What was proved, where, and how to use it, as comments.

    Models and files chose parts of these texts. The first two lines are fixed, because Python takes an encoding
    ("coding: utf-7") from any comment there.
    """
    verdict = attempt.judged
    lines = [
        "The best accepted kernel of a kerneltune run.",
        "",
        f"{task.name}: attempt {attempt.number} of run {run.run_id} ({attempt.rationale})",
        "",
        f"Verdict: {verdict.status.value}. {verdict.detail}",
        *_measured(verdict),
        *_compiled(attempt),
        f"Where: {run.gpu or 'no GPU (TTIR interpreter)'}; compiled for {run.arch}; "
        + ", ".join(f"{k} {v}" for k, v in run.versions.items() if k in ("torch", "triton", "kerneltune")),
        f"Task: sha256 {run.task_sha256[:16]}, precision {task.precision}",
        f"Receipt: {receipt_path(Path(), attempt.attempt_id)}; repeat it with: optimize verify {attempt.attempt_id}",
        "",
        "Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.",
    ]
    return "".join(map(_comment, lines)) + "\n"


def _comment(text: str) -> str:
    """The text as one line of comment; what is not printable (line breaks, escape sequences) appears as an escape."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return f"# {''.join(shown)}".rstrip() + "\n"


def _measured(verdict: Verdict) -> list[str]:
    if verdict.timing is None:
        return ["Not timed: there was no GPU."]
    timing = verdict.timing
    tier = f", {verdict.tier}" if verdict.tier else ""
    lines = [f"Time: median {timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}], cold L2{tier}"]
    return lines + [
        f"Speed-up over {c.baseline}: {c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}] ({c.baseline_us:.2f} us)"
        for c in verdict.comparisons
    ]


def _compiled(attempt: Attempt) -> list[str]:
    return [
        f"Kernel {k.name}: {k.registers} registers, {k.spill_store_bytes + k.spill_load_bytes} bytes spilled, "
        f"{k.shared_bytes} bytes shared, occupancy {k.occupancy:.2f}"
        for k in attempt.kernels
    ]
