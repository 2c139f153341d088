"""The pipeline with small real parts: sources that say how long they take and how they end."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kerneltune.tools.evaluator import Candidate, Evaluator, judge_all
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.update import Update


@dataclass
class SleepingUpdater:
    """Sleeps for the source's seconds; "broken" fails, "ours" is a failure of ours. Counts what runs at once."""

    running: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, source: str, told: object = None) -> Update:
        """A number is seconds of tracing."""
        if source == "ours":
            raise OSError("the disk is full")
        if source == "broken":
            return Update(failure=Verdict(Status.CRASHED, "it broke"))
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(float(source))
        with self.lock:
            self.running -= 1
        return Update(trace_s=float(source))


@dataclass
class CountingBench:
    """Accepts everything, one at a time; `held_s` is how long it takes."""

    held_s: float = 0.0
    tiers: list[Tier] = field(default_factory=list)
    busy: bool = False

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Fails when two enter at once."""
        assert not self.busy, "the bench is one"
        self.busy = True
        self.tiers.append(tier)
        time.sleep(self.held_s)
        self.busy = False
        return Verdict(Status.CHECKED, "right")


def tools(updater: SleepingUpdater | None = None, bench: CountingBench | None = None) -> Evaluator:
    return Evaluator(updater or SleepingUpdater(), bench or CountingBench(), "checking")  # type: ignore[arg-type]


def candidates(*sources: str) -> list[Candidate]:
    return [Candidate(f"{i}.py", source) for i, source in enumerate(sources)]


def test_every_candidate_gets_one_verdict_and_failures_are_verdicts() -> None:
    found = sorted(judge_all(tools(), candidates("0", "broken", "0"), width=2), key=lambda j: j.index)
    assert [(j.index, j.verdict.status.value) for j in found] == [(0, "checked"), (1, "crashed"), (2, "checked")]


def test_the_quick_ones_are_not_held_up_by_a_slow_one() -> None:
    done = list(judge_all(tools(), candidates("0.5", "0", "0"), width=2))
    assert [j.index for j in done] == [1, 2, 0]
    assert sorted(j.index for j in done) == [0, 1, 2]


def test_as_many_are_traced_at_once_as_the_width_says() -> None:
    updater = SleepingUpdater()
    list(judge_all(tools(updater), candidates(*["0.05"] * 12), width=3))
    assert updater.most == 3


def test_candidates_are_taken_only_when_there_is_room() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Candidate]:
        for i in range(1000):
            taken.append(i)
            yield Candidate(str(i), "0")

    judgements = judge_all(tools(), endless(), width=2)
    for _ in range(3):
        next(judgements)
        time.sleep(0.05)
    assert 8 <= max(taken) < 12  # 3 are done, at most 4 * 2 under way
    judgements.close()  # type: ignore[attr-defined]


def test_tracing_goes_on_while_the_bench_works() -> None:
    third = threading.Event()  # is traced when the bench has the first

    class SignallingUpdater(SleepingUpdater):
        def update(self, source: str, told: object = None) -> Update:
            if source == "0.03":
                third.set()
            return super().update(source, told)

    class PatientBench(CountingBench):
        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            assert third.wait(30)
            return super().bench(update, tier)

    found = list(judge_all(tools(SignallingUpdater(), PatientBench()), candidates("0.01", "0.02", "0.03"), width=2))
    assert len(found) == 3


def test_what_is_no_text_is_rejected_untraced() -> None:
    (found,) = judge_all(tools(), [Candidate("x.py", "ours", problem="not UTF-8")])
    assert (found.verdict.status, found.verdict.detail) == (Status.REJECTED, "not UTF-8")


def test_the_tier_is_passed_on() -> None:
    bench = CountingBench()
    list(judge_all(tools(bench=bench), candidates("0"), tier="screened"))
    assert bench.tiers == ["screened"]


def test_a_failure_of_ours_is_raised_and_the_rest_is_cancelled() -> None:
    updater = SleepingUpdater()
    started = time.perf_counter()
    judgements = judge_all(tools(updater), candidates("0", "ours", *["1"] * 50), width=1)
    assert next(judgements).index == 0
    with pytest.raises(OSError, match="disk is full"):
        list(judgements)
    assert time.perf_counter() - started < 25.0  # of 50 s


def test_ctrl_c_in_the_bench_passes_through_at_once() -> None:
    class Interrupted(CountingBench):
        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        list(judge_all(tools(bench=Interrupted()), candidates("0", *["1"] * 50), width=2))
    assert time.perf_counter() - started < 15.0  # of 25 s


def test_nothing_to_judge_is_nothing_judged() -> None:
    assert list(judge_all(tools(), [])) == []
