"""What a person asks of a run that is going on: pause, skip, more, no more."""

import threading
import time
from dataclasses import dataclass, field, replace

import pytest

from kerneltune.agent.attempt import Change, Controls, Limits, Proposal, Remaining
from kerneltune.agent.events import AttemptSkipped, Judged, Reflected, Updated
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.tracker import AttemptTracker, GivenUp
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.update import Update
from tests.agent.test_loop import TASK, ListAuthor, Log, NoteBench, NoteUpdater, run


@dataclass
class HeldUpdater(NoteUpdater):
    """Is at work until it is let go; its compiler is gone by then."""

    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def update(self, source: str, told: object = None) -> Update:
        self.begun.set()
        assert self.let_go.wait(10)
        return Update(failure=Verdict(Status.COMPILE_FAILED, "the compiler is gone"))


def held() -> tuple[HeldUpdater, AttemptTracker, Log]:
    updater, log = HeldUpdater(), Log()
    tools = Evaluator(updater, NoteBench(), "checking")  # type: ignore[arg-type]
    return updater, AttemptTracker("r", TASK, tools, log), log


def in_background(bench: AttemptTracker, ends: list[BaseException]) -> threading.Thread:
    def work() -> None:
        try:
            bench.bench(bench.update(Proposal("1", "")))
        except GivenUp as error:
            ends.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_is_at_work_when_the_run_ends_gets_no_verdict() -> None:
    updater, bench, log = held()
    ends: list[BaseException] = []
    thread = in_background(bench, ends)
    assert updater.begun.wait(10)
    bench.close()
    updater.let_go.set()
    thread.join(10)
    assert [str(e) for e in ends] == ["the run is over"]
    assert bench.attempts == []
    assert not [e for e in log.events if isinstance(e, Updated | Judged)]


def test_a_skipped_attempt_gets_no_verdict_and_makes_room_for_another() -> None:
    updater, bench, log = held()
    ends: list[BaseException] = []
    thread = in_background(bench, ends)
    assert updater.begun.wait(10)
    assert (bench.begun, bench.skip()) == (1, 1)
    updater.let_go.set()
    thread.join(10)
    assert "skipped by a person" in str(ends[0])
    assert bench.begun == 0
    assert [e.attempt_id for e in log.events if isinstance(e, AttemptSkipped)] == ["r/1"]
    assert bench.skip() == 0


def test_the_loop_goes_on_after_a_skip() -> None:
    log = Log()
    author = ListAuthor(["held", "2"])

    class HoldsOne(HeldUpdater):
        def update(self, source: str, told: object = None) -> Update:
            return super().update(source) if source == "held" else Update(trace_s=float(source))

    updater = HoldsOne()
    tools = Evaluator(updater, NoteBench(), "checking")  # type: ignore[arg-type]
    bench = AttemptTracker("r", TASK, tools, log)

    def skip() -> None:
        assert updater.begun.wait(10)
        bench.skip()
        updater.let_go.set()

    threading.Thread(target=skip).start()
    assert optimize(Run(bench, author, Limits(5))) == "author_done"
    assert [a.attempt_id for a in bench.attempts] == ["r/2"]


def test_what_the_gpu_is_timing_is_not_skipped() -> None:
    seen: list[int] = []
    log = Log()

    class Asks(NoteBench):
        def bench(self, update: Update, tier: object = "judged") -> Verdict:
            seen.append(bench.skip())
            return super().bench(update)

    class Notes(HeldUpdater):
        def update(self, source: str, told: object = None) -> Update:
            return Update(trace_s=1.0)

    bench = AttemptTracker("r", TASK, Evaluator(Notes(), Asks(), "timing"), log)  # type: ignore[arg-type]
    bench.bench(bench.update(Proposal("1", "")))
    assert seen == [0]
    assert len(bench.attempts) == 1


def test_what_does_not_compile_waits_for_nobody_s_turn_at_the_gpu() -> None:
    updater, bench, _ = held()
    updater.let_go.set()
    taken = threading.Lock()
    bench.tools = replace(bench.tools, judging=taken)
    with taken:
        thread = in_background(bench, [])
        thread.join(10)
        assert [a.status for a in bench.attempts] == [Status.COMPILE_FAILED]


def test_a_paused_run_begins_nothing_until_it_goes_on() -> None:
    running, log = run(["1", "2"])
    running.controls.pause()
    thread = threading.Thread(target=optimize, args=(running,))
    thread.start()
    time.sleep(0.3)
    assert log.events == []
    assert running.controls.paused_s >= 0.3
    running.controls.pause()
    thread.join(10)
    assert len(running.tracker.attempts) == 2


def test_the_time_limit_does_not_count_pauses() -> None:
    running, _ = run(["1"], max_time_s=5)
    began, before = time.monotonic(), running.elapsed_s
    running.controls.pause()
    time.sleep(0.4)
    running.controls.pause()
    assert running.elapsed_s - before <= time.monotonic() - began - 0.4
    running.started -= 4.6
    assert running.why_stop() is None or running.elapsed_s >= 5
    running.started -= 0.4
    assert running.why_stop() == "time"


def test_a_run_that_shall_stop_does_so_also_when_it_is_paused() -> None:
    running, _ = run(["1", "2"])
    running.controls.pause()
    thread = threading.Thread(target=lambda: ends.append(optimize(running)))
    ends: list[str] = []
    thread.start()
    running.controls.stop()
    thread.join(10)
    assert ends == ["stopped"]
    assert running.tracker.attempts == []


def test_raised_limits_let_a_run_go_on() -> None:
    running, _ = run([str(n) for n in range(1, 9)], max_attempts=4)
    running.controls.raise_limits()
    assert optimize(running) == "attempts"
    assert len(running.tracker.attempts) == 5
    assert Limits(2, max_time_s=100).raised(2) == Limits(4, max_time_s=150)
    assert Limits(24, max_cost_usd=1.0).raised(1) == Limits(30, max_cost_usd=1.0)


def test_what_a_run_may_still_use_is_that_of_its_limits_as_they_are_now() -> None:
    running, _ = run(["1"])
    assert running.remaining() == Remaining(10)
    running.limits = Limits(8, max_time_s=100, max_cost_usd=2.0)
    running.tracker.cost.add(0.5)
    running.controls.raise_limits()
    left = running.remaining()
    assert (left.attempts, left.cost_usd, left.is_over) == (10, 1.5, False)
    assert 124 < left.time_s <= 125
    running.controls.stop()
    assert running.remaining().is_over


def test_keys_pressed_before_the_run_listens_are_not_lost() -> None:
    controls = Controls()
    assert controls.skip() == 0
    controls.raise_limits()
    controls.stop()
    heard: list[Change] = []
    controls.connect(heard.append, lambda: 7)
    assert heard == ["raised", "stopping"]
    assert controls.skip() == 7


def test_a_wait_ends_when_the_run_is_over() -> None:
    controls = Controls()
    controls.pause()
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    controls.wait(over.is_set)
    assert over.is_set()


def test_the_time_limit_does_not_count_what_came_before_the_run_nor_suspensions() -> None:
    controls = Controls()
    controls.pause()
    time.sleep(0.3)
    controls.pause()
    running = Run(run(["1"])[0].tracker, ListAuthor(["1"]), Limits(5, max_time_s=5), controls=controls)
    assert -0.2 < running.elapsed_s < 60
    running.started -= 490
    controls.suspended(300.0)
    assert 189 < running.elapsed_s < 250
    controls.pause()
    controls.suspended(300.0)  # while it is paused the pause counts it
    controls.pause()
    assert 189 < running.elapsed_s < 250


def test_an_attempt_counts_once_while_it_is_stored_and_only_then_as_finished() -> None:
    counts: list[tuple[int, int]] = []

    class Counts(Log):
        def __call__(self, event: object) -> None:
            if isinstance(event, Judged | Reflected):
                counts.append((bench.begun, len(bench.attempts)))

    updater, bench, _ = held()
    bench.emit = Counts()
    updater.let_go.set()
    first = bench.bench(bench.update(Proposal("1", "")))
    bench.note(first, "smaller is faster")
    bench.bench(bench.update(Proposal("2", "", first.attempt_id, hypothesis="it is smaller")))
    assert counts == [(1, 0), (1, 1), (2, 1), (2, 2)]


def test_what_ctrl_c_keeps_from_being_stored_is_not_counted() -> None:
    def broken(event: object) -> None:
        if isinstance(event, Judged):
            raise KeyboardInterrupt

    updater, bench, _ = held()
    bench.emit = broken
    updater.let_go.set()
    with pytest.raises(KeyboardInterrupt):
        bench.bench(bench.update(Proposal("1", "")))
    assert bench.attempts == []
