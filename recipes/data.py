"""What the recipes share: rows of an export, what an answer to one makes, what the service says of it, and tables.

Runs in a trainer's environment, with nothing of kerneltune in it but kerneltune/rl on PYTHONPATH.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from kernel_service import Fault, ask, begin, call, close

Row = dict[str, Any]
REACHED = ("rejected", "compile_failed", "timed_out", "crashed", "wrong", "checked", "correct")
RIGHT = ("checked", "correct")


def rows_of(export: Path, config: str, split: str, most_tokens: int | None = None) -> list[Row]:
    """Rows of a split that say something new, as far as they are short enough by their estimate; [] without any."""
    from datasets import load_dataset

    found = load_dataset(str(export), config)
    rows = [dict(row) for row in found[split]] if split in found else []
    return [r for r in rows if r.get("row_first") is not False and r["tokens"] <= (most_tokens or r["tokens"])]


@cache
def references(export: Path) -> dict[str, tuple[str | None, str | None, str]]:
    """By the hash of a task: its name where it ships with kerneltune, else its file, and the language."""
    from datasets import load_dataset

    found = {}
    for split in load_dataset(str(export), "verl").values():
        for row in split:
            create = row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]
            name = create["task"] if row["extra_info"]["type"] == "builtin" else None
            code = None if name else row["reward_model"]["ground_truth"]
            found[create["task_sha256"]] = (name, code, create["language"])
    return found


def file_of(row: Row, answer: str) -> str:
    """The file that an answer makes: between the halves of a `fim` row, else the first block of code."""
    parts = answer.split("```")
    inner = parts[1] if len(parts) > 1 else answer
    text = inner.removeprefix("python").removeprefix("\n") if len(parts) > 1 else answer
    return f"{row['prefix']}{text.rstrip()}{row['suffix']}" if "prefix" in row else text


def service_fault() -> str:
    """Why the service does not answer; empty where it does."""
    try:
        ask("GET", "/health", timeout_s=30.0)
    except Fault as fault:
        return f"no service answers ({fault}): start `optimize serve`, and name its place in KERNELTUNE_SERVICE"
    return ""


def judged(export: Path, row: Row, source: str) -> str | None:
    """How far a file gets on the row's task; None where that could not be found out."""
    name, code, language = references(export)[row["task_sha256"]]
    try:
        path = begin(name, code, language=language, limits={"max_attempts": 1})["path"]
        try:
            told = call(path, "update", {"rationale": "an answer", "source": source})
            if told["attempt"] and told["attempt"]["status"] is None:
                told = call(path, "bench", {"attempt": told["attempt"]["number"]})
        finally:
            close(path)
    except Fault:
        return None
    status = told["attempt"]["status"] if told["attempt"] else "rejected"
    return None if status == "unchecked" else str(status)


def all_judged(export: Path, pairs: Sequence[tuple[Row, str]], width: int = 32) -> list[str | None]:
    """The same of many, side by side, and once of those that make the same file: a model that learns repeats itself."""
    files = [(row["task_sha256"], file_of(row, answer)) for row, answer in pairs]
    rows = {file: row for file, (row, _) in zip(files, pairs, strict=True)}
    references(export)  # read here: each of the threads would read them
    with ThreadPoolExecutor(width) as pool:
        found = dict(zip(rows, pool.map(lambda file: judged(export, rows[file], file[1]), rows), strict=True))
    return [found[file] for file in files]


def rights(answers: Iterable[Row]) -> dict[str, list[bool]]:
    """By row, which of its answers are right; what could not be judged counts nowhere."""
    found: dict[str, list[bool]] = defaultdict(list)
    for one in answers:
        if one["status"] is not None:
            found[one["attempt_id"]].append(one["status"] in RIGHT)
    return found


def wilson(n_right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not n:
        return 0.0, 1.0
    share, spread = n_right / n, z * math.sqrt(n_right * (n - n_right) / n**3 + z * z / (4 * n * n))
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text."""
    lines = [list(map(str, head)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def adapter(rank: int) -> Any:
    """LoRA of that rank on all linear layers; None for 0, which trains all weights."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM") if rank else None


def trained_dtype(rank: int) -> Any:
    """Of the weights: float32 where all are trained, as a step of 1e-5 is lost on a weight of 0.05 in bfloat16."""
    import torch

    return torch.bfloat16 if torch.cuda.is_available() and rank else torch.float32


def merged(model: Any) -> Any:
    """A trained model without its adapter, whose weights are in it now."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def write(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    aside = path.with_suffix(".part")
    aside.write_text(text)
    aside.replace(path)
