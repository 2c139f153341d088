"""The only reader of the environment. Precedence: flag > environment > project's file > user's file > default.

A setting has the name of its flag in all of them: `--max-time`, KERNELTUNE_MAX_TIME, `max-time` in kerneltune.toml.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.models.types import Effort
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.schema.errors import UsageError

NAME = "kerneltune.toml"
_KEY_LIKE = re.compile(r"api[-_]?key|secret|password|credential|(^|[-_])(token|key)s?$", re.IGNORECASE)
_KEY_VALUE = re.compile(r"^(sk-|key-|Bearer )\S{8}")
_PREFIX = "KERNELTUNE_"
Tier = Literal["screened", "judged", "confirmed"]  # that of tools.schema.verdict, which takes 10 ms to import
Strategy = Literal["refine", "best-of", "evolve"]
if TYPE_CHECKING:
    Language = str
else:
    Language = Literal[tuple(FOLDERS.values())]  # whatever languages there are
_CHOICES = {
    "tier": get_args(Tier), "strategy": get_args(Strategy), "effort": get_args(Effort), "language": get_args(Language),
}  # fmt: skip


def _cache_dir() -> Path:
    from platformdirs import user_cache_path  # 10 ms that `--help` need not wait for

    return user_cache_path("kerneltune", appauthor=False)


@dataclass(frozen=True)
class Settings:
    """What flags left open. `flag_of` tells the name of a field elsewhere."""

    runs_dir: Path = Path("runs")
    max_attempts: int | None = None  # None = as many as suit the author: see agent.commands.lifecycle
    max_time_s: float | None = None
    patience: int | None = None
    width: int | None = None  # candidates under way at a time; None = 2, on a GPU by its host's cores
    seed: int = 0
    arch: str = ""  # "" = the GPU's, or sm_90 without one
    model: str = ""  # "" = the first provider whose key is set, else offline
    base_url: str = ""  # of the model's server; "" = the provider's own
    effort: Effort = "high"  # how long a model thinks, where it can be told
    strategy: Strategy = "refine"
    language: Language = "triton"  # what the kernels are written in
    from_: str = ""  # the candidate to start from: "nothing", "best", an attempt or a file; "" = as the language needs
    context_tokens: int = 30_000  # a longer prompt gives way to a history
    max_cost_usd: float | None = None
    target_speedup: float | None = None
    target_sol: float | None = None
    allow_unsandboxed: bool = False
    tier: Tier | None = None  # how thoroughly to judge on a GPU; None = screen all, judge the promising
    confirm: bool = True  # judge the best of a run again in fresh processes
    counters: bool = False  # ncu's hardware counters beside what is judged in full
    warm_start: bool = True  # a search begins with what earlier runs on the same GPU found
    gpu_memory_gib: float | None = None  # that a judgement may use, as a smaller GPU has; None = all of the GPU's
    cache_dir: Path = field(default_factory=_cache_dir)  # what was measured once and holds for this machine


@dataclass(frozen=True)
class Environment:
    """Facts of the process environment that decide how we talk to a person."""

    keys: tuple[str, ...]  # providers whose API key is set
    server_key: str  # for a server at --base-url, KERNELTUNE_API_KEY; providers' own keys never go there
    term: str
    no_color: bool
    ci: bool


def environment() -> Environment:
    """Read the environment once."""
    return Environment(
        keys=tuple(provider for provider, name in KEY_VARIABLES.items() if os.environ.get(name)),
        server_key=os.environ.get("KERNELTUNE_API_KEY", ""),
        term=os.environ.get("TERM", ""),
        no_color=bool(os.environ.get("NO_COLOR")),
        ci=bool(os.environ.get("CI")),
    )


def flag_of(field_name: str) -> str:
    """The name of a setting as a person types it, without dashes in front: units are for code."""
    return field_name.removesuffix("_usd").removesuffix("_s").removesuffix("_").replace("_", "-")


FIELDS = {flag_of(f.name): f.name for f in fields(Settings)}  # by the name that people type
_KINDS = {f.name: f.type for f in fields(Settings)}
_ALSO = ("API_KEY",)  # variables that are no settings
# A repository that somebody else wrote must not say where a key is sent, that its code runs unconfined, or what the
# ceilings of this GPU are (the cache holds them).
_NOT_A_PROJECTS = ("base-url", "allow-unsandboxed", "cache-dir")


@dataclass(frozen=True)
class ConfigEntry:
    """One setting of a kerneltune.toml. `name` is spelt as the flag is, without its dashes in front."""

    name: str
    value: object
    path: Path
    line: int

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.path}, line {self.line}"


@dataclass(frozen=True)
class Sourced:
    """A setting's value, and where it came from, in words; "default" when nobody set it."""

    value: object
    source: str


def load_settings(folder: Path) -> Settings:
    """Settings from the files that hold in `folder` and from KERNELTUNE_* variables. Raises UsageError naming a bad
    value and its place."""
    return _settings(sourced_settings(folder))


def chosen_settings(arguments: Mapping[str, object]) -> Settings:
    """Return the settings of this folder, and over them those of a command's or a function's arguments (its `locals()`)
    that have a setting's name and are not None. Raises UsageError."""
    given = {name: value for name, value in arguments.items() if name in _KINDS and value is not None}
    if "runs_dir" in given:
        given["runs_dir"] = Path(str(given["runs_dir"]))
    return _settings(sourced_settings(Path.cwd()) | {name: Sourced(value, "flag") for name, value in given.items()})


def _settings(sourced: Mapping[str, Sourced]) -> Settings:
    values = {name: one.value for name, one in sourced.items()}
    if values["arch"]:
        values["arch"] = _target(str(values["arch"]), sourced["arch"].source)
    return Settings(**values)  # type: ignore[arg-type]


def _target(text: str, source: str) -> str:
    """The compile target that a person named, as everything else spells it."""
    from kerneltune.tools.schema.gpus import target_arch

    try:
        return target_arch(text)
    except ValueError as error:
        raise UsageError(f"--arch: {error}" if source == "flag" else f"{source}: arch: {error}") from error


def sourced_settings(folder: Path) -> dict[str, Sourced]:
    """Every field of Settings with its source, flags left aside. Raises UsageError."""
    defaults = Settings()
    found = {f.name: Sourced(getattr(defaults, f.name), "default") for f in fields(Settings)}
    for entry in _entries(folder):
        place = f"{entry.place}: {entry.name} = {_shown(entry.value)}"
        value = _checked(FIELDS[entry.name], entry.value, place, entry.path.parent)
        found[FIELDS[entry.name]] = Sourced(value, entry.place)
    for name, field_name in FIELDS.items():
        variable = variable_of(name)
        if (text := os.environ.get(variable)) is not None:
            found[field_name] = Sourced(_from_text(field_name, text, variable), variable)
    return found


def config_files(folder: Path) -> tuple[Path | None, Path]:
    """The project's file, if there is one, and where the user's is or would be."""
    return _project_file(folder), _user_file()


def unknown_variables() -> dict[str, str]:
    """KERNELTUNE_* variables that set nothing, with what was meant."""
    known = {variable_of(name) for name in FIELDS}
    return {
        variable: _meant(variable, known)
        for variable in sorted(os.environ)
        if variable.startswith(_PREFIX) and variable not in known and variable.removeprefix(_PREFIX) not in _ALSO
    }


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.replace("-", "_").upper()


def _entries(folder: Path) -> Iterator[ConfigEntry]:
    """Of the user's file, then of the project's."""
    project, user = config_files(folder)
    if user.is_file():
        yield from _file_entries(user, FIELDS)
    for entry in _file_entries(project, FIELDS) if project and project != user else ():
        if entry.name in _NOT_A_PROJECTS:
            raise UsageError(
                f"{entry.place}: {entry.name} counts only as a flag, as {variable_of(entry.name)} or in {user}: a file "
                "that comes with a folder must not decide where keys are sent, what runs unconfined, how fast a GPU is"
            )
        yield entry


_WANTED: dict[object, str] = {
    Path: 'a folder, as in "runs"',
    int: "a whole number, as in 24",
    int | None: "a whole number, as in 8",
    float | None: "a number, as in 600 or 1.5",
    bool: "true or false",
    str: 'a text, as in "offline"',
}
_PARSERS: dict[object, Callable[[str], object]] = {
    bool: lambda text: {"1": True, "true": True, "0": False, "false": False}[text.lower()],
    int: int,
    int | None: int,
    float | None: float,
}


def _from_text(field_name: str, text: str, variable: str) -> object:
    """The value of a variable."""
    kind, place = _KINDS[field_name], f"{variable}={text!r}"
    try:
        value = _PARSERS.get(kind, str)(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{place} is not {_WANTED[kind]}") from error
    return _checked(field_name, value, place, Path())


def _checked(field_name: str, value: object, place: str, folder: Path) -> object:
    """The value as Settings holds it. Paths are seen from `folder`."""
    kind = _KINDS[field_name]
    if field_name in _CHOICES:
        return _one_of(_CHOICES[field_name], value, place)
    if kind is Path and isinstance(value, str) and value:
        try:
            return folder / Path(value).expanduser()
        except RuntimeError as error:  # ~somebody, whom this machine does not know
            raise UsageError(f"{place}: {error}") from error
    if kind == float | None and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if type(value) in (get_args(kind) or (kind,)):
        return value
    raise UsageError(f"{place} is not {_WANTED[kind]}")


def _one_of(choices: tuple[str, ...], value: object, place: str) -> str:
    if value in choices:
        return str(value)
    raise UsageError(f"{place} is not one of {', '.join(choices)}; {_meant(str(value), choices)}")


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _project_file(folder: Path) -> Path | None:
    """The nearest file from `folder` up to the root of its git repository; outside of one, only that of `folder`: what
    lies above, in /tmp say, may be somebody else's."""
    folders = [folder, *folder.parents]
    root = next((i for i, f in enumerate(folders) if (f / ".git").exists()), 0)
    return next((path for f in folders[: root + 1] if (path := f / NAME).is_file()), None)


def _user_file() -> Path:
    """Where a user's own file is, or would be."""
    from platformdirs import user_config_path  # 10 ms that `--help` need not wait for

    return user_config_path("kerneltune", appauthor=False) / NAME


def _file_entries(path: Path, known: Collection[str]) -> Iterator[ConfigEntry]:
    """What a file says. Raises UsageError for a file that is no TOML, for a name that is not among `known`, and for an
    API key, whose value is never repeated."""
    import tomllib  # where there is a file to read

    from kerneltune.tools.schema.codec import read_file

    try:
        text = read_file(path).decode("utf-8-sig")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for written, value in values.items():
        name, line = written.replace("_", "-"), _line_of(written, text)
        _check(name, written, value, f"{path}, line {line}", known)
        yield ConfigEntry(name, value, path, line)


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
    raise UsageError(f"{place}: unknown setting {written!r}; {_meant(name, known)}")


def _meant(name: str, known: Collection[str]) -> str:
    """What was meant, or all that could have been."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def _line_of(name: str, text: str) -> int:
    """The line on which a key of the top level is set, or its table begins."""
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    found = re.compile(rf"^[ \t]*(?:\[+[ \t]*{quoted}[ \t]*[.\]]|{quoted}[ \t]*[.=])", re.MULTILINE).search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 1
