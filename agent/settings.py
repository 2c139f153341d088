"""The only reader of the environment and of kerneltune.toml. Precedence: flags > environment > file > defaults."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_args

from tools.errors import UsageError

CONFIG_FILE = "kerneltune.toml"
_PREFIX = "KERNELTUNE_"
Tier = Literal["screened", "judged", "confirmed"]  # that of tools.verdict, which takes 10 ms to import
Strategy = Literal["refine", "best-of", "evolve"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
_CHOICES = {"tier": get_args(Tier), "strategy": get_args(Strategy), "effort": get_args(Effort)}


def _cache_dir() -> Path:
    from platformdirs import user_cache_path  # 10 ms that `--help` need not wait for

    return user_cache_path("kerneltune", appauthor=False)


@dataclass(frozen=True)
class Settings:
    """What flags left open. Field names are the flags' names, the toml keys, and KERNELTUNE_<NAME>."""

    runs_dir: Path = Path("runs")
    max_attempts: int = 24
    max_time_s: float | None = None
    patience: int | None = None
    width: int = 2
    seed: int = 0
    arch: str = ""  # "" = the GPU's, or sm_90 without one
    model: str = ""  # "" = the first provider whose key is set, else offline
    base_url: str = ""  # of the model's server; "" = the provider's own
    effort: Effort = "high"  # how long a model thinks, where it can be told
    strategy: Strategy = "refine"
    context_tokens: int = 30_000  # a longer prompt gives way to a history
    max_cost_usd: float | None = None
    target_speedup: float | None = None
    target_sol: float | None = None
    allow_unsandboxed: bool = False
    tier: Tier | None = None  # how thoroughly to judge on a GPU; None = screen all, judge the promising
    confirm: bool = True  # judge the best of a run again in fresh processes
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
    providers = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
    return Environment(
        keys=tuple(p for p, name in providers.items() if os.environ.get(name)),
        server_key=os.environ.get("KERNELTUNE_API_KEY", ""),
        term=os.environ.get("TERM", ""),
        no_color=bool(os.environ.get("NO_COLOR")),
        ci=bool(os.environ.get("CI")),
    )


def load_settings(folder: Path) -> Settings:
    """Settings from `folder`/kerneltune.toml and KERNELTUNE_* variables. Raises UsageError naming a bad value."""
    values: dict[str, object] = {}
    path = folder / CONFIG_FILE
    if path.is_file():
        values |= _read_toml(path)
    for known in fields(Settings):
        if (text := os.environ.get(_PREFIX + known.name.upper())) is not None:
            values[known.name] = text
    return Settings(**{name: _convert(name, value) for name, value in values.items()})  # type: ignore[arg-type]


def chosen_settings(flags: Mapping[str, object]) -> Settings:
    """The settings of this folder, and over them the flags that were given. Raises UsageError."""
    given = {name: value for name, value in flags.items() if value is not None}
    return replace(load_settings(Path.cwd()), **given)  # type: ignore[arg-type]


def _read_toml(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    known = [f.name for f in fields(Settings)]
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(f"{path}: unknown setting {unknown[0]!r}; known: {', '.join(known)}")
    return values


def _convert(name: str, value: object) -> object:
    kind = {f.name: f.type for f in fields(Settings)}[name]
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(f"{name} = {value!r} is not one of {', '.join(_CHOICES[name])}")
    try:
        if kind is Path:
            return Path(str(value)).expanduser()
        if kind is bool:
            return {"1": True, "true": True, "0": False, "false": False}[str(value).lower()]
        if kind is int or kind == int | None:
            return int(str(value))
        if kind == float | None:
            return float(str(value))
        return str(value)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{name} = {value!r} is not a {getattr(kind, '__name__', kind)}") from error
