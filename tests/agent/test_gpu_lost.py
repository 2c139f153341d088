"""A GPU that disappears in the middle of a run ends it with a way to go on; nothing is lost or judged twice."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.commands.lifecycle import chosen, resume_run, run_opened
from kerneltune.agent.commands.session import Session, session, workshop
from kerneltune.agent.events import Judged, Proposed, RunEnded
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings
from kerneltune.tools.bench import waiting_judge
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import GpuLost
from kerneltune.tools.schema.messages import BenchReply, BenchRequest, SupervisorMessage
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.task.load import find_task
from tests.agent.shell import SOFTMAX

NOBODY = Environment(keys=(), server_key="", term="dumb", no_color=True, ci=True)


def judge_whose_gpu_disappears(channel: Any) -> None:
    """One verdict, and at the second candidate what torch raises when the GPU has fallen off its bus."""
    for first in (True, False):
        request: Any = decode(SupervisorMessage, channel.receive().body)  # type: ignore[arg-type]
        assert isinstance(request, BenchRequest)
        if not first:
            raise RuntimeError("CUDA error: the device is lost")
        channel.send(encode(BenchReply(Verdict(Status.CHECKED, "right; not timed"))))


def events_of(store: Store, run_id: str, kind: type[Any]) -> list[Any]:
    return [event for event in store.load_events(run_id) if isinstance(event, kind)]


@pytest.mark.usefixtures("forked_workers")
def test_a_run_whose_gpu_disappears_ends_with_the_way_to_go_on_and_loses_and_doubles_nothing(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "runs", max_attempts=3, width=1, cache_dir=tmp_path / "cache", warm_start=False)
    with contextlib.ExitStack() as held:
        store = held.enter_context(Store.open(settings.runs_dir))
        shop = held.enter_context(workshop(settings, lambda _: None))
        opened: Session = held.enter_context(session(shop, find_task(SOFTMAX)))
        opened.tools.updater.compile_cases = [case.name for case in opened.task.cases]  # as with a GPU
        judge = "tests.agent.test_gpu_lost:judge_whose_gpu_disappears"
        lost = held.enter_context(waiting_judge(shop.machine, judge, task_file=None))
        opened = replace(opened, tools=Evaluator(opened.tools.updater, lost, "timing"))
        choice = held.enter_context(contextlib.closing(chosen(settings, NOBODY)))
        with pytest.raises(
            GpuLost, match=r"the device is lost\. All verdicts so far .* `optimize --resume \S+` goes on"
        ):
            run_opened(opened, choice, settings, store, lambda _: None)
        run_id = store.find_run("")
        judged = events_of(store, run_id, Judged)
        assert [event.verdict.detail for event in judged] == ["right; not timed"]
        assert [event.why for event in events_of(store, run_id, RunEnded)] == [StopReason.FAILED]
        assert len(events_of(store, run_id, Proposed)) >= 2  # one was in the judge's hands
    outcome = resume_run(run_id, settings, NOBODY, lambda _: None)
    assert outcome.why is StopReason.ATTEMPTS
    with Store.open(settings.runs_dir) as store:
        attempts = store.attempts(run_id)
        assert attempts[0].judged.detail == "right; not timed"
        assert [a.judged.status for a in attempts] == [Status.CHECKED] * 3
        assert len({a.number for a in attempts}) == len({a.source for a in attempts}) == 3
        assert len(events_of(store, run_id, Judged)) == 3
