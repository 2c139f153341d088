"""What is proposed, and in which order it is judged, depends on verdicts and never on how long anything takes."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from kerneltune.agent.attempt import Attempt, Limits, Proposal, Tiers, lasting, next_finalist, search_tiers
from kerneltune.agent.events import AttemptSkipped, Judged, Proposed, Verified, attempts_of
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.update import Update
from tests.agent.test_loop import TASK, ListAuthor, Log, NoteBench, TieredBench, run, tiered, timed


@dataclass
class SlowUpdater:
    """Takes as long as the source says: "5 0.2" is ready after 0.2 s and takes 5 us."""

    busy: int = 0
    busiest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, source: str, told: object = None) -> Update:
        us, seconds = source.split()
        with self.lock:
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        time.sleep(float(seconds))
        with self.lock:
            self.busy -= 1
        return Update(trace_s=float(us))


@dataclass
class CountingAuthor:
    """Proposes candidates that tell how many verdicts were known."""

    delays: Sequence[float]
    name: str = "counting"
    known: list[int] = field(default_factory=list)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        at = len(self.known)
        made = [f"{100 - len(history)} {delay}" for delay in self.delays[at : at + width]]
        self.known += [len(history)] * len(made)
        return [Proposal(source, "") for source in made]


def slow(author: object, width: int, updater: SlowUpdater | None = None, **more: float) -> tuple[Run, Log]:
    log = Log()
    tools = Evaluator(updater or SlowUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    limits = Limits(40, max_time_s=more.pop("max_time_s", None))
    return Run(AttemptTracker("r", TASK, tools, log), author, limits, width, **more), log  # type: ignore[arg-type]


def order(log: Log) -> list[str]:
    return [e.attempt_id.partition("/")[2] for e in log.events if isinstance(e, Judged)]


def test_verdicts_come_in_the_order_of_the_proposals_whatever_is_compiled_first() -> None:
    running, log = slow(ListAuthor(["9 0.3", "8 0.0", "7 0.2", "6 0.0", "5 0.1"]), 3)
    assert optimize(running) == "author_done"
    assert order(log) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("delays", [(0.0,) * 9, (0.2, 0.0, 0.0, 0.1, 0.0, 0.0, 0.2, 0.0, 0.0)])
def test_each_proposal_knows_all_verdicts_but_those_of_the_width_before_it(delays: tuple[float, ...]) -> None:
    author = CountingAuthor(delays)
    optimize(slow(author, 4)[0])
    assert author.known == [0, 0, 0, 0, 1, 2, 3, 4, 5]


def test_as_many_are_compiled_side_by_side_as_the_width_says() -> None:
    updater = SlowUpdater()
    optimize(slow(ListAuthor(["1 0.05"] * 12), 4, updater)[0])
    assert updater.busiest == 4


def test_the_next_ones_are_compiled_while_one_is_judged() -> None:
    begun: list[str] = []
    fifth = threading.Event()  # proposed when the first is judged, and so compiled while the second is

    class SignallingUpdater(SlowUpdater):
        def update(self, source: str, told: object = None) -> Update:
            begun.append(source)
            if len(begun) == 5:
                fifth.set()
            return super().update(source, told)

    class PatientBench(NoteBench):
        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            assert update.trace_s != 2 or fifth.wait(30)
            return super().bench(update, tier)

    tools = Evaluator(SignallingUpdater(), PatientBench(), "timing")  # type: ignore[arg-type]
    bench = AttemptTracker("r", TASK, tools, Log())
    assert optimize(Run(bench, ListAuthor([f"{n} 0" for n in range(1, 11)]), Limits(10), 4)) == "attempts"
    assert fifth.is_set()


def test_a_candidate_that_compiles_for_minutes_is_overtaken() -> None:
    running, log = slow(ListAuthor(["9 0.6", "8 0.0", "7 0.0"]), 3, overtaken_after_s=0.1)
    optimize(running)
    assert order(log) == ["2", "3", "1"]


def test_the_judge_waits_for_a_slow_candidate_once_and_not_at_each_verdict() -> None:
    running, log = slow(ListAuthor(["9 1.5", *["8 0.0"] * 8]), 3, overtaken_after_s=0.3)
    optimize(running)
    assert order(log) == [*"23456789", "1"]  # waiting 0.3 s at each turn, it was ready before the last of them


def test_an_overtaken_candidate_gives_its_place_to_another() -> None:
    running, log = slow(ListAuthor(["9 0.8", "8 0.0", "7 0.0"]), 1, overtaken_after_s=0.1)
    optimize(running)
    assert order(log) == ["2", "3", "1"]


@dataclass
class WaitingAuthor(ListAuthor):
    """Has nothing to say before its first candidate is judged."""

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        if not history and len(self.sources) < 3:
            return []
        return super().propose(task, history, 1)


def test_an_author_that_waits_for_verdicts_is_asked_again_when_there_is_one() -> None:
    running, log = slow(WaitingAuthor(["9 0.0", "8 0.0", "7 0.0"]), 2)
    assert optimize(running) == "author_done"
    assert order(log) == ["1", "2", "3"]


def test_no_more_are_begun_than_the_limit_allows() -> None:
    running, log = run([str(n) for n in range(1, 21)], max_attempts=5)
    running.width = 4
    assert optimize(running) == "attempts"
    assert len([e for e in log.events if isinstance(e, Proposed)]) == len(order(log)) == 5


def test_what_is_still_being_compiled_when_the_time_is_up_is_given_up() -> None:
    running, log = slow(ListAuthor(["9 0.0", "8 0.0", "7 1.5"]), 3, max_time_s=0.3)
    running.controls.connect(lambda _: None, running.tracker.skip)
    running.tracker.tools.benches.bench = lambda update, tier="judged": _after(0.35, update)  # type: ignore[method-assign]
    assert optimize(running) == "time"
    assert order(log) == ["1", "2"]
    assert [e.attempt_id for e in log.events if isinstance(e, AttemptSkipped)] == ["r/3"]


def _after(seconds: float, update: Update) -> Verdict:
    time.sleep(seconds)
    return NoteBench().bench(update)


def test_a_run_that_goes_on_proposes_with_all_verdicts_that_there_are() -> None:
    author = CountingAuthor([0.0] * 3)
    running, _ = slow(author, 3)
    running.tracker.attempts += slow_history()
    optimize(running)
    assert author.known == [2, 2, 2]


def slow_history() -> list[Attempt]:
    before, _ = slow(ListAuthor(["9 0.0", "8 0.0"]), 1)
    optimize(before)
    return list(before.tracker.attempts)


def search(bench: TieredBench, sources: list[str], *, confirm: bool = True) -> tuple[Run, Log]:
    return tiered(bench, sources, search_tiers(gpu=True, confirm=confirm))


def test_a_search_screens_all_and_judges_a_few_of_the_best_at_its_end() -> None:
    bench = TieredBench()
    running, log = search(bench, ["10", "9.9", "9.8", "9.7", "20", "30"], confirm=False)
    optimize(running)
    assert [tier for _, tier in bench.asked[:6]] == ["screened"] * 6
    assert bench.asked[6:] == [(9.7, "judged"), (9.8, "judged"), (9.9, "judged")]  # the fourth could be as fast, too
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/4", "judged")
    assert attempts_of(log.events) == running.tracker.attempts


def test_what_was_only_lucky_when_it_was_screened_gives_way_to_the_next_best() -> None:
    @dataclass
    class Lucky(TieredBench):
        """The fastest at first sight is slower when it is judged."""

        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            self.asked.append((update.trace_s, tier))
            us = {("screened", 9.0): 8.0}.get((tier, update.trace_s), update.trace_s)
            return timed(us, tier, width=0.1)

    bench = Lucky()
    running, log = search(bench, ["9", "8.5", "20"])
    optimize(running)
    assert bench.asked[3:] == [(9.0, "judged"), (8.5, "judged"), (8.5, "confirmed")]
    assert [(e.attempt_id, e.held) for e in log.events if isinstance(e, Verified)][-1] == ("r/2", True)


def test_the_best_that_is_wrong_on_other_inputs_is_found_out_before_the_end() -> None:
    @dataclass
    class WrongInFull(TieredBench):
        """The fastest passes a screening and nothing more."""

        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            self.asked.append((update.trace_s, tier))
            if update.trace_s == 5.0 and tier != "screened":
                return Verdict(Status.WRONG, "one element")
            return timed(update.trace_s, tier)

    bench = WrongInFull()
    running, _ = search(bench, ["7", "5", *(str(10 + n) for n in range(30))])
    optimize(running)
    assert bench.asked.index((5.0, "judged")) < len(bench.asked) - 6
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/1", "confirmed")


def test_a_best_that_lasts_is_judged_once() -> None:
    bench = TieredBench()
    running, _ = search(bench, ["5", *(str(10 + n) for n in range(60))])
    optimize(running)
    assert [asked for asked in bench.asked if asked[1] != "screened"] == [(5.0, "judged"), (5.0, "confirmed")]


def test_there_are_no_finalists_where_none_are_wanted() -> None:
    running, _ = search(TieredBench(), ["5", "6"])
    optimize(running)
    assert next_finalist(running.tracker.attempts, Tiers("screened"), ()) is None
    assert lasting(running.tracker.attempts, Tiers("screened")) is None
    assert search_tiers(gpu=False) == Tiers()
    assert search_tiers(gpu=True, tier="judged") == Tiers("judged", confirm=True)


def in_time(final_s: float, *, judged_s: float) -> list[Tier]:
    """The tiers asked for at the end of a search whose three best are about equal."""

    class Slow(TieredBench):
        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            time.sleep(judged_s if tier == "judged" else 0.0)
            return super().bench(update, tier)

    bench = Slow()
    running, _ = tiered(bench, ["10", "9.9", "9.8"], replace(search_tiers(gpu=True), final_s=final_s))
    optimize(running)
    return [tier for _, tier in bench.asked if tier != "screened"]


def test_as_many_finalists_are_judged_as_the_time_allows_and_the_best_is_confirmed_in_any_case() -> None:
    assert in_time(60.0, judged_s=0.0) == ["judged", "judged", "judged", "confirmed"]
    assert in_time(0.5, judged_s=0.2) == ["judged", "confirmed"]  # another one and its confirmation: 0.8 s
    assert in_time(0.0, judged_s=0.0) == ["confirmed"]


def test_the_best_are_not_compiled_again_when_they_are_judged_again() -> None:
    asked: list[str] = []

    class Noting(SlowUpdater):
        def update(self, source: str, told: object = None) -> Update:
            asked.append(source)
            return super().update(source, told)

    tools = Evaluator(Noting(), TieredBench(), "timing")  # type: ignore[arg-type]
    bench = AttemptTracker("r", TASK, tools, Log(), tiers=search_tiers(gpu=True))
    optimize(Run(bench, ListAuthor(["9 0.0", "8 0.0", "7 0.0"]), Limits(3)))
    assert asked == ["9 0.0", "8 0.0", "7 0.0"]
    assert bench.best is not None
    assert bench.best.tier == "confirmed"
