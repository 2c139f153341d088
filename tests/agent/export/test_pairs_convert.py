"""Pairs of languages: what is turned into what, and which attempts are such a pair."""

import time
from dataclasses import replace

from kerneltune.agent.events import Event, Proposed
from kerneltune.agent.export.kernel_formats import Convert
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import TASK, rows, run, source, tried

PTX = (
    source("one") + '\nfrom kerneltune import PtxKernel\n\nfirst = PtxKernel(r"""\n.version 8.0\n""")\n'
    'second = PtxKernel(".target sm_90a", configs=[{"N": 1}])\n'
)


def written(number: int, status: Status, text: str, parent: int | None = None) -> list[Event]:
    """An attempt with this source."""
    return [replace(e, source=text) if isinstance(e, Proposed) else e for e in tried(number, status, parent)]


def directions(*attempts: list[Event]) -> list[tuple[str, str, str]]:
    made = rows(Convert(), run(*attempts))
    return [(str(r["direction"]), str(r["triton_code"]), str(r["ptx_code"])) for r in made]


def test_ptx_and_the_triton_that_it_was_made_of_are_pairs_both_ways() -> None:
    found = directions(written(1, Status.CHECKED, source("one")), written(2, Status.CHECKED, PTX, 1))
    ptx = "\n.version 8.0\n\n.target sm_90a"
    assert found == [
        ("pytorch_to_triton", source("one"), ""),
        ("triton_to_ptx", source("one"), ptx),
        ("ptx_to_triton", source("one"), ptx),
    ]


def test_the_nearest_right_triton_counts_however_many_attempts_in_ptx_lie_between() -> None:
    found = directions(
        written(1, Status.CHECKED, source("one")),
        written(2, Status.WRONG, source("two"), 1),
        written(3, Status.CHECKED, PTX, 2),
        written(4, Status.CHECKED, PTX, 3),
    )
    assert [triton for direction, triton, _ in found if direction == "triton_to_ptx"] == [source("one")] * 2


def test_ptx_without_right_triton_before_it_is_no_pair_and_is_not_called_triton() -> None:
    assert directions(written(1, Status.CHECKED, PTX)) == []
    assert directions(written(1, Status.WRONG, source("one")), written(2, Status.CHECKED, PTX, 1)) == []
    loop = (written(1, Status.CHECKED, PTX, 2), written(2, Status.CHECKED, PTX, 1))
    assert directions(*loop) == []


def test_each_direction_of_a_pair_has_an_id_of_its_own() -> None:
    its = run(written(1, Status.CHECKED, source("one")), written(2, Status.CHECKED, PTX, 1))
    assert len({row["uuid"] for row in rows(Convert(), its)}) == 3


def test_a_pair_is_a_request_in_the_language_of_its_answer_too() -> None:
    its = run(written(1, Status.CHECKED, source("one")), written(2, Status.CHECKED, PTX, 1))
    first, there, back = rows(Convert(), its)
    for row, language, before, after in ((first, "Triton", "", source("one")), (there, "PTX", source("one"), PTX),
                                         (back, "Triton", PTX, source("one"))):  # fmt: skip
        assert row["prompt"][0]["content"].startswith(f"You write {language} kernels")
        assert before.strip() in row["prompt"][1]["content"]
        assert after.strip() in row["completion"][0]["content"]
    assert "This file computes it with Triton kernels:" in there["prompt"][1]["content"]


CUDA = source("one") + '\nfrom kerneltune import CudaKernel\n\nkernel = CudaKernel("void k() {}")\n'
GLUON = source("one") + "\nfrom triton.experimental import gluon\n"


def test_any_two_languages_of_a_task_are_pairs_each_once_and_both_ways() -> None:
    its = (
        written(1, Status.CHECKED, source("one")),
        written(2, Status.CHECKED, GLUON),
        written(3, Status.CHECKED, CUDA),
    )
    made = [(r["direction"], r["source_code"], r["target_code"]) for r in rows(Convert(), run(*its))]
    assert made == [
        ("pytorch_to_triton", TASK, source("one")),
        ("pytorch_to_gluon", TASK, GLUON),
        ("triton_to_gluon", source("one"), GLUON),
        ("gluon_to_triton", GLUON, source("one")),
        ("pytorch_to_cuda", TASK, CUDA),
        ("triton_to_cuda", source("one"), CUDA),
        ("cuda_to_triton", CUDA, source("one")),
        ("gluon_to_cuda", GLUON, CUDA),
        ("cuda_to_gluon", CUDA, GLUON),
    ]


def test_the_other_side_may_be_of_another_run_of_the_task_and_must_be_right() -> None:
    wrong = run(written(1, Status.WRONG, source("two")), run_id="wrong")
    other = run(written(1, Status.CHECKED, source("two")), run_id="other")
    mine = run(written(1, Status.CHECKED, CUDA), run_id="mine")
    assert [r["direction"] for r in rows(Convert(), wrong, mine)] == ["pytorch_to_cuda"]
    found = [r for r in rows(Convert(), wrong, other, mine) if r["direction"] == "triton_to_cuda"]
    assert [(r["source_code"], r["other_attempt"]) for r in found] == [(source("two"), "r1/1")]


def test_what_it_was_made_of_goes_before_what_is_best_of_the_task() -> None:
    made_of = written(2, Status.CHECKED, source("two"))
    its = run(written(1, Status.CHECKED, source("one")), made_of, written(3, Status.CHECKED, CUDA, 2))
    found = {r["source_code"] for r in rows(Convert(), its) if r["direction"] == "triton_to_cuda"}
    assert found == {source("two")}


def test_a_long_line_of_attempts_costs_time_in_proportion_to_its_length() -> None:
    def cost(n: int) -> float:
        line, times = (written(i, Status.CHECKED, f"{PTX}# {i}\n", i - 1) for i in range(2, n)), []
        its = run(written(1, Status.CHECKED, source("one")), *line)
        for _ in range(3):
            begin = time.thread_time()
            assert len(rows(Convert(), its)) == 2 * n - 3
            times.append(time.thread_time() - begin)
        return min(times)

    assert cost(160) < 24 * cost(20), "8 times as many took 60 times as long"
