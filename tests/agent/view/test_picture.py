"""Pictures and films of the screen: whole, self-contained, the same every time."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.text import Text

from agent.record.events import RunStarted
from agent.view.picture import FilmFrame, film, picture
from agent.view.player import Player
from agent.view.replay import Timeline
from agent.view.replay_film import film_svg, still_svg
from tests.agent.view.scripts import ENDED, GPU_RUN, many_attempts
from tests.agent.view.test_replay import OVER, player

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(e.itertext()).replace("\xa0", " ") for e in ET.fromstring(svg).iter(f"{SVG}text")]


def at_end(events: list, **facts: object) -> Player:  # type: ignore[type-arg]
    viewer = player(events, following=True, **facts)
    viewer.read_all()
    return viewer


def test_a_picture_loads_nothing_and_is_the_same_every_time() -> None:
    svg = still_svg(at_end(OVER), 100, 30)
    assert svg == still_svg(at_end(OVER), 100, 30)
    assert set(re.findall(r"https?://[^\"')\s]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|@import|url\(|<script|<image|<foreignObject", svg)
    assert "kerneltune · softmax · NVIDIA H200" in texts(svg)
    assert any("single-pass rows, 8 warps" in text for text in texts(svg))


def test_every_text_of_a_picture_stands_in_its_cells() -> None:
    svg = picture(Text("a  核 b    <&\"'>\n  ───  x"), 30, 2, "t <&>")
    found = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if "textLength" in e.attrib]
    assert [("".join(e.itertext()), e.get("x"), e.get("textLength")) for e in found] == [
        ("a\xa0\xa0核 b\xa0\xa0\xa0\xa0<&\"'>", "0", "192.64"),
        ("x", "84.28", "12.04"),
    ]


def test_lines_are_drawn_without_gaps_and_dots_where_they_belong() -> None:
    svg = picture(Text("核───\n│⣀\n╰█"), 5, 3, "t")
    paths = [e.get("d") for e in ET.fromstring(svg).iter(f"{SVG}path")]
    assert paths[0] == "M24.08 10.9h36.12v1.4h-36.12z"
    assert paths[1] == (
        "M5.32 0h1.4v23.45h-1.4z"  # as high as its line and a little more
        "M13.85 19.1h2.41v2.41h-2.41zM19.87 19.1h2.41v2.41h-2.41z"  # two dots in the lowest of four rows
    )
    assert paths[2] == "M5.32 10.9h6.72v1.4h-6.72zM5.32 0h1.4v12.3h-1.4zM12.04 0h12.04v23.2h-12.04z"


def test_backgrounds_are_kept() -> None:
    svg = picture(Text("on red", style="on red"), 10, 1, "t")
    rects = [e for e in ET.fromstring(svg).iter(f"{SVG}rect") if e.get("fill") == "#ff7b72"]
    assert [e.get("width") for e in rects] == ["72.24"]


def test_a_film_shows_every_frame_in_its_time_and_each_line_is_stored_once() -> None:
    svg = film(
        [FilmFrame(Text(f"same\n{word}"), s) for word, s in (("one", 1.0), ("two", 2.0), ("one", 1.0))], 20, 2, "t"
    )
    assert texts(svg).count("same") == 1
    assert texts(svg).count("one") == 1
    moves = re.findall(r"([\d.]+)%\{transform:translateY\(-([\d.]+)px\)\}", svg)
    assert [(float(at), round(float(y) / 46.4)) for at, y in moves] == [(0, 0), (25, 1), (75, 2), (100, 2)]
    assert "4s step-end infinite" in svg
    uses = [e.get("href") for e in ET.fromstring(svg).iter(f"{SVG}use")]
    assert len(uses) == 6
    assert uses[0] == uses[2] == uses[4]


def test_a_film_respects_who_asks_for_less_motion() -> None:
    svg = film_svg(at_end(OVER), 80, 24, None)
    assert re.search(r"@media \(prefers-reduced-motion: reduce\)\{[^}]*animation:none;transform:translateY", svg)
    assert ET.fromstring(svg).get("viewBox")


def test_a_film_without_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a frame"):
        film([], 80, 24, "t")


def test_a_film_of_a_long_run_stays_under_a_megabyte() -> None:
    svg = film_svg(at_end([*many_attempts(1000), ENDED]), 120, 36, None)
    assert len(svg.encode()) < 1_000_000


def test_a_film_at_a_speed_lasts_as_long_as_that_takes() -> None:
    viewer = at_end([*GPU_RUN, ENDED])
    svg = film_svg(viewer, 80, 24, 4.0)
    lasts = re.search(r"([\d.]+)s step-end", svg)
    assert lasts is not None
    assert float(lasts[1]) == pytest.approx(viewer.timeline.length_s / 4.0 + 4.0, abs=0.1)


def test_an_empty_run_still_has_a_picture() -> None:
    viewer = Player(Timeline(), reading=False)
    assert "kerneltune" in texts(still_svg(viewer, 80, 24))
    assert ET.fromstring(film_svg(viewer, 80, 24, None)) is not None


def test_characters_that_no_xml_may_hold_do_not_break_a_picture() -> None:
    svg = picture(Text("a\uffff\x0c\ud800b"), 20, 1, "t\x00\ufffe")
    assert any("\ufffd" in text for text in texts(svg))
    assert svg.encode()
    hostile = [replace(e, task="\x1b[2J<b>&\ud800") if isinstance(e, RunStarted) else e for e in OVER]
    assert "kerneltune · <b>& · NVIDIA H200" in texts(still_svg(at_end(hostile), 80, 24))
