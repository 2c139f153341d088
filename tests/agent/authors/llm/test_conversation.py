"""A conversation with a model that reads its replies from a list."""

from dataclasses import replace
from typing import Any

import pytest

from kerneltune.agent.attempt import Attempt, Limits, Remaining
from kerneltune.agent.authors.llm.author import (
    KEPT_EXCHANGES,
    MOST_VAIN,
    LlmConversation,
    context_limit,
    reply_limit,
)
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Event, Replied, Said
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.types import (
    ContextOverflow,
    Effort,
    Listen,
    ModelFacts,
    ModelRequest,
    NoLongerWanted,
    Reply,
    ToolResult,
    ToolResults,
    Unavailable,
    Usage,
    User,
)
from kerneltune.agent.tracker import AttemptTracker, CostTracker
from kerneltune.tools.evaluator import Evaluator
from tests.agent.authors.llm.parts import PRICE_USD, ListModel, NoteExecutor, OneLine, PlainPrompts, call, calling
from tests.agent.test_loop import TASK, Log, NoteBench, NoteUpdater

UPDATE = calling(call("update", source="class ModelNew: …"), text="I try a kernel.")


def conversation(
    *script: Reply | Exception, **more: Any
) -> tuple[LlmConversation, ListModel, NoteExecutor, list[Event]]:
    model, executor, log, prompts = ListModel(list(script)), NoteExecutor(), Log(), PlainPrompts()
    tracker = AttemptTracker("r", TASK, Evaluator(NoteUpdater(), NoteBench(), "timing"), log)  # type: ignore[arg-type]
    made = LlmConversation(tracker, "1", model, executor, prompts, "begin", prompts.history, **more)  # type: ignore[arg-type]
    return made, model, executor, log.events


def hold(made: LlmConversation, **limits: Any) -> str:
    """As the loop does it."""
    return optimize(Run(made.tracker, OneLine([made.actions()]), Limits(99, **limits)))


def test_results_of_tool_calls_go_back_until_the_model_has_no_more_to_say() -> None:
    made, model, executor, events = conversation(UPDATE, calling(call("bench", attempt=1)))
    assert hold(made) == "author_done"
    assert executor.done == [("update", 1), ("bench", 2)]
    second = model.asked[1].messages
    assert isinstance(second[1], Reply)
    assert second[2] == ToolResults((ToolResult("c1", "update: ok"),))
    told = [(e.role, e.text) for e in events if isinstance(e, Said) and e.final]
    assert told[:3] == [("user", "begin"), ("tool", "update: ok"), ("tool", "bench: ok")]


def test_every_reply_is_an_event_with_its_calls_and_its_cost() -> None:
    made, _, _, events = conversation(UPDATE)
    hold(made)
    replies = [e for e in events if isinstance(e, Replied)]
    assert [e.turn for e in replies] == [1, 2, 3]
    assert replies[0].calls[0]["name"] == "update"
    assert replies[0].cost_usd
    assert made.tracker.cost.cost_usd == pytest.approx(sum(e.cost_usd or 0 for e in replies))


def test_a_budget_for_less_than_the_first_request_asks_for_none() -> None:
    made, model, _, _ = conversation(UPDATE, UPDATE)
    assert hold(made, max_cost_usd=1e-9) == "cost"
    assert model.asked == []


class Cached(ListModel):
    """What a prompt had in common with the one before costs a tenth, as replies of 400 tokens are billed."""

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        before = len(str(self.asked[-1].messages)) // 4 if self.asked else 0
        now = len(str(request.messages)) // 4
        self.script.insert(0, replace(UPDATE, usage=Usage(now, 400, before, now - before)))
        return super().ask(request, listen)

    def price_usd(self, usage: Usage) -> float | None:
        new = usage.input_tokens - usage.cached_tokens
        return (new + usage.cached_tokens / 10 + 5 * usage.output_tokens) * PRICE_USD


@pytest.mark.parametrize("budget_usd", [0.03, 0.1, 0.35])
def test_a_run_spends_nearly_all_of_its_budget_and_no_more(budget_usd: float) -> None:
    made, _, executor, _ = conversation()
    made.model, executor.answer = Cached([]), "y" * 800
    running = Run(made.tracker, OneLine([made.actions()]), Limits(999, max_cost_usd=budget_usd))
    made.remaining = running.remaining
    assert optimize(running) == "cost"
    assert 0.9 * budget_usd < made.tracker.cost.cost_usd <= budget_usd


def test_a_reply_may_be_no_longer_than_the_run_can_pay_for() -> None:
    made, model, _, _ = conversation(UPDATE, remaining=lambda: Remaining(cost_usd=0.002), max_tokens=8_000)
    hold(made)
    assert 1_024 < model.asked[0].max_tokens < 0.002 / PRICE_USD
    made, model, _, _ = conversation(UPDATE, max_tokens=8_000)
    hold(made)
    assert model.asked[0].max_tokens == 8_000


class BreaksOff(ListModel):
    """Of every reply 40,000 characters come and are lost, then it is sent again as long as somebody wants it."""

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        before = request.affordable()
        request.lost(None, 40_000)
        assert request.affordable() <= max(1_024, before - 10_000)
        if request.is_over():
            raise NoLongerWanted("nobody waits for the reply any more")
        return super().ask(request, listen)


def test_replies_that_break_off_are_spent_as_an_estimate_and_not_sent_again_when_the_budget_is_gone() -> None:
    made, _, _, events = conversation()
    made.model = BreaksOff([UPDATE] * 9)
    running = Run(made.tracker, OneLine([made.actions()]), Limits(999, max_cost_usd=0.025))
    made.remaining = running.remaining
    assert optimize(running) == "cost"
    replies = [e for e in events if isinstance(e, Replied)]
    assert [(e.turn, e.stop) for e in replies] == [
        (1, "interrupted"), (2, "tools"), (3, "interrupted"), (4, "tools"), (5, "interrupted"),
    ]  # fmt: skip
    for lost in replies[::2]:
        assert lost.usage is not None
        assert (lost.usage["output_tokens"], lost.usage["estimated"], lost.text, lost.calls) == (10_000, True, "", [])
        assert lost.cost_usd == pytest.approx((10_000 + lost.usage["input_tokens"]) * PRICE_USD)
    assert made.tracker.cost.cost_usd == pytest.approx(sum(e.cost_usd or 0 for e in replies))
    assert made.tracker.cost.output_tokens < 100  # what broke off does not tell how long replies are


def test_conversations_side_by_side_leave_each_other_what_they_are_about_to_spend() -> None:
    cost = CostTracker()
    cost.expect("1", 0.2)
    cost.expect("2", 0.3)
    assert cost.next_usd == pytest.approx(0.5)
    assert cost.expected("2") == 0.3
    cost.expect("1", 0.0)  # it is over
    assert cost.next_usd == 0.3


def test_the_limit_of_a_reply_is_raised_once_when_it_cut_one_off() -> None:
    cut = Reply("first I would", "max_tokens")
    made, model, _, _ = conversation(cut, UPDATE, cut, UPDATE, max_tokens=32_000)
    hold(made)
    assert [r.max_tokens for r in model.asked[:4]] == [32_000, 64_000, 64_000, 64_000]


@pytest.mark.parametrize(
    ("most", "effort", "limit"),
    [
        (None, "high", 32_000),
        (None, "max", 32_000),
        (64_000, "low", 32_000),
        (128_000, "high", 64_000),
        (128_000, "max", 128_000),
        (8_000, "max", 8_000),
    ],
)
def test_a_reply_may_be_as_long_as_the_model_can_write_and_its_effort_needs(
    most: int | None, effort: Effort, limit: int
) -> None:
    assert reply_limit(ModelFacts("m", max_output_tokens=most), effort) == limit


def test_a_conversation_ends_when_it_has_made_its_share() -> None:
    made, model, executor, _ = conversation(UPDATE, UPDATE)
    executor.is_full = True
    assert hold(made) == "author_done"
    assert len(model.asked) == 1


def test_a_model_that_only_talks_is_nudged_and_then_left() -> None:
    made, model, _, _ = conversation(Reply("well", "end"), Reply("I could", "end"), UPDATE, Reply("so", "end"))
    assert hold(made) == "author_done"
    assert model.asked[1].messages[-1] == User("nudge: talk")
    assert len(model.asked) == 5  # two words before anything is made, a call, and that it is done, twice


def test_three_replies_of_nothing_in_a_row_end_a_conversation() -> None:
    made, model, _, _ = conversation(UPDATE, *[Reply("", "end")] * 9)
    assert hold(made) == "author_done"
    assert (len(model.asked), made.is_done) == (4, False)


def test_an_empty_reply_is_no_message_and_the_nudge_joins_what_was_said_last() -> None:
    made, model, _, _ = conversation(Reply("", "end"), UPDATE, Reply(" ", "end"))
    hold(made)
    assert model.asked[1].messages == (User("begin\n\nnudge: empty"),)
    assert isinstance(model.asked[3].messages[-1], ToolResults)
    assert model.asked[3].messages[-1].text == "nudge: empty"


def test_a_refusal_is_not_sent_back_and_three_end_the_conversation() -> None:
    refusal = Reply("I can", "refusal", detail="frontier_llm")
    made, model, _, events = conversation(refusal, refusal, refusal)
    assert hold(made) == "refused"
    assert all(isinstance(m, User) for m in model.asked[-1].messages)
    assert [e.detail for e in events if isinstance(e, Replied)] == ["frontier_llm"] * 3


def test_a_reply_that_was_cut_off_is_told_so() -> None:
    made, model, _, _ = conversation(Reply("first I would", "max_tokens"), Reply("", "max_tokens"))
    hold(made)
    assert model.asked[1].messages[-1] == User("nudge: cut_off")
    assert model.asked[2].messages[-1] == User("nudge: cut_off\n\nnudge: cut_off")


def test_an_overflow_makes_history_of_everything_and_asks_again() -> None:
    made, model, _, _ = conversation(UPDATE, UPDATE, ContextOverflow("too long"), UPDATE)
    hold(made)
    kept = model.asked[3].messages
    assert (kept[0], len(kept)) == (User("history"), 3)  # and the last exchange
    made, model, _, _ = conversation(UPDATE, UPDATE, ContextOverflow("too long"), ContextOverflow("still"), UPDATE)
    hold(made)
    assert model.asked[4].messages == (User("history"),)


def test_a_third_overflow_and_whatever_else_a_provider_cannot_do_is_raised() -> None:
    for errors in ([ContextOverflow(word) for word in "abc"], [Unavailable("busy")]):
        made, _, _, _ = conversation(UPDATE, *errors)
        with pytest.raises(type(errors[-1])):
            hold(made)


def test_a_prompt_stays_within_its_bound_however_long_the_conversation() -> None:
    long = calling(call("update", source="x" * 2_000), text="thought " * 100)
    made, model, executor, _ = conversation(*[long] * 60, context_tokens=6_000)
    executor.answer = "y" * 1_000
    hold(made)
    lengths = [len(str(r.messages)) // 4 for r in model.asked[:60]]
    assert max(lengths) <= 6_000 + 2_000
    replies = [sum(isinstance(m, Reply) for m in r.messages) for r in model.asked[:60]]
    assert all(count >= min(KEPT_EXCHANGES, n) for n, count in enumerate(replies))
    for request in model.asked:
        assert isinstance(request.messages[0], User)
        kinds = [isinstance(m, Reply) for m in request.messages]
        assert kinds == [i % 2 == 1 for i in range(len(kinds))]  # sides take turns


def test_nothing_is_forgotten_between_an_update_and_its_bench_and_drafts_are_listed() -> None:
    long = calling(call("update", source="x" * 2_000), text="thought " * 100)
    made, model, executor, _ = conversation(*[long] * 30, context_tokens=4_000)
    executor.answer = "y" * 1_000
    executor.drafts = (Attempt("s", "a wider tile", attempt_id="r/7", number=7),)
    hold(made)
    firsts = [request.messages[0] for request in model.asked[:30]]
    lengths = [len(str(request.messages)) // 4 for request in model.asked[:30]]
    forgot = firsts.index(User("history\n\ndraft #7"))
    assert lengths[forgot - 1] + 1_200 > 8_000  # when the prompt was twice as long as it may be
    assert all(first == User("begin") for first in firsts[:forgot])
    assert RunPrompts.drafts(made.prompts, executor.drafts).splitlines()[1] == "- #7: a wider tile"


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        (ModelFacts("m"), 30_000),
        (ModelFacts("m", caches=True), 150_000),
        (ModelFacts("m", max_input_tokens=100_000, caches=True), 75_000),
        (ModelFacts("m", max_input_tokens=16_000), 12_000),
    ],
)
def test_a_prompt_becomes_as_long_as_its_provider_s_bill_makes_sensible(facts: ModelFacts, tokens: int) -> None:
    assert context_limit(facts) == tokens


def test_without_a_count_of_tokens_the_length_is_estimated() -> None:
    class Uncounted(ListModel):
        def ask(self, *args: Any) -> Reply:
            reply = super().ask(*args)
            return Reply(reply.text, reply.stop, reply.calls)

    made, _, _, _ = conversation(context_tokens=3_000)
    model = Uncounted([calling(call("update", source="x" * 2_000))] * 40)
    made.model = model
    hold(made)
    assert max(len(str(r.messages)) for r in model.asked) < 40_000
    assert made.tracker.cost.unpriced == len(model.asked)


def test_a_reply_that_fills_the_window_is_followed_by_a_shorter_prompt() -> None:
    usage = Usage(29_000, 2_000)
    made, model, _, _ = conversation(*[UPDATE] * 6, Reply("", "context", usage=usage), UPDATE)
    hold(made)
    assert len(model.asked[7].messages) < len(model.asked[6].messages)


def test_a_request_after_a_reply_that_filled_the_window_with_text_ends_with_words_to_the_model() -> None:
    talk = Reply("So far I think that", "context", usage=Usage(29_000, 2_000))
    made, model, _, _ = conversation(*[UPDATE] * 6, talk, UPDATE)
    hold(made)
    said, told = model.asked[7].messages[-2:]
    assert isinstance(said, Reply)
    assert (said.text, told) == (talk.text, User("nudge: cut_off"))


def test_a_model_whose_calls_are_all_mistakes_is_left() -> None:
    made, model, executor, _ = conversation(*[UPDATE] * 40)
    executor.is_error = True
    assert hold(made) == "author_done"
    assert len(model.asked) == MOST_VAIN


def test_a_reply_of_unknown_cost_counts_as_much_as_the_dearest_of_the_last_few() -> None:
    cost = CostTracker()
    for usd in (None, 0.5, 0.25, None):  # before any price is known there is nothing to go by
        cost.add(usd)
    assert (cost.replies, cost.unpriced) == (4, 2)
    assert cost.cost_usd == pytest.approx(1.25)
    cost.expect("1", None)
    assert cost.next_usd == pytest.approx(0.75)
