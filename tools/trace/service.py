"""Has a source traced, by one confined worker for a set of cases. What the worker says is checked here and becomes a
value: plans under the cases' own names, or a verdict."""

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from kerneltune.tools.sandbox.workers import Worker
from kerneltune.tools.schema.codec import DecodeError, decode, encode
from kerneltune.tools.schema.errors import WorkerError, WorkerTimeout
from kerneltune.tools.schema.messages import AskCompiler, CompilerFacts, Failure, TraceReply, TraceRequest, traced_case
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.task import CaseSpec
from kerneltune.tools.schema.text import plain
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.trace.received import malformed

MAX_QUESTIONS = 32  # that one trace may put to the compiler
_MOST_LINES = 1 << 20  # of a source of 1 MiB
_MOST_DROPPED = 64
_MOST_PTX_LINES = 8
MOST_OF_A_MESSAGE = 1800  # leaves room for a note behind it in a detail of 2000 characters
_FAILURES = (
    Status.REJECTED,
    Status.COMPILE_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
)  # that tracer and compiler may claim


@dataclass(frozen=True)
class Traced:
    """Every plan of every case; or the failure and, if it is known, the case that it happened in."""

    plans: tuple[Plan, ...] = ()
    failure: Verdict | None = None
    failed_case: CaseSpec | None = None
    dropped_variants: tuple[str, ...] = ()


class Tracing:
    """Traces sources, each set of cases in a worker of its own. `facts` answers what host code asks of the compiler."""

    def __init__(
        self,
        new_tracer: Callable[[], Worker],
        facts: Callable[[Kernel], CompilerFacts],
        *,
        trace_s: float,
        variants: int,
    ) -> None:
        self._new_tracer, self._facts = new_tracer, facts
        self._trace_s, self._variants = trace_s, variants

    def trace(self, source: str, groups: Sequence[Sequence[CaseSpec]]) -> Generator[Traced, None, None]:
        """Trace the source for one group of cases after the other. All workers start at once, since that takes time,
        but each gets its cases only when the one before has ended: two that run at once could talk by what they do to
        processor and memory."""
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(self._new_tracer()) for _ in groups]
            for worker, cases in zip(workers, groups, strict=True):
                yield self._trace(worker, source, cases)

    def _trace(self, worker: Worker, source: str, cases: Sequence[CaseSpec]) -> Traced:
        """The worker knows its cases by number only."""
        asked = {str(number): case for number, case in enumerate(cases)}
        blind = tuple(traced_case(case, number) for number, case in asked.items())
        reply = self._reply(worker, TraceRequest(source, blind, self._variants))
        if reply.failure:
            return Traced(failure=verdict_of(reply.failure), failed_case=asked.get(str(reply.failed_case)))
        if forged := malformed(reply.plans, [replace(c, name=n) for n, c in asked.items()], self._variants):
            return Traced(failure=Verdict(Status.REJECTED, f"its process sent {forged}"))
        plans = tuple(replace(p, case=asked[p.case].name, variant=plain(p.variant)) for p in reply.plans)
        return Traced(plans, dropped_variants=tuple(plain(d, 500) for d in reply.dropped_variants[:_MOST_DROPPED]))

    def _reply(self, worker: Worker, request: TraceRequest) -> TraceReply:
        try:
            with worker:
                worker.send(encode(request))
                return self._answered(worker)
        except WorkerTimeout:
            limit = f"importing and tracing the candidate took longer than {self._trace_s:g} s"
            return TraceReply(failure=Failure(Status.TIMED_OUT, limit))
        except WorkerError as error:
            return TraceReply(failure=Failure(Status.CRASHED, f"while tracing, the process {end_of(error)}"))
        except (DecodeError, RecursionError) as error:
            return TraceReply(failure=Failure(Status.REJECTED, f"its process sent a malformed plan: {error}"))

    def _answered(self, worker: Worker) -> TraceReply:
        """The tracer's reply; before it, it may ask for facts that only the compiler knows."""
        left_s = self._trace_s
        for _ in range(MAX_QUESTIONS):
            said = worker.receive(timeout_s=max(0.1, left_s), max_blob_bytes=0)
            message: TraceReply | AskCompiler = decode(TraceReply | AskCompiler, said.body)  # type: ignore[arg-type]
            if isinstance(message, TraceReply):
                return message
            began_s = time.monotonic()
            worker.send(encode(self._facts(message.kernel)))
            left_s -= said.waited_s + time.monotonic() - began_s
        return TraceReply(
            failure=Failure(Status.REJECTED, f"host code asks the compiler more than {MAX_QUESTIONS} times")
        )


def end_of(error: WorkerError) -> str:
    """How a worker ended, and its last words."""
    tail = error.log.strip().splitlines()[-3:]
    return str(error).partition(" ")[2] + (": " + " | ".join(tail) if tail else "")


def verdict_of(failure: Failure, note: str = "") -> Verdict:
    """A tracer's or compiler's failure as a verdict; the candidate's own process may have written it."""
    if failure.status not in _FAILURES:
        return Verdict(Status.REJECTED, f"its process claims to be {failure.status.value!r} without a plan")
    line = failure.line if failure.line and 0 < failure.line <= _MOST_LINES else None
    where = f"line {line}: " if line else ""
    return Verdict(
        failure.status,
        f"{where}{plain(failure.message, MOST_OF_A_MESSAGE)}{note}",
        lines=(line,) if line else (),
        ptx_lines=tuple(n for n in failure.ptx_lines[:_MOST_PTX_LINES] if 0 < n <= _MOST_LINES),
    )
