"""Rewards: what a stored attempt is worth, by the formulas others train with and by ours. Pure; see docs/rewards.md.

Each is a function of one attempt, with three kinds of answers: what the formula says of a right one; what it says of a
failed one (0, for most); and None where it cannot be known: never judged, right but never timed where a time is
needed, no such baseline. None is never 0: an unknown reward that counts as 0 teaches that right kernels are worthless.

A refused attempt (`rejected`, `impossible`) gets what the formula gives to a cheat. `agent.export.reward_specs` reads
rewards from a command line, and loads those of other packages.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from agent.export import formulas
from agent.export.formulas import FASTEST, Options, Score
from agent.record.trajectory import AttemptRecord
from tools.errors import UsageError

Need = Literal["status", "time", "interval", "coverage", "speed_of_light", "expectations"]


@dataclass(frozen=True)
class Option:
    """A parameter of a reward: a number within [low, high], or a name where the default is one."""

    name: str
    default: float | str
    about: str
    low: float = -math.inf
    high: float = math.inf

    def value(self, given: float | str) -> float | str:
        """The value that is meant. Raises UsageError when it is none."""
        if isinstance(self.default, str):
            if str(given).strip():
                return str(given).strip()
            raise UsageError(f"{self.name} is empty; give a name, such as {self.name}={self.default}")
        try:
            number = float(given)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number) and self.low <= number <= self.high:
            return number
        where = f"from {self.low:g} to {self.high:g}" if math.isfinite(self.high) else f"of at least {self.low:g}"
        kind = f"a number {where}" if math.isfinite(self.low) else "a number"
        raise UsageError(f"{self.name}={given} is not {kind}; its default is {self.name}={shown(self.default)}")


@dataclass(frozen=True)
class Reward:
    """A formula with parameters. `build` makes the function for values of all of `options`; `source` says where the
    formula comes from, `range` what may come out, `needs` what must be known of a right attempt. `short`: a prefix and
    the option whose value makes a name of its own with it, as in fast_1.5."""

    name: str
    about: str
    source: str
    range: str
    needs: tuple[Need, ...]
    options: tuple[Option, ...]
    build: Callable[[Options], Score]
    short: tuple[str, str] | None = None

    def scorer(self, given: Options = MappingProxyType({})) -> "Scorer":
        """With values for some options; the others keep their defaults. Raises UsageError on a wrong one."""
        known = {o.name: o for o in self.options}
        if unknown := sorted(given.keys() - known):
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UsageError(f"reward {self.name} has no option {unknown[0]!r}; {has}")
        values = {name: o.value(given[name]) if name in given else o.default for name, o in known.items()}
        return Scorer(self._called(values), self, values, self.build(values))

    def _called(self, values: Options) -> str:
        other = {o.name: values[o.name] for o in self.options if values[o.name] != o.default}
        name = self.name
        if self.short is not None:
            prefix, option = self.short
            name = f"{prefix}{shown(values[option])}"
            other.pop(option, None)
        return f"{name}:{','.join(f'{k}={shown(v)}' for k, v in other.items())}" if other else name


@dataclass(frozen=True)
class Scorer:
    """A reward with its parameters fixed. `name` says both, and is what a column is called."""

    name: str
    reward: Reward
    options: Options
    score: Score

    def __call__(self, attempt: AttemptRecord) -> float | None:
        """The reward of an attempt, finite; None when it cannot be known."""
        return self.score(attempt)


def shown(value: float | str) -> str:
    """A value as a spec spells it: 3, not 3.0."""
    return value if isinstance(value, str) else str(int(value)) if value.is_integer() else repr(value)


_BASELINE = Option("baseline", FASTEST, "speed-up over it: fastest, or the name of one (eager, compile, compile-max)")

_CORRECT = Option("correct", 0.5, "for being right", 0.0)
_COVERAGE = (
    Option("speed", 0.5, "weight of the speed-up", 0.0),
    Option("lambda", 0.5, "weight of the coverage; 0: coverage need not be known", 0.0),
)
_ALL = (
    Reward(
        "fast_p",
        "1 when right and more than p times as fast; fast_1, fast_1.5 name a threshold",
        "KernelBench, src/kernelbench/score.py `fastp`; arXiv 2502.10517",
        "0 or 1",
        ("status", "time"),
        (Option("p", 1.0, "the speed-up to exceed; 0: right is enough, and no time is needed", 0.0), _BASELINE),
        formulas.fast_p,
        short=("fast_", "p"),
    ),
    Reward(
        "kevin",
        "0.3 for being right plus the speed-up; 0 when not right",
        "Kevin-32B, S_t; arXiv 2507.11948",
        "0, or above 0.3",
        ("status", "time"),
        (Option("correct", 0.3, "for being right", 0.0), _BASELINE),
        formulas.kevin,
    ),
    Reward(
        "drkernel",
        "half for being right, half the capped speed-up, plus lambda times the coverage (PR)",
        "Dr.Kernel, drkernel/kernel/rewards/reward_client.py `calculate_reward_speedup`; arXiv 2602.05885",
        "0 to 2.5",
        ("status", "time", "coverage"),
        (
            _CORRECT,
            *_COVERAGE,
            Option("cap", 3.0, "a larger speed-up counts as this", 0.0),
            Option("floor", 0.0, "a smaller speed-up counts as 0", 0.0),
            _BASELINE,
        ),
        formulas.drkernel,
    ),
    Reward(
        "drkernel_weighted",
        "half for being right, half for any speed-up of at least 1 + eps, plus lambda times the coverage",
        "Dr.Kernel, the same file, `calculate_reward_weighted`",
        "0 to 1.5",
        ("status", "time", "coverage"),
        (_CORRECT, *_COVERAGE, Option("eps", 0.01, "how much faster it must be", 0.0), _BASELINE),
        formulas.drkernel_weighted,
    ),
    Reward(
        "drkernel_like_kernel",
        "stairs: -1 refused or timed out, -0.5 not compiled, -0.3 not right, -0.1 slower, 0.2 to 1 by speed-up",
        "Dr.Kernel, the same file, `calculate_reward_like_kernel`",
        "-1 to 1",
        ("status", "time"),
        (_BASELINE,),
        formulas.drkernel_like_kernel,
    ),
    Reward(
        "sol",
        "how far it is from the baseline to the speed of light: 0.5 at the baseline, 1 at the limit",
        "SOL-ExecBench, SOL score; arXiv 2603.19173",
        "0 to 1",
        ("status", "time", "speed_of_light"),
        (_BASELINE,),
        formulas.sol,
    ),
    Reward(
        "agent_kernel_arena",
        "20 for compiling, 100 more for being right, 100 times the speed-up more",
        "AgentKernelArena, src/score.py `score`",
        "0, 20, or above 120",
        ("status", "time"),
        (_BASELINE,),
        formulas.agent_kernel_arena,
    ),
    Reward(
        "tritonforge",
        "0.1 for compiling, 0.3 for being right, plus what the speed-up is above 1, up to a cap",
        "TritonForge, kernelbench_config.py and kernel_generator.py",
        "0 to 2.3",
        ("status", "time"),
        (
            Option("compile", 0.1, "for compiling", 0.0),
            Option("correct", 0.3, "for being right", 0.0),
            Option("cap", 2.3, "the most in all", 0.0),
            _BASELINE,
        ),
        formulas.tritonforge,
    ),
    Reward(
        "proven",
        "what is proven of it: the logarithm of the interval's lower end, times the coverage",
        "kerneltune; docs/rewards.md says why",
        "0 to 1",
        ("status", "interval", "coverage"),
        (
            Option("correct", 0.3, "for being right", 0.0, 1.0),
            Option("cap", 4.0, "a speed-up that earns all; its inverse earns nothing", 1.01),
            _BASELINE,
        ),
        formulas.proven,
    ),
    Reward(
        "hypothesis",
        "process reward: the expectation that the attempt tested was confirmed, refuted, or undecided (0)",
        "kerneltune; docs/rewards.md",
        "-1 to 1",
        ("expectations",),
        (Option("confirmed", 1.0, "for a confirmed one"), Option("refuted", -1.0, "for a refuted one")),
        formulas.hypothesis,
    ),
    Reward(
        "prediction",
        "process reward: how near the predicted speed-up over the parent came to the measured one",
        "kerneltune; docs/rewards.md",
        "-1 to 1",
        ("expectations", "time"),
        (Option("octaves", 1.0, "an error of this many factors of 2 earns 0", 0.01),),
        formulas.prediction,
    ),
)
REWARDS: Final[Mapping[str, Reward]] = MappingProxyType({reward.name: reward for reward in _ALL})
