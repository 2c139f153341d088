"""`raw` loses nothing: events become rows, rows become files, and the very same events come back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from kerneltune.agent.events import Event, Judged, StoredEvent, Warned
from kerneltune.agent.export.files import dumps
from kerneltune.agent.export.raw import Raw, read_event
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.codec import DecodeError
from kerneltune.tools.schema.verdict import CaseResult, Status, Verdict
from tests.agent.record.samples import RUN, arbitrary_run, attempt, started


def rows(events: list[Event]) -> list[dict[str, Any]]:
    return [made.values for made in Raw().rows_of_events(events)]


def as_lines(events: list[Event]) -> list[str]:
    """The event as an exporter stores a column of kind `exact`."""
    return [dumps(row | {"event": json.dumps(row["event"])}).decode() for row in rows(events)]


def read_lines(lines: list[str]) -> list[Event]:
    found = [json.loads(line) for line in lines]
    return [read_event(json.loads(row["event"])) for row in found]


@pytest.mark.parametrize("seed", range(40))
def test_every_event_comes_back_from_a_line_equal(seed: int) -> None:
    events = arbitrary_run(seed)
    assert read_lines(as_lines(events)) == events


def test_the_samples_hold_what_json_cannot_say_and_what_it_can() -> None:
    texts = [json.dumps(row["event"]) for seed in range(40) for row in rows(arbitrary_run(seed))]
    assert all(any(odd in text for text in texts) for odd in ("Infinity", "\\ud"))
    kinds = {row["kind"] for row in rows(arbitrary_run(0))}
    assert kinds == {cls.kind for cls in get_args(StoredEvent)}


def test_what_is_imported_again_is_the_same_record(tmp_path: Path) -> None:
    events = [*arbitrary_run(5), *attempt(7, status=Status.CORRECT)]
    with Store.open(tmp_path / "a") as first, Store.open(tmp_path / "b") as second:
        for event in events:
            first.write(event)
        stored = first.load_events(RUN)
        for event in read_lines(as_lines(stored)):
            second.write(event)
        assert second.load_events(RUN) == stored == events


def test_a_nan_stays_a_nan() -> None:
    proposed, _, judged, _ = attempt(1)
    assert isinstance(judged, Judged)
    case = CaseResult("rows", "own", False, float("nan"), float("inf"))
    events = [started(), proposed, replace(judged, verdict=Verdict(Status.WRONG, "NaN", (case,)))]
    assert repr(read_lines(as_lines(events))) == repr(events)


def test_a_row_of_another_kind_of_event_or_with_unknown_fields_is_refused() -> None:
    (row,) = rows([Warned(RUN, "x")])
    for event, words in (
        ({"kind": "invented"}, "known kinds are run_started"),
        ([], "event none"),
        (row["event"] | {"more": 1}, "unknown fields"),
        ({"kind": "warned"}, "missing"),
    ):
        with pytest.raises(DecodeError, match=words):
            read_event(event)
