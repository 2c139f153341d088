"""How long the prompts of a long run are, by the counts of a provider on loopback."""

import json
from pathlib import Path
from typing import Any

from agent.record.events import Replied
from agent.record.store import Store
from tests.agent.llm.server import LlmServer
from tests.agent.shell import optimize
from tests.agent.test_model_runs import LINES, keys

TURNS = 50


def story() -> list[dict[str, Any]]:
    """In each turn a whole source of its own, with words before it; every attempt is benched in the turn after."""
    source = LINES[0]["calls"][0]["arguments"]["source"]
    right = source.replace("tl.expo(v)", "tl.exp(v - tl.max(v, 0))").replace("num_warps=1", "num_warps=8")
    bench = {"name": "bench", "arguments": {"attempt": 0}}
    lines = []
    for number in range(1, TURNS + 1):
        arguments = {"parent": None, "rationale": f"variant {number}", "source": f"{right}# {number}\n", "edits": None}
        calls = [{"name": "update", "arguments": arguments}]
        if number > 1:
            calls.append(bench | {"arguments": {"attempt": number - 1}})
        lines.append({"text": "I change what the last result suggests. " * 8, "calls": calls})
    return lines


def prompts(folder: Path, run_id: str) -> list[dict[str, int]]:
    """Usage by turn."""
    with Store.open(folder / "runs") as store:
        return [e.usage for e in store.load_events(run_id) if isinstance(e, Replied) and e.usage]


def test_the_prompt_of_turn_50_is_at_most_half_as_long_again_as_that_of_turn_10(tmp_path: Path) -> None:
    with LlmServer(story(), "anthropic") as server:
        done = optimize(
            "--task", "softmax", "--json", "--runs-dir", "runs", "--max-attempts", str(TURNS),
            "--model", "anthropic:claude-opus-5-5", "--base-url", server.url, cwd=tmp_path, more_env=keys(server),
        )  # fmt: skip
    last = json.loads(done.stdout.splitlines()[-1])
    assert server.refused == []
    assert last["attempts"] == TURNS, done.stderr
    usage = prompts(tmp_path, last["run_id"])[:TURNS]  # what follows are words: the story is over
    tokens = [u["input_tokens"] for u in usage]
    print(
        [(i + 1, u["input_tokens"], u["cached_tokens"]) for i, u in enumerate(usage)], last["spending"]
    )  # -s shows it
    assert len(tokens) == TURNS
    assert max(tokens[40:]) <= 1.5 * tokens[9]
    assert sum(u["cached_tokens"] for u in usage) > 0.5 * sum(tokens)
