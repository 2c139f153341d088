"""ATIF documents keep to the published schema, and to the rules that no schema can say."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.export.chat_formats import Atif
from kerneltune.agent.models.types import Usage
from tests.agent.export.json_schema import problems
from tests.agent.export.talk_parts import RUN, Speaker, bench, ended, held, long_script, update

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "atif_v1_8.json").read_text())
AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}


def documents(speaker: Speaker, **options: Any) -> list[dict[str, Any]]:
    return [made.values for made in Atif(empty="keep", **options).rows(speaker.trajectory(ended()))]


def check(document: dict[str, Any]) -> None:
    """The schema, and what the models of its authors check besides."""
    assert problems(json.loads(json.dumps(document, allow_nan=False)), SCHEMA) == []
    assert [s["step_id"] for s in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:
        if step["source"] != "agent":
            assert not AGENT_ONLY & set(step)
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        ids = {c["tool_call_id"] for c in step.get("tool_calls", [])}
        assert ids >= {r["source_call_id"] for r in step.get("observation", {"results": []})["results"]}


def test_a_conversation_is_a_document_with_calls_observations_and_metrics() -> None:
    said = Speaker().system("s").user("begin")
    said.reply("try", update("a", "5"), bench("b"), thinking="hm", usage=Usage(90, 7, 30, 0, 4), cost_usd=0.25)
    said.result("a", "#1 compiled").result("b", "bench: no", True).user("go on").reply("bye", usage=Usage(120, 3))
    (document,) = documents(said)
    check(document)
    system, user, step, words, last = document["steps"]
    assert (system["source"], user["message"], words["message"], last["message"]) == ("system", "begin", "go on", "bye")
    assert [c["function_name"] for c in step["tool_calls"]] == ["update", "bench"]
    assert step["tool_calls"][0]["arguments"]["source"] == "5"
    assert [(r["source_call_id"], r["content"]) for r in step["observation"]["results"]] == [
        ("a", "#1 compiled"),
        ("b", "bench: no"),
    ]
    assert step["reasoning_content"] == "hm"
    tokens = {"prompt_tokens": 90, "completion_tokens": 7, "cached_tokens": 30, "cost_usd": 0.25}
    assert step["metrics"] == tokens | {"extra": {"thinking_tokens": 4}}
    totals = {"total_prompt_tokens": 210, "total_completion_tokens": 10, "total_cached_tokens": 30, "total_steps": 5}
    assert document["final_metrics"] == totals  # one reply has no price, so there is no total
    assert (document["session_id"], document["trajectory_id"]) == (RUN, f"{RUN}/1")
    assert document["extra"]["why"] == "attempts"


def test_a_reply_that_is_told_call_by_call_costs_its_tokens_once() -> None:
    said = Speaker().user("begin").reply("try", update("a", "5"), bench("b"), usage=Usage(90, 7), cost_usd=0.25)
    (document,) = documents(said.result("a", "#1 compiled").result("b", "#1 correct"), calls="one")
    check(document)
    metrics = {"prompt_tokens": 90, "completion_tokens": 7, "cached_tokens": 0, "cost_usd": 0.25}
    assert [step.get("metrics") for step in document["steps"][1:]] == [metrics, None]
    assert [step["llm_call_count"] for step in document["steps"][1:]] == [1, 0]


@pytest.mark.parametrize("odd", ["many", True, -5, 1.5, {"a": 1}, None])
def test_what_is_no_count_of_tokens_is_unknown(odd: Any) -> None:
    said = Speaker().user("begin").reply("try", bench("a"), usage={"input_tokens": odd, "output_tokens": 7})
    (document,) = documents(said.result("a", "no", True))
    check(document)
    assert document["steps"][1]["metrics"] == {"completion_tokens": 7}
    assert document["final_metrics"] == {"total_completion_tokens": 7, "total_steps": 2}


def test_windows_mark_what_was_copied_and_charge_for_it_once() -> None:
    run, model = held(long_script(), context_tokens=1_500)
    made = [m.values for m in Atif(seen=True).rows(run)]
    for document in made:
        check(document)
    assert len({d["trajectory_id"] for d in made}) == len(made) > 5
    copied = [s for d in made for s in d["steps"] if s.get("is_copied_context")]
    assert copied
    assert not any("metrics" in s for s in copied)
    assert sum(d["final_metrics"]["total_cost_usd"] for d in made) == 0.5 * len(model.asked)
    histories = [s for d in made for s in d["steps"] if s.get("extra", {}).get("history")]
    assert len(histories) >= len(made) - len(run.conversations)


def test_the_whole_transcripts_of_a_long_run_keep_to_the_schema() -> None:
    run, model = held(long_script(), context_tokens=4_000)
    made = [m.values for m in Atif().rows(run)]
    for document in made:
        check(document)
    assert sum(d["final_metrics"]["total_cost_usd"] for d in made) == 0.5 * len(model.asked)
    assert sum(d["extra"]["n_attempts"] for d in made) == len(run.attempts) == 50


def test_a_killed_run_is_a_document_too() -> None:
    said = Speaker().user("begin").reply("one", bench("a")).result("a", "ra").reply("two", bench("b"))
    (document,) = documents(said)
    check(document)
    assert document["extra"]["truncated"]


def test_the_checker_of_schemas_sees_what_is_wrong() -> None:
    (document,) = documents(Speaker().user("begin").reply("x"))
    for path, value in ((("steps",), []), (("steps", 0, "source"), "robot"), (("agent", "name"), 3), (("mine",), 1)):
        broken = json.loads(json.dumps(document))
        inner = broken
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        assert problems(broken, SCHEMA), path
    with pytest.raises(ValueError, match="does not know"):
        problems({}, {"pattern": "x"})
