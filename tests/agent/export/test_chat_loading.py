"""What is written is read by `datasets`, offline, and gives the same rows; chat templates render what it gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.export.base import ExportRow, Format
from kerneltune.agent.export.chat_formats import SftChat
from kerneltune.agent.export.raw import Raw, read_event
from kerneltune.agent.models.types import Usage
from tests.agent.export.files import write_lines, write_parquet
from tests.agent.export.talk_parts import Speaker, bench, held, long_script, update
from tests.agent.record.samples import arbitrary_run

datasets = pytest.importorskip("datasets")

# In the manner of Qwen: arguments are objects, results are answers of the user.
TEMPLATE = """{%- for tool in tools %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.role == "assistant" and message.reasoning_content is string %}
<think>{{ message.reasoning_content }}</think>
{%- endif %}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}"""


def rows(form: Format) -> list[ExportRow]:
    """Rows of a run with many calls, and of one in which some messages have keys that others lack."""
    long, _ = held(long_script(), context_tokens=4_000)
    said = Speaker().system("s").user("ünï\n\x00'\"").reply("a", bench("c"), thinking="why", usage=Usage(1, 2))
    said.result("c", "r").reply("", update("d", "x", nested={"deep": [1, None, {"k": 1.5}]})).result("d", "r2")
    return [*form.rows(long), *form.rows(said.trajectory())]


def load(kind: str, path: Path, cache: Path) -> Any:
    datasets.disable_progress_bars()
    return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(cache))


def about(value: Any) -> Any:
    """Without nulls, and with nine decimals: `datasets` writes rows of mixed keys again while it reads JSON lines, with
    ten decimals."""
    if isinstance(value, dict):
        return {k: about(v) for k, v in value.items() if v is not None}
    if isinstance(value, float):
        return round(value, 9)
    return [about(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("form", [SftChat(empty="keep"), SftChat(seen=True, empty="keep")], ids=["whole", "windows"])
def test_parquet_gives_the_very_same_rows(form: Format, tmp_path: Path) -> None:
    made = rows(form)
    found = load("parquet", write_parquet(made, tmp_path / "x.parquet", form.columns), tmp_path / "cache")
    assert [dict(row) for row in found] == [m.values for m in made]


def test_json_lines_give_the_same_rows_but_for_the_last_digits(tmp_path: Path) -> None:
    form = SftChat(empty="keep")
    made = rows(form)
    found = load("json", write_lines(made, tmp_path / "x.jsonl"), tmp_path / "cache")
    assert [about(dict(row)) for row in found] == [about(m.values) for m in made]


def test_a_chat_template_renders_the_calls_of_a_loaded_row(tmp_path: Path) -> None:
    import jinja2

    path = write_parquet(rows(SftChat(empty="keep")), tmp_path / "x.parquet", SftChat.columns)
    render = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(
        TEMPLATE.replace("message.tool_calls or []", "message.get('tool_calls') or []").replace(
            "message.reasoning_content is", "message.get('reasoning_content') is"
        )
    )
    texts = [render.render(messages=r["messages"], tools=r["tools"]) for r in load("parquet", path, tmp_path / "cache")]
    for row, text in zip(rows(SftChat(empty="keep")), texts, strict=True):
        calls = [c["function"] for m in row.values["messages"] for c in m.get("tool_calls", [])]
        told = [json.loads(line[len("<tool_call>") : -len("</tool_call>")]) for line in _tagged(text)]
        assert told == [{"name": c["name"], "arguments": c["arguments"]} for c in calls]
        assert text.count("<|im_start|>tool") == len(calls)
        assert text.count('"type": "function"') >= 3
    assert "<think>why</think>" in texts[-1]


def _tagged(text: str) -> list[str]:
    lines = (line.removesuffix("<|im_end|>") for line in text.splitlines())
    return [line for line in lines if line.startswith("<tool_call>")]


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_raw_events_come_back_exactly_through_datasets(kind: str, tmp_path: Path) -> None:
    events = [e for seed in range(10) for e in arbitrary_run(seed, f"run-{seed}")]
    made = list(Raw().rows_of_events(events))
    path = tmp_path / f"x.{kind}"
    written = write_parquet(made, path, Raw.columns) if kind == "parquet" else write_lines(made, path, Raw.columns)
    found = load(kind, written, tmp_path / "cache")
    assert [read_event(json.loads(row["event"])) for row in found] == events
