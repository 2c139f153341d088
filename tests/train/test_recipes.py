"""The recipes, in a trainer's environment with a tiny model: each ends in its table, and goes on where it was ended."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.shell import ROOT, optimize
from tests.agent.test_serve import served

VENVS = os.environ.get("KERNELTUNE_TRAINERS", "")
PYTHON = Path(VENVS) / "trl" / "bin" / "python"
pytestmark = [
    pytest.mark.train,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not VENVS, reason="KERNELTUNE_TRAINERS names no folder with an environment for each trainer"),
]
TINY = """
import sys
sys.path.insert(0, sys.argv[1])
import trl
from pathlib import Path
from consumers import tiny, tokenizer
tokens = tokenizer(iter([Path(sys.argv[2]).read_text()]))
tokens.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
tokens.save_pretrained(sys.argv[3])
tiny(len(tokens)).save_pretrained(sys.argv[3])
"""
Recipe = Callable[..., str]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """Runs a recipe on a small export, beside a service."""
    folder = tmp_path_factory.mktemp("recipes")
    for task in ("softmax", "rms_norm", "cross_entropy"):
        story = ROOT / "tests" / "agent" / "stories" / f"{task}.jsonl"
        assert optimize("--task", task, "--model", f"scripted:{story}", "--plain", cwd=folder).returncode == 0
    formats = [word for name in ("fim", "verl", "sft-best") for word in ("--format", name)]
    assert optimize("export", *formats, "-o", "export", "--test", "0.4", "--seed", "3", cwd=folder).returncode == 0
    texts = next((folder / "runs").rglob("best.py"))
    subprocess.run([PYTHON, "-c", TINY, ROOT / "benchmarks", texts, folder / "tiny"], check=True, capture_output=True)
    with served(folder) as service:
        env = os.environ | {"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(ROOT / "kerneltune" / "rl")}

        def run(name: str, *words: str) -> str:
            command = [str(PYTHON), str(ROOT / "recipes" / name), "export", *words]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            return done.stdout

        yield run


def test_a_model_is_trained_asked_and_trained_by_rewards(recipe: Recipe) -> None:
    few = ("--steps", "2", "--save-every", "1")
    assert "held-out loss" in recipe("sft.py", "--model", "tiny", "--out", "sft", "--batch", "1", *few)
    asked = ("--rows", "1", "--samples", "2", "--max-new-tokens", "8", "--model", "sft/model", "--out", "answers.jsonl")
    first = recipe("evaluate.py", *asked)
    assert "pass@2" in first
    assert recipe("evaluate.py", *asked) == first  # nothing is left to ask
    by_rewards = ("--model", "sft/model", "--out", "grpo", "--batch", "2", "--group", "2", "--max-new-tokens", "8")
    made = recipe("grpo.py", *by_rewards, *few, "--rank", "0")
    assert "mean reward" in made
    assert "judging: " in made


def test_only_rows_are_left_to_rewards_that_the_model_answers_right_sometimes(recipe: Recipe, tmp_path: Path) -> None:
    copied = tmp_path / "copied.jsonl"
    recipe("evaluate.py", "--copy", "--split", "train", "--out", str(copied))
    asked = [json.loads(line) for line in copied.read_text().splitlines()]
    told = [{**one, "status": status} for one in asked for status in (*("checked",) * (one is asked[0]), "wrong", None)]
    copied.write_text("".join(json.dumps(one) + "\n" for one in told))
    few = ("--batch", "2", "--group", "2", "--max-new-tokens", "8", "--steps", "1")
    made = recipe("grpo.py", "--model", "tiny", "--out", "grpo-of-one", "--answers", str(copied), *few)
    assert f"1 of {len(asked)} rows were answered right sometimes" in made
    assert "mean reward" in made


NAN_STEP = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from grpo import only_numbers
from types import SimpleNamespace
model = torch.nn.Linear(3, 2)
for of in (1.0, float("nan")):
    optimizer = torch.optim.AdamW(model.parameters())
    (model(torch.ones(3)) * of).sum().backward()
    only_numbers().on_pre_optimizer_step(None, SimpleNamespace(global_step=20), None, model=model)
    optimizer.step()
    print(model.weight.grad is not None, bool(model.weight.isfinite().all()))
"""


def test_a_step_whose_gradients_are_no_numbers_leaves_the_weights_as_they_are() -> None:
    folders = (str(ROOT / "recipes"), str(ROOT / "kerneltune" / "rl"))
    done = subprocess.run([PYTHON, "-c", NAN_STEP, *folders], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "True True", "step 21 left out: its gradients are no numbers", "False True"
    ]  # fmt: skip


def test_the_nearest_training_kernel_is_an_answer_too(recipe: Recipe) -> None:
    assert "pass@1" in recipe("evaluate.py", "--copy", "--rows", "2", "--out", "copied.jsonl")


def test_a_policy_that_calls_tools_is_trained_by_turns(recipe: Recipe) -> None:
    more = ("--config", "verl", "--turns", "--batch", "2", "--group", "2", "--max-new-tokens", "8", "--steps", "1")
    assert "mean reward" in recipe("grpo.py", "--model", "tiny", "--out", "turns", "--max-tokens", "4000", *more)
