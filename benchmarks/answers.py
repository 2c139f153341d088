"""A model's answers to "write a kernel for this task", judged by `optimize bench`: how far did each get?

python -m benchmarks.answers FILE       # FILE is what `benchmarks.train_proof --keep` wrote; no model is needed
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kerneltune.agent.events import Judged, RunStarted, Updated
from kerneltune.agent.record.store import Store
from kerneltune.tools.task.load import find_task, visible_source

Groups = Mapping[str, Sequence["Answer"]]
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Shares:
    """How far the answers to some tasks got, each a count. `whole`: ended by themselves. `parses`: as Python;
    `defines`: a class ModelNew; `traces`: its launches are known; `compiles`: every kernel did; `right`: in all cases.
    `examples`: why the first of each status ended so."""

    answers: int
    whole: int
    parses: int
    defines: int
    traces: int
    compiles: int
    right: int
    statuses: dict[str, int]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What the model wrote, and whether it came to an end."""

    task: str
    text: str
    whole: bool

    @property
    def source(self) -> str:
        """The first block of code; all of it when there is none."""
        found = _FENCED.search(self.text)
        return found[1] if found else self.text


def asked(task: str, arch: str, gpu: str | None) -> RunStarted:
    """A run of a task as far as its prompt needs it."""
    file = find_task(task)
    source = visible_source(file)
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return RunStarted("", file.name, sha256, source, "", "", arch, gpu, {}, {}, 0, {})


def plain(answers: Mapping[str, Groups]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Answers by when and by group, as JSON."""
    return {when: {name: [asdict(a) for a in its] for name, its in groups.items()} for when, groups in answers.items()}


def all_judged(groups: Groups) -> dict[str, dict[str, Any]]:
    """The shares of each group, as JSON."""
    return {name: asdict(judged(answers)) for name, answers in groups.items()}


def judged(answers: Sequence[Answer]) -> Shares:
    """What our evaluator says of the answers: `optimize bench`, in processes of its own."""
    found: list[tuple[Updated, Judged]] = []
    for task in dict.fromkeys(answer.task for answer in answers):
        found += _benched(task, [answer.source for answer in answers if answer.task == task])
    statuses = Counter(j.verdict.status.value for _, j in found)
    first = {j.verdict.status.value: j.verdict.detail for _, j in reversed(found)}
    return Shares(
        answers=len(answers),
        whole=sum(answer.whole for answer in answers),
        parses=sum(_tree(answer.source) is not None for answer in answers),
        defines=sum(_defines(answer.source) for answer in answers),
        traces=sum(u.plan is not None for u, _ in found),
        compiles=sum(u.failure is None for u, _ in found),
        right=sum(j.verdict.accepted for _, j in found),
        statuses=dict(statuses.most_common()),
        examples=tuple(f"{status}: {detail[:200]}" for status, detail in sorted(first.items())),
    )


def _benched(task: str, sources: Sequence[str]) -> list[tuple[Updated, Judged]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "answers").mkdir()
        for i, source in enumerate(sources):
            (folder / "answers" / f"{i:04}.py").write_text(source, errors="replace")
        code = "from kerneltune.agent.cli import main; main()"
        where = ("--task", task, "--runs-dir", str(folder / "runs"), "--json")
        done = subprocess.run(
            [sys.executable, "-c", code, "bench", str(folder / "answers"), *where], capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"optimize bench --task {task} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        with Store.open(folder / "runs") as store:
            (run,) = store.run_ids()
            events = list(store.load_events(run))
    updates = {e.attempt_id: e for e in events if isinstance(e, Updated)}
    return [(updates[e.attempt_id], e) for e in events if isinstance(e, Judged)]


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(source: str) -> bool:
    tree = _tree(source)
    return tree is not None and any(isinstance(n, ast.ClassDef) and n.name == "ModelNew" for n in tree.body)


def main(arguments: Sequence[str]) -> None:
    """Judge what was kept, and print the shares."""
    (name,) = arguments
    kept = json.loads(Path(name).read_text())["answers"]
    groups = {when: {n: [Answer(**a) for a in its] for n, its in those.items()} for when, those in kept.items()}
    print(json.dumps({when: all_judged(those) for when, those in groups.items()}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
