"""The recorded sessions of benchmarks/sessions: tools and prompts alone led to what they say, and it is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.authors.llm.author import ARGUMENTS
from kerneltune.agent.models.scripted import ScriptedModel
from kerneltune.agent.models.types import ModelOptions
from tests.agent.shell import optimize

SESSIONS = sorted((Path(__file__).parents[1] / "benchmarks" / "sessions").glob("*.jsonl"))


def calls_of(session: Path) -> list[dict[str, Any]]:
    return [call for line in session.read_text().splitlines() for call in json.loads(line).get("calls", ())]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda p: p.stem)
def test_a_session_loads_and_speaks_of_attempts_that_are_there(session: Path) -> None:
    ScriptedModel(ModelOptions(model=str(session))).close()
    made = 0
    for call in calls_of(session):
        said = ARGUMENTS[call["name"]].model_validate(call["arguments"]).model_dump()
        if call["name"] == "update":
            assert said["parent"] is None or said["parent"] <= made
            assert bool(said["hypothesis"]) == bool(said["predicted_speedup"]) == (said["parent"] is not None)
        else:
            assert said["attempt"] <= made
        made += call["name"] == "update"
    assert made >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("session", SESSIONS, ids=lambda p: p.stem)
def test_all_that_a_session_proposes_is_right(session: Path, tmp_path: Path) -> None:
    task = session.with_suffix(".py")
    done = optimize(
        *("--task", str(task if task.exists() else session.stem), "--model", f"scripted:{session}"),
        *("--json", "--runs-dir", "runs", "--arch", "sm_90"),
        cwd=tmp_path,
        timeout_s=800,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    updates = sum(call["name"] == "update" for call in calls_of(session))
    assert (last["attempts"], last["by_status"]) == (updates, {"checked": updates}), done.stdout
