"""The card of a data set: what it counts, and that no name in it is more than a word."""

import re
from dataclasses import replace
from typing import Any

import pytest

from kerneltune.agent.attempt import RunStart
from kerneltune.agent.export.base import format_of
from kerneltune.agent.export.card import Card, Statistics, card, front_matter, name, prose
from kerneltune.agent.export.files import DataFile
from kerneltune.agent.export.privacy import Scrubber
from kerneltune.agent.export.provenance import Provenance, columns
from kerneltune.agent.export.similarity import Placement
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import H200, run, timed, tried
from tests.agent.shell import ROOT

yaml = pytest.importorskip("yaml")
HOSTILE = [
    "a|b|c",
    "x\n\n# Heading\n\n- item",
    "![i](http://evil.example/x.png)",
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    "`code` ``` fence",
    "[link](javascript:alert(1))",
    "\x1b[31mred\x1b[0m \u202e gnp.exe",
    "---\nlicense: mit\n---",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; &#60;b&#62;",
]


def counted(*runs: Trajectory, split: str = "train", leaked: str | None = None) -> Statistics:
    found = Statistics()
    for each in runs:
        facts = Provenance(each, {each.run.task_sha256: Placement("family", split, leaked)}, (), None, Scrubber())
        found.add(each, each.attempts, facts)
    return found


def made(**other: Any) -> Card:
    given: dict[str, Any] = {
        "name": "GPU kernels",
        "formats": [format_of("kto"), format_of("openai")],
        "files": [
            DataFile("kto", "train", "data/kto/train-00000-of-00001.parquet", beside=False, rows=1200),
            DataFile("kto", "test", "data/kto/test-00000-of-00001.parquet", beside=False, rows=7),
            DataFile("openai", "train", "data/openai/train-00000-of-00001.jsonl", beside=False, rows=3),
            DataFile("openai", "train", "provenance/openai/train-00000-of-00001.parquet", beside=True, rows=3),
        ],
        "providers": ["anthropic", "offline"],
        "common": columns(()),
        "version": "0.1.0",
        "command": "optimize export --format kto -o out",
        "made_at": 1_800_000_000.0,
        "seed": 0,
        "split_rule": "By family.",
        "deduplication": "Marked.",
        "leakage": "Nobody compared.",
    }
    return Card(**given | other)


RUNS = (
    run(tried(1, timed(100.0)), tried(2, Status.WRONG), tried(3, timed(50.0), held=True), gpu=H200),
    run(tried(1, Status.CHECKED, run_id="r2"), run_id="r2", task="other"),
)


def test_the_card_counts_attempts_and_rows() -> None:
    text = card(made(), counted(*RUNS))
    for line in (
        "| runs | 2 |",
        "| attempts | 4 |",
        "| right (`checked` or `correct`) | 3 (75.0 %) |",
        "| of these not timed (speed unknown) | 1 (33.3 %) |",
        "| timed, with a speed-up | 2 |",
        "| tasks | 2 |",
        "| `wrong` | 1 | 25.0 % | an output is outside of the tolerance of the float64 reference |",
        "| `kto` | single answers labelled good or bad (TRL KTO) | 4.0 | 1,200 | 0 | 7 | 0 |",
    ):
        assert line in text.splitlines()
    assert "1 held, 0 did not" in text
    assert "anthropic-commercial" in text
    assert "<script" not in text


def test_what_a_run_began_with_is_no_first_attempt_of_its_author() -> None:
    begun = replace(RUNS[0], attempts=(replace(RUNS[0].attempts[0], origin=RunStart("mine.py")),))
    assert counted(begun).tasks == {"softmax": {"right", "timed", "faster"}}
    assert "first right" in counted(RUNS[0]).tasks["softmax"]


def test_the_card_shows_how_to_train_on_a_format_with_the_length_of_its_longest_row() -> None:
    files = [
        DataFile(f, "train", f"data/{f}.parquet", beside=False, rows=3, longest_tokens=4321) for f in ("kto", "atif")
    ]
    text = card(made(formats=[format_of("kto"), format_of("atif")], files=files), Statistics())
    (shown,) = (block for block in text.split("```") if "KTOConfig" in block)
    assert "max_length=None" in shown
    assert "4,321" in text
    assert "ATIFConfig" not in text


def test_the_reward_that_the_card_names_for_verl_is_a_file_of_ours() -> None:
    file = DataFile("verl", "train", "data/verl.parquet", beside=False, rows=3, longest_tokens=4321)
    text = card(made(formats=[format_of("verl")], files=[file]), Statistics())
    named = re.findall(r"path/to/(kerneltune/rl/\S+)", text)
    assert named
    assert all((ROOT / path).is_file() for path in named)


@pytest.mark.parametrize("of", ["sharegpt", "verl"])
def test_the_file_that_the_card_gives_to_a_trainer_is_the_one_for_training(of: str) -> None:
    files = [DataFile(of, split, f"data/{of}/{split}-00000.jsonl", beside=False, rows=3) for split in ("test", "train")]
    text = card(made(formats=[format_of(of)], files=files), Statistics())
    assert re.findall(rf"path/to/this/folder/(data/{of}[^\s\"]*)", text) == [f"data/{of}/train-00000.jsonl"]
    held_out = card(made(formats=[format_of(of)], files=files[:1]), Statistics())
    assert f"path/to/this/folder/data/{of}" not in held_out


def test_the_front_matter_names_what_datasets_can_load() -> None:
    found = yaml.safe_load(front_matter(made()))
    assert [c["config_name"] for c in found["configs"]] == ["kto"]
    assert [f["split"] for f in found["configs"][0]["data_files"]] == ["train", "test"]
    assert found["size_categories"] == ["1K<n<10K"]
    assert (found["license"], found["license_name"]) == ("other", "see-provider-terms")
    lines = [replace(f, path=f.path.replace("parquet", "jsonl")) for f in made().files]
    assert [c["config_name"] for c in yaml.safe_load(front_matter(made(files=lines)))["configs"]] == ["kto", "openai"]
    assert "configs" not in yaml.safe_load(front_matter(made(files=[])))


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_becomes_markup_whatever_it_holds(hostile: str) -> None:
    task = replace(RUNS[0], run=replace(RUNS[0].run, task=hostile, author=f"chat:{hostile}", gpu=hostile))
    text = card(made(name=hostile, filters=(hostile,), command=hostile), counted(task, leaked=hostile))
    plain = card(made(), counted(RUNS[0], leaked="x"))
    body, plain_body = (t.partition("\n---\n\n")[2] for t in (text, plain))
    outside = re.sub(r"```+sh\n.*?\n```+", "", body, flags=re.DOTALL)
    assert outside.count("\n#") == plain_body.count("\n#")
    for mark in ("<script", "<img", "![i](", "](javascript", "\x1b", "\u202e"):
        assert mark not in outside
    assert outside.count("\n|") == plain_body.count("\n|")
    assert {line.count("|") for line in outside.splitlines() if line.startswith("|")} <= {3, 4, 5, 8}
    assert yaml.safe_load(front_matter(made(name=hostile)))["license"] == "other"


def test_words_of_others_stay_on_one_line() -> None:
    assert name("a\nb") == "`a b`"
    assert name("") == "(none)"
    assert "\n" not in prose("a\n# b")
    assert yaml.safe_load(front_matter(made(name=chr(10).join(HOSTILE))))["pretty_name"]


def test_fast_p_is_counted_over_tasks_by_the_best_and_by_the_first_attempt() -> None:
    slow, fast = timed(300.0), timed(100.0)
    found = counted(run(tried(1, slow), tried(2, fast), gpu=H200), run(tried(1, fast), task="b", run_id="r2", gpu=H200))
    text = card(made(), found)
    assert "| tasks with a right attempt (fast_0 over tasks); by a run's first attempt | 2 (100.0 %); 2 |" in text
    assert "(fast_1 over tasks); by a run's first attempt | 2 (100.0 %); 1 |" in text
    untimed = counted(run(tried(1, Status.WRONG), tried(2, Status.CHECKED)))
    assert "| 1 (100.0 %); 0 |" in card(made(), untimed)
    assert "(fast_1 over tasks); by a run's first attempt | nothing was timed |" in card(made(), untimed)
