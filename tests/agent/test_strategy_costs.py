"""What the strategies make of the same dollars, by the counts of a provider on loopback and list prices: `pytest -s`
shows the table. The model takes its designs from one pool whatever it is shown: only what a strategy spends differs."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from kerneltune.agent.attempt import Limits, LlmTurn
from kerneltune.agent.authors.llm.author import LlmAuthor, context_limit
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Event, Replied, Said
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.providers import PROVIDERS  # not the model: its SDK would load in every collection
from kerneltune.agent.models.types import ModelOptions
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from tests.agent.authors.llm.test_toolbox import TASKS, WordBench, WordUpdater
from tests.agent.models.server import LlmServer
from tests.agent.test_loop import Log
from tests.agent.test_model_runs import LINES

DOLLARS = 3.0
REPLIES = 100  # more than the dollars buy
THOUGHT = "Each row is read once, so the time is that of its bytes; fewer warps wait less. " * 50  # 1,000 tokens


def pool() -> list[dict[str, Any]]:
    """In each reply two designs of the pool, whole files, and their benches."""
    source = LINES[0]["calls"][0]["arguments"]["source"]
    times_us = random.Random(0).sample(range(100, 1000), 2 * REPLIES)
    lines = []
    for first in range(0, 2 * REPLIES, 2):
        numbers = (first + 1, first + 2)
        designs = [
            {"parent": None, "rationale": f"design {n}", "source": f"{times_us[n - 1]}  # us\n{source}", "edits": None}
            for n in numbers
        ]
        calls = [{"name": "update", "arguments": design} for design in designs]
        calls += [{"name": "bench", "arguments": {"attempt": n}} for n in numbers]
        lines.append({"thinking": THOUGHT, "text": "Two designs.", "calls": calls})
    return lines


def spent(strategy: Strategy) -> tuple[AttemptTracker, Sequence[Event], list[Replied]]:
    log = Log()
    tracker = AttemptTracker("r", TASKS, Evaluator(WordUpdater(), WordBench(), "timing"), log)  # type: ignore[arg-type]
    with LlmServer(pool(), "anthropic") as server:
        model = PROVIDERS["anthropic"].open(ModelOptions("claude-opus-5-5", api_key=server.key, base_url=server.url))
        prompts = RunPrompts(tracker, "sm_90", "NVIDIA H200", outcomes=lambda: tracker.predictions)
        limit = context_limit(model.facts())
        author = LlmAuthor(tracker, model, prompts, "sm_90", strategy, context_tokens=limit)
        run = Run(tracker, author, Limits(9_999, max_cost_usd=DOLLARS))
        author.remaining = run.remaining
        assert optimize(run) == "cost"
        model.close()
    assert server.refused == []
    return tracker, log.events, [e for e in log.events if isinstance(e, Replied)]


@pytest.mark.parametrize(("strategy", "share"), [("refine", None), ("best-of", 8), ("evolve", 4)])
def test_at_equal_dollars_each_conversation_is_told_its_share_makes_it_and_sees_every_verdict(
    strategy: Strategy, share: int | None
) -> None:
    tracker, events, replies = spent(strategy)
    assert 0.9 * DOLLARS < tracker.cost.cost_usd <= DOLLARS
    made = [a.origin.conversation for a in tracker.attempts if isinstance(a.origin, LlmTurn)]
    counts = [made.count(key) for key in dict.fromkeys(made)]
    told = [e.text for e in events if isinstance(e, Said) and e.role == "user"]
    if share is None:
        assert len(counts) == 1
    else:
        assert set(counts[:-1]) == {share}
        assert all(f"room for {share} attempts" in text for text in told)
    results = [e.text for e in events if isinstance(e, Said) and e.role == "tool"]
    assert sum("correct" in text for text in results) == len(made) == 2 * len(replies)
    tokens = {name: sum((e.usage or {}).get(name, 0) for e in replies) for name in ("input_tokens", "cached_tokens")}
    print(
        f"\n| {strategy} | {len(counts)} | {len(replies)} | {len(made)} | {tokens['input_tokens'] / len(replies):,.0f} "
        f"| {tokens['cached_tokens'] / tokens['input_tokens']:.0%} | ${tracker.cost.cost_usd / len(made):.4f} |"
    )
