import multiprocessing
import pickle
import random

import numpy as np
import pytest

from agent.export.duplicates import Duplicate, Duplicates

LINES = [f"    v{i} = tl.load(p{i} + offsets * {i}, mask=m{i} < n, other={i}.5)" for i in range(40)]


def source(lines: list[str]) -> str:
    return "@triton.jit\ndef kernel(x):\n" + "\n".join(lines) + "\n"


def changed(lines: list[str], n: int, word: str) -> list[str]:
    return [f"    {word}{i} = {word}(a, b, {i})" if i < n else line for i, line in enumerate(lines)]


def settled(sources: dict[str, str], **options: object) -> dict[str, Duplicate]:
    found = Duplicates(**options)  # type: ignore[arg-type]
    for attempt_id, text in sources.items():
        found.see(attempt_id, text)
    found.settle()
    return {attempt_id: found.of(attempt_id) for attempt_id in sources}


def test_the_same_in_another_layout_is_an_exact_duplicate_and_the_first_one_is_first() -> None:
    got = settled(
        {"r/1": source(LINES), "r/2": "# again\n" + source(LINES), "r/3": source(changed(LINES, 40, "other"))}
    )
    assert got["r/1"].exact == got["r/2"].exact != got["r/3"].exact
    assert [got[a].exact_first for a in got] == [True, False, True]
    assert [got[a].exact_count for a in got] == [2, 2, 1]
    assert got["r/3"].near == got["r/3"].exact
    assert got["r/3"].near_first


def test_a_small_change_is_a_near_duplicate_and_a_large_one_is_not() -> None:
    got = settled(
        {
            "r/1": source(LINES),
            "r/2": source(changed(LINES, 2, "other")),
            "r/3": source(changed(LINES, 25, "third")),
        }
    )
    assert got["r/1"].near == got["r/2"].near == got["r/1"].exact
    assert got["r/2"].exact != got["r/1"].exact
    assert (got["r/2"].exact_first, got["r/2"].near_first) == (True, False)
    assert got["r/3"].near != got["r/1"].near
    assert [got[a].near_count for a in got] == [2, 2, 1]


def jaccard(one: str, other: str) -> float:
    def grams(text: str) -> set[tuple[str, ...]]:
        from agent.export.normalise import Forms

        tokens = Forms().of(text).text.replace("\n", " \n ").split(" ")
        return set(zip(*(tokens[i:] for i in range(5)), strict=False))

    a, b = grams(one), grams(other)
    return len(a & b) / len(a | b)


def test_pairs_above_the_threshold_are_found_and_pairs_well_below_are_not() -> None:
    dice, found, wrong, above, below = random.Random(7), 0, 0, 0, 0
    for trial in range(60):
        lines = [f"    w{trial}_{i} = f{dice.randrange(99)}(q{dice.randrange(99)}, {i})" for i in range(40)]
        other = changed(lines, trial % 20, "zz")
        near = settled({"a": source(lines), "b": source(other)})["b"].near_first
        if (j := jaccard(source(lines), source(other))) >= 0.88:
            above, found = above + 1, found + (not near)
        elif j <= 0.65:
            below, wrong = below + 1, wrong + (not near)
    assert above > 8 < below
    assert found == above
    assert wrong == 0


def test_ids_do_not_depend_on_the_process_nor_on_what_else_was_seen() -> None:
    sources = {"r/1": source(LINES), "r/2": source(changed(LINES, 2, "other"))}
    alone = settled(sources)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(settled, (sources,)) == alone
    more = settled({"q/1": source(changed(LINES, 30, "more")), **sources})
    assert {a: more[a] for a in sources} == alone


def test_processes_that_saw_shares_know_together_what_one_would() -> None:
    sources = {f"r/{i}": source(changed(LINES, i % 7 * 6, "other")) for i in range(40)}
    whole, first, second = Duplicates(), Duplicates(), Duplicates()
    for i, (attempt_id, text) in enumerate(sources.items()):
        (first if i < 25 else second).see(attempt_id, text)
    for share in (first.share(), second.share()):
        whole.absorb(pickle.loads(pickle.dumps(share)))
    whole.settle()
    assert {a: whole.of(a) for a in sources} == settled(sources)


def test_what_was_settled_can_be_sent_to_another_process() -> None:
    found = Duplicates()
    found.see("r/1", source(LINES))
    found.settle()
    sent = pickle.dumps(found)
    assert len(sent) < 20_000
    assert pickle.loads(sent).of("r/1") == found.of("r/1")


def test_the_tree_also_finds_renamed_variables_and_superfluous_brackets() -> None:
    one, other = "def f(x):\n    y = x + 1\n    return y * 2\n", "def f(x):\n    z = (x) + 1\n    return (z) * 2\n"
    assert settled({"a": one, "b": other})["b"].exact_first
    assert not settled({"a": one, "b": other}, identity="tree")["b"].exact_first


@pytest.mark.parametrize("odd", ["", "x", "\ud800", "(" * 5000, "\0", "a b c d"])
def test_odd_sources_are_their_own_duplicates(odd: str) -> None:
    got = settled({"a": odd, "b": odd, "c": source(LINES)})
    assert got["a"].exact == got["b"].exact != got["c"].exact
    assert not got["b"].near_first
    assert got["c"].near_first


def test_an_attempt_counts_once_however_often_it_is_seen() -> None:
    found = Duplicates()
    for _ in range(3):
        found.see("r/1", source(LINES))
    found.settle()
    assert (found.of("r/1").exact_count, found.of("r/1").exact_first) == (1, True)


def test_questions_out_of_order_are_refused() -> None:
    found = Duplicates()
    with pytest.raises(RuntimeError, match=r"settle\(\) comes before"):
        found.of("r/1")
    found.settle()
    with pytest.raises(KeyError):
        found.of("r/1")
    with pytest.raises(RuntimeError, match="not seen in the first pass"):
        found.see("r/1", "")


def test_thousands_of_attempts_cluster_as_they_were_made() -> None:
    """Across chunks and batches: 3000 kernels, each with two near copies; every tenth copied exactly as well."""
    dice = random.Random(1)
    sources: dict[str, str] = {}
    for i in range(3000):
        lines = [f"    n{i}_{j} = f{dice.randrange(9999)}(q{dice.randrange(9999)})" for j in range(12)]
        sources[f"{i}/1"] = source(lines)
        sources[f"{i}/2"] = source([*lines[:-1], "    pass_on()"]) if i % 10 else source(lines)
    got = settled(sources)
    near = [got[f"{i}/2"].near == got[f"{i}/1"].exact for i in range(3000)]
    assert np.mean(near) > 0.9
    assert sum(got[a].near_first for a in got) == 6000 - sum(near)
    assert all(got[f"{i}/2"].exact == got[f"{i}/1"].exact for i in range(0, 3000, 10))
