"""A report on judge and runner on this GPU: `python -m tests.gpu.selfcheck_runner [--quick]` in the repository root.

Prints one line per check and ends with status 1 when one failed. Needs torch with CUDA and Triton; no other package.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.gpu import harness
from tests.gpu.harness import SOFTMAX_TASK, Image, Supervisor
from tools.codec import encode
from tools.judge.gpu_protocol import KernelImage, Screen, Warm
from tools.judge.timing import SCREENING, Rules
from tools.plan.schema import Kernel, Plan
from tools.verdict import Status, Verdict

ROW = {"x": "*fp32", "y": "*fp32", "n": "i32"}
DESCRIPTOR = "tensordesc<fp32[32, 64]>"
DOUBLE_TASK = SOFTMAX_TASK.replace("torch.softmax(x, dim=1)", "x * 2").replace("1023", "1024")


class Report:
    """Collects what happened."""

    def __init__(self) -> None:
        self.failures = 0

    def check(self, name: str, work: Callable[[], str]) -> None:
        """Run one check; its text says what was seen."""
        started = time.perf_counter()
        try:
            text, verdict = work(), "ok  "
        except Exception as error:  # noqa: BLE001 - a report goes on
            traceback.print_exc()
            text, verdict = f"{type(error).__name__}: {error}", "FAIL"
            self.failures += 1
        print(f"{verdict} {name:34s} {time.perf_counter() - started:6.2f} s  {text}", flush=True)


def expect(verdict: Verdict, status: Status, word: str = "") -> str:
    """The verdict in words. Raises AssertionError when it is another."""
    assert verdict.status is status, f"wanted {status.value}, got {verdict.status.value}: {verdict.detail}"
    assert word in verdict.detail, f"{word!r} not in {verdict.detail!r}"
    return f"{verdict.status.value}: {verdict.detail[:150]}"


def row_plans(kernels: dict[str, Kernel], suffix: str = "") -> list[Plan]:
    """Plans for the small case and the main case."""
    return [
        harness.row_plan("odd", 257, 1023, kernels[f"odd{suffix}"], library=bool(suffix)),
        harness.row_plan("main", 4096, 4096, kernels[f"main{suffix}"], library=bool(suffix)),
    ]


class Checks:
    """All checks on one supervisor."""

    def __init__(self, report: Report, *, quick: bool) -> None:
        self.report, self.rules = report, SCREENING if quick else Rules()
        self.images: dict[str, Image] = {}
        self.kernels: dict[str, dict[str, Kernel]] = {}

    def compile(self) -> str:
        """All kernels, before anything forks."""
        for name in (
            "softmax_rows",
            "softmax_without_last_column",
            "scribbling_softmax",
            "memoising_softmax",
            "far_out_of_bounds",
            "endless",
        ):
            self.kernels[name] = {"odd": self._kernel(name, ROW, 1024), "main": self._kernel(name, ROW, 4096)}
        relu = self._kernel("relu_in_place", {"y": "*fp32", "n": "i32"}, 4096)
        self.kernels["relu"] = {"odd_library": relu, "main_library": relu}
        self.kernels["fast"] = {"main": self._kernel("softmax_rows", ROW, 4096, num_warps=16)}
        kernel, image = harness.compiled(
            "copy_by_descriptor", {"source": DESCRIPTOR, "target": DESCRIPTOR}, {"ROWS": 32, "COLUMNS": 64}, 4
        )
        self.images[kernel.sha256] = image
        self.kernels["descriptor"] = {"any": kernel}
        touched = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        assert not touched, "compiling has touched CUDA; nothing can be forked any more"
        return f"{len(self.images)} cubins"

    def _kernel(self, name: str, signature: dict[str, str], block: int, num_warps: int = 8) -> Kernel:
        kernel, image = harness.compiled(name, signature, {"BLOCK": block}, num_warps)
        self.images[kernel.sha256] = image
        return kernel

    def bench(self, supervisor: Supervisor, name: str, rules: Rules | None = None) -> Verdict:
        """Judge one of the row kernels."""
        return supervisor.bench(row_plans(self.kernels[name]), self.images, rules or self.rules)

    def softmax(self, path: Path) -> None:
        """Everything on the softmax task."""
        report, supervisor = self.report, Supervisor()
        try:
            report.check(
                "open the task", lambda: str(supervisor.open(path, harness.spec_of(path), ("eager", "compile")))
            )
            report.check("baselines", lambda: json.dumps(encode(supervisor.call(Warm()))))
            report.check("a right kernel is correct", lambda: self.right(supervisor))
            report.check("the same once more (spread)", lambda: self.right(supervisor))
            report.check("screening", lambda: self.screen(supervisor))
            for name, status, word in (
                ("softmax_without_last_column", Status.WRONG, ""),
                ("scribbling_softmax", Status.WRONG, "overwrites"),
                ("far_out_of_bounds", Status.CRASHED, "illegal"),
                ("endless", Status.TIMED_OUT, "longer"),
            ):
                report.check(name, lambda n=name, s=status, w=word: expect(self.bench(supervisor, n), s, w))  # type: ignore[misc]
            report.check("memoising gains nothing", lambda: self.memoising(supervisor))
            report.check("library step counted", lambda: self.coverage(supervisor))
            report.check("after all that: still correct", lambda: self.right(supervisor))
            print(f"     runners used: {supervisor.runners}")
        finally:
            supervisor.close()

    def right(self, supervisor: Supervisor) -> str:
        """A right kernel, with its numbers."""
        verdict = self.bench(supervisor, "softmax_rows")
        expect(verdict, Status.CORRECT)
        print(json.dumps(encode(replace(verdict, cases=())), indent=1))
        for case in verdict.cases:
            print("     ", case.case, case.inputs, case.ok, f"{case.error_ratio:.3g}", case.detail)
        assert verdict.timing is not None
        ratios = ", ".join(f"{c.baseline} {c.speedup:.4f} [{c.low:.4f}, {c.high:.4f}]" for c in verdict.comparisons)
        return f"{verdict.timing.median_us:.2f} µs; {ratios}; {verdict.sol_fraction or 0:.2%} of light"

    def memoising(self, supervisor: Supervisor) -> str:
        """A kernel that skips work already done must be no faster than the honest one."""
        honest, lazy = self.bench(supervisor, "softmax_rows"), self.bench(supervisor, "memoising_softmax")
        expect(lazy, Status.CORRECT)
        assert honest.timing is not None
        assert lazy.timing is not None
        ratio = lazy.timing.median_us / honest.timing.median_us
        assert ratio > 0.97, f"memoising took {ratio:.3f} of the honest kernel's time"
        return f"{ratio:.3f} of the honest kernel's time"

    def coverage(self, supervisor: Supervisor) -> str:
        """torch's softmax followed by a kernel of one's own."""
        verdict = supervisor.bench(row_plans(self.kernels["relu"], "_library"), self.images, self.rules)
        expect(verdict, Status.CORRECT)
        coverage = verdict.coverage or 0.0
        assert 0.2 < coverage < 0.8, f"coverage {coverage:.2f}"
        return f"coverage {coverage:.2f}, {verdict.detail}"

    def screen(self, supervisor: Supervisor) -> str:
        """Two variants, and one that is wrong."""
        kernels = [self.kernels[n]["main"] for n in ("softmax_rows", "fast", "softmax_without_last_column")]
        plans = tuple(harness.row_plan("main", 4096, 4096, k) for k in kernels)
        images = tuple(KernelImage(k.sha256, self.images[k.sha256][0]) for k in kernels)
        found: Any = supervisor.call(Screen(plans, images), [self.images[k.sha256][1] for k in kernels])
        assert found.times_us[0], found.details
        assert found.times_us[1], found.details
        assert found.times_us[2] is None, found.times_us
        return f"{found.times_us} {found.details[2][:60]}"

    def descriptors(self, path: Path) -> None:
        """TMA descriptors built on the host."""
        supervisor = Supervisor()
        kernel = self.kernels["descriptor"]["any"]
        plans = [
            harness.descriptor_plan("odd", 257, 1024, kernel),
            harness.descriptor_plan("main", 4096, 4096, kernel),
        ]
        try:
            ready = supervisor.open(path, harness.spec_of(path), ("eager",))
            assert ready.problem is None, ready
            self.report.check(
                "TMA descriptors",
                lambda: expect(supervisor.bench(plans, self.images, self.rules), Status.CORRECT),
            )
        finally:
            supervisor.close()


def main() -> int:
    """Run all checks; the number of failures."""
    report = Report()
    checks = Checks(report, quick="--quick" in sys.argv)
    report.check("compile", checks.compile)
    checks.softmax(harness.task_file(SOFTMAX_TASK))
    checks.descriptors(harness.task_file(DOUBLE_TASK))
    print(f"{report.failures} failed")
    return min(1, report.failures)


if __name__ == "__main__":
    sys.exit(main())
