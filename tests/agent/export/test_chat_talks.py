"""Conversations become legal ones: roles alternate, calls have results, and windows are what the model saw."""

from typing import Any

from kerneltune.agent.export.chat_formats import Dialogue, chat_messages, dialogues
from kerneltune.agent.models.types import Message, Reply, ToolCall, ToolResults, User
from tests.agent.export.talk_parts import Speaker, bench, held, long_script


def the_talk(speaker: Speaker) -> Dialogue:
    (talk,) = dialogues(speaker.trajectory().conversations[0])
    return talk


def shape(talk: Dialogue) -> list[str]:
    """Role and text of each message."""
    return [f"{m['role']}: {m['content']}" for m in chat_messages(talk)]


def check_legal(messages: list[dict[str, Any]], open_end: bool = False) -> None:
    """As chat templates and APIs want it. `open_end`: it may end with calls, to learn them."""
    waiting: list[str] = []
    before = ""
    for message in messages:
        role = message["role"]
        if waiting:
            assert role == "tool", "a call without a result"
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert role != "tool", "a result without a call"
            assert role != before, f"two messages of {role} in a row"
            waiting = [c["id"] for c in message.get("tool_calls", [])]
            assert len(set(waiting)) == len(waiting)
        assert role != "system" or before == ""
        before = role
    assert open_end or not waiting


def test_calls_and_results_stand_together_in_order() -> None:
    said = Speaker().system("s").user("begin").reply("two", bench("a"), bench("b", 2))
    talk = the_talk(said.result("a", "ra").result("b", "rb", True).reply("bye"))
    assert shape(talk) == ["system: s", "user: begin", "assistant: two", "tool: ra", "tool: rb", "assistant: bye"]
    assert [t.n_errors for t in talk.turns] == [1, 0]
    assert not talk.truncated


def test_a_killed_run_is_cut_before_the_call_that_has_no_result() -> None:
    said = Speaker().user("begin").reply("one", bench("a")).result("a", "ra").reply("two", bench("b"), bench("c"))
    talk = the_talk(said.result("b", "rb"))
    assert talk.truncated
    assert shape(talk) == ["user: begin", "assistant: one", "tool: ra"]
    assert talk.left_out == 1


def test_what_follows_a_call_without_a_result_is_cut_too_but_counts_as_said() -> None:
    said = Speaker().user("begin").reply("one").user("go on").reply("two", bench("b")).reply("three").user("x")
    talk = the_talk(said.reply("four"))
    assert (shape(talk), talk.truncated) == (["user: begin", "assistant: one"], True)
    assert len(talk.new) == 4


def test_a_conversation_without_a_whole_exchange_makes_no_talk() -> None:
    for speaker in (Speaker().user("begin"), Speaker().user("begin").reply("x", bench("b")), Speaker().reply("x")):
        assert list(dialogues(speaker.trajectory().conversations[0])) == []


def test_empty_and_refused_replies_are_left_out_and_words_join_as_the_model_was_shown_them() -> None:
    said = Speaker().user("begin").reply("one", bench("a")).result("a", "ra")
    said.reply("", stop="end").user("say something").reply("I must not", stop="refusal").user("try again")
    talk = the_talk(said.reply("two", bench("b")).result("b", "rb"))
    assert shape(talk)[2:5] == ["tool: ra", "user: say something\n\ntry again", "assistant: two"]
    assert talk.left_out == 2


def test_words_that_nobody_answered_are_not_told() -> None:
    assert shape(the_talk(Speaker().user("begin").reply("one").user("anybody?"))) == ["user: begin", "assistant: one"]


def test_what_was_cut_off_stays_as_context_and_trains_nobody() -> None:
    said = Speaker().user("begin").reply("half a sent", stop="max_tokens").user("go on").reply("whole")
    said.user("on").reply("x", bench("b")).result("b", "r").reply("y", bench("c")).result("c", "r")
    assert [t.trains for t in the_talk(said).turns] == [False, False, False, True]


def test_a_call_with_arguments_that_could_not_be_read_trains_nobody() -> None:
    said = Speaker().user("begin").reply("", ToolCall("a", "update", {}, "no JSON")).result("a", "update: …", True)
    assert [t.trains for t in the_talk(said).turns] == [False]


def test_of_two_replies_in_a_row_the_second_is_told() -> None:
    said = Speaker().user("begin").reply("out of room", stop="context").history("so far", 1).reply("again")
    assert shape(the_talk(said)) == ["user: begin", "assistant: again"]


def test_ids_that_are_missing_or_twice_in_a_reply_are_made_unique() -> None:
    said = Speaker().user("begin").reply("", bench("x"), bench("x"), bench(""), bench("call_1_2"))
    for call_id, text in (("x", "1"), ("x", "2"), ("", "3"), ("call_1_2", "4")):
        said.result(call_id, text)
    messages = chat_messages(the_talk(said))
    check_legal(messages)
    assert [m["content"] for m in messages[2:]] == ["1", "2", "3", "4"]


def test_a_result_that_nobody_asked_for_is_nobody_s() -> None:
    said = Speaker().user("begin").result("z", "stray").reply("one", bench("a")).result("z", "stray").result("a", "ra")
    assert shape(the_talk(said.result("a", "twice"))) == ["user: begin", "assistant: one", "tool: ra"]


def test_the_whole_transcript_leaves_out_histories_and_a_window_begins_with_one() -> None:
    said = Speaker().system("s").user("begin")
    for name in "abc":
        said.reply(f"try {name}", bench(name)).result(name, f"r{name}")
    said.history("tried: a b c", 2).reply("try d", bench("d")).result("d", "rd").reply("bye")
    whole = the_talk(said)
    assert "tried: a b c" not in str(shape(whole))
    assert (whole.window, len(whole.turns), len(whole.fresh)) == (0, 5, 5)
    first, second = dialogues(said.trajectory().conversations[0], seen=True)
    assert [t.reply.text for t in first.fresh] == ["try a", "try b", "try c"]
    assert shape(second)[:4] == ["system: s", "user: tried: a b c", "assistant: try c", "tool: rc"]
    assert [t.reply.text for t in second.turns] == ["try c", "try d", "bye"]
    assert [t.copied for t in second.turns] == [True, False, False]
    assert (first.window, second.window, len(second.new)) == (1, 2, 2)


def test_a_history_that_does_not_say_what_was_kept_ends_what_is_known_of_the_windows() -> None:
    said = Speaker().user("begin").reply("a").user("on").history("tried: a", None).reply("b")
    (only,) = dialogues(said.trajectory().conversations[0], seen=True)
    assert shape(only) == ["user: begin", "assistant: a"]
    assert len(the_talk(said).turns) == 2


def test_each_conversation_has_the_system_prompt_that_was_said_before_it() -> None:
    first, second = Speaker("1").system("old").user("a").reply("x"), Speaker("2").system("new").user("b").reply("y")
    late = Speaker("1").user("c").reply("z")
    made = Speaker("1", [*first.events, *second.events, *late.events]).trajectory()
    found = {c.key: next(dialogues(c)) for c in made.conversations}
    assert {key: talk.system for key, talk in found.items()} == {"1": "old", "2": "new"}
    assert len(found["1"].turns) == 2


def test_every_window_of_a_long_run_is_word_for_word_what_the_model_was_asked() -> None:
    run, model = held(long_script(), context_tokens=1_500)
    wanted = [[("system", r.system, ()), *(m for said in r.messages for m in as_chat(said))] for r in model.asked]
    shown = []
    windows = [talk for conversation in run.conversations for talk in dialogues(conversation, seen=True)]
    for talk in windows:
        messages = chat_messages(talk)
        check_legal(messages)
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        new = [i for i, turn in zip(replies, talk.turns, strict=True) if not turn.copied]
        shown += [[brief(m) for m in messages[:i]] for i in new]
    assert len(windows) > 5
    assert all(prompt in wanted for prompt in shown)
    kept = sum(len(talk.fresh) for talk in windows)
    assert kept == len(shown)
    assert kept + sum(talk.left_out for talk in windows) == len(model.asked)
    assert sum(talk.left_out for talk in windows) > 5


def test_the_whole_transcript_of_a_long_run_is_legal_and_holds_every_reply_once() -> None:
    run, model = held(long_script(), context_tokens=4_000)
    whole = [talk for conversation in run.conversations for talk in dialogues(conversation)]
    for talk in whole:
        check_legal(chat_messages(talk))
    assert sum(len(t.turns) + t.left_out for t in whole) == len(model.asked)
    windows = [talk for c in run.conversations for talk in dialogues(c, seen=True)]
    fresh = [turn.reply for talk in windows for turn in talk.turns if not turn.copied]
    assert fresh == [turn.reply for talk in whole for turn in talk.turns]


def as_chat(message: Message) -> list[tuple[str, str, tuple[str, ...]]]:
    """A message of a request in roles."""
    match message:
        case User(text):
            return [("user", text, ())]
        case Reply():
            return [("assistant", message.text, tuple(c.name for c in message.calls))]
        case ToolResults():
            on_top = [("user", message.text, ())] if message.text else []
            return [*(("tool", r.text, ()) for r in message.results), *on_top]


def brief(message: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    calls = tuple(c["function"]["name"] for c in message.get("tool_calls", []))
    return message["role"], message["content"], calls
