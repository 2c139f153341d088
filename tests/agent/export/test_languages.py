"""Rows of attempts in several languages: a prompt asks for what its answer is, and no row mixes two."""

from dataclasses import replace
from typing import Any

import pytest

from kerneltune.agent.events import Event, Proposed
from kerneltune.agent.export.base import Format, format_of
from kerneltune.agent.export.kernel_formats import Dpo, Fix, SftBest
from kerneltune.agent.export.rl_formats import Verl
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.export.made_runs import AT, H200, conversation, rows, run, source, timed, tried

LOADER = "from kerneltune import PtxKernel\n"


def in_ptx(number: int, verdict: Verdict | Status, parent: int | None = None, **more: Any) -> list[Event]:
    """The events of an attempt whose source is PTX."""
    text = f'{LOADER}k = PtxKernel(r""".version 8.0 // {number}""")\n'
    return [replace(e, source=text) if isinstance(e, Proposed) else e for e in tried(number, verdict, parent, **more)]


def mixed(gpu: str | None = H200) -> Trajectory:
    """Of each language a failure, its repair, and a faster one; each in a reply of its own."""
    return run(
        tried(1, Status.WRONG, turn=1),
        tried(2, timed(100.0), 1, turn=2),
        in_ptx(3, Status.COMPILE_FAILED, 2, turn=3),
        in_ptx(4, timed(80.0), 3, turn=4),
        in_ptx(5, timed(60.0), 4, turn=5),
        tried(6, timed(50.0), 5, turn=6),
        gpu=gpu,
        said=conversation([(turn, source("x")) for turn in range(1, 7)]),
    )


@pytest.mark.parametrize("spec", ["sft-best", "dpo", "kto", "fix", "rl-turns"])
def test_a_prompt_asks_for_the_language_of_its_answer(spec: str) -> None:
    form: Format = format_of(spec)
    made = rows(form, mixed())
    asked = set()
    for row in made:
        answers = row.get("sources") or [m["content"] for key in ("completion", "chosen") for m in row.get(key, ())]
        language = "PTX" if LOADER in str(answers[0]) else "Triton"
        asked.add(language)
        assert row["prompt"][0]["content"].startswith(f"You write {language} kernels")
        assert ("`kerneltune` (`PtxKernel`)" in row["prompt"][0]["content"]) is (language == "PTX")
        if spec != "fix":
            assert row["prompt"][-1]["content"].endswith(f"Write `ModelNew` with {language} kernels.")
    assert asked == {"PTX", "Triton"}


def test_no_pair_and_no_repair_mixes_two_languages() -> None:
    pairs = rows(Dpo(), mixed())
    assert len(pairs) == 4  # of each language a right one over a failing one, and a faster one over a slower one
    for row in pairs:
        assert (LOADER in row["chosen"][0]["content"]) is (LOADER in row["rejected"][0]["content"])
    assert [(LOADER in row["broken"], LOADER in row["fixed"]) for row in rows(Fix(), mixed())] == [
        (False, False),
        (True, True),
    ]


def test_each_language_has_its_best_kernel_of_a_task() -> None:
    made = rows(SftBest(), mixed())
    assert sorted((LOADER in row["completion"][0]["content"], row["place"]) for row in made) == [(False, 1), (True, 1)]


def test_a_task_is_a_prompt_for_each_language_that_was_asked_for() -> None:
    triton, ptx = run(at=AT), run(run_id="r2", at=AT + 1)
    ptx = replace(ptx, run=replace(ptx.run, limits={"language": "ptx"}))
    made = rows(Verl(), triton, ptx)
    assert [row["prompt"][0]["content"].split()[2] for row in made] == ["Triton", "PTX"]
    told = [row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]["language"] for row in made]
    assert told == ["triton", "ptx"]
    assert [row["extra_info"]["index"] for row in made] == [0, 1]
