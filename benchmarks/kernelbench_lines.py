"""KernelBench's problems as files, and what was found for each: a line of JSON, in a file that a run goes on with."""

import contextlib
import json
import random
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Line = dict[str, Any]
LEVELS = ("level1", "level2")
STAGES = ("described", "proposed", "traced", "compiled", "checked", "correct")
RIGHT = ("checked", "correct")  # without a GPU; with one


def name_of(path: Path) -> str:
    """ "level1/19_ReLU": what a problem is called in the lines."""
    return f"{path.parent.name}/{path.stem}"


def problems(folder: Path, only: str = "*") -> list[Path]:
    """The files of levels 1 and 2, shuffled always alike: what is done by then is a fair sample. `only`: a glob."""
    found = [path for level in LEVELS for path in (folder / "KernelBench" / level).glob("*.py")]
    found.sort(key=lambda p: (p.parent.name, int(p.stem.partition("_")[0])))
    shuffled = random.Random(0).sample(found, len(found))
    return [path for path in shuffled if fnmatchcase(name_of(path), only)]


def new_line(name: str, cause: str = "") -> Line:
    """Of a problem of which nothing is known yet, but perhaps why not."""
    return {"problem": name, "stage": "", "cause": cause, "attempts": []}


def stored(out: Path) -> dict[str, Line]:
    """The last complete line of each problem; a line cut off by a kill is passed over."""
    found: dict[str, Line] = {}
    for text in out.read_text().splitlines() if out.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            line = json.loads(text)
            found[line["problem"]] = line
    return found


class Lines:
    """The file, written to by several threads; a line is there as soon as its problem has ended."""

    def __init__(self, out: Path) -> None:
        self._out, self._lock = out, threading.Lock()
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and (text := out.read_bytes()) and not text.endswith(b"\n"):
            out.write_bytes(text + b"\n")  # the rest of a line that a kill cut off must not spoil the next

    def add(self, line: Line) -> None:
        """Append it."""
        with self._lock, self._out.open("a") as file:
            file.write(json.dumps(line) + "\n")
