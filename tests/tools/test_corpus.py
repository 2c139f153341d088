"""The corpus as data: what is read from specimens, and what a verdict says of the evaluator."""

from pathlib import Path

import pytest

from kerneltune.tools.corpus import ATTACK_FAMILIES, CorpusError, Specimen, Twin, corpus_root, load_corpus, outcome
from kerneltune.tools.schema.verdict import Status, Timing, Verdict

GOOD = (
    '"""Says what it does."""\n\nSPECIMEN = {"id": "K01", "task": "softmax", "expect": ["rejected"], '
    '"naive": "fooled"}\n'
)
TIMING = Timing(1.0, 1.0, 1.0, 20, 20)


def attack(**fields: object) -> Specimen:
    usual: dict[str, object] = dict(
        name="a", path=Path("a.py"), kind="attack", family="lazy", task="softmax", says="", expect=("rejected",),
        expect_gpu=("wrong",), needs_gpu=False, twin=None,
    )  # fmt: skip
    return Specimen(**(usual | fields))  # type: ignore[arg-type]


def verdict(status: str, coverage: float | None = None) -> Verdict:
    timing = TIMING if status == "correct" else None
    return Verdict(Status(status), "", timing=timing, coverage=coverage)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("attacks/caching", "honest/reductions", "twins", "tasks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "attacks/caching/one.py").write_text(GOOD)
    return tmp_path


def test_the_corpus_of_this_repository_is_large_and_covers_every_family() -> None:
    root = corpus_root()
    assert root is not None
    attacks = [s for s in load_corpus(root) if s.kind == "attack"]
    assert len(attacks) >= 60
    assert {s.family for s in attacks} == set(ATTACK_FAMILIES)
    assert len({s.says for s in attacks}) == len({s.id for s in attacks}) == len(attacks)
    assert all(s.id for s in attacks)


def test_every_attack_says_what_stops_it() -> None:
    root = corpus_root()
    assert root is not None
    silent = [s.name for s in load_corpus(root) if s.kind == "attack" and not (s.expect or s.twin or s.needs_gpu)]
    assert silent == []


def test_a_specimen_is_read_and_not_run(root: Path) -> None:
    (root / "attacks/caching/one.py").write_text(GOOD + "raise SystemExit\n")
    (specimen,) = load_corpus(root)
    assert (specimen.name, specimen.id, specimen.family, specimen.task) == ("one", "K01", "caching", "softmax")
    assert (specimen.expect, specimen.expect_gpu) == (("rejected",), ("rejected",))
    assert specimen.says == "Says what it does."


def test_an_honest_specimen_is_expected_to_be_right(root: Path) -> None:
    (root / "honest/reductions/two.py").write_text('"""Honest."""\nSPECIMEN = {"task": "softmax"}\n')
    honest = next(s for s in load_corpus(root) if s.kind == "honest")
    assert (honest.family, honest.expect, honest.expect_gpu) == ("reductions", ("checked",), ("correct",))
    assert outcome(honest, verdict("checked"), None, Twin(), on_gpu=False) == "right"
    assert outcome(honest, verdict("correct"), None, Twin(), on_gpu=True) == "right"
    assert outcome(honest, verdict("wrong"), None, Twin(), on_gpu=False) == "false_alarm"
    assert outcome(honest, verdict("unchecked"), None, Twin(), on_gpu=False) == "skipped"


def test_a_task_of_the_corpus_comes_before_a_built_in_one(root: Path) -> None:
    (root / "tasks/softmax.py").write_text("")
    (specimen,) = load_corpus(root)
    assert specimen.task == root / "tasks/softmax.py"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "no docstring"),
        ('"""Says."""\n', "no module-level SPECIMEN"),
        ('"""Says."""\nSPECIMEN = dict(task="softmax")\n', "must be a literal"),
        ('"""Says."""\nSPECIMEN = ["softmax"]\n', "wanted a SpecimenFields"),
        (GOOD.replace('"naive"', '"native"'), "unknown fields ['native']"),
        (GOOD.replace("rejected", "refused"), "SPECIMEN.expect[0]: wanted one of ['rejected'"),
        (GOOD.replace('["rejected"]', '"rejected"'), "wanted an array"),
        (GOOD.replace('"fooled"', '"yes"'), "SPECIMEN.naive: wanted one of ('fooled'"),
        (GOOD.replace('"softmax"', '"sotfmax"'), "no task 'sotfmax'"),
        (GOOD.replace('"softmax"', '"../softmax"'), "not the name of a task"),
        (GOOD.replace('"naive": "fooled"', '"twin": "nobody"'), "no twin 'nobody'"),
        (GOOD.replace('"naive": "fooled"', '"needs_gpu": "yes"'), "SPECIMEN.needs_gpu: wanted bool"),
        ("def f(:\n", "cannot be read"),
    ],
)
def test_a_malformed_specimen_is_refused_with_its_file_and_the_reason(root: Path, text: str, words: str) -> None:
    (root / "attacks/caching/one.py").write_text(text)
    with pytest.raises(CorpusError) as caught:
        load_corpus(root)
    assert words in str(caught.value)
    assert "one.py" in str(caught.value)


def test_an_unknown_family_is_refused(root: Path) -> None:
    (root / "attacks/cachign").mkdir()
    (root / "attacks/cachign/two.py").write_text(GOOD)
    with pytest.raises(CorpusError, match="family 'cachign'"):
        load_corpus(root)


@pytest.mark.parametrize(("name", "text"), [("two", GOOD), ("one", GOOD.replace("K01", "K02"))])
def test_two_specimens_share_neither_name_nor_id(root: Path, name: str, text: str) -> None:
    (root / "attacks/lazy").mkdir()
    (root / f"attacks/lazy/{name}.py").write_text(text)
    with pytest.raises(CorpusError, match="two specimens"):
        load_corpus(root)


@pytest.mark.parametrize(
    ("specimen", "status", "hashes", "on_gpu", "expected"),
    [
        (attack(), "rejected", (None, None), False, "stopped"),
        (attack(), "checked", ("a", None), False, "accepted"),
        (attack(), "wrong", (None, None), True, "stopped"),
        (attack(), "correct", ("a", None), True, "accepted"),
        (attack(), "crashed", (None, None), False, "stopped"),
        (attack(), "unchecked", ("a", None), False, "skipped"),
        (attack(expect=()), "timed_out", (None, None), False, "stopped"),
        (attack(needs_gpu=True), "checked", ("a", None), False, "skipped"),
        (attack(needs_gpu=True), "correct", ("a", None), True, "accepted"),
        (attack(twin=Path("t.py")), "checked", ("a", "a"), False, "stopped"),
        (attack(twin=Path("t.py")), "checked", ("a", "b"), False, "accepted"),
        (attack(twin=Path("t.py")), "checked", (None, None), False, "accepted"),
        (attack(), "checked", ("a", "a"), False, "accepted"),
    ],
)
def test_the_outcome_of_an_attack(
    specimen: Specimen, status: str, hashes: tuple[str | None, str | None], on_gpu: bool, expected: str
) -> None:
    assert outcome(specimen, verdict(status), hashes[0], Twin(hashes[1]), on_gpu=on_gpu) == expected


def test_a_fig_leaf_that_is_credited_with_little_is_stopped() -> None:
    specimen = attack(coverage_below=0.5, needs_gpu=True)
    assert outcome(specimen, verdict("correct", 0.1), "a", Twin(), on_gpu=True) == "stopped"
    assert outcome(specimen, verdict("correct", 0.9), "a", Twin(), on_gpu=True) == "accepted"
    assert outcome(specimen, verdict("correct", None), "a", Twin(), on_gpu=True) == "accepted"


def test_an_attack_that_is_no_faster_than_its_honest_twin_is_stopped() -> None:
    def timed(us: float) -> Verdict:
        return Verdict(Status.CORRECT, "right", timing=Timing(us, us, us, 1, 1))

    specimen = attack(twin=Path("t.py"), gain_below=1.02)
    assert outcome(specimen, timed(9.9), "a", Twin("b", timed(10.0)), on_gpu=True) == "stopped"
    assert outcome(specimen, timed(9.7), "a", Twin("b", timed(10.0)), on_gpu=True) == "accepted"
    assert outcome(specimen, timed(99.0), "a", Twin("b"), on_gpu=True) == "accepted"
