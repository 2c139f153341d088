"""Which verdicts are given again without a run."""

import pytest

from kerneltune.tools.judge.service.tiers import VerdictCache, name_of
from kerneltune.tools.schema.messages import SCREENING, BenchRequest, KernelImage
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.verdict import Status, Timing, Verdict

KERNEL = Kernel("k", "ttir", "module {}", ("*fp32",), {"num_warps": 4})
PLAN = Plan("main", "", "sm_90", (), (KERNEL,), (), (), None)
IMAGE = KernelImage(KERNEL.sha256, {"num_warps": 4})
TIMING = Timing(1.0, 0.9, 1.1, 10, 100)


def bench(**options: object) -> BenchRequest:
    return BenchRequest((PLAN,), (IMAGE,), **options)  # type: ignore[arg-type]


def test_the_same_plans_and_cubins_have_the_same_name() -> None:
    assert name_of(bench(), [b"cubin"]) == name_of(bench(), [b"cubin"])


def test_another_cubin_tier_or_rule_has_another_name() -> None:
    names = {
        name_of(bench(), [b"cubin"]),
        name_of(bench(), [b"other"]),
        name_of(bench(tier="screened"), [b"cubin"]),
        name_of(bench(rules=SCREENING), [b"cubin"]),
        name_of(BenchRequest((PLAN, PLAN), (IMAGE,)), [b"cubin"]),
    }
    assert len(names) == 5


def test_a_verdict_that_is_given_again_says_so() -> None:
    verdicts = VerdictCache()
    verdicts.keep("a", Verdict(Status.WRONG, "no", receipt={"x": 1}))
    found = verdicts.find("a")
    assert found is not None
    assert found.receipt == {"x": 1, "reused": True}
    assert verdicts.find("b") is None


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT, Status.UNCHECKED])
def test_what_may_be_the_machine_s_fault_is_judged_anew(status: Status) -> None:
    verdicts = VerdictCache()
    verdicts.keep("a", Verdict(status, "no"))
    assert verdicts.find("a") is None


def test_a_confirmation_is_never_given_again() -> None:
    verdicts = VerdictCache()
    verdicts.keep("a", Verdict(Status.CORRECT, "yes", timing=TIMING, tier="confirmed"), "confirmed")
    assert verdicts.find("a") is None


def test_a_confirmation_begins_with_what_was_judged_in_full_unless_that_is_to_be_done_anew() -> None:
    verdicts, blobs = VerdictCache(), [b"cubin"]
    judged = Verdict(Status.CORRECT, "yes", timing=TIMING, tier="judged")
    verdicts.keep(name_of(bench(tier="judged"), blobs), judged)
    found = verdicts.find_in_full(bench(tier="confirmed", reuse=True), blobs)
    assert found is not None
    assert found.timing == TIMING
    assert verdicts.find_in_full(bench(tier="confirmed", reuse=False), blobs) is None
    assert verdicts.find_in_full(bench(tier="confirmed", reuse=True), [b"other"]) is None
    assert verdicts.find_in_full(bench(tier="screened", reuse=True), blobs) is None


def test_only_so_many_are_kept() -> None:
    verdicts = VerdictCache(most=2)
    for name in "abc":
        verdicts.keep(name, Verdict(Status.WRONG, name))
    assert verdicts.find("a") is None
    assert verdicts.find("c") is not None
