"""fast_p over p, a line for each baseline."""

from collections.abc import Sequence

from markupsafe import Markup

from agent.export.formulas import FASTEST
from agent.report import axes
from agent.report.material import baseline_name
from agent.report.suite import FastP

_STYLES = ("c0", "c1", "c2", "c3", "c4")


def name(baseline: str) -> str:
    """A baseline in words; the fastest is another one for each task."""
    return "the fastest baseline" if baseline == FASTEST else baseline_name(baseline)


def fast_p_chart(curves: Sequence[FastP], width: float) -> Markup:
    """Shares of all tasks; where some were not timed, a band for what they might be."""
    top = max(curve.ps[-1] for curve in curves)
    across, up = axes.Scale(0, top, 52, width - 14), axes.Scale(0, 1, 300, 56)
    key = [("line", f"curve {_style(i)}", name(c.baseline)) for i, c in enumerate(curves)]
    body, _ = axes.legend(key, 12, 16, width)
    body += axes.grid_y(up, 52, width - 14, ".0%", most=5)
    body += axes.grid_x(across, 56, 300, "g", most=8 if width > 500 else 4, unit="x")
    body.append(axes.line(across(1), 56, across(1), 300, "one"))
    for i, curve in enumerate(curves):
        body += _band(curve, across, up, i)
        body.append(
            axes.path([(across(p), up(s)) for p, s in zip(curve.ps, curve.low, strict=True)], f"curve {_style(i)}")
        )
    body.append(axes.text(width - 14, 336, "p: faster than p times the baseline", style="dim", anchor="end"))
    told = "; ".join(f"against {name(c.baseline)} {c.at(1.0)[0]:.0%} of the tasks are faster" for c in curves)
    return axes.drawing(width, 344, f"fast_p over p; {told}", body)


def _style(i: int) -> str:
    return _STYLES[i % len(_STYLES)]


def _band(curve: FastP, across: axes.Scale, up: axes.Scale, i: int) -> list[str]:
    if curve.low == curve.high:
        return []
    there = "L".join(f"{across(p):.1f} {up(s):.1f}" for p, s in zip(curve.ps, curve.high, strict=True))
    back = "L".join(
        f"{across(p):.1f} {up(s):.1f}" for p, s in zip(reversed(curve.ps), reversed(curve.low), strict=True)
    )
    return [f'<path class="band {_style(i)}" d="M{there}L{back}z"/>']
