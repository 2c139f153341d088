"""Where attempts stand below the speed of light: a roofline where the work is known, else times over the floor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from agent.record.trajectory import AttemptRecord
from agent.report import axes, looks
from agent.report.material import Material, baseline_name, finite, ranked
from agent.view import text as words
from tools.roofline import rate_tflops

LIGHT = "speed of light"
_MOST_TOLD = 120
_LOG_FROM = 1.8  # from this ratio of the largest time to the smallest on


@dataclass(frozen=True)
class Roof:
    """What the chart is, how to read it, and its drawing at a width."""

    title: str
    note: str
    draw: Callable[[float], Markup]


@dataclass(frozen=True)
class _Ceiling:
    """Bytes and flops a second at most, and the task's work."""

    gbps: float
    tflops: float
    precision: str
    intensity: float
    flops: float
    gpu: str


def roof(material: Material) -> Roof | None:
    """None when nothing was timed."""
    if not material.timed:
        return None
    if (ceiling := _ceiling(material)) is not None:
        note = (
            f"Both roofs are the data sheet's for {ceiling.gpu}. The intensity is the task's, {ceiling.intensity:.4g}"
            " FLOP for each byte (inputs, parameters and outputs once), and therefore the same for every attempt: it"
            " says what must be done, not what was measured on the way to memory."
        )
        return Roof("Roofline", note, partial(_roofline, material, ceiling))
    return Roof("Time over the floor", _why(material), partial(_floor, material))


def _why(material: Material) -> str:
    reason = _missing(material)
    floor = "" if material.light_us else " The speed of light was not noted either."
    return f"{reason} Shown instead: each time, above the least time that the GPU's bandwidth allows.{floor}"


def _missing(material: Material) -> str:
    """What a roofline lacks."""
    work = material.work
    if work.flops == 0.0:
        return (
            "This task multiplies nothing that would count as a contraction, so memory alone is its roof: a roofline"
            " would have one slope and no ridge."
        )
    if work.flops is None or work.flops < 0:
        return "How many FLOP the task takes was not noted with this run, so no roofline can be drawn."
    if work.bytes_moved is None or work.bytes_moved <= 0:
        return "How many bytes the task moves was not noted with this run, so no roofline can be drawn."
    gpu = words.one_line(material.trajectory.run.gpu or "this GPU")[:60]
    at = f" at {words.one_line(work.precision)[:20]}" if material.gpu and work.precision else ""
    return f"The rates of {gpu}{at} are not known here, so no roofline can be drawn."


def _ceiling(material: Material) -> _Ceiling | None:
    work, gpu = material.work, material.gpu
    if not (work.bytes_moved and work.flops and gpu and work.precision):
        return None
    if work.bytes_moved < 0 or work.flops < 0:
        return None
    try:
        tflops = rate_tflops(gpu, work.precision)
    except KeyError:
        return None
    intensity = work.flops / work.bytes_moved
    return _Ceiling(gpu.bandwidth_gbps, tflops, work.precision, intensity, work.flops, gpu.name)


def _roofline(material: Material, ceiling: _Ceiling, width: float) -> Markup:
    ridge = ceiling.tflops * 1e3 / ceiling.gbps
    reached = [ceiling.flops / (a.timing.median_us * 1e6) for a in material.timed if a.timing]
    across = axes.Scale(min(ridge, ceiling.intensity) / 8, max(ridge, ceiling.intensity) * 4, 62, width - 14, log=True)
    roof_at = [min(ceiling.tflops, i * ceiling.gbps / 1e3) for i in (across.low, ceiling.intensity)]
    low = min(*reached, roof_at[1]) / 3
    up = axes.Scale(low, max(ceiling.tflops, *reached) * 1.6, 300, 20, log=True)
    body = [*axes.grid_y(up, 62, width - 14, "g"), *axes.grid_x(across, 20, 300, "g", most=8 if width > 500 else 5)]
    start = max(across.low, low * 1e3 / ceiling.gbps)
    corners = [(across(start), up(start * ceiling.gbps / 1e3)), (across(ridge), up(ceiling.tflops))]
    body.append(axes.path([*corners, (width - 14, up(ceiling.tflops))], "roof"))
    body += [
        axes.text(width - 16, up(ceiling.tflops) - 7, f"{ceiling.tflops:g} TFLOP/s {ceiling.precision}", anchor="end"),
        axes.text(across(start * 2) + 8, up(start * 2 * ceiling.gbps / 1e3) + 16, f"{ceiling.gbps:g} GB/s"),
        axes.text(62, 14, "TFLOP/s", style="dim"),
        axes.text(width - 14, 336, "FLOP per byte", style="dim", anchor="end"),
        axes.line(across(ceiling.intensity), 300, across(ceiling.intensity), up(roof_at[1]), "one"),
    ]
    body += _placed(material, [(across(ceiling.intensity), up(value)) for value in reached])
    top = max(reached)
    count = words.plural(len(reached), "attempt")
    about = f"Roofline: {count}, the fastest at {top:.3g} TFLOP/s of {roof_at[1]:.3g} possible"
    return axes.drawing(width, 344, about, body)


def _floor(material: Material, width: float) -> Markup:
    timed = material.timed
    times = [a.timing.median_us for a in timed if a.timing]
    levels = sorted(_levels(material))
    right = width - (206 if width > 500 else 104)
    across = axes.Scale(0.5, max(a.number for a in timed) + 0.5, 52, right)
    values = [*times, *(us for us, _, _ in levels)]
    log = max(values) / min(values) > _LOG_FROM
    up = axes.Scale(*axes.around(values, log=log, room=0.1), 290, 22, log)
    body = [axes.text(44, 14, "µs", style="dim", anchor="end"), *axes.grid_y(up, 52, right, "g")]
    places = axes.apart([up(us) for us, _, _ in levels], 30 if width <= 500 else 15)
    for (us, style, key), y in zip(levels, places, strict=True):
        body.append(axes.line(52, up(us), right, up(us), style))
        body.append(axes.line(right, up(us), right + 8, y, "whisker"))
        body += _named(key, us, right + 12, y, wide=width > 500)
    body += _placed(material, [(across(a.number), up(us)) for a, us in zip(timed, times, strict=True)])
    ticks = [t for t in axes.Scale(1, max(across.high, 2), 0, 1).ticks(6) if t == int(t) and t < across.high]
    body += [axes.text(across(t), 308, f"{t:g}", style="dim", anchor="middle") for t in ticks]
    body.append(axes.text(right, 326, "attempt", style="dim", anchor="end"))
    return axes.drawing(width, 334, f"Times of {words.plural(len(times), 'attempt')} over the speed of light", body)


def _named(key: str, us: float, x: float, y: float, *, wide: bool) -> list[str]:
    """The name of a level and its time, on one line or on two."""
    name = (LIGHT if key == LIGHT else baseline_name(key)).removeprefix("torch.")
    if wide:
        return [axes.text(x, y + 4, f"{name} {words.microseconds(us)}", most=32)]
    short = name.removeprefix("compile ")  # "max-autotune" fits a narrow margin
    return [axes.text(x, y - 1, axes.fitted(short, 92)), axes.text(x, y + 12, words.microseconds(us), style="dim")]


def _levels(material: Material) -> Iterator[tuple[float, str, str]]:
    if material.light_us is not None:
        yield material.light_us, "roof", LIGHT
    leader = material.best or material.timed[-1]
    for compared in ranked(leader)[:4]:
        yield compared.baseline_us, "level", compared.baseline


def _placed(material: Material, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    timed = material.timed
    size = 4.5 if len(timed) <= _MOST_TOLD else 2.6
    for look in dict.fromkeys(map(looks.timed_mark, timed)):
        its = [(a, at) for a, at in zip(timed, places, strict=True) if looks.timed_mark(a) == look]
        if len(timed) > _MOST_TOLD:
            yield axes.marks(look[0], [at for _, at in its], look[1], size)
        else:
            for attempt, at in its:
                yield axes.told(axes.marks(look[0], [at], look[1], size), _said(attempt))


def _said(attempt: AttemptRecord) -> str:
    fraction = finite(attempt.sol_fraction)
    share = f", {fraction:.0%} of the speed of light" if fraction is not None else ""
    return f"attempt {attempt.number}: {words.microseconds(attempt.timing.median_us) if attempt.timing else '?'}{share}"
