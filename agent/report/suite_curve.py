"""fast_p over p, a line for each baseline."""

import itertools
from collections.abc import Sequence

from markupsafe import Markup

from agent.export.rewards import FASTEST
from agent.report import axes
from agent.report.material import baseline_name
from agent.report.suite import FastP

_STYLES = ("c0", "c1", "c2", "c3", "c4")


def name(baseline: str) -> str:
    """A baseline in words; the fastest is another one for each task."""
    return "the fastest baseline" if baseline == FASTEST else baseline_name(baseline)


def fast_p_chart(curves: Sequence[FastP], width: float) -> Markup:
    """Shares of all tasks; where some were not timed, a band for what they might be."""
    key = [("line", f"curve {_style(i)}", name(c.baseline)) for i, c in enumerate(curves)]
    body, y = axes.legend(key, 12, 16, width)
    top = y + 26
    across, up = axes.Scale(0, curves[0].ps[-1], 52, width - 14), axes.Scale(0, 1, top + 240, top)
    body += axes.grid_y(up, 52, width - 14, ".0%", most=5)
    body += axes.grid_x(across, top, top + 240, "g", most=8 if width > 500 else 4, unit="x")
    body.append(axes.line(across(1), top, across(1), top + 240, "one"))
    for i, curve in enumerate(curves):
        body += _band(curve, across, up, i)
        points = [(across(p), up(s)) for p, s in zip(curve.ps, curve.low, strict=True)]
        body.append(axes.path(points, f"curve {_style(i)}", steps=True))
    body.append(axes.text(width - 14, top + 276, "p: faster than p times the baseline", style="dim", anchor="end"))
    about = f"fast_p over p against {', '.join(name(c.baseline) for c in curves)}; the table has figures"
    return axes.drawing(width, top + 284, about, body)


def _style(i: int) -> str:
    return _STYLES[i % len(_STYLES)]


def _band(curve: FastP, across: axes.Scale, up: axes.Scale, i: int) -> list[str]:
    if curve.low == curve.high:
        return []
    there = [(across(p), up(s)) for p, s in zip(curve.ps, curve.high, strict=True)]
    back = [(across(p), up(s)) for p, s in zip(curve.ps, curve.low, strict=True)][::-1]
    first, *others = there
    out = f"M{first[0]:.1f} {first[1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in others)
    home = "".join(f"V{y:.1f}H{x:.1f}" for (_, y), (x, _) in itertools.pairwise(back))
    return [f'<path class="band {_style(i)}" d="{out}V{back[0][1]:.1f}{home}z"/>']
