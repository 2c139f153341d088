"""The offline author of PTX on hand-made files: what it proposes, in which order, and after what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.attempt import Attempt, Proposal
from agent.authors.ptx.author import PtxAuthor
from agent.authors.ptx.base import FOR_THESE_SHAPES, base_of
from agent.authors.ptx.launches import launches_of
from tools.compiling import MachineCode
from tools.plan.schema import Kernel, Launch, Plan, ScalarArg, Storage, TensorArg, TensorRef
from tools.ptx.rewrites import CATALOGUE
from tools.spec import CaseSpec, TaskSpec
from tools.verdict import Status, Timing, Verdict

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .u32 n)
.reqntid 64
{
    .reg .b32 %r<9>;
    .reg .b64 %d<9>;
    .reg .pred %p<3>;
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    ld.param.u32 %r5, [n];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.s32 %r2, %r1, 64, %r0;
    setp.lt.s32 %p0, %r2, %r5;
    mul.wide.s32 %d2, %r2, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    @%p0 ld.global.b32 %r3, [%d3];
    div.full.f32 %r4, %r3, %r3;
    @%p0 st.global.b32 [%d4], %r4;
    ret;
}
"""
HEAD = "import torch\nfrom tools.ptx import PtxKernel\n"


def file_of(text: str = TEXT, *, exact: bool = True, words: str = "") -> str:
    note = FOR_THESE_SHAPES if exact else "# For all shapes."
    return f'{HEAD}{note}\n# {words}\nscale = PtxKernel(r"""\n{text}""")\n'


def plan(text: str = TEXT, *, blocks: int = 4, n: int = 256, in_place: bool = False) -> Plan:
    kernel = Kernel("scale", "ptx", text, ("*fp32", "*fp32", "i32"), {"block": [64, 1, 1]})
    x, y = (TensorArg(TensorRef(i, "float32", (n,), (1,))) for i in (0, 0 if in_place else 1))
    launch = Launch(0, (blocks, 1, 1), (x, y, ScalarArg(n, "i32")))
    storages = (Storage(0, 4 * n, "input", "0"), Storage(1, 4 * n, "scratch"))
    return Plan("main", "default", "sm_90", storages, (kernel,), (), (launch,), {})


def machine_code(kernels: Sequence[Kernel]) -> list[MachineCode]:
    """An assembler that makes nothing of prefetches, and needs a cycle for each line."""
    codes = []
    for kernel in kernels:
        heard = [line for line in kernel.text.replace(".L2::128B", "").splitlines() if line.startswith(("    ", ".m"))]
        sha256 = hashlib.sha256("\n".join(heard).encode()).hexdigest()
        codes.append(MachineCode(sha256, len(heard), len(heard), 20, 0))
    return codes


TENSOR = {"$tensor": {"shape": [256], "dtype": "float32"}}
TASK = TaskSpec("scale", "0" * 64, "float32", "", (CaseSpec("main", (TENSOR,), (), TENSOR),))


def author(*sources: str, seed: int = 0, assemble: Callable[..., Any] = machine_code) -> PtxAuthor:
    return PtxAuthor(lambda: dict.fromkeys(sources, ""), lambda source: [plan()], assemble, seed)


def judged(proposals: Sequence[Proposal], history: list[Attempt], us: Callable[[Proposal], float | None]) -> None:
    """Add attempts for proposals: `us` says how long each takes; None refuses it."""
    for proposal in proposals:
        number, time_us = len(history) + 1, us(proposal)
        refused = Verdict(Status.WRONG, "off")
        verdict = (
            refused if time_us is None else Verdict(Status.CORRECT, "", timing=Timing(time_us, time_us, time_us, 9, 9))
        )
        key = () if time_us is None else (time_us,)
        history.append(Attempt(f"r/{number}", number, proposal.parent_id, proposal, verdict, (), key))


def run(by: PtxAuthor, count: int, us: Callable[[Proposal], float | None]) -> list[Attempt]:
    history: list[Attempt] = []
    while len(history) < count and (proposals := by.propose(TASK, history, 1)):
        judged(proposals, history, us)
    return history


def choices(attempt: Attempt | Proposal) -> dict[str, str]:
    proposal = attempt.proposal if isinstance(attempt, Attempt) else attempt
    return dict(proposal.params["rewrites"])


def cheaper_with(**gains: float) -> Callable[[Proposal], float]:
    """A GPU on which each rewrite takes that much time away."""
    return lambda p: 100.0 - sum(gain for name, gain in gains.items() if name in choices(p))


def test_the_start_comes_first_as_it_is() -> None:
    first = author(file_of()).propose(TASK, [], 4)
    assert [p.source for p in first] == [file_of()]
    assert "in PTX" in first[0].rationale


def test_rewrites_change_the_kernel_and_nothing_else_of_the_file() -> None:
    history = run(author(file_of()), 12, cheaper_with())
    for attempt in history:
        assert attempt.proposal.source.startswith(file_of().split('r"""')[0])
        assert attempt.proposal.source.endswith('""")\n')
    assert any("setp" not in a.proposal.source for a in history)


def test_no_two_proposals_have_the_same_machine_code_and_it_ends() -> None:
    text = "\n".join(line for line in TEXT.splitlines() if "global" not in line) + "\n"
    few = PtxAuthor(lambda: {file_of(text): ""}, lambda source: [plan(text)], machine_code)
    history = run(few, 300, cheaper_with())
    seen = [a.proposal.params["machine"] for a in history]
    assert len(seen) == len(set(seen))
    assert 10 < len(history) < 300


def test_what_the_assembler_makes_nothing_of_is_not_proposed_alone() -> None:
    alone = [choices(a) for a in run(author(file_of()), 60, cheaper_with()) if len(choices(a)) == 1]
    assert {"load_prefetch": "L2::64B"} in alone
    assert {"load_prefetch": "L2::128B"} not in alone


def test_what_does_not_assemble_is_not_proposed() -> None:
    def picky(kernels: Sequence[Kernel]) -> list[MachineCode]:
        return [] if "maxnreg" in kernels[0].text else machine_code(kernels)

    history = run(author(file_of(), assemble=picky), 100, cheaper_with())
    assert not any("maxnreg" in a.proposal.source for a in history)
    assert any("minnctapersm" in a.proposal.source for a in history)


def test_rewrites_that_helped_are_found_together() -> None:
    history = run(author(file_of()), 40, cheaper_with(masks=10, read_only=5, store_hint=3))
    best = min(history, key=lambda a: a.rank_key)
    assert {"masks", "read_only", "store_hint"} <= set(choices(best))


def test_the_same_seed_and_history_give_the_same_proposals_also_in_another_process() -> None:
    whole = run(author(file_of()), 20, cheaper_with(masks=10))
    earlier = whole[:9]
    resumed = PtxAuthor(lambda: pytest.fail("it has its start"), lambda source: [plan()], machine_code, 0)
    again: list[Attempt] = list(earlier)
    while len(again) < 14:
        judged(resumed.propose(TASK, again, 1), again, cheaper_with(masks=10))
    assert [choices(a) for a in again] == [choices(a) for a in whole[:14]]


def test_of_two_starts_the_faster_one_is_rewritten() -> None:
    sources = file_of(words="slow"), file_of(words="fast")
    history = run(author(*sources), 8, lambda p: 50.0 if "# fast" in p.source else 90.0)
    assert {a.proposal.source for a in history[:2]} == set(sources)
    assert all("# fast" in a.proposal.source for a in history[2:])


def test_a_start_that_was_refused_has_no_rewrites() -> None:
    history = run(author(file_of()), 8, lambda p: None)
    assert len(history) == 1


def test_what_a_run_began_with_counts_as_a_start() -> None:
    begun: list[Attempt] = []
    judged([Proposal(file_of(), "the start", None, {"from": "best"})], begun, lambda p: 100.0)
    proposals = author().propose(TASK, begun, 3)
    assert proposals
    assert all(p.parent_id == "r/1" for p in proposals)


def test_a_file_without_a_kernel_that_stands_in_it_is_proposed_but_not_rewritten() -> None:
    template = PtxAuthor(lambda: {file_of(): "an expert's idea"}, lambda source: [plan("another")], machine_code)
    history = run(template, 5, cheaper_with())
    assert [a.proposal.rationale for a in history] == ["an expert's idea"]
    assert "nothing to rewrite" in template.problems[0]


def test_expectations_are_said_where_times_can_tell() -> None:
    history = run(author(file_of()), 12, cheaper_with())
    single = next(a.proposal for a in history if list(choices(a)) == ["masks"])
    assert single.hypothesis == CATALOGUE["masks"].hypothesis
    assert "the same results" in single.rationale


def test_a_file_for_all_shapes_keeps_its_masks() -> None:
    assert "masks" in base_of(file_of(), [plan()]).options
    general = base_of(file_of(exact=False), [plan()]).options
    assert "division" in general
    assert not {"masks", "read_only", "reuse"} & set(general)


def test_masks_stay_where_one_of_the_cases_needs_them() -> None:
    assert "masks" not in base_of(file_of(), [plan(), plan(blocks=4, n=250)]).options


def test_memory_that_is_written_through_another_pointer_is_not_read_only() -> None:
    assert "read_only" in base_of(file_of(), [plan()]).options
    assert "read_only" not in base_of(file_of(), [plan(), plan(in_place=True)]).options


def test_a_whole_number_for_a_float_says_nothing_of_its_bits() -> None:
    (launch,) = plan().launches
    as_float = replace(plan(), run=(replace(launch, args=(*launch.args[:2], ScalarArg(256, "fp32"))),))
    assert launches_of([as_float])[plan().kernels[0].sha256].scalars == {}


def test_launches_are_known_together() -> None:
    (known,) = launches_of([plan(), plan(blocks=2, n=100, in_place=True)]).values()
    assert (known.grid, known.scalars[2], known.aligned[0]) == ((4, 1, 1), (100, 256), 16)
    assert known.shares == {0: frozenset({1}), 1: frozenset({0})}
