"""Pages that list things list all of them: events, verdicts, refusals, settings, batteries, packages."""

import re
import typing
from xml.etree import ElementTree

import pytest

from kerneltune.agent import events
from kerneltune.agent.attempt import StopReason
from kerneltune.agent.export.base import FORMATS, format_class, option_types
from kerneltune.agent.view.output import result
from kerneltune.agent.view.state import ViewState
from kerneltune.tools.schema import messages, verdict
from kerneltune.tools.schema.task import BATTERIES
from tests.docs.documents import ROOT
from tests.docs.schema_text import fields_of

SHARED = {"run_id", "attempt_id", "kind", "at"}  # told once, above the tables
PARTS = ("Verdict", "CaseResult", "Limitation", "Timing", "CaseTime", "Comparison", "KernelReport")
DRAWING = ROOT / "docs/pictures/architecture.svg"


def page(name: str) -> str:
    """A document's text."""
    return (ROOT / "docs" / name).read_text()


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    _, found, rest = text.partition(f"\n### {heading}\n")
    assert found, f"no heading {heading}"
    return re.split(r"\n##", rest)[0]


def table_of(text: str) -> dict[str, str]:
    """First and second column of a table, without the backticks of the first."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .+\|$", text, re.MULTILINE))


@pytest.mark.parametrize("event", typing.get_args(events.Event), ids=lambda event: event.__name__)
def test_every_event_is_told_with_all_its_fields(event: type) -> None:
    kind = event.__dataclass_fields__["kind"].default  # type: ignore[attr-defined]
    told = table_of(section(page("trajectory.md"), kind))
    needed = {name: words for name, words in fields_of(event).items() if name not in SHARED or name in told}
    assert told == needed


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_an_event_is_told_with_all_its_fields(name: str) -> None:
    assert table_of(section(page("trajectory.md"), name)) == fields_of(getattr(verdict, name))


def test_the_trajectory_page_tells_of_nothing_else() -> None:
    kinds = {event.__dataclass_fields__["kind"].default for event in typing.get_args(events.Event)}
    assert set(re.findall(r"^### (\w+)$", page("trajectory.md"), re.MULTILINE)) == kinds | set(PARTS)


def test_every_key_of_the_result_is_told() -> None:
    _, _, told = page("trajectory.md").partition("## The last line of --json")
    keys = set(result(ViewState(), None, now=0.0)) - {"type"}
    assert set(re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)) == keys


def test_every_verdict_has_its_way_out() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", page("faq.md"), re.MULTILINE)
    statuses = [status.value for status in verdict.Status]
    assert [row for row in rows if row in statuses] == sorted(statuses, key=rows.index)
    assert sorted(set(statuses)) == sorted(set(rows) & set(statuses))


def test_every_refusal_of_the_tracer_has_its_way_out() -> None:
    told = page("faq.md")
    refusals = {
        name: text
        for name, text in vars(messages).items()
        if name.isupper() and isinstance(text, str) and name != "UNCHECKABLE"
    }
    assert len(refusals) > 10
    pieces = {name: re.split(r"[{(:;,]", text.lstrip("; "))[0].strip() for name, text in refusals.items()}
    assert {name: piece for name, piece in pieces.items() if piece not in told} == {}


def test_every_reason_for_the_end_of_a_run_is_told() -> None:
    for told in (page("faq.md"), section(page("trajectory.md"), "run_ended")):
        assert [why for why in StopReason if f"`{why}`" not in told] == []


def test_every_battery_of_inputs_is_told() -> None:
    told = page("evaluation.md")
    assert [name for name in BATTERIES if name != "own" and f"`{name}`" not in told] == []


def test_the_formats_page_lists_formats_that_there_are_with_the_options_that_they_have() -> None:
    tables = re.findall(r"^\| `([\w-]+)` \| [^|]+ \|([^|]*)\|$", page("formats.md"), re.MULTILINE)
    rows = [(name, options) for name, options in tables if name in FORMATS]
    assert {name for name, _ in rows} == set(FORMATS)
    for name, options in rows:
        known = option_types(format_class(name))
        if options.startswith(" `") and "." not in options:
            assert {word for word in re.findall(r"`(\w+)`", options)} <= set(known)


def packages_drawn() -> list[str]:
    """The words of the drawing that name packages."""
    texts = ElementTree.parse(DRAWING).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts if "package" in text.get("class", "").split()]


def test_the_drawing_s_packages_exist() -> None:
    assert len(packages_drawn()) > 10
    assert [name for name in packages_drawn() if not (ROOT / name).exists()] == []


def test_the_architecture_page_or_its_drawing_names_every_package() -> None:
    told = page("architecture.md") + " ".join(packages_drawn())
    folders = [path.parent for room in ("agent", "tools") for path in (ROOT / room).rglob("__init__.py")]
    names = {path.relative_to(ROOT) for path in folders}
    assert sorted(str(name) for name in names if str(name) not in told) == []
