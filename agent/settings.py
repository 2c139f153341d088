"""The only reader of the environment. Precedence: flag > environment > default.

A setting has the name of its flag: `--max-time`, KERNELTUNE_MAX_TIME.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.models.types import Effort
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.schema.codec import did_you_mean
from kerneltune.tools.schema.errors import UsageError

_PREFIX = "KERNELTUNE_"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OF_TIMES = ("tier", "counters", "target_speedup", "target_sol")
_OF_MODELS = ("max_cost_usd", "strategy", "effort", "base_url", "logprobs")
_DO = ("does", "do")
Tier = Literal["screened", "judged", "confirmed"]  # that of tools.schema.verdict, which takes 10 ms to import
Strategy = Literal["refine", "best-of", "evolve"]
if TYPE_CHECKING:
    Language = str
else:
    Language = Literal[FOLDERS]  # whatever languages there are
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
    seeds_model: bool = False  # the model is asked with seeds made of that one, where its API takes any
    arch: str = ""  # "" = the GPU's, or sm_90 without one
    model: str = ""  # "" = the first provider whose key is set, else offline
    base_url: str = ""  # of the model's server; "" = the provider's own
    retry_time_s: int = 900  # how long a model is asked again whose provider fails
    effort: Effort = "high"  # how long a model thinks, where it can be told
    logprobs: bool = False  # replies are kept with their tokens' ids and log-probabilities, where the server tells them
    strategy: Strategy = "refine"
    language: Language = "triton"  # what the kernels are written in
    from_: str = ""  # the candidate to start from: "nothing", "best", an attempt or a file; "" = as the language needs
    context_tokens: int | None = None  # a longer prompt gives way to a history; None = as its provider bills it
    max_cost_usd: float | None = None
    target_speedup: float | None = None
    target_sol: float | None = None
    allow_unsandboxed: bool = False
    tier: Tier | None = None  # how thoroughly to judge on a GPU; None = screen all, judge the promising
    confirm: bool = True  # judge the best of a run again in fresh processes
    counters: bool = False  # ncu's hardware counters beside what is judged in full
    warm_start: bool = True  # a search begins with what earlier runs on the same GPU found
    algebra: bool = True  # formulas are rewritten where that is exact in real numbers, before TorchInductor gets them
    emulation: bool = True  # float32 products may be three of float16, of operands in pairs
    lessons: bool = True  # a model is told what predictions of earlier runs on the same GPU came to
    gpu_memory_gib: float | None = None  # that a judgement may use, as a smaller GPU has; None = all of the GPU's
    cache_dir: Path = field(default_factory=_cache_dir)  # what was measured once and holds for this machine

    def idle(self, *, gpu: bool, model: bool) -> tuple[str, ...]:
        """What to tell whoever has set something that does nothing: without a GPU, or without a model to ask."""
        without = ((gpu, "without a GPU nothing is timed", _OF_TIMES), (model, "no model is asked", _OF_MODELS))
        given = [
            (why, [f"--{flag_of(name)}" for name in names if getattr(self, name) != getattr(Settings(), name)])
            for is_there, why, names in without
            if not is_there
        ]
        return tuple(f"{why}, so {' and '.join(flags)} {_DO[len(flags) > 1]} nothing" for why, flags in given if flags)


@dataclass(frozen=True)
class Environment:
    """Facts of the process environment that decide how we talk to a person."""

    keys: tuple[str, ...]  # providers whose API key is set
    server_key: str  # for a server at --base-url, KERNELTUNE_API_KEY; providers' own keys never go there
    term: str
    no_color: bool
    ci: bool
    is_traced: bool = False  # a collector of OpenTelemetry is named, whose other variables are its SDK's to read
    traces_content: bool = False  # prompts, replies and sources go there, too
    token: str = ""  # that clients of `optimize serve --listen` show, KERNELTUNE_TOKEN


def environment() -> Environment:
    """Read the environment once."""
    return Environment(
        keys=tuple(provider for provider, name in KEY_VARIABLES.items() if os.environ.get(name)),
        server_key=os.environ.get("KERNELTUNE_API_KEY", ""),
        token=os.environ.get("KERNELTUNE_TOKEN", ""),
        term=os.environ.get("TERM", ""),
        no_color=bool(os.environ.get("NO_COLOR")),
        ci=bool(os.environ.get("CI")),
        is_traced=any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT") for name in ("", "TRACES_")),
        traces_content=os.environ.get(_CONTENT, "").lower() in ("true", "1", "span_only", "span_and_event"),
    )


def flag_of(field_name: str) -> str:
    """The name of a setting as a person types it, without dashes in front: units are for code."""
    return field_name.removesuffix("_usd").removesuffix("_s").removesuffix("_").replace("_", "-")


FIELDS = {flag_of(f.name): f.name for f in fields(Settings)}  # by the name that people type
_KINDS = {f.name: f.type for f in fields(Settings)}
_ALSO = ("API_KEY", "TOKEN")  # variables that are no settings


@dataclass(frozen=True)
class Sourced:
    """A setting's value, and where it came from: "flag", a variable, or "default" when nobody set it."""

    value: object
    source: str


def environment_of_python(folder: Path) -> dict[str, str]:
    """This process's environment, with a folder in which Python programs look first."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def chosen_settings(arguments: Mapping[str, object]) -> Settings:
    """Return the settings of the environment, and over them those of a command's or a function's arguments (its
    `locals()`) that have a setting's name and are not None. Raises UsageError naming a bad value and its place."""
    given = {name: value for name, value in arguments.items() if name in _KINDS and value is not None}
    if "runs_dir" in given:
        given["runs_dir"] = Path(str(given["runs_dir"]))
    sourced = sourced_settings() | {name: Sourced(value, "flag") for name, value in given.items()}
    values = {name: one.value for name, one in sourced.items()}
    for name, (holds, wanted) in _BOUNDS.items():
        if (value := values[name]) is not None and not holds(value):
            shown = f"{value:g}" if isinstance(value, float) else str(value)[:40]  # no float holds an int of 400 digits
            raise UsageError(f"{_named(name, sourced)} {shown}: {wanted}")
    if (folder := sourced["runs_dir"].value) and Path(str(folder)).is_file():
        raise UsageError(f"{_named('runs_dir', sourced)} {folder} is a file; give the folder that it lies in")
    if values["arch"]:
        values["arch"] = _target(str(values["arch"]), _named("arch", sourced))
    return Settings(**values)  # type: ignore[arg-type]


def _named(field_name: str, sourced: Mapping[str, "Sourced"]) -> str:
    """A setting as the person who set it typed it: a flag or a variable."""
    source = sourced[field_name].source
    return f"--{flag_of(field_name)}" if source == "flag" else source


def _target(text: str, named: str) -> str:
    """The compile target that a person named, as everything else spells it."""
    from kerneltune.tools.schema.gpus import target_arch

    try:
        return target_arch(text)
    except ValueError as error:
        raise UsageError(f"{named}: {error}") from error


def _above_0(value: Any) -> bool:
    return bool(value > 0)  # also of NaN


def _at_least_1(value: Any) -> bool:
    return bool(value >= 1)


_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_attempts": (_at_least_1, "a run needs at least 1 attempt"),
    "max_time_s": (_above_0, "give a number of seconds above 0"),
    "patience": (_at_least_1, "give at least 1 attempt"),
    "max_cost_usd": (_above_0, "give a number above 0"),
    "target_speedup": (_above_0, "give a number above 0"),
    "target_sol": (lambda share: 0 < share <= 1, "give a share above 0, and 1 at the most"),
    "retry_time_s": (lambda s: s >= 0, "give a number of seconds, or 0 not to retry"),
    "width": (lambda n: 1 <= n <= 64, "give 1 to 64 candidates"),
}  # what no run can keep to is refused before anything is started


def sourced_settings() -> dict[str, Sourced]:
    """Every field of Settings with its source, flags left aside. Raises UsageError."""
    defaults = Settings()
    found = {f.name: Sourced(getattr(defaults, f.name), "default") for f in fields(Settings)}
    for name, field_name in FIELDS.items():
        variable = variable_of(name)
        if (text := os.environ.get(variable)) is not None:
            found[field_name] = Sourced(_from_text(field_name, text, variable), variable)
    return found


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


def _folder(text: str) -> Path:
    """Raises ValueError for an empty text, and for ~somebody, whom this machine does not know."""
    try:
        if text:
            return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(text) from error
    raise ValueError(text)


_WANTED: dict[object, str] = {
    Path: "a folder, as in runs",
    int: "a whole number, as in 24",
    int | None: "a whole number, as in 8",
    float | None: "a number, as in 600 or 1.5",
    bool: "true or false",
}
_TRUTHS = {"1": True, "true": True, "0": False, "false": False}
_PARSERS: dict[object, Callable[[str], object]] = {
    bool: lambda text: _TRUTHS[text.lower()],
    int: int,
    int | None: int,
    float | None: float,
    Path: _folder,
}


def _from_text(field_name: str, text: str, variable: str) -> object:
    """The value of a variable. Raises UsageError."""
    kind, choices = _KINDS[field_name], _CHOICES.get(field_name)
    if choices and text not in choices:
        raise UsageError(f"{variable}={text!r} is not one of {', '.join(choices)}; {_meant(text, choices)}")
    try:
        return _PARSERS.get(kind, str)(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{variable}={text!r} is not {_WANTED[kind]}") from error


def _meant(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known, f"known: {', '.join(sorted(known))}")
