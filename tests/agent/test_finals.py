"""What is judged again at the end of a search, and which attempt is its best then."""

import time
from dataclasses import dataclass, replace

import pytest

from kerneltune.agent.attempt import Limits, Tiers, search_tiers, tiers_for
from kerneltune.agent.events import Verified, Warned, attempts_of
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.update import Update
from tests.agent.test_loop import TASK, ListAuthor, Log, NoteUpdater, TieredBench, tiered, timed
from tests.agent.test_loop_order import search


@dataclass
class Hot(TieredBench):
    """A GPU that slows down under the load of a longer measurement."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        verdict = super().bench(update, tier)
        assert verdict.timing is not None
        us = verdict.timing.median_us * (1.0 if tier == "screened" else 1.08)
        return timed(us, tier, width=0.05)


def test_a_longer_measurement_s_time_is_not_held_against_what_was_only_screened() -> None:
    bench = Hot()
    running, log = search(bench, ["10", "10.1", "10.2", "10.3", "10.4"])
    optimize(running)
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/1", "confirmed")
    assert [us for us, tier in bench.asked if tier == "confirmed"] == [10.0]
    assert attempts_of(log.events) == running.tracker.attempts


def test_a_best_that_was_judged_in_between_gives_way_to_one_that_was_screened_as_faster() -> None:
    bench = Hot()
    running, _ = search(bench, ["10", *(str(20 + n) for n in range(30)), "9.5"])
    optimize(running)
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/32", "confirmed")
    assert [asked for asked in bench.asked if asked[1] == "judged"] == [(10.0, "judged"), (9.5, "judged")]


KERNEL = Kernel("k", "ttir", "module {}", ("*fp32",), {"num_warps": 4})


class PlanningUpdater(NoteUpdater):
    """Gives equal sources equal plans, whatever is written behind a "#"."""

    def update(self, source: str, told: object = None) -> Update:
        """A number, and perhaps a remark."""
        number = source.partition("#")[0].strip()
        plan = Plan("main", "", f"sm_{number}", (), (KERNEL,), (), (), None)
        return replace(super().update(number), plans={"main": (plan,)}, main_case="main")


def planned(bench: TieredBench, sources: list[str]) -> Run:
    tools = Evaluator(PlanningUpdater(), bench, "timing")  # type: ignore[arg-type]
    made = AttemptTracker("r", TASK, tools, Log(), tiers=search_tiers(gpu=True))
    return Run(made, ListAuthor(sources), Limits(len(sources)))


def test_equal_candidates_are_one_finalist() -> None:
    bench = TieredBench()
    optimize(planned(bench, ["10", "10 # again", "10 # and again", "10 # once more", "10.2"]))
    assert [us for us, tier in bench.asked if tier == "judged"] == [10.0, 10.2]


def test_what_is_refused_in_full_is_refused_in_every_file() -> None:
    @dataclass
    class WrongInFull(TieredBench):
        """The fastest passes a screening and nothing more."""

        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            verdict = super().bench(update, tier)
            wrong = Verdict(Status.WRONG, "one element")
            return wrong if update.trace_s == 10.0 and tier != "screened" else verdict

    bench = WrongInFull()
    running = planned(bench, ["10", "10 # again", "10 # and again", "10 # once more", "11"])
    optimize(running)
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/5", "confirmed")
    assert [asked for asked in bench.asked if asked[0] == 10.0 and asked[1] != "screened"] == [(10.0, "judged")]
    assert "as attempt 1, which has the same plans: one element" in running.tracker.attempts[2].detail


def test_a_run_that_goes_on_sees_what_is_faster_than_its_confirmed_best() -> None:
    bench = Hot()
    running, _ = search(bench, ["10", "10.4"])
    optimize(running)
    tools = Evaluator(NoteUpdater(), bench, "timing")  # type: ignore[arg-type]
    tiers = search_tiers(gpu=True)
    on = AttemptTracker("r", TASK, tools, Log(), attempts=list(running.tracker.attempts), next_number=3, tiers=tiers)
    again = Run(on, ListAuthor(["9.9", "9.8", "12", "9.5"]), Limits(6, patience=3))
    assert optimize(again) == "attempts"
    assert on.best is not None
    assert (on.best.attempt_id, on.best.tier) == ("r/6", "confirmed")


def test_when_time_is_up_the_confirmed_one_stays_the_best() -> None:
    @dataclass
    class SlowerAtLast(TieredBench):
        """A confirmation finds each a tenth slower than judging did, and takes a while."""

        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            verdict = super().bench(update, tier)
            if tier == "confirmed":
                time.sleep(0.2)
            return timed(update.trace_s * 1.1, tier) if tier == "confirmed" else verdict

    running, _ = tiered(SlowerAtLast(), ["10", "10.2", "10.4"], replace(search_tiers(gpu=True), final_s=0.3))
    optimize(running)
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/1", "confirmed")


class OutOfMemoryInFull(TieredBench):
    """Has the memory for a screening, and for nothing more."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        found = super().bench(update, tier)
        return found if tier == "screened" else Verdict(Status.UNCHECKED, "compiled; out of memory")


@pytest.mark.parametrize("tiers", [tiers_for(gpu=True), search_tiers(gpu=True)])
def test_a_later_look_that_comes_to_no_end_takes_nothing_away(tiers: Tiers) -> None:
    bench = OutOfMemoryInFull()
    running, log = tiered(bench, ["10", "9", "8", "7", "6", "5"], tiers)
    optimize(running)
    leader = running.tracker.best
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/6", "screened")
    assert {a.status for a in running.tracker.attempts} == {Status.CORRECT}
    assert attempts_of(log.events) == running.tracker.attempts
    beside = [e for e in log.events if isinstance(e, Verified)]
    assert len(beside) == len([tier for _, tier in bench.asked if tier != "screened"]) > 3
    assert {(e.purpose, e.verdict.status, e.held) for e in beside} == {("unfinished", Status.UNCHECKED, False)}
    told = [e.text for e in log.events if isinstance(e, Warned)]
    assert told[-1] == ("attempt 6 could not be judged in full: compiled; out of memory; its screened verdict counts")


def test_each_finalist_that_cannot_be_judged_in_full_is_tried_once() -> None:
    bench = OutOfMemoryInFull()
    running, _ = tiered(bench, ["10", "9.9", "9.8", "9.7", "9.6"], search_tiers(gpu=True))
    optimize(running)
    assert bench.asked[5:] == [(9.6, "judged"), (9.7, "judged"), (9.8, "judged"), (9.6, "confirmed")]


@dataclass
class OneLate(TieredBench):
    """Its last baseline is ready once the first candidate was judged."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        verdict = super().bench(update, tier)
        return replace(verdict, pending=() if len(self.asked) > 1 else ("compile-max",))


def test_what_was_judged_before_all_baselines_were_ready_is_judged_against_all_at_the_end() -> None:
    bench = OneLate()
    running, log = tiered(bench, ["10", "11"], tiers_for(True, "judged", confirm=False))
    optimize(running)
    assert bench.asked == [(10.0, "judged"), (11.0, "judged"), (10.0, "judged")]
    assert [a.judged.pending for a in running.tracker.attempts] == [(), ()]
    assert [e.attempt_id for e in log.events if isinstance(e, Verified)] == ["r/1"]


def test_a_screening_does_not_wait_for_baselines() -> None:
    bench = OneLate()
    running, _ = tiered(bench, ["10", "11"], tiers_for(True, "screened", confirm=False))
    optimize(running)
    assert bench.asked == [(10.0, "screened"), (11.0, "screened")]
