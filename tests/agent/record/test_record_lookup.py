"""Which run or attempt a person means."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import Status
from tests.agent.record.samples import attempt, started

FIRST, SECOND, THIRD = "20261121-093000-softmax-1a2b", "20261121-100000-matmul-77aa", "20261122-080000-gelu-0f0f"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Two runs with attempts, of which the first has a best, and one with nothing right."""
    with Store.open(tmp_path_factory.mktemp("lookup")) as opened:
        for event in (
            *(started(FIRST), *attempt(1, FIRST, Status.WRONG), *attempt(2, FIRST, best=True), *attempt(12, FIRST)),
            *(started(SECOND, "matmul"), *attempt(1, SECOND)),
            *(started(THIRD, "gelu"), *(e for n in range(1, 13) for e in attempt(n, THIRD, Status.WRONG))),
        ):
            opened.write(event)
        yield opened


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{FIRST}/1", f"{FIRST}/1"),
        (f"{FIRST}/12", f"{FIRST}/12"),
        ("20261121-09/2", f"{FIRST}/2"),
        (FIRST, f"{FIRST}/2"),  # its best, as `optimize runs` names it
        ("20261121-09", f"{FIRST}/2"),
        (SECOND, f"{SECOND}/1"),  # its only one
        ("12", f"{THIRD}/12"),  # of the latest run
        ("last/3", f"{THIRD}/3"),
        ("-3", f"{FIRST}/2"),
        ("softmax/12", f"{FIRST}/12"),
        ("softmax", f"{FIRST}/2"),
    ],
)
def test_an_id_a_run_and_the_start_of_either_name_an_attempt(store: Store, text: str, found: str) -> None:
    assert store.find_attempt_id(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FIRST, FIRST),
        ("20261121-09", FIRST),
        ("20261122", THIRD),
        ("last", THIRD),
        ("-1", THIRD),
        ("-2", SECOND),
        ("softmax", FIRST),
    ],
)
def test_an_id_the_start_of_one_a_place_and_a_task_name_a_run(store: Store, text: str, found: str) -> None:
    assert store.find_run(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026", f"could be 3 runs: {FIRST}, {SECOND}, {THIRD}"),
        ("20261121", f"could be 2 runs: {FIRST}, {SECOND}"),
        ("2026/1", f"could be 3 attempts: {FIRST}/1, {SECOND}/1, {THIRD}/1"),
        ("-4", "no attempt '-4'"),
        ("last/13", f"no attempt 13 in run {THIRD}, which has 12"),
        (f"{THIRD}/", f"could be 12 attempts: {THIRD}/1, {THIRD}/2, {THIRD}/3, …"),
        (f"{FIRST}/7", f"no attempt 7 in run {FIRST}, which has 3"),
        (f"{THIRD}/13", f"no attempt 13 in run {THIRD}, which has 12"),
        (f"{THIRD}/٣", f"no attempt ٣ in run {THIRD}"),
        (f"{THIRD}/{'9' * 40}", "which has 12"),
        ("softmax-1a2b/12", f"did you mean {FIRST}/12?"),
        ("20261121-093000-sofmtax-1a2b/12", f"did you mean {FIRST}/12?"),
        ("/12", f"could be 2 attempts: {FIRST}/12, {THIRD}/12"),
        ("-softmax-1a2b/12", f"did you mean {FIRST}/12?"),
        ("1a2b", f"did you mean {FIRST}?"),
        ("20261121-093000-sofmtax-1a2b", f"did you mean {FIRST}"),
        (f"{FIRST}/x", "an id looks like"),
        ("", "an id looks like"),
        ("/", "an id looks like"),
        ("%", "an id looks like"),
        ("_", "an id looks like"),
        ("a\udcff", "an id looks like"),
        ("nul\0inside/1", "an id looks like"),
        ("zzz/1", "no attempt 'zzz/1'"),
        (THIRD, "no accepted attempt; name one of its attempts: .*/NUMBER, of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    ],
)
def test_what_names_none_or_several_is_told_what_would_work(store: Store, text: str, words: str) -> None:
    with pytest.raises(StoreError, match=words.replace("?", r"\?")) as caught:
        store.find_attempt_id(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("2026", "could be 3 runs"), ("1a2b", f"did you mean {FIRST}"), ("", "could be 3"), ("x/y", "no run")],
)
def test_what_names_no_run_is_told_what_would_work(store: Store, text: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        store.find_run(text)


def test_an_empty_store_has_nothing_to_offer(tmp_path: Path) -> None:
    with Store.open(tmp_path) as empty:
        for text in ("x", "x/1", "2026-x/1"):
            with pytest.raises(StoreError, match="an id looks like"):
                empty.find_attempt_id(text)
