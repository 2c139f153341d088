"""What is said of a task file that was checked, or written by `optimize init`."""

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from agent.view import text as words
from agent.view.page import Page, standard_page
from tools.codec import Json
from tools.spec import TaskSpec

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Checked:
    """A task whose reference runs. `notes` say how far verdicts on it can be trusted."""

    task: TaskSpec
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing stands against it."""
        return not self.notes


@dataclass(frozen=True)
class Broken:
    """A task whose code fails, and how."""

    problem: str


@dataclass(frozen=True)
class Written:
    """A task file. `looks`: lines that hold guesses; `checked` is None when nothing was run."""

    path: Path
    name: str
    origin: str
    looks: tuple[tuple[int, str], ...]
    checked: Checked | Broken | None


def print_written(written: Written) -> None:
    """What was written, what to look at, what the check said, and what to type next."""
    page, path = standard_page(colour=True), words.one_line(str(written.path))
    page.print(Text(f"wrote {path} from {words.one_line(written.origin)}"))
    for line, guess in written.looks:
        page.print(Text(f"  line {line}: {words.one_line(guess)}", style="yellow"))
    if written.checked is None:
        page.print(Text("nothing was run"), Text(f"next: optimize tasks {path} --check", style="cyan"))
    else:
        _print_found(page, written.checked, path)


def print_check(name: str, found: Checked) -> None:
    """What the check said, and what to type next. `name`: the task as a person typed it."""
    _print_found(standard_page(colour=True), found, words.one_line(name))


def _print_found(page: Page, found: Checked | Broken, path: str) -> None:
    if isinstance(found, Broken):
        page.print(Text(f"✗ it does not run yet: {words.one_line(found.problem)}", style="red"))
    elif found.sound:
        page.print(Text("✔ its reference runs, and kernels that do nothing fail it", style="green"))
        page.print(Text(f"next: optimize --task {path}", style="cyan"))
        return
    else:
        for note in found.notes:
            page.print(Text(f"✗ {words.one_line(note)}", style="red"))
    page.print(Text(f"next: edit {path}, then: optimize tasks {path} --check", style="cyan"))


def check_json(name: str, found: Checked) -> dict[str, Json]:
    """What the check said, as one object."""
    return {
        "type": "task_check",
        "schema_version": SCHEMA_VERSION,
        "task": name,
        "sound": found.sound,
        "notes": list(found.notes),
    }


def written_json(written: Written) -> dict[str, Json]:
    """What was written and found, as one object; `sound` is null when nothing was run."""
    found = written.checked
    return {
        "type": "init",
        "schema_version": SCHEMA_VERSION,
        "path": str(written.path),
        "name": written.name,
        "origin": written.origin,
        "looks": [{"line": line, "guess": guess} for line, guess in written.looks],
        "sound": None if found is None else isinstance(found, Checked) and found.sound,
        "problem": found.problem if isinstance(found, Broken) else None,
        "notes": list(found.notes) if isinstance(found, Checked) else [],
    }
