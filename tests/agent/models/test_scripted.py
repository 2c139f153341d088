"""Scripts: replayed exactly, refused with file and line."""

import json
import threading
from pathlib import Path

import pytest

from kerneltune.agent.models.scripted import OVER, ScriptedModel
from kerneltune.agent.models.types import Delta, ModelOptions, ModelRequest, Reply, ToolCall, Usage, User
from kerneltune.tools.schema.errors import UsageError
from tests.agent.models.server import LlmServer
from tests.agent.models.talk import STORY, converse, model_of, plain, write_lines
from tests.agent.models.test_faults import HALVES, without_halves

NO_JSON = "the arguments are not JSON: "


def script(path: Path, lines: list[str]) -> ScriptedModel:
    return ScriptedModel(ModelOptions(str(write_lines(path / "story.jsonl", lines))))


def ask(model: ScriptedModel, key: str = "") -> Reply:
    return model.ask(ModelRequest("", (User("Go."),), key=key))


def test_a_script_replays_what_a_server_told(tmp_path: Path) -> None:
    model = script(tmp_path, [json.dumps(line) for line in STORY])
    with LlmServer(STORY, "anthropic") as server:
        served = converse(model_of(server), len(STORY))
    assert [plain(reply) for reply in converse(model, len(STORY))] == [plain(reply) for reply in served]


def test_a_script_s_replies_are_cleaned_as_those_of_servers_are(tmp_path: Path) -> None:
    nan = '{"calls": [{"name": "bench", "arguments": {"attempt": NaN}}], "cost_usd": NaN, '
    nan += '"usage": {"input_tokens": -1, "output_tokens": 2}}'
    deep = json.dumps({"calls": [{"name": "bench", "arguments": {"a": json.loads("[" * 200 + "]" * 200)}}]})
    model = script(tmp_path, [json.dumps(HALVES[0]), nan, deep])
    without_halves(ask(model))
    assert ask(model) == Reply("", "tools", (ToolCall("call_2_0", "bench", {}, NO_JSON + "nan is no JSON number"),))
    assert ask(model).calls[0].problem.startswith(NO_JSON + "they are nested")


def test_a_script_that_is_over_says_so_and_goes_on_saying_so(tmp_path: Path) -> None:
    model = script(tmp_path, ['{"text": "Only this."}', ""])
    assert [ask(model).text for _ in range(3)] == ["Only this.", OVER, OVER]
    assert ask(model).stop == "end"


def test_conversations_have_lines_of_their_own_and_share_the_rest(tmp_path: Path) -> None:
    lines = ['{"text": "a1", "conversation": "a"}', '{"text": "s1"}', '{"text": "a2", "conversation": "a"}']
    model = script(tmp_path, [*lines, '{"text": "s2"}'])
    assert [ask(model, key).text for key in ("b", "a", "c", "a", "a")] == ["s1", "a1", "s2", "a2", OVER]


def test_a_resumed_run_passes_over_what_it_had(tmp_path: Path) -> None:
    model = script(tmp_path, ['{"text": "1"}', '{"text": "2"}', '{"text": "3"}'])
    model.skip(2)
    assert ask(model).text == "3"


def test_many_threads_get_each_line_once(tmp_path: Path) -> None:
    model = script(tmp_path, [json.dumps({"text": str(i)}) for i in range(200)])
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.extend(ask(model).text for _ in range(25))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got, key=int) == [str(i) for i in range(200)]


def test_usage_stop_and_thinking_are_as_written_and_heard(tmp_path: Path) -> None:
    line = '{"text": "T", "thinking": "H", "stop": "refusal", "detail": "cyber", "cost_usd": 0.5, '
    model = script(tmp_path, [line + '"usage": {"input_tokens": 9, "output_tokens": 2}}'])
    heard: list[Delta] = []
    reply = model.ask(ModelRequest("", (User("Go."),)), heard.append)
    assert reply == Reply("T", "refusal", (), "H", "cyber", Usage(9, 2), 0.5)
    assert [(delta.kind, delta.text) for delta in heard] == [("thinking", "H"), ("text", "T")]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"txt": "misspelt"}',
        '{"calls": [{"arguments": {}}]}',
        '{"calls": [{"name": "bench", "arguments": []}]}',
        '{"stop": "whenever"}',
        '{"usage": {"input_tokens": "many", "output_tokens": 1}}',
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"story\.jsonl:3: "):
        script(tmp_path, ['{"text": "good"}', "", line])


def test_a_script_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.jsonl"
    with pytest.raises(UsageError) as caught:
        ScriptedModel(ModelOptions(str(path)))
    assert str(caught.value) == f"scripted:{path} cannot be read: No such file or directory"
