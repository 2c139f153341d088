"""How long the prompts of a long run are, by the counts of a provider on loopback: `pytest -s` shows the table."""

from typing import Any

from kerneltune.agent.attempt import Limits
from kerneltune.agent.authors.llm.author import CACHED_CONTEXT, LlmAuthor, context_limit
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Replied
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.providers import PROVIDERS  # not the model: its SDK would load in every collection
from kerneltune.agent.models.types import ModelOptions
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from tests.agent.authors.llm.test_toolbox import TASKS, WordBench, WordUpdater
from tests.agent.models.server import LlmServer
from tests.agent.test_loop import Log
from tests.agent.test_model_runs import LINES

TURNS = 50


def story() -> list[dict[str, Any]]:
    """In each turn a whole source of its own, with words before it; every attempt is benched in the turn after."""
    source = LINES[0]["calls"][0]["arguments"]["source"]
    lines = []
    for number in range(1, TURNS + 1):
        text = f"{200 - number}  # us\n{source}"
        arguments = {"parent": None, "rationale": f"variant {number}", "source": text, "edits": None}
        calls = [{"name": "update", "arguments": arguments}]
        if number > 1:
            calls.append({"name": "bench", "arguments": {"attempt": number - 1}})
        lines.append({"text": "I change what the last result suggests. " * 8, "calls": calls})
    return lines


def told(context_tokens: int | None = None) -> list[dict[str, Any]]:
    """What the provider counted of each request of a long run; with the limit that suits it, or another."""
    log = Log()
    bench = AttemptTracker("r", TASKS, Evaluator(WordUpdater(), WordBench(), "timing"), log)  # type: ignore[arg-type]
    with LlmServer(story(), "anthropic") as server:
        model = PROVIDERS["anthropic"].open(ModelOptions("claude-opus-5-5", api_key=server.key, base_url=server.url))
        prompts = RunPrompts(bench, "sm_90", "NVIDIA H200", outcomes=lambda: bench.predictions)
        limit = context_tokens or context_limit(model.facts())
        optimize(Run(bench, LlmAuthor(bench, model, prompts, "sm_90", context_tokens=limit), Limits(TURNS)))
        model.close()
    assert server.refused == []
    assert len(bench.attempts) == TURNS
    counted = [e.usage for e in log.events if isinstance(e, Replied) and e.usage][:TURNS]  # what follows are only words
    print([(i, u["input_tokens"], u["cached_tokens"]) for i, u in enumerate(counted, 1)])
    return counted


def test_where_prompts_are_cached_fifty_turns_are_remembered_and_nearly_all_of_them_is_read_from_the_cache() -> None:
    counted = told()
    tokens = [u["input_tokens"] for u in counted]
    assert tokens == sorted(tokens)
    assert tokens[-1] < CACHED_CONTEXT
    assert sum(u["cached_tokens"] for u in counted) > 0.92 * sum(tokens)


def test_with_a_limit_prompts_stay_within_it_or_within_twice_as_much_where_something_always_waits_for_its_bench() -> (
    None
):
    tokens = [u["input_tokens"] for u in told(9_000)]
    assert 17_000 < max(tokens) < 18_500
    assert tokens[-1] < 18_500
