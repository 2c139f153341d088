"""The drawings of a report: scales, marks, which attempts they hold, and what they do without data."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from kerneltune.agent.events import Event
from kerneltune.agent.report import chart
from kerneltune.agent.report.chart import curve
from kerneltune.agent.report.data import ancestors
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.report.made import BASELINES, CHECKED, correct, events, failed, material


def texts(drawing: Markup) -> list[str]:
    return [str(node.text) for node in ElementTree.fromstring(str(drawing)).iter("text")]


def of(*course: tuple[int | None, Verdict], gpu: str | None = "NVIDIA H200") -> list[Event]:
    return events(course, gpu=gpu)


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0.0, 10.0, False, [0, 2, 4, 6, 8, 10]),
        (0.94, 1.41, False, [1.0, 1.1, 1.2, 1.3, 1.4]),
        (0.3, 300.0, True, [0.3, 1, 3, 10, 30, 100, 300]),
        (60.0, 110.0, True, [60, 70, 80, 90, 100, 110]),
        (5.0, 5.0, False, [5.0]),
    ],
)
def test_ticks_are_round_and_lie_within(low: float, high: float, log: bool, ticks: Sequence[float]) -> None:
    assert chart.Scale(low, high, 0, 100, log).ticks(7) == pytest.approx(ticks)


def test_a_scale_puts_values_where_they_belong_and_keeps_others_on_the_edge() -> None:
    up = chart.Scale(1, 100, 300, 0, log=True)
    assert [up(v) for v in (1, 10, 100, 1000, 0.1)] == pytest.approx([300, 150, 0, 0, 300])


def test_the_curve_has_every_timed_attempt_and_the_verdict_of_every_other() -> None:
    drawn = str(curve(material(events()), chart.WIDE))
    assert [f"attempt {n}: " in drawn and f'href="#a{n}"' in drawn for n in range(1, 7)] == [True] * 6
    assert ["x [" in one.split(":")[1] for one in re.findall("<title>(.*?)</title>", drawn)].count(True) == 3
    assert {"wrong", "compile failed", "best so far", "screened", "judged"} <= set(texts(Markup(drawn)))
    assert "attempt 6" in texts(Markup(drawn))


def test_the_best_so_far_only_follows_shorter_times() -> None:
    drawn = str(curve(material(of((None, correct(80.0)), (1, correct(95.0)), (1, correct(60.0)))), chart.WIDE))
    _, stairs = re.findall(r'class="stairs" d="([^"]+)"', drawn)  # the first is the key's
    assert stairs.count("V") == 2  # one step up, and the way to the end


@pytest.mark.parametrize("width", [chart.WIDE, chart.NARROW])
@pytest.mark.parametrize("last", [0.98, 1.0, 1.002, 1.05])  # the best's time / the baseline's
def test_the_name_of_the_best_does_not_lie_over_that_of_the_baseline(width: int, last: float) -> None:
    fastest = min(BASELINES.values())
    even = [(None, correct(fastest * (last + (4 - n) / 200))) for n in range(5)]
    drawn = str(curve(material(events(even)), width))
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*?(?:text-anchor="(\w+)")?>(attempt 5|1x = [^<]+)<', drawn)
    heights = {said: float(y) for _, y, _, said in places}
    assert set(heights) == {"attempt 5", "1x = torch.compile max-autotune"}
    assert abs(heights["attempt 5"] - heights["1x = torch.compile max-autotune"]) >= 14


def test_a_run_without_times_shows_verdicts_and_no_axis_of_speed() -> None:
    drawn = curve(material(of((None, CHECKED), (None, failed(Status.WRONG, "no")), gpu=None)), chart.WIDE)
    assert {"checked", "wrong"} <= set(texts(drawn))
    assert not any(word.endswith("x") for word in texts(drawn))


def test_many_attempts_have_a_mark_each_in_a_row_for_each_verdict() -> None:
    statuses = (Status.WRONG, Status.CRASHED)
    course = [(None, correct(80.0) if i % 2 else failed(statuses[i // 2 % 2], "no")) for i in range(480)]
    drawn = str(curve(material(events(course)), chart.WIDE))
    for css, count in (("s-wrong", 120), ("s-crashed", 120)):
        _, marks = re.findall(rf'class="{css}" d="([^"]+)"', drawn)  # the first is the key's
        places = re.findall(r"M([\d.]+) ([\d.]+)m", marks)
        assert (len(places), len({y for _, y in places})) == (count, 1)
    assert "attempt 2: " not in drawn  # none says what it is: that would only make the file large


def test_parents_in_a_circle_do_not_hang() -> None:
    run = material(of((2, correct(80.0)), (1, correct(90.0)))).trajectory  # nobody descends from a later attempt
    assert [[a.number for a in ancestors(run, attempt)] for attempt in run.attempts] == [[], [1]]
