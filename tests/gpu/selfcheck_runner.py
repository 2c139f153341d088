"""A report on judge and runner on this GPU: `python -m tests.gpu.selfcheck_runner [--quick]` in the repository root.

Prints one line per check and ends with status 1 when one failed. Needs torch with CUDA and Triton; no other package.
"""

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.messages import SCREENING, KernelImage, Rules, ScreenVariants, Warm
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.gpu import harness, kernels
from tests.gpu.harness import SOFTMAX_TASK, Image, Supervisor
from tests.gpu.recovery import Judge, answer, large, plain, recoveries, trials

ROW = {"x": "*fp32", "y": "*fp32", "n": "i32"}
BUILT_IN = {"main": 8192, "ragged": 1024, "narrow": 256, "timed_columns": 8192, "prime": 4096}  # its cases, and BLOCK
BAD = (
    ("reads_past_the_end", Status.CRASHED, "reads past the end"),
    ("writes_before_the_start", Status.WRONG, "before the start of the output"),
    ("scribbling_softmax", Status.WRONG, "overwrites input 0"),
    ("reads_before_the_start", Status.CRASHED, "reads before the start"),
    ("writes_past_the_end", Status.CRASHED, "past the end of the output"),
    ("far_out_of_bounds", Status.CRASHED, "far outside"),
    ("softmax_without_last_column", Status.WRONG, ""),
    ("memoising_softmax", Status.WRONG, "what its memory held before"),
    ("unsynchronised", Status.WRONG, ""),
    ("right_by_the_clock", Status.WRONG, ""),
    ("traps", Status.CRASHED, "trap"),
    ("endless", Status.TIMED_OUT, "longer"),
)
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
        self.report, self.quick, self.rules = report, quick, SCREENING if quick else Rules()
        self.images: dict[str, Image] = {}
        self.kernels: dict[str, dict[str, Kernel]] = {}

    def compile(self) -> str:
        """All kernels, before anything forks; and what every child would import for seconds."""
        importlib.import_module("torch._dynamo")
        for name in ("softmax_rows", *(name for name, _, _ in BAD)):
            self.kernels[name] = {"odd": self._kernel(name, ROW, 1024), "main": self._kernel(name, ROW, 4096)}
        for case, columns in BUILT_IN.items():
            self.kernels.setdefault("built in", {})[case] = self._kernel("softmax_rows", ROW, columns)
        self.kernels["copy"] = {"any": self._kernel("copy_flat", ROW, 4096)}
        self.kernels["twice"] = {"main": self._kernel("twice", ROW, 32768)}
        remembers, image = harness.assembled("remembers", kernels.REMEMBERS, tuple(ROW.values()))
        self.images[remembers.sha256] = image
        self.kernels["sine"] = {"odd": self._kernel("twice_with_a_sine", ROW, 1024)}
        self.kernels["sine"]["main"] = self._kernel("twice_with_a_sine", ROW, 4096)
        self.kernels["remembers"] = {"main": remembers}
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
            if not self.quick:
                report.check("the same once more (spread)", lambda: self.right(supervisor))
            report.check("screening", lambda: self.screen(supervisor))
            for name, status, word in BAD:
                report.check(name, lambda n=name, s=status, w=word: expect(self.bench(supervisor, n), s, w))  # type: ignore[misc]
            report.check("45 scratch tensors", lambda: self.chain(supervisor))
            report.check("library step counted", lambda: self.coverage(supervisor))
            report.check("after all that: still correct", lambda: self.right(supervisor))
            print(f"     runners started: {supervisor.runners.started}")
        finally:
            supervisor.close()

    def right(self, supervisor: Supervisor) -> str:
        """A right kernel, with its numbers."""
        verdict = self.bench(supervisor, "softmax_rows")
        expect(verdict, Status.CORRECT)
        print(json.dumps(encode(replace(verdict, cases=())), indent=1))
        for case in verdict.cases:
            print("     ", case.case, case.inputs, case.ok, f"{case.error_ratio:.3g}", case.sentence)
        assert verdict.timing is not None
        ratios = ", ".join(f"{c.baseline} {c.speedup:.4f} [{c.low:.4f}, {c.high:.4f}]" for c in verdict.comparisons)
        return f"{verdict.timing.median_us:.2f} µs; {ratios}; {verdict.sol_fraction or 0:.2%} of light"

    def chain(self, supervisor: Supervisor) -> str:
        """More than forty tensors of scratch memory, each in pages of its own."""
        copy, own = self.kernels["copy"]["any"], self.kernels["softmax_rows"]
        plans = [
            harness.chain_plan(case, rows, columns, copy, own[case], 45)
            for case, rows, columns in (("odd", 257, 1023), ("main", 4096, 4096))
        ]
        return expect(supervisor.bench(plans, self.images, self.rules), Status.CORRECT)

    def coverage(self, supervisor: Supervisor) -> str:
        """torch's softmax followed by a kernel of one's own."""
        verdict = supervisor.bench(row_plans(self.kernels["relu"], "_library"), self.images, self.rules)
        expect(verdict, Status.CORRECT)
        coverage = verdict.coverage or 0.0
        assert 0.2 < coverage < 0.8, f"coverage {coverage:.2f}"
        return f"coverage {coverage:.2f}, {verdict.detail}"

    def screen(self, supervisor: Supervisor) -> str:
        """Two variants, and one that is wrong."""
        variants = [self.kernels[n]["main"] for n in ("softmax_rows", "fast", "softmax_without_last_column")]
        plans = tuple(harness.row_plan("main", 4096, 4096, k) for k in variants)
        images = tuple(KernelImage(k.sha256, self.images[k.sha256][0]) for k in variants)
        found: Any = supervisor.call(ScreenVariants(plans, images), [self.images[k.sha256][1] for k in variants])
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
        remembers = self.kernels["remembers"]["main"]
        forgetful = [
            harness.row_plan("odd", 257, 1024, remembers),
            harness.row_plan("main", 4096, 4096, remembers),
        ]
        sine = self.kernels["sine"]
        with_a_table = [
            harness.row_plan("odd", 257, 1024, sine["odd"]),
            harness.row_plan("main", 4096, 4096, sine["main"]),
        ]
        try:
            ready = supervisor.open(path, harness.spec_of(path), ("eager",))
            assert ready.problem is None, ready
            self.report.check(
                "TMA descriptors",
                lambda: expect(supervisor.bench(plans, self.images, self.rules), Status.CORRECT),
            )
            self.report.check(
                "a table in the module",
                lambda: expect(supervisor.bench(with_a_table, self.images, self.rules), Status.CORRECT),
            )
            # each checked run finds the counter at zero; slots of one timed pass share it
            self.report.check(
                "a counter in the module",
                lambda: expect(supervisor.bench(forgetful, self.images, self.rules), Status.WRONG, "timed"),
            )
        finally:
            supervisor.close()

    def confined(self, path: Path) -> None:
        """Judge and runners as the product starts them, with the sandbox around the runner."""
        supervisor = harness.Confined()
        try:
            supervisor.open(path, harness.spec_of(path), ("eager",))
            self.report.check("confined runner: right", lambda: self.right(supervisor))
            for name, status, word in BAD[:3]:
                self.report.check(
                    f"confined runner: {name}",
                    lambda n=name, s=status, w=word: expect(self.bench(supervisor, n), s, w),  # type: ignore[misc]
                )
        finally:
            supervisor.close()

    def measured(self, name: str, work: Callable[[Judge], list[str]]) -> None:
        """Something that is measured inside of a judge."""
        supervisor = Supervisor(lambda channel: answer(channel, lambda: work(Judge(channel, self.images))))

        def told() -> str:
            found = supervisor.call(Warm())
            for line in found.details:
                print(f"     {line}")
            assert not found.times_us, found.details
            return f"{len(found.details)} lines"

        try:
            self.report.check(name, told)
        finally:
            supervisor.close()

    def rows(self) -> dict[str, list[Plan]]:
        """Plans of the small case by kernel."""
        names = ("softmax_rows", *(name for name, _, _ in BAD))
        return {name: row_plans(self.kernels[name])[:1] for name in names}

    def recovery(self, path: Path) -> None:
        """How soon the next plan runs after one that ended its runner."""
        plans = self.rows()
        bad = {name: plans[name] for name in ("endless", "far_out_of_bounds", "traps")}
        self.measured("recovery", lambda judge: recoveries(judge, plans["softmax_rows"], bad, str(path)))


def main() -> int:
    """Run all checks; the number of failures."""
    report = Report()
    quick = "--quick" in sys.argv
    checks = Checks(report, quick=quick)
    report.check("compile", checks.compile)
    softmax = harness.task_file(SOFTMAX_TASK)  # described once
    checks.softmax(softmax)
    checks.descriptors(harness.task_file(DOUBLE_TASK))
    checks.measured("trials of the built-in softmax", lambda judge: trials(judge, checks.kernels["built in"]))
    checks.recovery(softmax)
    checks.confined(softmax)
    checks.measured("without virtual memory", lambda judge: plain(judge, checks.rows(), str(softmax)))
    if not quick:
        checks.measured("a large input", lambda judge: large(judge, checks.kernels["twice"]["main"]))
    print(f"{report.failures} failed")
    return min(1, report.failures)


if __name__ == "__main__":
    sys.exit(main())
