"""Pages of stored runs, of `optimize serve --web`: who may see them, what they hold, and a reader with a keyboard."""

import re
import shutil
import time
from collections.abc import Iterator

import httpx2
import pytest

from kerneltune.agent.events import Warned
from kerneltune.agent.record.store import Store
from tests.agent.report.browser import CHROMIUM, Browser, browser
from tests.agent.report.reading import Reading
from tests.agent.shell import ROOT, optimize
from tests.agent.test_serve import Served, served

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"  # npm install --no-save axe-core
RUN = "20261127-022454-cross_entropy-97ef2b7a"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
FAULTS = f"""axe.run(document, {{runOnly: {RULES}}})
    .then(told => told.violations.map(one => one.id + ': ' + one.nodes[0].html.slice(0, 200)))"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """One with the recorded demo, and the address of its pages, with the token."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(ROOT / "docs" / "demo", folder / "runs")
    with served(folder, "--web") as started:
        assert started.process.stdout is not None
        told = started.process.stdout.readline()
        assert re.fullmatch(r"pages at http://127\.0\.0\.1:\d+/\?token=\S+\n", told), told
        yield started, told.split()[-1]


@pytest.fixture
def reader(service: tuple[Served, str]) -> Iterator[httpx2.Client]:
    """Somebody who has opened the address."""
    base, token = service[1].split("?")
    with httpx2.Client(base_url=base, timeout=60, follow_redirects=True) as client:
        answer = client.get(f"/?{token}")
        assert (answer.status_code, str(answer.url)) == (200, base)  # the token does not stay in the address
        yield client


def test_pages_are_for_who_has_the_token_and_their_cookie_is_for_pages_alone(
    service: tuple[Served, str], reader: httpx2.Client
) -> None:
    started, address = service
    base, token = address.split("?token=")
    for path in ("", f"runs/{RUN}", "?token=wrong", "?token=\u00e9", "seq"):
        assert httpx2.get(base + path).status_code == 401
    assert httpx2.get(base, headers=[(b"cookie", b"kerneltune=\xe9")]).status_code == 401
    [cookie] = reader.cookies.jar
    assert (cookie.value == token, cookie.get_nonstandard_attr("SameSite")) == (False, "strict")
    assert cookie.has_nonstandard_attr("HttpOnly")
    for method, path in (("GET", "metrics"), ("POST", "bench"), ("POST", "sessions"), ("GET", "mcp"), ("POST", "")):
        assert reader.request(method, f"/{path}").status_code == 401
    assert httpx2.get(f"{base}metrics", headers={"authorization": f"Bearer {token}"}).status_code == 200
    with started.client() as client:  # the socket is its owner's alone
        assert client.get("/metrics").status_code == 200
        assert "Stored runs" in client.get("/").text


def test_runs_are_listed_filtered_and_lead_to_their_attempts(reader: httpx2.Client) -> None:
    listed = Reading(reader.get("/").text, is_site=True)
    assert listed.problems == []
    assert f"/runs/{RUN}" in listed.links
    found = Reading(reader.get("/", params={"q": "CROSS h200"}).text, is_site=True)
    assert [link for link in found.links if link.startswith("/runs/")] == [f"/runs/{RUN}"]
    assert "No run has all of these words" in reader.get("/", params={"q": "<script>nothing"}).text
    run = Reading(reader.get(f"/runs/{RUN}").text, is_site=True)
    assert run.problems == []
    assert "1.40x the speed of torch.compile max-autotune" in run.text
    assert {f"/runs/{RUN}/{number}" for number in range(1, 6)} <= set(run.links)
    attempt = Reading(reader.get(f"/runs/{RUN}/4").text, is_site=True)
    assert attempt.problems == []
    for words in ("237.1 µs", "loss_kernel", "Worst cases", "Difference to #2"):
        assert words in attempt.text
    assert {f"/runs/{RUN}/3", f"/runs/{RUN}/5", f"/runs/{RUN}"} <= set(attempt.links)


@pytest.mark.parametrize("path", ["/runs/nobody", f"/runs/{RUN}/99", "/suites/none", f"/runs/{RUN}/x"])
def test_what_is_not_there_is_404_in_a_line(reader: httpx2.Client, path: str) -> None:
    answer = reader.get(path)
    assert (answer.status_code, answer.text.count("\n") <= 1) == (404, True)


def test_a_suite_links_to_its_runs(service: tuple[Served, str], reader: httpx2.Client) -> None:
    assert optimize("suite", "softmax", "--authors", "offline", "--max-attempts", "1", "--plain",
                    cwd=service[0].folder).returncode == 0  # fmt: skip
    [suite] = [link for link in Reading(reader.get("/").text, is_site=True).links if link.startswith("/suites/")]
    page = Reading(reader.get(suite).text, is_site=True)
    assert page.problems == []
    [run] = [link for link in page.links if link.startswith("/runs/")]
    assert reader.get(run).status_code == 200


# In a browser ---------------------------------------------------------------------------------------------------------

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def tab(service: tuple[Served, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.show(service[1], 1280)
        yield opened


@in_a_browser
@pytest.mark.skipif(not AXE.is_file(), reason="npm install --no-save axe-core")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_has_a_fault_of_accessibility(
    tab: Browser, service: tuple[Served, str], width: int, dark: bool
) -> None:
    base = service[1].split("?")[0]
    tab.call("Page.setBypassCSP", enabled=True)  # for the checker, which is no part of the page
    try:
        for path in ("", f"runs/{RUN}", f"runs/{RUN}/4", f"runs/{RUN}/1", "?q=nothing"):
            tab.show(base + path, width, dark=dark)
            tab.ask(AXE.read_text() + "; null")
            assert tab.wait_for(FAULTS) == [], path
            assert not tab.ask("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    finally:
        tab.call("Page.setBypassCSP", enabled=False)


@in_a_browser
def test_a_reader_with_a_keyboard_alone_comes_from_the_list_to_a_source(
    tab: Browser, service: tuple[Served, str]
) -> None:
    tab.show(service[1].split("?")[0], 1280)
    tab.press_until("cross_entropy", "document.activeElement.textContent")
    assert tab.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # it is seen where one is
    tab.press("Enter")
    tab.wait_until(f"location.pathname === '/runs/{RUN}' && document.readyState === 'complete'")
    tab.press_until("4", "document.activeElement.textContent")
    tab.press("Enter")
    tab.wait_until(f"location.pathname === '/runs/{RUN}/4' && document.readyState === 'complete'")
    tab.ask("navigator.clipboard.writeText = async text => { window.got = text }")
    tab.press_until("Copy source", "document.activeElement.getAttribute('aria-label')")
    tab.press("Enter")
    tab.wait_until("window.got && window.got.includes('def loss_kernel')")
    assert tab.complaints() == []


@in_a_browser
def test_a_page_follows_the_record_and_keeps_what_is_open(tab: Browser, service: tuple[Served, str]) -> None:
    started, address = service
    tab.show(f"{address.split('?')[0]}runs/{RUN}", 1280)
    tab.ask("[...document.querySelectorAll('main summary')].at(-1).parentElement.open = true")
    tab.ask("document.querySelector('main a').focus()")
    with Store.open(started.folder / "runs") as store:
        store.write(Warned(RUN, "something new was written just now", at=time.time()))
    tab.wait_until("document.body.textContent.includes('something new was written just now')", 20)
    assert tab.ask("[...document.querySelectorAll('main summary')].at(-1).parentElement.open")
    assert tab.ask("document.activeElement === document.querySelector('main a')")
    assert tab.complaints() == []
