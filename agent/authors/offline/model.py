"""What is likely at points that nobody measured: a Gaussian process over the levels of a sketch's parameters.

Values are logarithms of times, or ranks. Each parameter has an effect of its own, and all together have one (warps
that suit a small block do not suit a large one); how smooth the effects are is averaged by likelihood. numpy only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]  # (points, parameters): the place of each value in its parameter's space

USUAL_SPREAD = 0.25  # of log times within a sketch, before its own points tell
_TRUST_OF_USUAL = 3.0  # as many points as that guess is worth
_SMOOTHNESS = (1.0, 2.0, 4.0)  # levels over which an effect changes
_SHARES_ALONE = (0.4, 0.8)  # of the variance that is parameters' own effects
_OF_THE_MEAN = 1.0  # variance of a sketch's mean, in units of that within it
_NOISE = 0.01  # in the same units: what no effect explains


@dataclass(frozen=True)
class Expected:
    """Of each asked point, the mean and the standard deviation of the value."""

    mean: Floats
    deviation: Floats


def expected(seen: Levels, values: Floats, noises: Floats, asked: Levels) -> Expected:
    """What the values at `asked` are likely to be, given `values` at `seen`. `values` are to be centred by the caller:
    far from every point the mean goes to 0. `noises`: standard deviations that are known, in units of the values."""
    fits = [_Fit.of(seen, values, noises, smoothness, alone) for smoothness in _SMOOTHNESS for alone in _SHARES_ALONE]
    most = max(fit.likelihood for fit in fits)
    weights = np.exp(np.array([fit.likelihood - most for fit in fits]))
    weights /= weights.sum()
    each = [fit.at(asked) for fit in fits]
    mean = sum((w * e.mean for w, e in zip(weights, each, strict=True)), np.zeros(len(asked)))
    squares = sum(
        (w * (e.deviation**2 + (e.mean - mean) ** 2) for w, e in zip(weights, each, strict=True)), np.zeros(len(asked))
    )
    return Expected(mean, np.sqrt(squares))


@dataclass(frozen=True)
class _Fit:
    seen: Levels
    smoothness: float
    alone: float
    lower: Floats  # Cholesky factor of the seen points' covariance
    weights: Floats
    variance: float
    likelihood: float

    @classmethod
    def of(cls, seen: Levels, values: Floats, noises: Floats, smoothness: float, alone: float) -> "_Fit":
        usual = USUAL_SPREAD**2
        covariance = _covariance(seen, seen, smoothness, alone)
        covariance += np.diag(_NOISE + (noises**2) / usual)
        lower: Floats = np.linalg.cholesky(covariance).astype(np.float64)
        whitened: Any = np.linalg.solve(lower, values)
        count = len(values)
        variance = (float(whitened @ whitened) + _TRUST_OF_USUAL * usual) / (count + _TRUST_OF_USUAL)
        determinant = float(np.log(np.diag(lower)).sum())
        likelihood = -0.5 * (count + _TRUST_OF_USUAL) * math.log(variance) - determinant
        weights = np.linalg.solve(lower.T, whitened)
        return cls(seen, smoothness, alone, lower, weights, variance, likelihood)

    def at(self, asked: Levels) -> Expected:
        between = _covariance(asked, self.seen, self.smoothness, self.alone)
        explained = np.linalg.solve(self.lower, between.T)
        left = np.maximum(_OF_THE_MEAN + 1.0 - (explained**2).sum(0), 1e-9)
        return Expected(between @ self.weights, np.sqrt(self.variance * left))


def _covariance(one: Levels, other: Levels, smoothness: float, alone: float) -> Floats:
    """In units of the variance within a sketch."""
    parameters = one.shape[1]
    together = np.ones((len(one), len(other)))
    apart = np.zeros((len(one), len(other)))
    for p in range(parameters):
        near = nearness(one[:, p], other[:, p], smoothness)
        apart += near
        together *= near**0.5  # each is half as strict as alone, or eight parameters would know nothing of each other
    found: Floats = _OF_THE_MEAN + alone * apart / max(parameters, 1) + (1 - alone) * together
    return found


def nearness(one: Levels, other: Levels, smoothness: float) -> Floats:
    """From 1 at the same level towards 0."""
    steps = one[:, None] - other[None, :]
    found: Floats = np.exp(-(steps**2) / (2 * smoothness**2))
    return found


def likely_fine(fine: Levels, failed: Levels, asked: Levels) -> Floats:
    """How likely it is that points do not fail, by what became of points nearby."""

    def weight(points: Levels) -> Floats:
        near = np.ones((len(asked), len(points)))
        for p in range(asked.shape[1]):
            near *= nearness(asked[:, p], points[:, p], 1.0)
        total: Floats = near.sum(1)
        return total

    good = 1.0 + weight(fine)
    probability: Floats = good / (good + 2.0 * weight(failed))
    return probability


def improvement(found: Expected, best: float) -> Floats:
    """By how much each point is expected to be below `best`; what is above counts as none."""
    gain = best - found.mean
    z = gain / found.deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    erf = np.vectorize(math.erf, otypes=[float])
    below = 0.5 * (1 + erf(z / math.sqrt(2)))
    total: Floats = gain * below + found.deviation * density
    return np.maximum(total, 0.0)


def as_levels(rows: Sequence[Sequence[int]], parameters: int) -> Levels:
    """Rows of levels as an array, also of none."""
    return np.asarray(rows, dtype=np.intp).reshape(len(rows), parameters)
