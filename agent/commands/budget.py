"""How much a run may do where nobody said: by who writes the kernels, and on what."""

import os
from dataclasses import replace

from kerneltune.agent.attempt import Limits
from kerneltune.agent.settings import Settings
from kerneltune.tools.schema.errors import UsageError

USUAL_ATTEMPTS = 24
SEARCH_ATTEMPTS = 300  # a limit for tiny tasks only: 110 s of screenings at 0.35 s are 310
SEARCH_TIME_S = 110.0  # of 180 s: 16 to 19 s until all is ready on an H200, and what a search judges at its end
LEAST_SEARCH_S = 30.0  # whatever getting ready took
_WHOLE_S, _END_S = 180.0, 55.0  # 45 s of the end, a confirmation under way, start and exit: with 50, 179.0 s in all
USUAL_WIDTH = 2
MOST_ON_A_GPU = 5  # tracing and compiling take 1.1 s and screening 0.35 s; each more knows one verdict less
CORES_EACH = 2  # a tracer and a compiler, each a process


def budgeted(settings: Settings, *, gpu: bool, search: bool, ready_s: float = 0.0) -> Settings:
    """The settings with limits for a new run. A search on a GPU ends within three minutes, final judgements included,
    of which `ready_s` have passed; with a limit of one's own on time, attempts are as many as it has room for."""
    if settings.max_attempts is not None:
        return settings
    if not (gpu and search):
        return replace(settings, max_attempts=USUAL_ATTEMPTS)
    if settings.max_time_s is None:
        time_s = max(LEAST_SEARCH_S, min(SEARCH_TIME_S, round(_WHOLE_S - _END_S - ready_s, 1)))
        return replace(settings, max_attempts=SEARCH_ATTEMPTS, max_time_s=time_s)
    room = int(settings.max_time_s / SEARCH_TIME_S * SEARCH_ATTEMPTS)
    return replace(settings, max_attempts=max(SEARCH_ATTEMPTS, room))


def limits_of(settings: Settings) -> Limits:
    """When a run with these settings ends. Raises UsageError for what no run can keep to."""
    attempts = USUAL_ATTEMPTS if settings.max_attempts is None else settings.max_attempts
    if attempts < 1:
        raise UsageError(f"--max-attempts {attempts}: a run needs at least 1 attempt")
    if settings.max_time_s is not None and not settings.max_time_s > 0:
        raise UsageError(f"--max-time {settings.max_time_s:g}: give a number of seconds above 0")
    if settings.patience is not None and settings.patience < 1:
        raise UsageError(f"--patience {settings.patience}: give at least 1 attempt")
    for flag, value in (
        ("--max-cost", settings.max_cost_usd),
        ("--target-speedup", settings.target_speedup),
        ("--target-sol", settings.target_sol),
    ):
        if value is not None and not value > 0:
            raise UsageError(f"{flag} {value:g}: give a number above 0")
    return Limits(
        attempts,
        settings.max_time_s,
        settings.patience,
        settings.max_cost_usd,
        settings.target_speedup,
        settings.target_sol,
    )


def width_of(settings: Settings, *, gpu: bool, cores: int | None = None) -> int:
    """Candidates under way at a time. Without a GPU the cores check, too. Raises UsageError."""
    if settings.width is None:
        if not gpu:
            return USUAL_WIDTH
        cores = cores or len(os.sched_getaffinity(0))
        return max(USUAL_WIDTH, min(MOST_ON_A_GPU, cores // CORES_EACH))
    if not 1 <= settings.width <= 64:
        raise UsageError(f"--width {settings.width}: give 1 to 64 candidates")
    return settings.width
