"""kerneltune.toml: where it is looked for, and what it says, with the line of each word of it."""

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.tools.schema.errors import UsageError

NAME = "kerneltune.toml"
_KEY_LIKE = re.compile(r"api[-_]?key|secret|password|credential|(^|[-_])(token|key)s?$", re.IGNORECASE)
_KEY_VALUE = re.compile(r"^(sk-|key-|Bearer )\S{8}")


@dataclass(frozen=True)
class Entry:
    """One setting of a file. `name` is spelt as the flag is, without its dashes in front."""

    name: str
    value: object
    path: Path
    line: int

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.path}, line {self.line}"


def project_file(folder: Path) -> Path | None:
    """The nearest file from `folder` up to the root of its git repository; outside of one, only that of `folder`: what
    lies above, in /tmp say, may be somebody else's."""
    folders = [folder, *folder.parents]
    root = next((i for i, f in enumerate(folders) if (f / ".git").exists()), 0)
    return next((path for f in folders[: root + 1] if (path := f / NAME).is_file()), None)


def user_file() -> Path:
    """Where a user's own file is, or would be."""
    from platformdirs import user_config_path  # 10 ms that `--help` need not wait for

    return user_config_path("kerneltune", appauthor=False) / NAME


def read(path: Path, known: Collection[str]) -> Iterator[Entry]:
    """What a file says. Raises UsageError for a file that is no TOML, for a name that is not among `known`, and for an
    API key, whose value is never repeated."""
    import tomllib  # where there is a file to read

    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for written, value in values.items():
        name, line = written.replace("_", "-"), _line_of(written, text)
        _check(name, written, value, f"{path}, line {line}", known)
        yield Entry(name, value, path, line)


def _check(name: str, written: str, value: object, place: str, known: Collection[str]) -> None:
    if name in known and not (isinstance(value, str) and _KEY_VALUE.match(value)):
        return
    if name in known or _KEY_LIKE.search(written):
        first, *others = KEY_VARIABLES.values()
        raise UsageError(
            f"{place}: {written} looks like an API key, and this file is one that people share and commit: take the "
            f"line out, and set the key in the environment: export {first}=… (or {', '.join(others)}, or "
            "KERNELTUNE_API_KEY for the server at --base-url)"
        )
    if isinstance(value, dict):
        raise UsageError(f"{place}: [{written}] is a table; settings stand in none, one a line: max-attempts = 50")
    raise UsageError(f"{place}: unknown setting {written!r}; {meant(name, known)}")


def meant(name: str, known: Collection[str]) -> str:
    """What was meant, or all that could have been."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def _line_of(name: str, text: str) -> int:
    """The line on which a key of the top level is set, or its table begins."""
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    found = re.compile(rf"^[ \t]*(?:\[+[ \t]*{quoted}[ \t]*[.\]]|{quoted}[ \t]*[.=])", re.MULTILINE).search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 1
