"""Recorded runs that the training tests share: scripted conversations, judged by the real evaluator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.export.formats.sft_best import SftBest
from agent.export.formats.sft_chat import SftChat
from agent.record.store import Store
from agent.record.trajectory import Trajectory, trajectory
from tests.agent.shell import ROOT, optimize
from tests.train import parts

STORIES = ("softmax", "rms_norm")


@pytest.fixture(scope="session", autouse=True)
def _offline() -> Iterator[None]:
    """Nothing may be fetched, and nothing experimental may be announced."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="session")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Two runs of a model that replays a story: failures, repairs, reflections, right kernels."""
    pytest.importorskip("trl", reason="needs the extra `train`")
    folder = tmp_path_factory.mktemp("stories")
    for task in STORIES:
        story = ROOT / "tests" / "agent" / "stories" / f"{task}.jsonl"
        done = optimize("--task", task, "--model", f"scripted:{story}", "--plain", "--runs-dir", "runs", cwd=folder)
        assert done.returncode == 0, done.stderr
    with Store.open(folder / "runs") as store:
        return [trajectory(store.load_events(run)) for run in store.run_ids()]


@pytest.fixture(scope="session")
def chat_rows(trajectories: list[Trajectory]) -> list[dict[str, Any]]:
    """Whole conversations with tool calls."""
    return parts.rows_of(SftChat(), trajectories)


@pytest.fixture(scope="session")
def best_rows(trajectories: list[Trajectory]) -> list[dict[str, Any]]:
    """The best kernel of each task."""
    return parts.rows_of(SftBest(), trajectories)


@pytest.fixture(scope="session")
def tokens(chat_rows: list[dict[str, Any]]) -> Any:
    """A tokenizer that knows the words of these conversations."""
    return parts.tokenizer(str(message.get("content")) for row in chat_rows for message in row["messages"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a trainer may write."""
    return tmp_path
