"""Reports in a real browser: it says nothing, asks for nothing, and everything can be read at any width."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltune.agent.report.page import run_page
from kerneltune.agent.report.suite import suite_page
from kerneltune.tools.schema.verdict import Status
from tests.agent.report.browser import CHROMIUM, Browser, browser
from tests.agent.report.made import CHECKED, RUN, SANITIZER, correct, events, failed, hostile, material, receipt

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
WIDTHS = (320, 390, 720, 872, 1280)
# Text that is smaller than 12 pixels as it is drawn: letters of a drawing shrink with it.
SMALL = """
[...document.querySelectorAll('body *')].flatMap(e => {
  const said = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!said || e.tagName === 'title' || !e.getClientRects().length) return [];
  const svg = e.ownerSVGElement, scale = svg ? e.getScreenCTM().a : 1;
  const px = parseFloat(getComputedStyle(e).fontSize) * scale;
  return px < 11.95 ? [px.toFixed(1) + ' ' + e.tagName + ' ' + e.textContent.trim().slice(0, 40)] : [];
})"""
# Text whose contrast with what is behind it is below WCAG's 4.5.
FAINT = """
(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const lum = c => [0.2126, 0.7152, 0.0722].reduce((s, w, i) => {
    const v = c[i] / 255; return s + w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].flatMap(e => {
    const said = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!said || e.tagName === 'title' || !e.getClientRects().length) return [];
    const style = getComputedStyle(e), ink = rgb(e.ownerSVGElement ? style.fill : style.color);
    const [a, b] = [lum(ink), lum(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    return ratio < 4.5 ? [ratio.toFixed(2) + ' ' + e.className + ' ' + e.textContent.trim().slice(0, 30)] : [];
  });
})()"""
# Letters of drawings that stick out of their drawing.
OUTSIDE = """
[...document.querySelectorAll('svg text')].flatMap(e => {
  const box = e.getBoundingClientRect(), page = e.ownerSVGElement.getBoundingClientRect();
  return box.width && (box.left < page.left - 2 || box.right > page.right + 2) ? [e.textContent] : [];
})"""
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def pages() -> dict[str, str]:
    best = f"{RUN}/6"
    timed = events(confirmed=correct(80.0, "confirmed"))
    untimed = events([(None, CHECKED), (1, failed(Status.WRONG, "x" * 3000))], gpu=None)
    nothing = events([(None, failed(Status.REJECTED, "line 1: no"))])
    long = events([(i or None, correct(200.0 - i)) for i in range(150)])
    word = "W" * 400 + " <script>document.title='got in'</script> <img src=http://evil.example/x>"
    runs = [material(made) for made in (timed, untimed, nothing, hostile(word))]
    return {
        "timed": run_page(material(timed, receipt(best)), SANITIZER, version="1"),
        "untimed": run_page(runs[1], SANITIZER, version="1"),
        "nothing": run_page(runs[2], SANITIZER, version="1"),
        "long": run_page(material(long), SANITIZER, version="1"),
        "hostile": run_page(material(hostile(word), receipt(f"{RUN}/1")), SANITIZER, version="1"),
        "suite": suite_page(runs, SANITIZER, version="1", chosen="named"),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in pages()}
    for name, html in pages().items():
        # Closed parts are opened, so that their text is looked at too; no part of the page itself.
        made[name].write_text(html.replace("<details>", "<details open>"))
    return made


NAMES = ["timed", "untimed", "nothing", "long", "hostile", "suite"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_and_asks_nothing_and_fits_every_width(name: str, tab: Browser, files: dict[str, Path]) -> None:
    for width in WIDTHS:
        tab.show(files[name], width)
        assert tab.complaints() == []
        assert tab.requests() == [files[name].as_uri()]
        assert not tab.ask(SCROLLS), width
        assert tab.ask("innerWidth") == width
        assert tab.ask(SMALL) == []
        assert tab.ask(OUTSIDE) == []
        assert tab.ask("document.title") != "got in"


@pytest.mark.parametrize("name", NAMES)
def test_every_letter_stands_out_in_light_and_in_dark(name: str, tab: Browser, files: dict[str, Path]) -> None:
    grounds = []
    for dark in (False, True):
        tab.show(files[name], 1280, dark=dark)
        assert tab.ask(FAINT) == []
        grounds.append(tab.ask("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_a_source_is_copied_with_one_click_and_its_attempts_are_a_click_away(
    tab: Browser, files: dict[str, Path]
) -> None:
    tab.show(files["timed"], 1280)
    tab.ask("window.got = null; navigator.clipboard.writeText = async text => { window.got = text }")
    tab.ask("document.querySelector('#kernel ~ .code button').click()")
    assert tab.ask("window.got") == tab.ask("document.querySelector('#kernel ~ .code pre').textContent")
    assert tab.ask("window.got.length") > 0
    assert tab.ask("document.querySelector('#kernel ~ .code button').textContent") == "Copied"
    tab.ask("document.querySelector('svg a[href=\"#a6\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert tab.ask("location.hash") == "#a6"
    assert tab.ask("document.querySelectorAll('.copy:not([hidden])').length") > 2


def test_a_link_that_slipped_in_could_load_and_run_nothing(
    tab: Browser, files: dict[str, Path], tmp_path: Path
) -> None:
    slipped = "<script>document.title='got in'</script><img src=http://127.0.0.1:9/x><style>body{display:none}</style>"
    broken = tmp_path / "broken.html"
    broken.write_text(files["timed"].read_text().replace("<h1>", f"{slipped}<h1 style='display:none'>", 1))
    tab.show(broken, 1280)
    assert len(tab.complaints()) >= 3  # each was refused aloud
    assert tab.ask("document.title") != "got in"
    assert tab.ask("getComputedStyle(document.body).display") == "block"
    assert tab.ask("getComputedStyle(document.querySelector('h1')).display") == "block"
    failures = [told["params"].get("blockedReason") for told in tab.seen if told["method"] == "Network.loadingFailed"]
    assert failures in ([], ["csp"])


def test_only_one_of_the_two_drawings_is_shown(tab: Browser, files: dict[str, Path]) -> None:
    visible = "['.wide', '.narrow'].map(s => document.querySelector(s).getBoundingClientRect().height > 0)"
    for width, shown in ((390, [False, True]), (1280, [True, False])):
        tab.show(files["timed"], width)
        assert tab.ask(visible) == shown


def test_it_prints(tab: Browser, files: dict[str, Path], tmp_path: Path) -> None:
    tab.show(files["timed"], 1280, dark=True)
    tab.print_to(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
