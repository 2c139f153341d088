"""What is known of a stored attempt, in a few columns. Pure.

Three values where two would lie: a label is None when nobody found out (never judged, or not without a GPU). `why` is
made of words of a closed set, so that it can be counted and filtered: nothing of the candidate's own text is in it.
"""

import builtins
from typing import Final, NamedTuple

from agent.record.trajectory import AttemptRecord
from tools.verdict import Status

_RIGHT = (Status.CHECKED, Status.CORRECT)


class Labels(NamedTuple):
    """The labels of one attempt.

    `compilable`: tracer and compiler accepted it. None: never judged, or found wrong before it was compiled.
    `correct`: right as far as known. None: never judged, or nothing on the machine could run it.
    `timed`: `correct` rests on a GPU, where every timed output was checked; otherwise on an interpreter of small cases.
    `faster`: the lower end of its speed-up's interval is above 1 against the fastest baseline. None when not timed.
    `impossible`: faster than light, or the clocks disagree: a cheat, or a broken measurement.
    `why`: status/tool/reason of an attempt that is not right, see `REASONS`; "" for one that is, or was never judged.
    `verified`: `optimize verify` bore its verdict out. None: nobody verified it.
    """

    compilable: bool | None
    correct: bool | None
    timed: bool
    faster: bool | None
    impossible: bool
    why: str
    verified: bool | None


def labels(attempt: AttemptRecord) -> Labels:
    """The labels of an attempt."""
    status = attempt.status
    return Labels(
        compilable(attempt),
        correct(attempt),
        attempt.timing is not None,
        _faster(attempt),
        status is Status.IMPOSSIBLE,
        rejected_why(attempt),
        attempt.held,
    )


def compilable(attempt: AttemptRecord) -> bool | None:
    """Whether tracer and compiler accepted it; None when it never came to that."""
    status = attempt.status
    if attempt.tool != "update":
        return None if status is None else status is not Status.COMPILE_FAILED
    return None if status is Status.WRONG else False


def correct(attempt: AttemptRecord) -> bool | None:
    """Whether it is right, as far as the machine that judged it could tell; None when it could not."""
    status = attempt.status
    return None if status is None or status is Status.UNCHECKED else status in _RIGHT


def _faster(attempt: AttemptRecord) -> bool | None:
    compared = attempt.comparisons
    if attempt.timing is None or not compared:
        return None
    return min([c.low for c in compared]) > 1.0


def rejected_why(attempt: AttemptRecord) -> str:
    """Why it is not right, as "status/tool/reason"; "" when it is, or when nobody judged it."""
    status = attempt.status
    if status is None or status in _RIGHT:
        return ""
    return f"{status.value}/{attempt.tool}/{_reason(status, attempt.detail)}"


_OTHER: Final = "other"
_OWN: Final = "own_exception"
_MOST_OF_A_DETAIL = 400  # longer ones quote the compiler; what they are is said at the beginning or at the end
_RAISED = "host code raised "
_COMPILER = frozenset({"CompilationError", "OutOfResources", "PTXASError", "CompileTimeAssertionFailure"})
_BUILTIN = frozenset(n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException))

# Words of a detail, the reason they stand for; the first that occurs counts. Most of the words are those of
# tools/plan/messages.py, the packages correctness and execution of tools/judge, and tools/bench.py; a test holds
# them together.
_REFUSALS = (
    ("reads a tensor's value", "reads_value"),
    ("shape depends on values", "data_dependent_shape"),
    ("launches no kernel", "no_launch"),
    ("no kernel of the candidate's own", "no_launch"),
    ("kernels' results are not used", "unused_launches"),
    ("is the same without your kernels", "unused_launches"),
    ("the second forward reuses", "cached_result"),
    ("two traces of forward", "unstable_host_code"),
    ("has no Python body", "unknown_operator"),
    ("cannot be part of a launch plan", "operator_not_allowed"),
    ("torch.compile / torch.jit", "torch_compile"),
    ("runs autograd", "autograd"),
    ("device addresses into a tensor", "pointer_table"),
    ("move it to the GPU with", "foreign_tensor"),
    ("no tensor's address", "foreign_pointer"),
    ("Gluon kernels", "gluon"),
    ("cannot time kernels", "times_kernels"),
    ("triton.compile of an IR file", "compiles_ir"),
    ("defines no class ModelNew", "no_model"),
    ("defines no forward", "no_model"),
    ("SyntaxError", "syntax"),
    ("IndentationError", "syntax"),
    ("TabError", "syntax"),
    ("nested too deeply", "syntax"),
    ("the source ", "source"),
    ("its process sent", "forged_reply"),
    ("its process claims", "forged_reply"),
    ("forward returns", "returns"),
    ("asks for registers", "asks_compiler"),
    ("asks the compiler", "asks_compiler"),
    ("the compile option", "compile_option"),
    ("not one of Triton's", "foreign_code"),
    ("module variable", "foreign_code"),
    ("held-out", "held_out"),
    ("the limit is", "too_much"),
    ("makes more than", "too_much"),
    ("ModelNew", "signature"),
)
_WRONGS = (
    ("forward returns", "returns"),
    ("never written", "unwritten"),
    ("overwrites", "overwrites"),
    ("out of bounds", "out_of_bounds"),
    ("reads outside of them", "out_of_bounds"),
    ("right in some runs", "race"),
    ("what its memory held before", "reads_unwritten"),
    ("all zeros", "constant"),
    (" everywhere", "constant"),
    ("NaN", "not_finite"),
    ("the tail of each row", "mask"),
    ("the grid is too small", "grid"),
    ("rows are wrong throughout", "some_rows"),
    ("accumulator is too narrow", "precision"),
    ("looks like", "precision"),
    ("kernel computes in", "precision"),
    ("kernel keeps", "precision"),
    ("too imprecise", "precision"),
    ("times the right value", "scale"),
    ("is off by", "offset"),
    ("right values, transposed", "transposed"),
    ("held-out", "held_out"),
    ("elements wrong", "values"),
    (": expected ", "returns"),
)
_CRASHES = (
    ("out-of-bounds", "out_of_bounds"),
    ("illegal memory access", "out_of_bounds"),
    ("misaligned", "misaligned"),
    ("assert", "assertion"),
    ("a trap", "trap"),
    ("while tracing", "tracer_died"),
    ("runs the kernels died", "runner_died"),
    ("ran the kernels died", "runner_died"),
    ("malformed reply", "runner_died"),
)
_TIME_OUTS = (
    ("importing and tracing", "tracing"),
    ("compiling", "compiling"),
    ("step limit", "running"),
    ("timed out", "running"),
    ("ran longer", "running"),
    ("interpreter", "running"),
)
_IMPOSSIBLES = (
    ("below the speed of light", "speed_of_light"),
    ("back to back", "hidden_time"),
    ("empty launches", "null_launch"),
    ("clocks disagree", "clocks"),
    ("has seen before", "memoised"),
    ("is no time", "no_time"),
)
_UNCHECKEDS = (
    ("no case of this task is small enough", "no_small_case"),
    ("not checkable without a GPU", "needs_gpu"),
    ("do not fit the GPU's memory", "memory"),
    ("not fit to time it", "throttled"),
)
_MARKS = {
    Status.REJECTED: _REFUSALS,
    Status.COMPILE_FAILED: (("ptxas", "PTXASError"), ("the compiler ", "compiler_died")),
    Status.WRONG: _WRONGS,
    Status.CRASHED: _CRASHES,
    Status.TIMED_OUT: _TIME_OUTS,
    Status.IMPOSSIBLE: _IMPOSSIBLES,
    Status.UNCHECKED: _UNCHECKEDS,
}


def _all_reasons() -> frozenset[str]:
    marked = {reason for marks in _MARKS.values() for _, reason in marks}
    return frozenset({_OTHER, _OWN, *marked, *_COMPILER, *_BUILTIN})


REASONS: Final = _all_reasons()  # every third part that `rejected_why` can have


def _reason(status: Status, detail: str) -> str:
    if len(detail) > _MOST_OF_A_DETAIL:
        detail = detail[: _MOST_OF_A_DETAIL // 2] + detail[-_MOST_OF_A_DETAIL // 2 :]
    if status is Status.CRASHED and _RAISED in detail:
        name = detail.partition(_RAISED)[2].partition(":")[0]
        return name if name in _BUILTIN else _OWN  # a candidate may call its own as it likes
    if status is Status.COMPILE_FAILED and (cause := _cause(detail)):
        return cause
    return next((reason for mark, reason in _MARKS[status] if mark in detail), _OTHER)


def _cause(detail: str) -> str:
    """The last exception of Python's or the compiler's that is named: Triton quotes the cause after the source."""
    end = len(detail)
    while (end := detail.rfind("Error", 0, end)) >= 0:  # a regular expression takes 40 µs
        start = end
        while start and detail[start - 1].isalpha():
            start -= 1
        if (name := detail[start : end + 5]) in _BUILTIN or name in _COMPILER:
            return name
    return next((name for name in sorted(_COMPILER) if name in detail), "")
