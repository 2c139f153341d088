"""The two strips at the bottom: where the attempts are on their way, and what the GPU is doing."""

from collections import Counter
from collections.abc import Iterator

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, ends, line
from agent.view.header import bar
from agent.view.state import GpuReading, ViewState

_ALL_PHASES = 100  # from this width on stages without an attempt are named too
RATE_WINDOW_S = 300.0
_LEAST_S = 10.0  # before that a rate says nothing
_PHASES = (
    ("tracing", ("proposed", "tracing")),
    ("compiling", ("compiling",)),
    ("compiled", ("updated",)),
    ("on GPU", ("timing",)),
)
_BAR_CELLS = 10


def pipeline(state: ViewState, width: int, now: float) -> Line:
    """How many attempts are in each stage, whether the model is waited for, and verdicts a minute."""
    counts = Counter(row.stage for row in state.working)
    parts: list[Part] = [" "]
    phases = [(name, sum(counts[stage] for stage in stages)) for name, stages in _phases(state)]
    for name, n in phases if width >= _ALL_PHASES else [p for p in phases if p[1]]:
        parts += [(" → ", DIM)] if len(parts) > 1 else []
        parts += [(name, "" if n else DIM), (f" {n}", "bold cyan" if n else DIM)]
    if len(parts) == 1 and not state.asked:
        parts.append(("nothing under way", DIM))
    return ends(width, [*parts, *_model(state, now)], [(_rate(state, now), ""), " "])


def _phases(state: ViewState) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, stages in _PHASES:
        yield ("checking", ("checking",)) if name == "on GPU" and state.gpu is None else (name, stages)


def _model(state: ViewState, now: float) -> Iterator[Part]:
    if state.ended is None and state.stage.startswith("confirming"):
        yield ("   " + words.one_line(state.stage), "cyan")
    if state.asked:
        since = words.duration(now - min(at for _, at in state.asked))
        many = f"{len(state.asked)} replies" if len(state.asked) > 1 else "the model"
        yield (f"   waiting for {many} {since}", "cyan")


def judged_per_minute(state: ViewState, now: float) -> float | None:
    """Attempts that got a verdict, a minute, over the last five minutes of this process; None while it is young."""
    if state.process_at is None:
        return None
    end = state.ended.at if state.ended else now
    begin = max(state.process_at, end - RATE_WINDOW_S)
    if end - begin < _LEAST_S:
        return None
    judged = 0
    for row in reversed(state.attempts):
        if row.judged_at >= begin:
            judged += 1
        elif row.judged_at and row.judged_at < begin - RATE_WINDOW_S:
            break
    return judged * 60 / (end - begin)


def _rate(state: ViewState, now: float) -> str:
    rate = judged_per_minute(state, now)
    return "" if rate is None else f"{rate:.1f} judged/min"


def gpu_strip(state: ViewState, width: int) -> Line:
    """The last sample of the GPU; what is not told is left out."""
    reading = state.gpu_reading
    if reading is None:
        return line(width, " ", (state.gpu_sample, DIM))
    parts: list[Part] = [" ", ("GPU", "bold")]
    for more in _readings(reading, width):
        parts += ["  ", *more]
    return line(width, *parts)


def _readings(now: GpuReading, width: int) -> Iterator[list[Part]]:
    """What matters most comes first: the end of the line may be cut."""
    if now.utilisation_percent is not None:
        size = _BAR_CELLS if width >= 100 else 0
        share = [" ", *bar(now.utilisation_percent / 100, size, "green")] if size else []
        yield [f"{now.utilisation_percent:3} %", *share]
    if now.sm_clock_mhz is not None:
        memory = "" if now.memory_clock_mhz is None or width < 100 else f", memory {now.memory_clock_mhz} MHz"
        yield [f"{now.sm_clock_mhz} MHz{memory}"]
    if now.memory_used_bytes is not None:
        total = "" if now.memory_total_bytes is None else f" of {now.memory_total_bytes / 2**30:.0f}"
        yield [f"{now.memory_used_bytes / 2**30:.1f}{total} GiB"]
    if now.temperature_c is not None:
        yield [f"{now.temperature_c} °C"]
    if now.power_w is not None:
        yield [f"{now.power_w:.0f} W"]
    if now.throttle_words:
        capped = now.throttle_words != "not throttled"
        yield [(now.throttle_words, "bold red" if now.slowed else "yellow" if capped else DIM)]
