"""How long the prompts of a long run are, by the counts of a provider on loopback: `pytest -s` shows the table."""

from typing import Any

from kerneltune.agent.attempt import Limits
from kerneltune.agent.authors.llm.author import LlmAuthor
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


def test_the_prompt_of_turn_50_is_at_most_half_as_long_again_as_that_of_turn_10() -> None:
    log = Log()
    bench = AttemptTracker("r", TASKS, Evaluator(WordUpdater(), WordBench(), "timing"), log)  # type: ignore[arg-type]
    with LlmServer(story(), "anthropic") as server:
        model = PROVIDERS["anthropic"].open(ModelOptions("claude-opus-5-5", api_key=server.key, base_url=server.url))
        prompts = RunPrompts(bench, "sm_90", "NVIDIA H200", outcomes=lambda: bench.predictions)
        optimize(Run(bench, LlmAuthor(bench, model, prompts, "sm_90"), Limits(TURNS)))
        model.close()
    assert server.refused == []
    assert len(bench.attempts) == TURNS
    usage = [e.usage for e in log.events if isinstance(e, Replied) and e.usage][:TURNS]  # what follows are only words
    tokens = [u["input_tokens"] for u in usage]
    print([(i, u["input_tokens"], u["cached_tokens"]) for i, u in enumerate(usage, 1)])
    assert max(tokens[40:]) <= 1.5 * tokens[9]
    assert sum(u["cached_tokens"] for u in usage) > 0.5 * sum(tokens)
