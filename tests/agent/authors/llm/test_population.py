"""Whom an island breeds from."""

from random import Random

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.authors.llm.author import SIZE, choose, residents, similarity
from kerneltune.tools.schema.verdict import Status, Timing, Verdict

WORDS = "load store exp max sum row col mask block warp stage tile".split()


def attempt(number: int, us: float | None, source: str | None = None) -> Attempt:
    text = source or " ".join(Random(number).choices(WORDS, k=60))
    if us is None:
        return Attempt(text, "", attempt_id=f"r/{number}", number=number, verdict=Verdict(Status.WRONG, "no"))
    verdict = Verdict(Status.CORRECT, "", timing=Timing(us, us, us, 1, 1))
    return Attempt(text, "", attempt_id=f"r/{number}", number=number, verdict=verdict, rank_key=(us,))


def test_an_island_without_a_right_kernel_begins_anew() -> None:
    assert choose([[attempt(1, None)], []], 0, Random(0)) == ()


def test_an_empty_island_is_settled_from_the_others() -> None:
    islands = [[attempt(1, None)], [attempt(2, 5.0)], [attempt(3, 4.0)]]
    chosen = [choose(islands, 0, Random(seed)) for seed in range(50)]
    assert all(chosen)
    assert {a.number for parents in chosen for a in parents} == {2, 3}


def test_only_the_fastest_right_kernels_of_an_island_are_bred_from() -> None:
    island = [attempt(n, float(100 - n)) for n in range(20)] + [attempt(30, None)]
    kept = residents(island)
    assert [a.number for a in kept] == list(range(19, 19 - SIZE, -1))
    chosen = [choose([island], 0, Random(seed)) for seed in range(200)]
    assert {p[0].number for p in chosen if p} <= {a.number for a in kept}


def test_equal_sources_count_once() -> None:
    twice = [attempt(1, 5.0, "same"), attempt(2, 5.0, "same"), attempt(3, 6.0, "other")]
    assert [a.number for a in residents(twice)] == [1, 3]


def test_faster_ones_are_chosen_more_often_and_so_are_those_unlike_the_others() -> None:
    base = " ".join(Random(99).choices(WORDS, k=80))
    alike = [attempt(n, 10.0 + n, f"{base} x{n}") for n in range(5)]
    unlike = attempt(9, 14.5)
    counts = dict.fromkeys(range(10), 0)
    for seed in range(400):
        first = choose([[*alike, unlike]], 0, Random(seed))[0]
        counts[first.number] += 1
    assert counts[0] > counts[3]
    assert counts[9] > counts[4]


def test_crossover_joins_two_different_attempts_and_now_and_then_those_of_two_islands() -> None:
    islands = [[attempt(n, float(n)) for n in range(1, 6)], [attempt(n, float(n)) for n in range(11, 16)]]
    pairs = [choose(islands, 0, Random(seed)) for seed in range(400)]
    joined = [(p[0].number, p[1].number) for p in pairs if len(p) == 2]
    assert 60 < len(joined) < 180
    assert all(a != b for a, b in joined)
    assert any(b > 10 for _, b in joined)
    assert any(b < 10 for _, b in joined)


def test_the_choice_follows_from_the_seed() -> None:
    island = [attempt(n, float(n)) for n in range(1, 9)]
    assert [choose([island], 0, Random(5)) for _ in range(3)] == [choose([island], 0, Random(5)) for _ in range(3)]


def test_similarity_is_1_for_equal_sources_and_0_for_strangers() -> None:
    assert similarity("a b c d e f", "a  b c\nd e f") == 1.0
    assert similarity("a b c d e f", "g h i j k l") == 0.0
