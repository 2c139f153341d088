"""The dataset card: what `datasets` makes of its metadata, and that no name in it is taken for markup."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from agent.export.base import Column
from agent.export.card import STATUSES, Config, Export, Notice, Split, card, front_matter, name, scalar
from agent.export.statistics import AttemptFacts, ConversationFacts, RunFacts, Statistics
from tools.verdict import Status

yaml = pytest.importorskip("yaml", reason="needs the extra `export`")
HOSTILE = [
    "a | b |",
    "line\nbreak\r\n\r\n# heading\n| x |",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) ![x](http://e.vil/p.png)",
    "`` ` ``` code",
    "**bold** _it_ ~~gone~~ $x$ \\| \\",
    "---\nlicense: mit\n---",
    "{{ 7 * 7 }}{% raw %}",
    "https://e.vil www.e.vil @someone #1 &amp; &#60;",
    "\x00\x1b[2J\u202eevil\u2028\ud800\ufffe",
    "- - -",
    "  padded  ",
    "長" * 200,
    "",
]
COLUMNS = (Column("text", "text", "what | it says"), Column("speedup", "float", "over the fastest baseline, a factor"))
RUN = RunFacts("softmax", "train", "anthropic", "m1", "NVIDIA H200", 1.7e9, "attempts", {"torch": "2.13.0"})


def exported(**changes: Any) -> Export:
    config = Config("sft-chat", "whole conversations", COLUMNS, (Split("train", ("data/train-*.jsonl",), 2),))
    made = Export(
        "kernels",
        (config,),
        (Column("task", "text", "name of the task"),),
        version="0.1.0",
        schema_version=1,
        command="optimize export --format sft-chat -o out",
        made_at=1.7e9,
        seed=7,
        split_rule="By task.",
    )
    return replace(made, **changes)


def counted(run: RunFacts = RUN) -> Statistics:
    s = Statistics()
    tries = [AttemptFacts("r/1", 1, 1, "correct", 1.25, 1.2, ("faster",), ("confirmed",), 900, "exact", leaked=True)]
    s.add(run, [*tries, AttemptFacts("r/2", 2, 2, "wrong"), AttemptFacts("r/3", 3, 3, "checked", held=True)])
    s.add(run, [], [ConversationFacts(2, 100, 10, None)])
    return s


def cells(text: str) -> list[list[str]]:
    """Every table row of a card, as a reader sees it."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text.split("---\n", 2)[2]):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.level > 3:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def kinds(text: str) -> set[str]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text.split("---\n", 2)[2])
    return {child.type for token in tokens for child in (token, *(token.children or ()))}


def test_a_reader_finds_the_numbers_in_the_tables() -> None:
    rows = cells(card(exported(), counted()))
    assert ["softmax", "train", "3", "2", "66.7 %", "1.25x", "NVIDIA H200"] in rows
    assert ["of these not timed (speed unknown)", "1 (50.0 %)"] in rows
    assert ["anthropic", "m1", "NVIDIA H200", "2", "3", "2", "66.7 %"] in rows
    assert ["correct", "1", "33.3 %", "right on every input tried, and timed on a GPU"] in rows
    assert ["1.1x", "1", "100.0 %", "33.3 %"] in rows
    assert ["torch", "2.13.0 (2)"] in rows
    assert ["output tokens, thinking included", "0 (unknown in 1)"] in rows
    assert ["text", "text", "what | it says"] in rows
    assert ["confirmed", "1", "100.0 %"] in rows


def test_fields_of_nested_columns_are_explained_too() -> None:
    leaf = Column("uuid", "text", "of the task")
    nested = Column("extra", "struct", "more", (Column("deep", "structs", "a list", (leaf,)),))
    rows = cells(card(exported(configs=(Config("verl", "", (nested,), ()),)), counted()))
    assert ["extra", "struct", "more"] in rows
    assert ["extra.deep", "structs", "a list"] in rows
    assert ["extra.deep.uuid", "text", "of the task"] in rows


def test_an_export_of_nothing_has_a_card_too() -> None:
    empty = exported(configs=(Config("dpo", "pairs", COLUMNS, (Split("train", (), 0),)),))
    text = card(empty, Statistics())
    assert "no row passed the filters" in text
    assert "nothing in this export was timed" in text
    assert "configs" not in yaml.safe_load(text.split("---\n")[1])
    assert card(replace(empty, configs=()), Statistics())


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_names_stay_words_in_their_cells(words: str) -> None:
    s = counted(RunFacts(words, words, words, words, words, 1.0, words, {words: words}, words))
    s.add(RUN._replace(task=words), [AttemptFacts("r/1", 1, status=words, labels=(words,), outcomes=(words,))])
    notices = (Notice(words, words, words),)
    text = card(exported(name=words, filters=(words,), notices=notices, figures=(("f.svg", words),)), s)
    plain = card(exported(notices=(Notice("p", "t", "words"),), figures=(("f.svg", "c"),)), counted())
    assert kinds(text) <= kinds(plain)
    assert {len(row) for row in cells(text)} == {len(row) for row in cells(plain)} | {3}
    assert not any(c in text for c in "\x00\x1b\u202e\u2028")


def test_ordinary_names_are_read_as_they_are() -> None:
    assert name("layer_norm") == "`layer_norm`"
    assert name("NVIDIA H200 (141 GB)") == "`NVIDIA H200 (141 GB)`"
    assert name("a|b") == "a&#124;b"
    assert name("") == "(none)"


@pytest.mark.parametrize("words", HOSTILE)
def test_the_metadata_is_yaml_whatever_the_name(words: str) -> None:
    data = yaml.safe_load(front_matter(exported(name=words, licence_name=words)))
    assert list(data) == [
        *("pretty_name", "license", "license_name", "language", "task_categories", "tags", "size_categories", "configs")
    ]
    assert data["license"] == "other"
    assert yaml.safe_load(scalar("a: 'b' \"c\" \\ #d\n\t😀é")) == "a: 'b' \"c\" \\ #d\n\t😀é"


def test_the_card_is_the_same_for_the_same_input() -> None:
    assert card(exported(), counted()) == card(exported(), Statistics.from_json(counted().to_json()))


def test_a_licence_that_was_chosen_is_named_and_needs_no_name_of_its_own() -> None:
    text = card(exported(licence="apache-2.0"), counted())
    assert "license_name" not in text
    assert "under `apache-2.0`" in text


def test_a_command_with_fences_stays_in_its_block() -> None:
    text = card(exported(command="optimize export ```\n# heading"), counted())
    assert "````sh\noptimize export ```\n# heading\n````" in text


@pytest.mark.parametrize("wrong", ["a b", "a/b", "a|b", "", "a:b", "ä", "a\n"])
def test_a_config_that_datasets_would_refuse_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="config"):
        card(exported(configs=(Config(wrong, "", (), ()),)), Statistics())


def test_a_split_that_datasets_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        card(exported(configs=(Config("dpo", "", (), (Split("held-out", (), 0),)),)), Statistics())


def test_parquet_and_jsonl_do_not_share_a_card() -> None:
    configs = (
        Config("dpo", "", (), (Split("train", ("a.parquet",), 1),)),
        Config("kto", "", (), (Split("train", ("a.jsonl",), 1),)),
    )
    with pytest.raises(ValueError, match=r"\.jsonl, \.parquet"):
        card(exported(configs=configs), Statistics())


def test_every_status_is_explained() -> None:
    assert {status.value for status in Status} < set(STATUSES)


@pytest.mark.parametrize(("rows", "size"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**7, "n>10M")])
def test_the_size_is_named_as_the_hub_names_it(rows: int, size: str) -> None:
    config = Config("dpo", "", (), (Split("train", ("a.parquet",), rows),))
    assert yaml.safe_load(front_matter(exported(configs=(config,))))["size_categories"] == [size]


def test_datasets_loads_a_folder_by_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    for config in ("sft-chat", "dpo"):
        for split in ("train", "test"):
            for shard in range(2):
                path = tmp_path / "data" / config / f"{split}-{shard:05}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"text": f"{config} {split} {shard}", "speedup": None if shard else 1.5}))
    configs = tuple(
        Config(c, "", COLUMNS, tuple(Split(s, (f"data/{c}/{s}-*.jsonl",), 2) for s in ("train", "test")))
        for c in ("sft-chat", "dpo")
    )
    empty = Config("kto", "", COLUMNS, (Split("train", ("data/kto/train-*.jsonl",), 0),))
    text = card(exported(name=HOSTILE[1], configs=(*configs, empty)), counted())
    (tmp_path / "README.md").write_text(text)
    cache = str(tmp_path / "cache")
    assert datasets.get_dataset_config_names(str(tmp_path)) == ["sft-chat", "dpo"]
    rows = datasets.load_dataset(str(tmp_path), "dpo", cache_dir=cache)
    assert rows["test"]["text"] == ["dpo test 0", "dpo test 1"]
    assert rows["test"]["speedup"][0] == 1.5
    default = datasets.load_dataset(str(tmp_path), split="train", cache_dir=cache)
    assert default["text"][0] == "sft-chat train 0"


def test_speed_ups_that_are_no_numbers_do_not_reach_the_card() -> None:
    s = Statistics()
    s.add(RUN, [AttemptFacts("r/1", 1, status="correct", speedup=math.nan)])
    assert "nanx" not in card(exported(), s)
