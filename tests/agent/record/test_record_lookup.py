"""Which attempt a person means."""

import pytest

from agent.record.lookup import NotFound, attempt_named

FIRST, SECOND = "20261121-093000-softmax-1a2b", "20261121-100000-matmul-77aa"
RUNS = [FIRST, SECOND]
ATTEMPTS = [f"{FIRST}/1", f"{FIRST}/2", f"{FIRST}/12", f"{SECOND}/1"]


def named(text: str) -> str:
    return attempt_named(text, ATTEMPTS, RUNS, lambda run: f"{run}/2" if run == FIRST else None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{FIRST}/1", f"{FIRST}/1"),
        (f"{FIRST}/12", f"{FIRST}/12"),
        ("20261121-09/2", f"{FIRST}/2"),
        (FIRST, f"{FIRST}/2"),
        ("20261121-09", f"{FIRST}/2"),
        (SECOND, f"{SECOND}/1"),  # its only one
    ],
)
def test_an_id_a_run_and_the_start_of_either_name_an_attempt(text: str, found: str) -> None:
    assert named(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026", f"could be 2 runs: {FIRST}, {SECOND}"),
        ("2026/1", "could be 2 attempts"),
        (f"{FIRST}/7", f"no attempt 7 in run {FIRST}, which has 3"),
        ("softmax-1a2b/12", f"did you mean {FIRST}/12?"),
        ("1a2b", f"did you mean {FIRST}?"),
        ("20261121-093000-sofmtax-1a2b", f"did you mean {FIRST}"),
        ("", "an id looks like"),
        ("/", "an id looks like"),
        ("%", "an id looks like"),
        ("zzz/1", "no attempt 'zzz/1'"),
    ],
)
def test_what_names_none_or_several_is_told_what_would_work(text: str, words: str) -> None:
    with pytest.raises(NotFound) as caught:
        named(text)
    assert words in str(caught.value)


def test_a_run_of_nothing_right_asks_for_a_number() -> None:
    with pytest.raises(NotFound, match=r"no accepted attempt; name one of its attempts: .*/NUMBER, of 1, 2, 12"):
        attempt_named(FIRST, ATTEMPTS, RUNS, lambda run: None)
