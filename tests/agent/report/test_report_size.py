"""A report stays small however long the run was."""

from kerneltune.agent.record.trajectory import trajectory
from kerneltune.agent.report.data import RunData
from kerneltune.agent.report.page import run_page
from tests.agent.random_runs import RunMaker
from tests.agent.report.made import SANITIZER
from tests.agent.report.reading import Reading


def test_a_thousand_attempts_with_their_conversation_stay_below_two_megabytes() -> None:
    makers = (RunMaker(index, 0, attempts=1000) for index in range(100))
    made = list(next(maker for maker in makers if maker.is_model and maker.gpu).events())
    html = run_page(RunData(trajectory(made)), SANITIZER, version="1")
    assert len(html.encode()) < 2_000_000
    read = Reading(html)
    assert read.problems == []
    assert {f"a{number}" for number in range(1, 1001)} <= set(read.ids)
    assert "messages more: optimize show" in " ".join(read.text.split())
