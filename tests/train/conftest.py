"""What the training tests share: scripted conversations, judged by the real evaluator, exported by the real command."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.shell import ROOT, optimize
from tests.train import parts

STORIES = ("softmax", "rms_norm")
FORMATS = ("sft-chat", "sft-best", "dpo", "kto")


@pytest.fixture(scope="session", autouse=True)
def _offline() -> Iterator[None]:
    """Nothing may be fetched, and nothing experimental may be announced."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two runs of a model that replays a story: failures, repairs, reflections, right kernels."""
    pytest.importorskip("trl", reason="needs the extra `train`")
    folder = tmp_path_factory.mktemp("stories")
    for task in STORIES:
        story = ROOT / "tests" / "agent" / "stories" / f"{task}.jsonl"
        run(folder, "--task", task, "--model", f"scripted:{story}", "--plain")
    formats = [word for name in FORMATS for word in ("--format", name)]
    run(folder, "export", *formats, "-o", "export", "--test", "0.5")
    return folder / "export"


def run(folder: Path, *arguments: str) -> None:
    done = optimize(*arguments, "--runs-dir", "runs", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def load(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Gives all rows of a format, as `datasets` reads them."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def loaded(name: str) -> Any:
        from datasets import concatenate_datasets, load_dataset

        return concatenate_datasets(list(load_dataset(str(export), name, cache_dir=cache).values()))

    return loaded


@pytest.fixture(scope="session")
def tokens(load: Callable[[str], Any]) -> Any:
    """A tokenizer that knows the words of these conversations."""
    return parts.tokenizer(str(message.get("content")) for row in load("sft-chat") for message in row["messages"])
