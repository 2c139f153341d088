"""KernelGYM's words: what its clients send to /evaluate, and an attempt as they read it.

Field names and meanings are those of its server (hkust-nlp/KernelGYM, kernelgym/server/api/models.py), where times are
milliseconds. What its clients count as a reward is made of facts alone: a kernel's failure is `completed`, with what
failed, and whatever this machine could not find out is `failed`, which they take for an error. Its server answers so
with status 200, and it must be: of another status its clients make an error that quotes the URL, with the token in it,
and show that to the model they train.
"""

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.commands.session import Patience
from kerneltune.tools.receipt import author_view
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import KerneltuneError, UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Cause, Status

MOST_TASKS = 100  # of a batch
_MOST_CODE = 100_000  # characters
_EAGER = ("pytorch", "torch", "eager")
_COMPILED = ("torch_compile", "torch-compile", "compile")
_NO_KERNEL = (Cause.NO_LAUNCH, Cause.UNUSED_LAUNCHES, Cause.CACHED_RESULT, Cause.FORGED_REPLY)
_CODES = {
    Status.COMPILE_FAILED: "COMPILATION_ERROR",
    Status.REJECTED: "VALIDATION_ERROR",
    Status.WRONG: "CORRECTNESS_ERROR",
    Status.IMPOSSIBLE: "CORRECTNESS_ERROR",
    Status.CRASHED: "RUNTIME_ERROR",
    Status.TIMED_OUT: "TIMEOUT_ERROR",
}
SYSTEM_ERROR = "SYSTEM_ERROR"


class NotMeasured(KerneltuneError):
    """This machine could not find out what was asked, which says nothing about the kernel."""


class EvaluationBody(BaseModel):
    """A kernel to evaluate. What else KernelGYM's clients send (numbers of trials, caches) is how it would be measured
    there, and is not heeded."""

    model_config = ConfigDict(extra="ignore")

    task_id: str = Field(min_length=1, max_length=100)
    reference_code: str = Field(min_length=10, max_length=_MOST_CODE)
    kernel_code: str = Field(min_length=10, max_length=_MOST_CODE)
    entry_point: str = Field(
        default="Model", pattern=r"^[A-Za-z_]\w{0,99}$", description="The reference's class; the kernel's ends in New."
    )
    backend: Literal["triton", "cuda"] = "triton"
    timeout: int = Field(default=300, ge=10, le=3600, description="Seconds for one step of the candidate.")
    priority: Literal["low", "normal", "high"] = "normal"
    force_refresh: bool = False
    reference_backend: str | None = Field(default=None, max_length=40, description="pytorch, or torch_compile.")
    workflow: str | None = "kernelbench"
    run_performance: bool | None = None
    measure_performance: bool | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a time is asked for."""
        asked = self.measure_performance if self.run_performance is None else self.run_performance
        return asked is not False

    @property
    def digest(self) -> bytes:
        """Of what is evaluated: clients may give two kernels one name, and want the result of each."""
        asked = self.reference_code, self.kernel_code, self.entry_point, self.backend, self.reference_backend
        return hashlib.sha256(repr((*asked, self.workflow, self.is_timed)).encode()).digest()

    @property
    def baseline(self) -> str | None:
        """What the kernel is compared with; None for what is not known here."""
        name = (self.reference_backend or "eager").lower()
        return "eager" if name in _EAGER else "compile" if name in _COMPILED else None

    @property
    def reference(self) -> str:
        """The reference, whose class is called Model."""
        return self.reference_code + self._also("Model", self.entry_point)

    @property
    def kernel(self) -> str:
        """The kernel's file, whose class is called ModelNew."""
        return self.kernel_code + self._also("ModelNew", f"{self.entry_point}New")

    def lacks_time(self, attempt: Attempt) -> bool:
        """Whether a right kernel was not timed against the baseline that was asked for: a first look times the fastest
        alone, as soon as it knows which that is."""
        return attempt.accepted and self.is_timed and all(c.baseline != self.baseline for c in attempt.comparisons)

    def _also(self, name: str, entry_point: str) -> str:
        return "" if name == entry_point else f"\n\n{name} = {entry_point}\n"

    @property
    def patience(self) -> Patience:
        """How long a step of the candidate may take."""
        usual = Patience()
        return Patience(
            min(usual.trace_s, self.timeout), min(usual.compile_s, self.timeout), min(usual.replay_s, self.timeout)
        )

    def refuse_what_is_not_here(self, *, gpu: bool) -> None:
        """Raise UsageError for what no verdict would answer."""
        if (self.workflow or "kernelbench") != "kernelbench":
            raise UsageError(f"workflow {self.workflow!r:.40} is not served; kernelbench is")
        if self.backend != "triton":
            raise UsageError(f"backend {self.backend!r} is not served; triton is")
        if self.baseline is None:
            raise UsageError(f"reference_backend {self.reference_backend!r} is none of pytorch, torch_compile")
        if self.is_timed and not gpu:
            raise UsageError("nothing is timed here, because there is no GPU; set run_performance to false")


class BatchBody(BaseModel):
    """Several kernels to evaluate."""

    model_config = ConfigDict(extra="ignore")

    batch_id: str = Field(max_length=200)
    tasks: list[EvaluationBody] = Field(min_length=1, max_length=MOST_TASKS)


def evaluation(asked: EvaluationBody, attempt: Attempt, task: TaskSpec) -> dict[str, Json]:
    """What became of a kernel, in words that a model may be shown. A number that was not measured is as in KernelGYM:
    -1 of a time, 0 of a speed-up. Raises NotMeasured."""
    verdict, timing, detail = attempt.judged, attempt.timing, author_view(attempt.judged, task).detail
    if verdict.status is Status.UNCHECKED:
        raise NotMeasured(f"this machine could not check it: {detail}")
    if asked.lacks_time(attempt):
        raise NotMeasured(f"right, but not timed against {asked.baseline}: {detail}")
    compared = next((c for c in attempt.comparisons if c.baseline == asked.baseline), None)
    kernel_us = timing.median_us if timing else None
    return {
        "task_id": asked.task_id,
        "status": "completed",
        "compiled": attempt.tool != "update",
        "correctness": verdict.accepted,
        "decoy_kernel": verdict.status is Status.IMPOSSIBLE or verdict.cause in _NO_KERNEL,
        "reference_runtime": compared.baseline_us / 1e3 if compared else -1.0,
        "kernel_runtime": kernel_us / 1e3 if kernel_us is not None else -1.0,
        "speedup": compared.speedup if compared else 0.0,
        "metadata": _metadata(attempt, kernel_us),
        "error_message": None if verdict.accepted else detail,
        "error_code": None if verdict.accepted else _CODES[verdict.status],
        "processing_time": round(sum(filter(None, (attempt.trace_s, attempt.compile_s, attempt.bench_s))), 3),
    }


def _metadata(attempt: Attempt, kernel_us: float | None) -> dict[str, Json]:
    """What its rewards for coverage are made of; times are of one forward, in microseconds."""
    told: dict[str, Json] = {
        "verdict": attempt.judged.status.value,
        "attempt_id": attempt.attempt_id,
        "num_custom_kernels": len(attempt.kernels),
        "num_total_kernels": len(attempt.kernels) + len(attempt.library_ops),
    }
    if kernel_us is not None and attempt.coverage is not None:
        told |= {
            "custom_kernel_cuda_time_in_profiling_us": kernel_us * attempt.coverage,
            "total_kernel_run_time_in_profiling_us": kernel_us,
        }
    return told


def failed(task_id: str, message: str) -> dict[str, Json]:
    """What could not be found out. No field says anything about the kernel."""
    return {"task_id": task_id, "status": "failed", "error_message": message, "error_code": SYSTEM_ERROR}


def batch(batch_id: str, results: list[dict[str, Any]]) -> dict[str, Json]:
    """What became of a batch."""
    n_failed = sum(result["status"] == "failed" for result in results)
    return {
        "batch_id": batch_id,
        "total_tasks": len(results),
        "completed_tasks": len(results) - n_failed,
        "failed_tasks": n_failed,
        "results": results,
        "batch_status": "completed",  # of the batch as such; each result says its own
    }
