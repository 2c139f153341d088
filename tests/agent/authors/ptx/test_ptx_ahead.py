"""Rewrites made side by side and ahead: sooner, and otherwise as if each were made when it is asked for."""

import threading
import time
from collections.abc import Sequence

import pytest

from agent.attempt import Attempt
from agent.authors.ptx.ahead import Ahead
from agent.authors.ptx.author import PtxAuthor
from agent.authors.ptx.base import base_of
from tests.agent.authors.ptx.test_ptx_author import (
    TASK,
    cheaper_with,
    choices,
    file_of,
    judged,
    machine_code,
    plan,
    run,
)
from tools.compiling import MachineCode
from tools.plan.schema import Kernel

HINTS = [{"load_hint": hint} for hint in ("cs", "cg", "ca", "lu")]


class Slow:
    """An assembler that takes its time, and knows how many asked for it at once, and how often."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds, self.calls, self.inside, self.most = seconds, 0, 0, 0
        self._lock = threading.Lock()

    def __call__(self, kernels: Sequence[Kernel]) -> list[MachineCode]:
        """As `machine_code`."""
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self._lock:
            self.inside -= 1
        return machine_code(kernels)


def test_what_was_begun_is_made_side_by_side_and_once() -> None:
    slow, base = Slow(), base_of(file_of(), [plan()])
    ahead = Ahead(slow, 4)
    ahead.begin(base, HINTS)
    made = [ahead.made(base, hint) for hint in HINTS]
    ahead.close()
    assert (slow.calls, slow.most) == (4, 4)
    for hint, each in zip(HINTS, made, strict=True):
        assert each.base is not None
        assert f"ld.global.{hint['load_hint']}.b32" in each.base.source


def test_no_more_is_begun_than_there_are_threads() -> None:
    slow, base = Slow(), base_of(file_of(), [plan()])
    ahead = Ahead(slow, 2)
    ahead.begin(base, HINTS)
    ahead.begin(base, HINTS)
    ahead.made(base, HINTS[1])
    ahead.made(base, HINTS[0])
    ahead.close()
    assert slow.calls == 2


def test_what_changes_nothing_is_not_assembled() -> None:
    slow, base = Slow(), base_of(file_of(), [plan()])
    ahead = Ahead(slow, 2)
    assert ahead.made(base, {"reuse": "on"}).base is None
    assert slow.calls == 0
    ahead.close()


def test_an_error_comes_to_whoever_asks() -> None:
    def broken(kernels: Sequence[Kernel]) -> list[MachineCode]:
        raise OSError("no assembler")

    ahead = Ahead(broken, 2)
    with pytest.raises(OSError, match="no assembler"):
        ahead.made(base_of(file_of(), [plan()]), HINTS[0])
    ahead.close()


def proposals(threads: int, width: int, assemble: Slow) -> list[dict[str, str]]:
    """What an author proposes to a judge that always has `width` candidates before it."""
    by = PtxAuthor(lambda: {file_of(): ""}, lambda source: [plan()], assemble, 3, threads)
    history: list[Attempt] = []
    line = by.propose(TASK, [], width)
    while line and len(history) < 24:
        judged([line.pop(0)], history, cheaper_with(masks=10, store_hint=2))
        line += by.propose(TASK, history, width - len(line))
    by.close()
    return [choices(a) for a in history]


def test_threads_and_their_haste_change_no_proposal() -> None:
    one = proposals(1, 4, Slow(0.0))
    assert proposals(8, 4, Slow(0.0)) == one
    assert proposals(3, 4, Slow(0.01)) == one


def test_while_candidates_are_judged_the_next_ones_are_made() -> None:
    slow = Slow(0.1)
    by = PtxAuthor(lambda: {file_of(): ""}, lambda source: [plan()], slow, 0, 4)
    history = run(by, 3, cheaper_with())
    waited = []
    for _ in range(4):
        time.sleep(0.5)  # the judge
        began = time.monotonic()
        found = by.propose(TASK, history, 1)
        waited.append(time.monotonic() - began)
        judged(found, history, cheaper_with())
    by.close()
    assert min(waited) < slow.seconds  # it was there already


def test_a_kernel_that_is_not_timed_is_neither_assembled_nor_a_reason_to_try() -> None:
    other = plan().kernels[0].text.replace("scale", "other")
    source = file_of() + file_of(other)
    slow = Slow(0.0)
    base = base_of(source, [plan(), plan(other)])
    assert [k.text for k in base.heard] == [plan().kernels[0].text]
    made = Ahead(slow, 1).made(base, {"load_hint": "cs"})
    assert len(made.code) == 1
    assert made.base is not None
    assert made.base.source.count("ld.global.cs.b32") == 2  # but it is rewritten alike


def test_what_spills_is_not_proposed() -> None:
    def spilling(kernels: Sequence[Kernel]) -> list[MachineCode]:
        (code,) = machine_code(kernels)
        spill_bytes = 80 if "maxnreg" in kernels[0].text else 0
        return [MachineCode(code.sha256, code.instructions, code.issue_cycles, 20, spill_bytes)]

    history = run(PtxAuthor(lambda: {file_of(): ""}, lambda source: [plan()], spilling), 100, cheaper_with())
    assert not any("maxnreg" in a.proposal.source for a in history)
    assert len(history) > 20


def test_the_policy_that_was_fastest_on_a_gpu_is_tried_first() -> None:
    history = run(PtxAuthor(lambda: {file_of(): ""}, lambda source: [plan()], machine_code), 3, cheaper_with())
    assert choices(history[1]) == {"load_policy": "evict_last"}
    assert "createpolicy.fractional.L2::evict_last.b64" in history[1].proposal.source
    assert history[1].proposal.hypothesis
