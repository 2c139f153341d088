"""Compare what the program answers now with what it answered before: verdicts, exports, views of a record, runs.

    python -m benchmarks.replay_gate record FOLDER       answers of this checkout, and the inputs that they are to
    python -m benchmarks.replay_gate compare FOLDER      asks the same inputs again; one line a difference, exit code 1
    python -m benchmarks.replay_gate digest FOLDER FILE  a small file for a repository: verdicts, digests of the rest

Only the command line is used, so that a record outlives any move of modules: `optimize` of the environment that runs
this, or `--optimize PATH`. The inputs (demo databases, scripts of models, candidates) are copied into FOLDER, so that
they stay when a checkout drops them. `--only PART` (corpus, exports, records, runs, bench) may be given again.

What changes from run to run is taken out before anything is kept: times, dates, ids and versions by the name of their
field, and in sentences the numbers that depend on the judge's secret seeds.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answers = dict[str, Any]  # of a part: what is said of each thing that was asked, in JSON values

DEMOS = ("demo", "demo-ptx")
FORMATS = ("sft-chat", "dpo", "kto", "rl-turns", "raw")
RUNS = {
    "offline": ["--task", "softmax", "--model", "offline", "--max-attempts", "3", "--seed", "7"],
    "scripted": ["--task", "softmax", "--model", "scripted:stories/softmax.jsonl", "--max-attempts", "5"],
    "ptx": ["--task", "swiglu", "--model", "scripted:stories/ptx_swiglu.jsonl", "--language", "ptx"],
}
EXPERT_TASKS = (
    *("log_softmax", "softmax_backward", "layer_norm", "rms_norm_backward", "group_norm", "row_sum", "cumsum"),
    *("argmax", "gelu_bias", "rope", "transpose", "quantize_int8", "embedding", "skinny_matmul"),
)
VOLATILE = {
    # times and dates
    "at", "started", "created", "date", "seconds", "elapsed_s", "trace_s", "compile_s", "bench_s", "judge_s",
    # what the machine, the versions and the secret seeds make of it
    "versions", "machine", "sandbox", "where", "python", "platform", "kerneltune", "evaluator_sha256", "seeds", "seed",
    "error_ratio", "max_abs_error", "warnings", "timed_shape",
}  # fmt: skip
LONG = 600  # characters: a longer text is kept as its digest and its first line
_RUN_ID = re.compile(r"\b\d{8}-\d{6}-\w+?-(?:[0-9a-f]{4}){1,2}\b")
_TEMPORARY = re.compile(r"\S*/tmp\w{8}/")  # a folder of tempfile's, as `_Copy` makes them
_SEEDED = (  # what depends on what was drawn, and on how fast the machine is
    (re.compile(r"[\d,]+ of [\d,]+ elements wrong.*", re.DOTALL), "N elements wrong"),
    (re.compile(r"worst error [\d.e+-]+"), "worst error N"),
    (re.compile(r"[\d,]+ elements compared"), "N elements compared"),
    (re.compile(r"Largest error: .*"), "Largest error: N"),
    (re.compile(r"worst at \[.*", re.DOTALL), "worst at N"),
    (re.compile(r"\b\d+ of (its|[\d,]+) programs"), "N programs"),
    (re.compile(r"(; )?errors lean [a-z ]+ zero \([^)]* standard errors\)"), ""),
    (re.compile(r"(PTXAS error: [^\n]*).*", re.DOTALL), r"\1"),
    (
        re.compile(r"(step limit: more than \d+ ops executed|timed out: longer than \d+ s in the interpreter)"),
        "too long",
    ),
    (re.compile(r"differ \(\d+ steps, then \d+\)(.*?)( \(in case '[^']*'\))?$", re.DOTALL), r"differ\1"),
    (re.compile(r"\b\d+\.\d+(e[+-]?\d+)? ?(s|ms|us|µs)\b"), "T"),
    (re.compile(r"(/[\w.@+-]+){3,}|/tmp/[\w./-]+"), "PATH"),
)


class Gate:
    """Asks one `optimize` and keeps its answers, the inputs in `folder`, the commands in a folder of their own."""

    def __init__(self, folder: Path, optimize: Path) -> None:
        """`folder`: holds `inputs/`; `optimize`: the command to ask."""
        self.inputs = folder / "inputs"
        self.optimize = optimize

    def corpus(self) -> Answers:
        """Verdicts of every attack and every honest kernel."""
        found = json.loads(self._ask("selftest", "--json"))
        return {f"{one['kind']}/{one['class']}/{one['name']}": steady(one, fresh=True) for one in found["specimens"]}

    def exports(self) -> Answers:
        """Rows of five formats of both demos, in the order of what they hold."""
        answers: Answers = {}
        for demo in DEMOS:
            for form in FORMATS:
                with self._copy(demo) as runs, tempfile.TemporaryDirectory() as out:
                    self._ask("export", "--format", form, "--as", "jsonl", "-o", f"{out}/x", "--runs-dir", runs)
                    for path in sorted(Path(out).rglob(f"data/{form}/*.jsonl")):
                        split = path.name.split("-")[0]
                        rows = sorted(plain(steady(json.loads(row))) for row in path.read_text().splitlines())
                        answers.update({f"{demo}/{form}/{split}/{i}": json.loads(row) for i, row in enumerate(rows)})
        return answers

    def records(self) -> Answers:
        """What `runs` and `show` say of the demos' runs and attempts."""
        answers: Answers = {}
        for demo in DEMOS:
            with self._copy(demo) as runs:
                at = ("--runs-dir", runs, "--json")
                listed = json.loads(self._ask("runs", *at))
                for run in listed:
                    name = run["run_id"]
                    answers[f"{demo}/runs/{name}"] = steady(run)
                    answers[f"{demo}/show/{name}"] = steady(json.loads(self._ask("show", name, *at)))
                    for number in range(1, run["attempts"] + 1):
                        shown = json.loads(self._ask("show", f"{name}/{number}", *at))
                        answers[f"{demo}/show/{name}/{number}"] = steady(shown)
        return answers

    def runs(self) -> Answers:
        """Events of three small runs, by their type and attempt: the judge's order is the machine's."""
        answers: Answers = {}
        for name, arguments in RUNS.items():
            with tempfile.TemporaryDirectory() as runs:
                said = self._ask(*arguments, "--width", "1", "--runs-dir", runs, "--json")
            counts: dict[str, int] = {}
            for event in map(json.loads, said.splitlines()):
                attempt = str(event.get("attempt_id") or "").rpartition("/")[2]
                key = f"{name}/{event['type']}/{attempt}".rstrip("/")
                counts[key] = counts.get(key, 0) + 1
                answers[f"{key}/{counts[key]}"] = steady(event, fresh=True)
        return answers

    def bench(self) -> Answers:
        """Verdicts of the candidates in `inputs/bench/TASK/`."""
        answers: Answers = {}
        for folder in sorted((self.inputs / "bench").iterdir()):
            files = sorted(str(path.relative_to(self.inputs)) for path in folder.iterdir())
            said = self._ask("bench", *files, "--task", folder.name, "--json", "--no-store")
            for event in map(json.loads, said.splitlines()):
                if event["type"] == "judged_file":
                    event["receipt"] = sorted(set(paths(event.get("receipt"))))
                    answers[event["file"]] = steady(event, fresh=True)
        return answers

    def take(self, root: Path) -> None:
        """Copies the inputs out of a checkout; asks it for the demos' sources and for a first attempt at each task."""
        shutil.rmtree(self.inputs)
        for demo in DEMOS:
            shutil.copytree(root / "docs" / demo, self.inputs / demo)
        shutil.copytree(root / "tests/agent/stories", self.inputs / "stories")
        for demo in DEMOS:
            at = ("--runs-dir", demo)
            for run in json.loads(self._ask("runs", *at, "--json")):
                for number in range(1, run["attempts"] + 1):
                    source = self._ask("show", f"{run['run_id']}/{number}", "--source", *at)
                    self._candidate(run["task"], f"{demo}_{number}", source)
        for task in EXPERT_TASKS:
            with tempfile.TemporaryDirectory() as runs:
                told = ["--model", "offline", "--max-attempts", "2", "--width", "1", "--runs-dir", runs, "--json"]
                events = map(json.loads, self._ask("--task", task, *told).splitlines())
                for event in events:
                    if event["type"] == "proposed":
                        self._candidate(task, f"offline_{event['number']}", event["source"])

    def _candidate(self, task: str, name: str, source: str) -> None:
        path = self.inputs / "bench" / task / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def _copy(self, demo: str) -> "_Copy":
        return _Copy(self.inputs / demo)

    def _ask(self, *arguments: str) -> str:
        """What a command prints. Any exit code but 0 and 1 (the answer is no) is an error here."""
        with tempfile.TemporaryDirectory() as home:
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("KERNELTUNE_", "ANTHROPIC_", "OPENAI_"))}
            environ = {**kept, "XDG_CONFIG_HOME": home, "COLUMNS": "200"}
            command = [str(self.optimize), *arguments]
            done = subprocess.run(command, cwd=self.inputs, env=environ, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not done.stdout:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout


class _Copy:
    """A copy of a folder of runs while it is asked: opening a database may write to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = tempfile.TemporaryDirectory()

    def __enter__(self) -> str:
        to = Path(self.home.name) / self.folder.name
        shutil.copytree(self.folder, to)
        return str(to)

    def __exit__(self, *_: object) -> None:
        self.home.cleanup()


PARTS: dict[str, Callable[[Gate], Answers]] = {
    "corpus": Gate.corpus,
    "exports": Gate.exports,
    "records": Gate.records,
    "runs": Gate.runs,
    "bench": Gate.bench,
}


def steady(value: Any, *, fresh: bool = False) -> Any:
    """Without what changes from run to run. `fresh`: judged just now, so that ids and seeded numbers change too."""
    if isinstance(value, dict):
        return {key: steady(one, fresh=fresh) for key, one in sorted(value.items()) if key not in VOLATILE}
    if isinstance(value, list):
        return [steady(one, fresh=fresh) for one in value]
    if not isinstance(value, str):
        return value
    value = _TEMPORARY.sub("", value)
    if fresh:
        value = _RUN_ID.sub("RUN", value)
        for pattern, instead in _SEEDED:
            value = pattern.sub(instead, value)
    return short(value)


def short(text: str) -> str:
    """A long text as its first line and its digest."""
    if len(text) <= LONG:
        return text
    return f"{text[:60].splitlines()[0]} … {len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def plain(value: Any) -> str:
    """A value as one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def paths(value: Any, at: str = "") -> Iterator[str]:
    """The names of all fields in a value, without what they hold and without the positions in lists."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield f"{at}{key}"
            yield from paths(one, f"{at}{key}.")
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, at)


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """One line for each leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            name = f"{at}: {key}" if at else key
            if key not in new:
                yield f"{name}: gone, was {plain(old[key])[:200]}"
            elif key not in old:
                yield f"{name}: new, {plain(new[key])[:200]}"
            else:
                yield from differences(old[key], new[key], name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif old != new:
        yield f"{at}: {plain(old)[:300]} -> {plain(new)[:300]}"


def read(path: Path) -> Answers:
    """Answers of a part, as `write` kept them."""
    return dict(json.loads(line) for line in path.read_text().splitlines())


def write(path: Path, answers: Answers) -> None:
    """Keeps a part's answers, one line each."""
    path.write_text("".join(f"{plain([key, one])}\n" for key, one in sorted(answers.items())))


def digest(folder: Path, path: Path) -> None:
    """A small file of a record: the verdict of each candidate, and of everything else a digest."""
    small = {}
    for part in PARTS:
        for key, one in read(folder / f"{part}.jsonl").items():
            verdict = one.get("verdict")
            status = one.get("status") or (verdict.get("status") if isinstance(verdict, dict) else verdict)
            small[f"{part}/{key}"] = [status, hashlib.sha256(plain(one).encode()).hexdigest()[:12]]
    write(path, small)


def main() -> int:
    """The command line."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("action", choices=("record", "compare", "digest"))
    told.add_argument("folder", type=Path)
    told.add_argument("file", type=Path, nargs="?", help="of digest: where to write")
    told.add_argument("--only", action="append", choices=PARTS, help="only this part; may be given again")
    told.add_argument("--optimize", type=Path, default=Path(sys.executable).with_name("optimize"))
    asked = told.parse_args()
    folder = asked.folder.resolve()
    if asked.action == "digest":
        digest(folder, asked.file)
        return 0
    gate = Gate(folder, asked.optimize.absolute())
    if asked.action == "record" and not gate.inputs.exists():
        gate.inputs.mkdir(parents=True)
        gate.take(Path.cwd())
    differ = 0
    for part in asked.only or PARTS:
        answers = PARTS[part](gate)
        if asked.action == "record":
            write(folder / f"{part}.jsonl", answers)
            print(f"{part}: {len(answers)} answers recorded", flush=True)
            continue
        found = list(differences(read(folder / f"{part}.jsonl"), answers))
        write(folder / f"{part}.latest.jsonl", answers)
        print(*(f"{part}: {line}" for line in found), f"{part}: {len(answers)} answers, {len(found)} differ", sep="\n")
        differ += len(found)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
