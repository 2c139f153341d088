"""`optimize report` on a real run without a GPU: what the page says is what the record says."""

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Trajectory
from tests.agent import shell
from tests.agent.report.reading import Reading
from tests.agent.shell import ROOT

STORY = "scripted:tests/agent/stories/softmax.jsonl"


def optimize(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return shell.optimize(*map(str, arguments), cwd=ROOT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with one run of the scripted model."""
    folder = tmp_path_factory.mktemp("runs")
    done = optimize("--task", "softmax", "--model", STORY, "--max-attempts", 4, "--plain", "--runs-dir", folder)
    assert done.returncode in (0, 1), done.stderr
    return folder


@pytest.fixture(scope="module")
def run(runs: Path) -> Trajectory:
    with Store.open(runs) as store:
        return next(iter(store.trajectories(conversations=True)))


@pytest.fixture(scope="module")
def made(runs: Path, run: Trajectory) -> dict[str, Any]:
    """The one object of --json."""
    done = optimize("report", run.run.run_id, "--runs-dir", runs, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def page(made: dict[str, Any]) -> str:
    return Path(str(made["path"])).read_text()


def test_it_lies_beside_the_run_and_says_what_it_is(made: dict[str, Any], runs: Path, run: Trajectory) -> None:
    path = runs / run.run.run_id / "report.html"
    assert (made["type"], made["schema_version"], made["path"]) == ("report", 1, str(path))
    assert (made["bytes"], made["runs"]) == (path.stat().st_size, [run.run.run_id])
    assert [p.name for p in path.parent.glob(".*")] == []  # nothing is left of the writing


def test_the_page_is_well_formed_and_lists_every_attempt(page: str, run: Trajectory) -> None:
    read = Reading(page)
    assert read.problems == []
    assert {f"a{a.number}" for a in run.attempts} <= set(read.ids)
    for a in run.attempts:
        assert a.rationale[:60] in read.text


def test_the_statement_is_that_of_a_run_without_a_gpu(made: dict[str, Any], page: str, run: Trajectory) -> None:
    if run.run.gpu is not None:
        pytest.skip("this machine has a GPU")
    said, (first, _, rest) = " ".join(Reading(page).text.split()), made["statement"].partition(". ")
    assert first == f"{run.run.task}: a correct kernel, not timed yet"
    assert "a correct kernel, not timed yet" in said
    assert rest in said
    assert "nothing here says whether it is fast" in made["statement"]
    assert "Nothing was timed in this run: there was no GPU." in page
    assert not re.search(r"\d µs|speed-up over", Reading(page).text.split("Conversation")[0])


def test_a_suite_links_to_the_reports_of_its_runs_unless_it_is_put_elsewhere(runs: Path, tmp_path: Path) -> None:
    done = optimize("report", "--suite", "--runs-dir", runs)
    assert done.stdout == f"{runs / 'suite.html'}\n"
    [link] = Reading((runs / "suite.html").read_text()).links
    assert "The best kernel" in (runs / link).read_text()
    optimize("report", "--suite", "-o", tmp_path / "mine.html", "--runs-dir", runs)
    assert Reading((tmp_path / "mine.html").read_text()).links == []


def test_the_best_source_and_the_failures_are_those_of_the_record(page: str, run: Trajectory) -> None:
    assert run.best is not None
    text = Reading(page).text
    assert run.best.source.strip() in text
    failed = [a for a in run.attempts if a.status is not None and not a.accepted]
    assert failed
    for a in failed:
        assert a.status is not None
        assert a.status.value.replace("_", " ") in text


def test_costs_are_unknown_when_nobody_priced_them(page: str) -> None:
    cost = Reading(page).text.split("What it cost")[1].split("Hypotheses")[0]
    assert "unknown" in cost
    assert "$0" not in cost


def test_the_commands_to_reproduce_it_work_as_they_stand(page: str, runs: Path, run: Trajectory) -> None:
    commands = [unescape(c) for c in re.findall(r'<pre class="wrap">(optimize [^<]+)</pre>', page)]
    assert commands[0] == f"optimize verify {run.best.attempt_id if run.best else ''}"
    shown = optimize(*commands[1].split(" > ")[0].split()[1:], "--runs-dir", runs)
    assert run.best is not None
    assert shown.stdout == run.best.source


def test_a_dash_writes_the_page_to_stdout(page: str, runs: Path, run: Trajectory) -> None:
    done = optimize("report", run.run.run_id[:12], "-o", "-", "--runs-dir", runs)
    assert (done.returncode, done.stdout) == (0, page)


def test_a_report_replaces_an_older_one_whole(runs: Path, run: Trajectory, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    path.parent.mkdir()
    path.write_text("x" * 10_000_000)
    done = optimize("report", run.run.run_id, "-o", path, "--runs-dir", runs)
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    assert path.read_text().endswith("</html>\n")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a report of which run?"),
        (("nonsense",), "no run 'nonsense'"),
        (("2", "-o", "-", "--json"), "leave out --json"),
        (("2", "-o", "."), "is a folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments: tuple[str, ...], words: str, runs: Path) -> None:
    done = optimize("report", *arguments, "--runs-dir", runs)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_without_runs_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = optimize("report", "--suite", "--runs-dir", tmp_path / "none")
    assert (done.returncode, "optimize --task softmax" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
