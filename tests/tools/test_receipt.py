"""Receipts: all that is known and nothing that is not; authors see no held-out case."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from kerneltune.tools.receipt import ReceiptContext, author_view, receipt, statement
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import Compiled
from kerneltune.tools.schema.plan import Kernel, Launch, Plan, plan_hash
from kerneltune.tools.schema.task import CaseSpec, Contract, TaskSpec
from kerneltune.tools.schema.verdict import (
    CaseResult,
    CaseTime,
    Cause,
    Comparison,
    KernelReport,
    Status,
    Timing,
    Verdict,
)
from kerneltune.tools.update import Artefact, Update

LEAF = {"$tensor": {"shape": [37, 2053], "dtype": "float32", "stride": None}}
TASK = TaskSpec(
    "softmax",
    "a" * 64,
    "float32",
    "",
    (
        CaseSpec("main", (LEAF,), (), LEAF, bytes_moved=64, flops=128),
        CaseSpec("prime", (LEAF,), (), LEAF, held_out=True),
    ),
)
GPU = {"name": "NVIDIA H200", "arch": 90, "uuid": "GPU-1", "memory_bytes": 1, "driver": "580"}
SETTING = ReceiptContext(TASK, "sm_90", GPU, {"torch": "2.11"}, "2", "e" * 64, ("NOT CONFINED: …",))
HELD = {role: Enforced(Profile(role), seccomp=True) for role in ("tracer", "interpreter")}
CASES = (CaseResult("main", "own", True, 0.08, 1e-8), CaseResult("prime", "zero_mean", True, 0.12, 2e-8))
CHECKED = Verdict(Status.CHECKED, "right", CASES, receipt={"plan": "f" * 64})
CORRECT = Verdict(
    Status.CORRECT,
    "right; 1.160 times the speed of compile",
    CASES,
    timing=Timing(127.69, 127.62, 127.71, 40, 4800),
    comparisons=(Comparison("eager", 280.0, 2.144, 2.143, 2.146), Comparison("compile", 148.0, 1.16, 1.159, 1.16)),
    coverage=1.0,
    sol_fraction=0.87,
    variant="fast",
    tier="judged",
    receipt={
        "plan": "f" * 64,
        "aa_resolution": 0.003,
        "sm_clock_mhz": {"median": 1755.0, "p5": 1740.0, "n": 40},
        "throttle_reasons": 0,
        "seeds": {"main/own": 11, "prime": {"zero_mean": 12}},
    },
)


def plan(case: str, variant: str, text: str) -> Plan:
    kernel = Kernel("softmax_kernel", "ttir", text, ("*fp32",))
    return Plan(case, variant, "sm_90", (), (kernel,), (), (Launch(0, (1, 1, 1), ()),), None)


def update() -> Update:
    """Two variants of the main case, one of the other; registers tell the kernels apart."""
    plans = {
        "main": (plan("main", "default", "slow"), plan("main", "fast", "fast")),
        "prime": (plan("prime", "default", "p"),),
    }
    artefacts = {
        p.kernels[0].sha256: Artefact(Compiled(report(registers, f"{registers}" * 32), {}), b"")
        for registers, p in ((40, plans["main"][0]), (56, plans["main"][1]), (72, plans["prime"][0]))
    }
    return Update(plans, artefacts, main_case="main", dropped_variants=("BLOCK: 3: not a power of 2",))


def report(registers: int, cubin: str) -> KernelReport:
    return KernelReport("softmax_kernel", registers, 0, 0, 0, 1024, 8, 3, 0.75, cubin)


def made(verdict: Verdict, source: str = "x = 1\n", given: Update | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"attempt_id": "r/1", "asked": "judged", "date": "2026-11-21T09:00:00+00:00"}
    return receipt(SETTING, HELD, source=source, update=given or update(), verdict=verdict, **facts)


def test_a_receipt_is_json_and_names_what_was_judged_and_where() -> None:
    found = json.loads(json.dumps(made(CORRECT), allow_nan=False))
    assert (found["schema_version"], found["attempt_id"], found["date"]) == (1, "r/1", "2026-11-21T09:00:00+00:00")
    assert found["candidate"]["source_sha256"] == hashlib.sha256(b"x = 1\n").hexdigest()
    assert found["where"]["gpu"]["name"] == "NVIDIA H200"
    assert found["where"]["sandbox"].keys() == {"tracer"}  # the GPU leaves the interpreter nothing to do
    assert found["where"]["sandbox"]["tracer"]["seccomp"] is True
    assert found["where"]["warnings"] == ["NOT CONFINED: …"]
    assert found["tier"] == {"asked": "judged", "given": "judged"}
    assert found["protocol"] == {"version": "2", "evaluator_sha256": "e" * 64}


def test_the_task_s_cases_say_what_they_take_at_least() -> None:
    cases = made(CORRECT)["task"]["cases"]
    assert [(c["name"], c["bytes_moved"], c["flops"]) for c in cases] == [("main", 64, 128), ("prime", 0, 0)]


def test_the_kernels_are_those_of_the_variant_that_was_timed() -> None:
    found = made(CORRECT)
    assert [k["registers"] for k in found["compiled"]["kernels"]] == [56]
    assert found["compiled"]["kernels"][0]["cubin_sha256"] == "56" * 32
    plans = update().plans
    assert found["candidate"]["plan_sha256"] == plan_hash(plans["main"][1])
    assert found["candidate"]["case_plans"] == {
        "main": plan_hash(plans["main"][1]),
        "prime": plan_hash(plans["prime"][0]),
    }


def test_every_case_is_listed_with_its_battery_error_and_seed() -> None:
    cases = made(CORRECT)["cases"]
    assert [(c["case"], c["inputs"], c["error_ratio"], c["held_out"], c["seed"]) for c in cases] == [
        ("main", "own", 0.08, False, 11),
        ("prime", "zero_mean", 0.12, True, 12),
    ]
    assert [c["seed"] for c in made(CHECKED)["cases"]] == [None, None]


def test_a_candidate_that_never_became_a_plan_has_a_receipt_too() -> None:
    refused = Verdict(Status.REJECTED, "the source is empty")
    found = made(refused, source="", given=Update(failure=refused))
    assert found["candidate"]["plan_sha256"] is None
    assert found["candidate"]["source_sha256"] is None
    assert found["compiled"]["kernels"] == []
    assert found["statement"] == "rejected: the source is empty"


def test_a_receipt_survives_lone_surrogates_and_numbers_that_json_lacks() -> None:
    wrong = Verdict(Status.WRONG, "NaN", (CaseResult("main", "own", False, float("inf"), float("nan")),))
    json.dumps(made(wrong, source="x = '\ud800'"), allow_nan=False)


def test_a_statement_beyond_the_speed_of_light_says_why_it_is_no_limit_there() -> None:
    told = statement(TASK, replace(CORRECT, sol_fraction=1.82), GPU)
    assert "182% of the speed of light, as it does with fewer products than the reference" in told
    assert "fewer products" not in statement(TASK, replace(CORRECT, sol_fraction=1.01), GPU)


def test_the_statement_says_what_was_measured_the_hardest_baseline_first() -> None:
    text = statement(TASK, CORRECT, GPU)
    assert text.startswith(
        "1.160x [1.159, 1.160] vs compile (best of 2 baselines: compile 1.160x, eager 2.144x); 127.69 us"
    )
    for words in (
        "NVIDIA H200",
        "SM 1755 MHz median (p5 1740)",
        "no throttle",
        "87% of the speed of light",
        "session resolution 0.30%",
    ):
        assert words in text
    assert text.endswith(
        "2 cases, 2 input sets, 0 failures, worst error 0.12 of the tolerance; plan sha256 ffffffffffffffff"
    )


def test_the_statement_leaves_out_what_is_not_known() -> None:
    bare = replace(CORRECT, receipt={}, comparisons=(), coverage=None, sol_fraction=None, tier=None)
    text = statement(TASK, bare, None)
    assert text.startswith("127.69 us [127.62, 127.71] device time, cold L2, a GPU; precision float32; ")
    for word in ("vs", "MHz", "throttle", "light", "resolution", "plan", "None"):
        assert word not in text


def test_a_difference_within_the_resolution_is_none() -> None:
    close = replace(CORRECT, comparisons=(Comparison("compile", 128.0, 1.002, 1.001, 1.003),))
    assert statement(TASK, close, GPU).startswith("no difference measured, 1.002x [1.001, 1.003] vs compile; ")


def test_a_confirmation_says_in_how_many_processes() -> None:
    facts = {"sm_clock_mhz": {"median": 1755.0, "p5": None, "n": 1}, "throttle_reasons": 0}
    again = replace(CORRECT, tier="confirmed", receipt={"processes": [{}, {}, facts]})
    text = statement(TASK, again, GPU)
    assert "confirmed in 3 fresh processes (40 blocks)" in text
    assert "SM 1755 MHz median, no throttle" in text


def test_throttling_is_said() -> None:
    hot = replace(CORRECT, receipt={"throttle_reasons": 0x40})
    assert "throttled (reasons 0x40)" in statement(TASK, hot, GPU)


def test_the_contract_that_a_task_promises_is_in_the_receipt_and_its_statement() -> None:
    promising = replace(TASK, contracts=(Contract(0, "x", alignment=128),))
    assert "; contract: x: its address is a multiple of 128 bytes; " in statement(promising, CHECKED, None)
    assert "contract" not in statement(TASK, CHECKED, None)
    setting = replace(SETTING, task=promising)
    told: Any = receipt(setting, {}, attempt_id="r/1", source="", update=update(), verdict=CHECKED, asked=None, date="")
    assert told["task"]["contracts"] == [{"position": 0, "name": "x", "slack": 0, "pitch": 1, "alignment": 128}]


def test_a_checked_verdict_claims_no_time() -> None:
    text = statement(TASK, CHECKED, None)
    assert text.startswith("right in the CPU interpreter, not timed (no GPU); precision float32")
    assert " us" not in text


HIDDEN = (
    Verdict(
        Status.WRONG,
        "a held-out case: 3 of 75961 elements wrong; worst at [36, 2052]: expected 1, got 0",
        (CASES[0], CaseResult("prime", "own", False, 1234.0, 1.0, "worst at [36, 2052]")),
    ),
    Verdict(
        Status.CRASHED, "case prime: out of bounds: row 2053", receipt={"problem": "out_of_bounds", "case": "prime"}
    ),
    Verdict(
        Status.REJECTED,
        "line 3: shape [37, 2053] (in a case with held-out shapes)",
        receipt={"line": 3, "case": "prime"},
    ),
    Verdict(Status.TIMED_OUT, "prime: longer than 2053 s"),
    Verdict(Status.UNCHECKED, "while timing: a held-out case: no memory for 37 rows of 2053"),
)


@pytest.mark.parametrize("verdict", HIDDEN, ids=lambda v: v.status.value)
def test_an_author_learns_neither_name_nor_shape_of_a_held_out_case(verdict: Verdict) -> None:
    seen = author_view(replace(verdict, cause=Cause.NOT_FINITE), TASK)
    text = json.dumps(encode(seen))
    assert seen.cause is None
    for secret in ("prime", "2053", "2052", "75961", "36"):
        assert secret not in text
    assert seen.status is verdict.status
    assert seen.receipt == {}
    assert "held-out" in seen.detail


def test_an_author_learns_how_wrong_a_held_out_case_is() -> None:
    assert "error 1.2e+03 times the tolerance" in author_view(HIDDEN[0], TASK).detail


def test_an_author_keeps_what_is_said_of_the_open_cases() -> None:
    wrong = Verdict(
        Status.WRONG,
        "case main (own inputs): primeval",
        (CaseResult("main", "own", False, 2.0, 1.0, "[3]"),),
        receipt={"seeds": {}},
    )
    seen = author_view(wrong, TASK)
    assert (seen.detail, seen.cases, seen.receipt) == (wrong.detail, wrong.cases, {})
    assert author_view(CORRECT, TASK).timing == CORRECT.timing


def test_an_accepted_verdict_shows_an_author_that_held_out_cases_passed() -> None:
    assert [c.case for c in author_view(CHECKED, TASK).cases] == ["main", "held-out"]


WEIGHTED = replace(
    CORRECT,
    detail="right; 1.160 times the speed of compile over 2 weighted cases; slower than eager in case prime (0.90x)",
    case_times=(
        CaseTime("main", 3.0, Timing(100.0, 99.0, 101.0, 40, 10), (Comparison("eager", 200.0, 2.0, 1.9, 2.1),)),
        CaseTime("prime", 1.0, Timing(10.0, 9.0, 11.0, 40, 10), (Comparison("eager", 9.0, 0.9, 0.8, 0.95),), 0.5),
    ),
)


def test_weighted_cases_that_lose_are_said_and_a_held_out_one_is_not_named_to_an_author() -> None:
    words = statement(TASK, WEIGHTED, GPU)
    assert "127.69 us [127.62, 127.71] device time on average over 2 weighted cases" in words
    assert "slower than eager in case prime (0.90x)" in words
    assert "slower" not in statement(TASK, replace(WEIGHTED, case_times=WEIGHTED.case_times[:1]), GPU)
    seen = author_view(WEIGHTED, TASK)
    assert [(c.case, c.weight) for c in seen.case_times] == [("main", 3.0), ("held-out", 1.0)]
    assert "prime" not in json.dumps(encode(seen))


def test_a_verdict_of_before_weighted_cases_were_timed_reads_as_one_case_s() -> None:
    old = {name: value for name, value in encode(CORRECT).items() if name != "case_times"}
    assert decode(Verdict, old) == CORRECT
    assert decode(Verdict, encode(WEIGHTED)) == WEIGHTED
