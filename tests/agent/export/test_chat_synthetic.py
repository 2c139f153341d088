"""A run without a model as a conversation: marked, in the words of the tools, and with nothing that is not stored."""

import re
from dataclasses import replace
from typing import Any

from kerneltune.agent.attempt import SearchPoint, StopReason
from kerneltune.agent.events import Event, Judged, Proposed, Reflected, RunEnded, Updated
from kerneltune.agent.export.chat_formats import SftChat
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Timing, Verdict
from tests.agent.export.test_chat_talks import check_legal
from tests.agent.record.samples import RUN, started

TASK = """import torch
CASES = [{"name": "ragged", "ROWS": 3}]
class Model(torch.nn.Module): ...
"""
REPORT = KernelReport("rows_kernel", 40, 0, 16, 0, 1024, 8, 3, 0.75, "ab" * 32)
CASE = CaseResult("ragged", "own", True, 0.25, 1e-7)
SECRET = CaseResult("zanzibar", "own", False, 9.0, 8675309.0, "[37, 2053]")


def proposed(number: int, parent: int | None = None) -> list[Event]:
    ids = (RUN, f"{RUN}/{number}")
    parent_id = f"{RUN}/{parent}" if parent else None
    return [
        Proposed(*ids, number, parent_id, f"first\nsource {number}", f"idea {number}", SearchPoint("s", {"BLOCK": 8})),
        Updated(*ids, None, None, (REPORT,), ("aten.clone",), 4, 0.1, 0.2),
    ]


def judged(number: int, verdict: Verdict, best: bool = False) -> Judged:
    return Judged(RUN, f"{RUN}/{number}", verdict, 1.0, best)


def offline() -> Trajectory:
    """Two that are right, one that does not compile, one that is wrong in a held-out case, one never judged."""
    failure = Verdict(Status.COMPILE_FAILED, "line 2: no such name", lines=(2,))
    broken = [replace(e, failure=failure, kernels=()) if isinstance(e, Updated) else e for e in proposed(2, 1)]
    compared = (Comparison("eager", 20.0, 2.0, 1.9, 2.1),)
    right = Verdict(Status.CORRECT, "right", (CASE,), Timing(10.0, 9.0, 11.0, 4, 4), compared, 1.0, 0.5)
    slower = Verdict(Status.CORRECT, "right", (CASE,), Timing(12.0, 11.0, 13.0, 4, 4), (), 1.0, 0.5)
    scored = Reflected(
        RUN, f"{RUN}/3", "it waits for loads", "a deeper pipeline", {"predicted_speedup": 1.5}, "refuted"
    )
    wrong = Verdict(Status.WRONG, "case 'zanzibar' (37 x 2053) is wrong by 8675309", (CASE, SECRET))
    return trajectory(
        [
            replace(started(RUN), task_source=TASK),
            *proposed(1),
            judged(1, right, best=True),
            *broken,
            judged(2, failure),
            *proposed(3, 1),
            judged(3, slower),
            scored,
            *proposed(4, 3),
            judged(4, wrong),
            *proposed(5),
            RunEnded(RUN, StopReason.ATTEMPTS, 4, 2, f"{RUN}/1", None, 9.0),
        ]
    )


def row() -> dict[str, Any]:
    (made,) = SftChat(synthesise=True).rows(offline())
    assert made.attempt is not None
    assert made.attempt.number == 1
    return dict(made.values)


def results(values: dict[str, Any]) -> list[str]:
    return [m["content"] for m in values["messages"] if m["role"] == "tool"]


def test_it_is_only_made_when_asked_for_and_says_what_it_is() -> None:
    assert list(SftChat().rows(offline())) == []
    values = row()
    assert values["synthetic"] is True
    assert (values["n_attempts"], values["n_calls"], values["cost_usd"]) == (4, 7, None)
    assert (values["best_status"], values["final_speedup"], values["conversation"]) == ("correct", 2.0, "synthetic")


def test_each_attempt_is_an_update_and_a_bench_if_it_compiled() -> None:
    values = row()
    check_legal(values["messages"])
    calls = [c["function"] for m in values["messages"] for c in m.get("tool_calls", [])]
    told = [(c["name"], c["arguments"].get("parent"), c["arguments"].get("attempt")) for c in calls]
    assert told == [
        ("update", None, None),
        ("bench", None, 1),
        ("update", 1, None),
        ("update", 1, None),
        ("bench", None, 3),
        ("update", 3, None),
        ("bench", None, 4),
    ]
    assert calls[0]["arguments"]["source"] == "first\nsource 1"
    assert calls[0]["arguments"]["rationale"] == "idea 1"


def test_results_are_in_the_words_of_the_tools() -> None:
    compiled, best, broken, _, slower, *_ = results(row())
    assert compiled.splitlines() == [
        "#1 compiled",
        "rows_kernel: 40 registers, 16 B spilled, 1024 B shared, occupancy 75 %, 8 warps, 3 stages",
        "Library calls in forward: aten.clone.",
    ]
    assert best.startswith("#1 correct, the best so far: right\n10.00 us [9.00, 11.00] on the device, cold L2")
    assert "against eager (20.00 us): 2.000x" in best
    assert broken.splitlines()[0] == "#2 compile_failed: line 2: no such name"
    assert ">    2 source 2" in broken
    assert "the best so far" not in slower
    assert "#3 refuted: it waits for loads (predicted 1.50x)" in slower


def test_what_is_not_stored_is_not_spoken_of() -> None:
    text = "\n".join(results(row()))
    assert not re.search(r"[Bb]ytes touched|instructions|configurations|roofline", text)


def test_nothing_of_a_held_out_case_is_told() -> None:
    text = str(row()["messages"])
    assert not any(word in text for word in ("zanzibar", "2053", "8675309"))
    assert "held-out" in results(row())[-1]


def test_a_task_without_a_list_of_cases_that_can_be_read_shows_none() -> None:
    source = "CASES = [case(n) for n in range(3)]\n"
    run = offline()
    (made,) = SftChat(synthesise=True).rows(replace(run, run=replace(run.run, task_source=source)))
    assert "ragged" not in "".join(results(made.values))


def test_a_run_with_a_model_is_never_told_twice() -> None:
    from tests.agent.export.test_chat_formats import story

    made = list(SftChat(synthesise=True).rows(story()))
    assert [m.values["synthetic"] for m in made] == [False]


def test_a_run_in_which_nothing_was_judged_makes_no_row() -> None:
    run = trajectory([started(RUN), *proposed(1)])
    assert list(SftChat(synthesise=True).rows(run)) == []
