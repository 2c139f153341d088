"""The figures of a dataset card: valid XML whatever names say, the numbers, and words where there are none."""

import re
from xml.etree import ElementTree

import pytest

from agent.export import svg
from agent.export.figures import COLOURS, MOST_TASKS, figures
from agent.export.statistics import AttemptFacts, RunFacts, Statistics
from tools.verdict import Status

RUN = RunFacts("softmax", "train", "anthropic", "m1", "H200")
HOSTILE = '<script>alert(1)</script>|"&]]>\n\x00\x1b[31m\u202egnp.\ud800' + "長" * 300
SVG = "{http://www.w3.org/2000/svg}"


def drawn(statistics: Statistics) -> dict[str, ElementTree.Element]:
    return {name: ElementTree.fromstring(text.encode()) for name, text in figures(statistics).items()}


def texts(figure: ElementTree.Element) -> list[str]:
    return ["".join(e.itertext()) for e in figure.iter(f"{SVG}text")]


def titles(figure: ElementTree.Element) -> list[str]:
    return ["".join(e.itertext()) for e in figure.iter(f"{SVG}title")]


def some(run: RunFacts = RUN) -> Statistics:
    s = Statistics()
    tries = [("correct", 1.25), ("wrong", None), ("correct", 0.5), ("rejected", None), ("correct", 3.0)]
    s.add(run, [AttemptFacts(f"r/{i}", i, i, status, speedup) for i, (status, speedup) in enumerate(tries, 1)])
    s.add_rows("sft-chat", "train", 1234)
    s.add_rows("sft-chat", "test", 66)
    return s


def test_figures_without_data_say_so_instead_of_showing_an_empty_plot() -> None:
    for figure in drawn(Statistics()).values():
        [title, why] = texts(figure)
        assert re.search(r"no |No |Nothing", why), title
        assert not list(figure.iter(f"{SVG}path"))


def test_runs_without_a_gpu_draw_verdicts_and_say_that_nothing_was_timed() -> None:
    s = Statistics()
    s.add(RUN._replace(gpu=None), [AttemptFacts("r/1", 1, status="checked")])
    figure = drawn(s)
    assert "softmax: checked 1" in titles(figure["verdicts.svg"])
    assert "timed" in texts(figure["speedups.svg"])[1]
    assert "No run on a GPU" in texts(figure["best.svg"])[1]


def test_every_number_is_in_the_figure_for_those_who_point_and_those_who_listen() -> None:
    figure = drawn(some())
    assert "softmax: correct 3" in titles(figure["verdicts.svg"])
    assert "1.19x to 1.41x: 1" in titles(figure["speedups.svg"])
    assert "sft-chat: train 1,234" in titles(figure["rows.svg"])
    for name, said in {"rows.svg": "test 66", "best.svg": "after 6 attempts 3.000x", "turns.svg": "turn 2: 0%"}.items():
        assert said in "".join(figure[name].find(f"{SVG}desc").itertext())  # type: ignore[union-attr]


def test_bars_are_as_long_as_their_numbers_say() -> None:
    widths = {
        "".join(rect.itertext()): float(rect.get("width", 0))
        for rect in drawn(some())["rows.svg"].iter(f"{SVG}rect")
        if "sft-chat" in "".join(rect.itertext())
    }
    train, test = widths["sft-chat: train 1,234"], widths["sft-chat: test 66"]
    assert train / test == pytest.approx(1234 / 66, rel=0.01)


def test_verdicts_of_small_tasks_are_as_wide_as_those_of_large_ones() -> None:
    s = some()
    s.add(RUN._replace(task="small"), [AttemptFacts("q/1", 1, status="wrong")])
    widths: dict[str, float] = {}
    for rect in drawn(s)["verdicts.svg"].iter(f"{SVG}rect"):
        task = "".join(rect.itertext()).partition(":")[0]
        widths[task] = widths.get(task, 0.0) + float(rect.get("width", 0))
    assert widths["small"] == pytest.approx(widths["softmax"], abs=0.5)


def test_hostile_names_stay_names() -> None:
    s = some(RUN._replace(task=HOSTILE))
    s.add_rows(HOSTILE, HOSTILE)
    for name, figure in drawn(s).items():
        assert {e.tag.removeprefix(SVG) for e in figure.iter()} <= {
            *("svg", "title", "desc", "style", "rect", "text", "path", "circle")
        }, name
        assert all(len(text) < 140 for text in texts(figure))
        assert not any(c in "".join(figure.itertext()) for c in "\x00\x1b\u202e\ud800")


def test_more_tasks_than_fit_are_shown_together() -> None:
    s = Statistics()
    for i in range(MOST_TASKS + 30):
        s.add(RUN._replace(task=f"task{i:03}"), [AttemptFacts("r/1", 1, status="wrong")] * (100 - i))
    shown = texts(drawn(s)["verdicts.svg"])
    assert "30 other tasks" in shown
    assert "task019" in shown
    assert "task020" not in shown
    assert len(shown) < 60


def test_every_status_has_a_colour_of_its_own() -> None:
    assert {status.value for status in Status} <= set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_a_status_of_a_newer_version_is_drawn_too() -> None:
    s = Statistics()
    s.add(RUN, [AttemptFacts("r/1", 1, status="from_the_future")])
    assert "softmax: from_the_future 1" in titles(drawn(s)["verdicts.svg"])


def test_figures_are_the_same_for_the_same_numbers() -> None:
    a, b = some(), Statistics.from_json(some().to_json())
    assert figures(a) == figures(b)


def test_wide_characters_take_two_columns() -> None:
    assert svg.short("長" * 10, 10) == "長" * 4 + "…"
    assert svg.short("abc", 3) == "abc"
    assert svg.short("abcd", 3) == "ab…"
