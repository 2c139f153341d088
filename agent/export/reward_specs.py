"""Rewards as a command line names them: `kevin`, `fast_1.5`, `drkernel:lambda=0.5,cap=3,baseline=eager`, and those of
other packages.

Another package offers a reward by an entry point of the group `kerneltune.rewards`, or it is named as
`module:function`. Either is a `Reward`, or a function of an `AttemptRecord` that returns a number or None; options of
the spec are passed to it as keyword arguments. Nothing is imported before a spec asks for it.
"""

import difflib
import functools
import importlib
import inspect
import math
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from agent.export.formulas import Options, Score
from agent.export.rewards import REWARDS, Reward, Scorer
from agent.record.trajectory import AttemptRecord
from tools.errors import UsageError

GROUP: Final = "kerneltune.rewards"


def rewards_of(specs: Iterable[str]) -> tuple[Scorer, ...]:
    """The rewards that specs name, in order. Raises UsageError, also when two of them are the same."""
    made: dict[str, Scorer] = {}
    for spec in specs:
        scorer = reward_of(spec)
        if scorer.name in made:
            raise UsageError(f"reward {spec!r} is named twice: it is {scorer.name}; leave one out")
        made[scorer.name] = scorer
    return tuple(made.values())


def reward_of(spec: str) -> Scorer:
    """The reward that a spec names. Raises UsageError: which part of it is wrong, and what would work."""
    name, _, rest = (part.strip() for part in spec.partition(":"))
    try:
        if (known := _registered(name)) is not None:
            reward, implied = known
            options = options_of(rest)
            if twice := implied.keys() & options.keys():
                raise UsageError(f"{min(twice)} is in the name already; leave it out, or write {reward.name}:{rest}")
            return reward.scorer(implied | options)
        if (offered := _entry_point(name)) is not None:
            return _plugged(name, offered.load, options_of(rest))
        function, _, rest = (part.strip() for part in rest.partition(":"))
        if function.isidentifier():
            return _plugged(f"{name}:{function}", lambda: _imported(name, function), options_of(rest))
    except UsageError as error:
        raise UsageError(f"reward {spec!r}: {error}") from error
    raise UsageError(_unknown(spec, name))


def options_of(text: str) -> dict[str, float | str]:
    """`key=value,key=value` as a mapping; "" is none. Raises UsageError."""
    found: dict[str, float | str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not (key and equals and value):
            raise UsageError(f"{part!r} is not key=value; options look like cap=3,baseline=eager")
        if key in found:
            raise UsageError(f"{key} is given twice: {key}={found[key]} and {part}")
        found[key] = value
    return found


def _registered(name: str) -> tuple[Reward, dict[str, float | str]] | None:
    """A reward of ours, and the option that its name implies."""
    if name in REWARDS:
        return REWARDS[name], {}
    for reward in REWARDS.values():
        if reward.short is not None and name.startswith(reward.short[0]):
            prefix, option = reward.short
            return reward, {option: name.removeprefix(prefix)}
    return None


def _entry_point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)


def _imported(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    if not hasattr(found, name):
        raise UsageError(f"module {module} has no {name!r}")
    return getattr(found, name)


def _plugged(name: str, load: Any, options: Options) -> Scorer:
    """A reward of another package. What its code raises on the way is told, not passed on."""
    try:
        found = load()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(found, Reward):
        made = found.scorer(options)
        return Scorer(made.name, made.reward, made.options, _watched(name, made.score))
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}; it must be a Reward or a function of an AttemptRecord")
    values = {key: _typed(value) for key, value in options.items()}
    _check_signature(name, found, values)
    about = (inspect.getdoc(found) or "a reward of another package").partition("\n")[0]
    reward = Reward(name, about, name, "unknown", (), (), lambda _: _watched(name, functools.partial(found, **values)))
    called = ",".join(f"{key}={value}" for key, value in options.items())
    return Scorer(f"{name}:{called}" if called else name, reward, values, reward.build(values))


def _check_signature(name: str, function: Any, options: Mapping[str, object]) -> None:
    try:
        inspect.signature(function).bind(None, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be called with an attempt and {dict(options)}: {error}") from error


def _typed(value: float | str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _watched(name: str, score: Score) -> Score:
    """Another package's function; what it returns must be a finite number or None. Raises UsageError otherwise."""

    def watched(attempt: AttemptRecord) -> float | None:
        try:
            value: Any = score(attempt)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UsageError(f"reward {name} failed at attempt {attempt.attempt_id}: {what}") from error
        if value is None or (isinstance(value, int | float) and math.isfinite(value)):
            return None if value is None else float(value)
        raise UsageError(f"reward {name} is {value!r} of attempt {attempt.attempt_id}; return a finite number or None")

    return watched


def _unknown(spec: str, name: str) -> str:
    known = [*sorted(REWARDS), *sorted({e.name for e in entry_points(group=GROUP)} - REWARDS.keys())]
    close = difflib.get_close_matches(name, known, 1)
    hint = f", did you mean {close[0]}" if close else ""
    return f"no reward {spec!r}{hint}; known are {', '.join(known)}, a threshold such as fast_1.5, and module:function"
