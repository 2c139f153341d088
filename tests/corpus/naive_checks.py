"""How many of the honest kernels would be refused by the simple checks that evaluators use?

    python -m tests.corpus.naive_checks [--run]

Three kinds. "static": found by reading the candidate (docstring and SPECIMEN removed), as such filters do. "reference":
what the check looks at is seen on the task's own reference, whose values an honest kernel shares. "measured", with
--run only: from the errors that the real evaluator measured against float64 while it accepted the kernel.
"""

import ast
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kerneltune.tools.corpus import Specimen
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.tree import tensors
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Worker
from kerneltune.tools.schema.verdict import CaseResult
from kerneltune.tools.task.load import find_task
from tests.corpus.conftest import HONEST, PATIENT, PATIENT_CASE_TIMEOUT_S, Judge

HARMLESS = (
    r"nn|empty\w*|zeros\w*|full|Tensor|device|dtype|library|ops|autograd|cuda|float\d*|bfloat16|int\d+|uint8|bool"
)


@dataclass(frozen=True)
class Check:
    """One naive check; `refuses` says whether a specimen falls to it."""

    name: str
    kind: str
    refuses: Callable[[Specimen], bool]


@dataclass(frozen=True)
class Row:
    """What one check does to the honest kernels."""

    check: Check
    refused: tuple[str, ...]
    of: int


@cache
def code_of(path: Path) -> str:
    """The candidate without its docstring, its SPECIMEN and its comments."""
    tree = ast.parse(path.read_text())
    tree.body = [n for n in tree.body[1:] if not (isinstance(n, ast.Assign) and ast.unparse(n).startswith("SPECIMEN"))]
    return ast.unparse(tree)


def holds(pattern: str) -> Callable[[Specimen], bool]:
    """A filter by regular expression, as KernelBench's and its successors'."""
    found = re.compile(pattern)
    return lambda specimen: found.search(code_of(specimen.path)) is not None


def launches_nothing_in_sight(specimen: Specimen) -> bool:
    """No `kernel[grid](...)` in the body of ModelNew.forward."""
    classes = [
        n for n in ast.parse(code_of(specimen.path)).body if isinstance(n, ast.ClassDef) and n.name == "ModelNew"
    ]
    forwards = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    calls = (n for f in forwards for n in ast.walk(f) if isinstance(n, ast.Call))
    return not any(isinstance(call.func, ast.Subscript) for call in calls)


def keeps_something(specimen: Specimen) -> bool:
    """An empty dict, or a None to be replaced, that outlives a call; or the word cache."""
    tree = ast.parse(code_of(specimen.path))
    kept = (n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and _outlives(n.targets[0], tree, n))
    empty = any(
        (isinstance(v, ast.Dict) and not v.keys) or (isinstance(v, ast.Constant) and v.value is None) for v in kept
    )
    return empty or re.search(r"cache", code_of(specimen.path), re.IGNORECASE) is not None


def _outlives(target: ast.expr, tree: ast.Module, assignment: ast.Assign) -> bool:
    return isinstance(target, ast.Attribute) or assignment in tree.body


@cache
def reference_outputs(task: Path | str) -> tuple[torch.Tensor, ...]:
    """What the reference returns for its first small case."""
    file = find_task(str(task))
    name = next(case.name for case in file.cases if case.cpu)
    problem = Problem.load(file, name)
    drawn = problem.draw(7)
    assert drawn is not None
    return tuple(tensors(problem.native(drawn.inputs)))


def output_is_not_finite(specimen: Specimen) -> bool:
    """assert torch.isfinite(output).all()"""
    return not all(bool(t.isfinite().all()) for t in reference_outputs(specimen.task))


def output_is_not_one_float_tensor(specimen: Specimen) -> bool:
    """torch.allclose(output, expected) raises TypeError or RuntimeError."""
    outputs = reference_outputs(specimen.task)
    return len(outputs) != 1 or not outputs[0].is_floating_point()


CHECKS = (
    Check("`try` or `pass` anywhere (KernelBench, strict)", "static", holds(r"\btry:|\bpass\b")),
    Check("a torch function other than an allocation", "static", holds(rf"\btorch\.(?!(?:{HARMLESS})\b)\w+\(")),
    Check("a cache: an empty dict or None that outlives a call", "static", keeps_something),
    Check("`data_ptr`", "static", holds(r"\bdata_ptr\b")),
    Check("streams or graphs", "static", holds(r"(?i)\bcuda\.(stream|graph|cudagraph|event)|\bstream\b")),
    Check("threads, environment, prints, logging, warnings", "static",
          holds(r"\b(threading|os\.environ|print\(|logging|warnings|sys\.)")),
    Check("autotuning and its hooks", "static", holds(r"autotune|pre_hook|reset_to_zero|restore_value|heuristics")),
    Check("approximate or foreign instructions, narrow formats", "static",
          holds(r"inline_asm|libdevice|tf32|bfloat16|exp2|log2|rsqrt|enable_fp_fusion")),
    Check("bitwise repeatability: float atomics", "static", holds(r"tl\.atomic_add\((?!counts)")),
    Check("no `kernel[grid](…)` inside ModelNew.forward", "static", launches_nothing_in_sight),
    Check("output is not finite", "reference", output_is_not_finite),
    Check("output is not one float tensor", "reference", output_is_not_one_float_tensor),
)  # fmt: skip


def rows(checks: tuple[Check, ...] = CHECKS) -> Iterator[Row]:
    """Apply the checks to all honest kernels."""
    for check in checks:
        yield Row(check, tuple(s.name for s in HONEST.values() if check.refuses(s)), len(HONEST))


def measured_checks(errors: Mapping[str, tuple[CaseResult, ...]]) -> tuple[Check, ...]:
    """Absolute tolerances, on what the evaluator measured for the kernels that it judged."""

    def over(limit: float) -> Callable[[Specimen], bool]:
        return lambda s: any(r.max_abs_error > limit and math.isfinite(r.max_abs_error) for r in errors.get(s.name, ()))

    return tuple(Check(f"absolute error over {limit:g}", "measured", over(limit)) for limit in (1e-7, 1e-6, 1e-5, 1e-4))


def measure() -> dict[str, tuple[CaseResult, ...]]:
    """The real evaluator's findings by name, over all small cases and batteries."""
    cpu_judges: list[Worker] = []
    with workers.started() as machine, ThreadPoolExecutor(2) as pool:
        judge = Judge(machine, cpu_judges, {}, PATIENT, PATIENT_CASE_TIMEOUT_S)
        jobs = {s.name: pool.submit(judge.judge, s.task, s.path.read_text(), bench=True) for s in HONEST.values()}
        found = {name: job.result().verdict for name, job in jobs.items()}
        for worker in cpu_judges:
            worker.close()
    return {name: verdict.cases for name, verdict in found.items() if verdict is not None}


def table(found: list[Row]) -> str:
    """For people; the last line says how many honest kernels at least one check refuses."""
    width = max(len(row.check.name) for row in found)
    lines = [f"{'check':{width}}  kind       refused"]
    for row in found:
        share = len(row.refused) / row.of
        lines.append(f"{row.check.name:{width}}  {row.check.kind:9}  {len(row.refused):3} of {row.of} ({share:.0%})")
    together = {name for row in found for name in row.refused}
    lines.append(
        f"{'any of them':{width}}  {'':9}  {len(together):3} of {found[0].of} ({len(together) / found[0].of:.0%})"
    )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print the table."""
    found = list(rows())
    if "--run" in arguments:
        found += rows(measured_checks(measure()))
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
