"""Receipts as files, and what a confirmation and a verification change."""

import json
from pathlib import Path

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import RunEnded, Verified
from kerneltune.agent.record.folder import ReceiptBook, receipt_path
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.tools.receipt import ReceiptContext
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.update import Update
from tests.agent.record.samples import RUN, attempt, started

TASK = TaskSpec("softmax", "0" * 64, "float32", "", (CaseSpec("main", (), (), None),))
SETTING = ReceiptContext(TASK, "sm_90", None, {}, "2", "e" * 64)
RIGHT = Verdict(Status.CHECKED, "right")


def verified(number: int, purpose: str, held: bool, verdict: Verdict = RIGHT, at: float = 2e9) -> Verified:
    ids = (RUN, f"{RUN}/{number}")
    return Verified(*ids, purpose, verdict, 1.0, held, "why", None, {}, {}, (0.5,), at=at)  # type: ignore[arg-type]


def test_a_confirmation_counts_and_a_verification_does_not(tmp_path: Path) -> None:
    wrong = Verdict(Status.WRONG, "one element")
    with Store.open(tmp_path) as store:
        for event in (started(), *attempt(1, best=True), *attempt(2)):
            store.write(event)
        store.write(verified(1, "confirm", held=False, verdict=wrong))
        store.write(verified(2, "verify", held=False, verdict=wrong))
        store.write(verified(2, "unfinished", held=False, verdict=Verdict(Status.UNCHECKED, "no memory")))
        first, second = store.attempts(RUN)
        assert trajectory(store.load_events(RUN)).attempts[1].accepted
        assert (first.verdict, first.rank_key) == (wrong, (0.5,))
        assert second.accepted


def test_the_listing_says_what_the_run_ended_with_and_whether_it_was_verified(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for event in (started(), *attempt(1, status=Status.CORRECT, best=True), *attempt(2, status=Status.CORRECT)):
            store.write(event)
        assert (store.runs()[0].best_attempt_id, store.runs()[0].verified) == (f"{RUN}/1", None)
        store.write(verified(1, "confirm", held=False, verdict=Verdict(Status.WRONG, "one element")))
        store.write(RunEnded(RUN, StopReason.ATTEMPTS, 2, 1, f"{RUN}/2", None, 9.0))
        store.write(verified(2, "verify", held=False, at=2e9 + 1))
        store.write(verified(2, "verify", held=True, at=2e9 + 2))
        store.write(verified(2, "unfinished", held=False, verdict=Verdict(Status.UNCHECKED, "no memory"), at=2e9 + 3))
        summary = store.runs()[0]
        assert (summary.best_attempt_id, summary.best_us, summary.verified) == (f"{RUN}/2", 134.5, True)


def test_a_receipt_lies_beside_its_run_and_a_verification_gets_its_own(tmp_path: Path) -> None:
    book = ReceiptBook(tmp_path, SETTING, dict)
    made = book.keep("r/3", "x", Update(), RIGHT, None)
    path = receipt_path(tmp_path, "r/3")
    assert json.loads(path.read_text()) == made
    paths = [book.keep_again("r/3", "x", Update(), RIGHT, None)[1].name for _ in range(2)]
    assert paths == ["3.verify-1.json", "3.verify-2.json"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["3.json", *paths]


def test_without_a_folder_receipts_are_made_and_not_written(tmp_path: Path) -> None:
    assert ReceiptBook(None, SETTING, dict).keep("r/1", "x", Update(), RIGHT, None)["attempt_id"] == "r/1"
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "receipts").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"receipts/1\.json cannot be written") as caught:
        ReceiptBook(tmp_path, SETTING, dict).keep("r/1", "x", Update(), RIGHT, None)
    assert "\n" not in str(caught.value)
