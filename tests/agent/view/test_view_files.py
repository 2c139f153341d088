"""The lines and objects of `bench`, the table of `verify`, and a run whose best was judged again."""

import json
import re
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len

from kerneltune.agent.attempt import Proposal, StopReason
from kerneltune.agent.commands.bench import FilesView
from kerneltune.agent.commands.verify import Verification, print_verification, verification_json
from kerneltune.agent.events import (
    Event,
    Judged,
    JudgingAgain,
    Proposed,
    RunEnded,
    Stage,
    StageStarted,
    Updated,
    Verified,
    fan_out,
    is_stored,
)
from kerneltune.agent.record.folder import ReceiptBook
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.agent.view.output import JsonView, StatusLine, standard_page
from kerneltune.agent.view.plain import plain_line, summary_text
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.agent.view.text import SPINNER
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.task import Contract
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.update import Update
from tests.agent.record.test_record_receipts import SETTING
from tests.agent.test_loop import run
from tests.agent.view.scripts import GPU_RUN, NOW, started, verdict

END = RunEnded("r-1", StopReason.AUTHOR_DONE, 3, 2, "r-1/3", None, 62.0, at=NOW)
FILES = {
    "slow.py": verdict(4, Status.CORRECT),
    "b\x1b[2Jad.py": Verdict(Status.WRONG, "3 of 4 elements\nwrong"),
    "fast.py": verdict(3, Status.CORRECT),
}


def begin(view: FilesView, number: int, name: str) -> str:
    """A file that is traced and compiled; its attempt's id."""
    attempt_id = f"r-1/{number}"
    view(Proposed("r-1", attempt_id, number, None, "x = 1", name, at=NOW))
    view(StageStarted("r-1", attempt_id, Stage.TRACING, at=NOW))
    view(Updated("r-1", attempt_id, None, None, (), (), 1, 0.25, 0.25, at=NOW))
    return attempt_id


def judge(view: FilesView, attempt_id: str, found: Verdict) -> None:
    """Its verdict, after its receipt."""
    view.keep(attempt_id, "x = 1", Update(), found, "judged")
    us = (found.timing.median_us,) if found.timing else ()
    view(Judged("r-1", attempt_id, found, 2.0, False, us, at=NOW))


def view_of(out: StringIO, err: StringIO, **how: bool) -> FilesView:
    view = FilesView(out, err, total=len(FILES), **how)
    view.folder, view.book = Path("runs/r-1"), ReceiptBook(None, SETTING, dict)
    view(started("NVIDIA H200"))
    return view


def shown(**how: bool) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    view = view_of(out, err, **how)
    for number, (name, found) in enumerate(FILES.items(), 1):
        judge(view, begin(view, number, name), found)
    view(END)
    return out.getvalue(), err.getvalue()


def test_a_timed_file_is_a_line_with_time_speed_up_over_the_best_baseline_and_coverage() -> None:
    lines = shown()[0].splitlines()
    assert lines[0].startswith("✔ correct         #1 slow.py  200.0 µs")
    assert "no difference" not in lines[0]
    assert "vs torch.compile max-autotune, coverage 100%" in lines[0]
    assert lines[1] == "✗ wrong           #2 bad.py  3 of 4 elements wrong  (2.5 s)"


def test_the_ranking_comes_last_fastest_first() -> None:
    lines = shown()[0].splitlines()
    assert [line.split()[1] for line in lines if line[:2] in ("1.", "2.")] == ["fast.py", "slow.py"]
    assert "3 files for softmax in 1m 02s: 2 correct, 1 wrong; timed on NVIDIA H200" in lines
    assert lines[-1] == "kept as run r-1; repeat one with: optimize verify r-1/NUMBER"


def test_objects_are_one_a_line_and_carry_their_schema() -> None:
    objects = [json.loads(line) for line in shown(json=True)[0].splitlines()]
    assert [o["type"] for o in objects] == ["judged_file", "judged_file", "judged_file", "bench_summary"]
    assert {o["schema_version"] for o in objects} == {1}
    assert objects[0]["verdict"]["timing"]["median_us"] == 200.0
    assert objects[-1]["ranking"] == ["fast.py", "slow.py"]
    assert objects[-1]["by_status"] == {"wrong": 1, "correct": 2}


def test_progress_goes_to_stderr_one_line_redrawn_in_a_terminal_and_lines_elsewhere() -> None:
    assert shown()[1].splitlines()[::2] == ["… 0/3 judged; tracing slow.py", "… 2/3 judged; tracing fast.py"]
    assert "\r\x1b[K" in (drawn := shown(live=True)[1])
    assert re.match(r"\r. 0/3 judged; tracing slow\.py\x1b\[K\r", drawn)
    assert "\x1b" not in shown(live=True)[0]
    assert "\x1b[32m✔ correct" in shown(colour=True)[0]


def test_a_status_line_turns_counts_seconds_and_makes_way() -> None:
    stream = StringIO()
    with StatusLine(stream, live=True, doing="starting") as status:
        status.show("waiting for a " + "long " * 40)
        time.sleep(1.3)
        with status.cleared():
            stream.write("a line\n")
    written = stream.getvalue()
    assert len({part[0] for part in written.split("\r") if part and part[0] in SPINNER}) > 5
    assert re.search("\r. waiting for a long [long ]*…\x1b\\[K", written)
    assert "\r\x1b[Ka line\n" in written
    assert written.endswith("\r\x1b[K")
    drawn = [part.removesuffix("\x1b[K") for part in written.split("\r")]
    assert max(map(cell_len, drawn)) < 80
    short = StringIO()
    with StatusLine(short, live=True) as status:
        time.sleep(1.2)
    assert " starting 1s" in short.getvalue()


def test_a_file_that_is_judged_again_is_shown_again_and_counted_once() -> None:
    out, err = StringIO(), StringIO()
    view = view_of(out, err, json=True)
    early = replace(verdict(4, Status.CORRECT), pending=("compile-max",))
    attempt_id = begin(view, 1, "slow.py")
    judge(view, attempt_id, early)
    view(JudgingAgain("r-1", attempt_id, "judged", at=NOW))
    view.keep(attempt_id, "x = 1", Update(), replace(early, pending=()), "judged")
    view(replace(confirmed(True, replace(early, pending=())), run_id="r-1", attempt_id=attempt_id))
    view(END)
    objects = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [o["type"] for o in objects] == ["judged_file", "judged_file", "bench_summary"]
    assert [(o["index"], o["verdict"]["pending"]) for o in objects[:2]] == [(0, ["compile-max"]), (0, [])]
    assert (objects[-1]["judged"], objects[-1]["ranking"]) == (1, ["slow.py"])
    assert "1/3 judged; slow.py again, against all baselines" in err.getvalue()


def test_a_verdict_that_finds_no_room_on_the_disk_is_shown_with_the_table_before_the_error(tmp_path: Path) -> None:
    out = StringIO()
    view = view_of(out, StringIO())
    view.folder = tmp_path / "file"
    view.folder.touch()  # where the folder of receipts should be
    view.book = ReceiptBook(view.folder, SETTING, dict)

    def full(event: Event) -> None:
        if is_stored(event):
            raise StoreError(f"runs.db: {event.kind}: database or disk is full")

    tracker = AttemptTracker("r-1", SETTING.task, run([])[0].tracker.tools, view, keep=view.keep)
    draft = tracker.update(Proposal("4", "slow.py"))
    tracker.emit = fan_out(full, view)
    with pytest.raises(StoreError, match="disk is full"):
        tracker.bench(draft)
    with pytest.raises(StoreError, match="run_ended"):
        tracker.emit(replace(END, why=StopReason.FAILED))
    lines = out.getvalue().splitlines()
    assert [line[:24] for line in lines if "slow.py" in line] == [
        "✔ correct         #1 slo",
        "1. slow.py  4.000 µs (4.",
    ]
    assert not [line for line in lines if "kept as run" in line]


def verification(new: Verdict, held: bool) -> Verification:
    versions = {"torch": "2.11", "triton": "3.6", "kerneltune": "0.1.0", "python": "3.12"}
    run, now = replace(started("NVIDIA H200"), versions=versions), versions | {"torch": "2.13"}
    event = Verified("r-1", "r-1/3", "verify", new, 1.0, held, "right again", None, {}, now)
    old = verdict(3, Status.CORRECT)
    return Verification(run, old, event, ("torch: 2.11 then, 2.13 now",), {}, "receipts/3.json")


def test_a_verification_shows_both_verdicts_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    print_verification(verification(verdict(3, Status.CHECKED), held=True), standard_page(colour=False))
    text = capsys.readouterr().out
    for words in ("✔ correct", "✓ checked", "110.0 µs", "not timed", "NVIDIA H200", "2.13", "held: right again"):
        assert words in text
    assert "differs: torch: 2.11 then, 2.13 now" in text
    print_verification(verification(Verdict(Status.WRONG, "no"), held=False), standard_page(colour=False))
    assert "did not hold: " in capsys.readouterr().out


def test_a_verification_repeats_the_contract_that_the_verdict_relies_on(capsys: pytest.CaptureFixture[str]) -> None:
    contracts = {"task": {"contracts": [encode(Contract(0, "x", slack=3))]}}
    found = replace(verification(verdict(3, Status.CHECKED), held=True), receipt=contracts)
    print_verification(found, standard_page(colour=False))
    assert "contract: x: 3 elements behind its end may be read (undefined" in capsys.readouterr().out


def test_a_verification_as_json_has_both_sides_and_the_receipt() -> None:
    found: dict[str, Json] = json.loads(json.dumps(verification_json(verification(verdict(3, Status.CHECKED), True))))
    assert (found["type"], found["schema_version"], found["held"]) == ("verification", 1, True)
    assert found["old"]["verdict"]["status"] == "correct"
    assert found["new"]["gpu"] is None


def confirmed(held: bool, found: Verdict) -> Verified:
    return Verified("r-7f3a", "r-7f3a/3", "confirm", found, 9.0, held, "why", "NVIDIA H200", {}, {}, (1.0,), at=NOW)


def state_after(*events: Verified | RunEnded) -> ViewState:
    state = ViewState()
    for event in (*GPU_RUN, *events):
        state = fold(state, event)
    return state


def test_the_summary_quotes_the_confirmed_verdict() -> None:
    again = replace(verdict(3, Status.CORRECT), tier="confirmed")
    state = state_after(
        confirmed(True, again), RunEnded("r-7f3a", StopReason.ATTEMPTS, 6, 3, "r-7f3a/3", "b.py", 72.0, at=NOW)
    )
    assert "right and timed on NVIDIA H200: confirmed; 2 cases" in summary_text(state)
    assert "#3 confirmed 110.0 µs" in plain_line(state, confirmed(True, again))


def test_the_summary_does_not_pass_over_what_a_check_did_without() -> None:
    weak = replace(verdict(3, Status.CORRECT), tier="confirmed", left_out=("main/own",))
    ended = RunEnded("r-7f3a", StopReason.ATTEMPTS, 6, 3, "r-7f3a/3", "b.py", 72.0, at=NOW)
    assert "not checked in full (see its verdict)" in summary_text(state_after(confirmed(True, weak), ended), width=200)
    full = confirmed(True, replace(weak, left_out=()))
    assert "not checked in full" not in summary_text(state_after(full, ended), width=200)


def test_a_best_that_was_not_confirmed_is_no_longer_shown_as_the_best() -> None:
    wrong = confirmed(False, Verdict(Status.WRONG, "one element"))
    state = state_after(wrong, RunEnded("r-7f3a", StopReason.ATTEMPTS, 6, 0, None, None, 72.0, at=NOW))
    assert state.best is None
    assert "nothing: none of 6 attempts was right" in summary_text(state)
    assert plain_line(state, wrong) == "#3 not confirmed why"


def test_the_last_object_of_a_run_names_tier_and_receipt() -> None:
    stream = StringIO()
    view = JsonView(stream)
    again = replace(verdict(3, Status.CORRECT), tier="confirmed")
    for event in (
        *GPU_RUN,
        confirmed(True, again),
        RunEnded("r-7f3a", StopReason.ATTEMPTS, 6, 3, "r-7f3a/3", "runs/r-7f3a/best.py", 72.0, at=NOW),
    ):
        view(event)
    view.finish()
    objects = [json.loads(line) for line in stream.getvalue().splitlines()]
    best = objects[-1]["best"]
    assert (best["tier"], best["receipt_path"]) == ("confirmed", "runs/r-7f3a/receipts/3.json")
    assert [o["held"] for o in objects if o["type"] == "verified"] == [True]
