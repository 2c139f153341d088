"""One self-contained file: markup, style and drawings, no script, nothing from elsewhere.

The Content-Security-Policy names the one style by its hash, so that even markup that slipped through could neither run,
nor load, nor restyle anything.
"""

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup

from kerneltune.agent.report import chart
from kerneltune.agent.report.chart import (
    css_class,
    curve,
    roof,
    series,
    spread,
    verdict_name,
    verdict_symbol,
)
from kerneltune.agent.report.data import RunData, ancestors, claim, dig, finite, hardest, interval, timing_of
from kerneltune.agent.report.tables import (
    baseline_lines,
    cost_lines,
    counts,
    facts,
    hypothesis_lines,
    parent_name,
    steps,
)
from kerneltune.agent.report.text import Sanitizer, diff, source, transcripts
from kerneltune.agent.view import text as words

if TYPE_CHECKING:
    from jinja2 import Environment


def run_page(material: RunData, shown: Sanitizer, *, version: str) -> str:
    """The report of one run."""
    return render("run.html.j2", shown, version, _run_values(material, shown))


def render(template: str, shown: Sanitizer, version: str, values: dict[str, object]) -> str:
    """A page with its style. Raises jinja2.UndefinedError for a value that is missing."""
    style = (resources.files("kerneltune.agent.report") / "templates" / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    made_by = f"kerneltune {version}" if version[:1].isdigit() else "kerneltune, from a checkout"
    fixed = {"style": Markup(style), "style_sha256": digest, "made_by": made_by}
    return environment(shown).get_template(template).render(fixed | values)


def environment(shown: Sanitizer) -> "Environment":
    """The engine: every value is made fit to be shown, then escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("kerneltune.agent.report", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=shown.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"one_line": shown.line, "ends": shown.ends}
    made.globals |= {
        "css_class": css_class, "symbol": verdict_symbol, "name_of": verdict_name, "plural": words.plural,
        "words": words, "parent_name": parent_name, "hardest": hardest, "timing_of": timing_of, "interval": interval,
        "finite": finite,
    }  # fmt: skip
    return made


def moment(at: float) -> str:
    """A time for people; a damaged record may hold any number."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def both(shown: Sanitizer, draw: Callable[[float], Markup]) -> tuple[Markup, Markup]:
    """A drawing at both widths."""
    return shown.drawing(draw(chart.WIDE)), shown.drawing(draw(chart.NARROW))


def _run_values(material: RunData, shown: Sanitizer) -> dict[str, object]:
    run = material.trajectory
    blocks = series(material)
    above = roof(material)
    return {
        "title": f"{run.run.task}: {run.run.run_id}",
        "material": material,
        "run": run.run,
        "claim": claim(material),
        "began": moment(run.run.at),
        "took": words.duration(material.elapsed_s) if material.elapsed_s is not None else "",
        "counts": counts(run),
        "tiles": _tiles(material),
        "baselines": baseline_lines(material),
        "curve": both(shown, partial(curve, material)) if run.attempts else None,
        "roof": above,
        "roof_drawn": both(shown, above.draw) if above else None,
        "spread": both(shown, partial(spread, blocks)) if blocks else None,
        "series": blocks,
        "best": _best(material, shown),
        "attempts": run.attempts,
        "costs": cost_lines(run),
        "judge_s": material.judge_s,
        "hypotheses": hypothesis_lines(run, shown),
        "transcripts": transcripts(run, shown),
        "facts": facts(material),
        "receipt_date": dig(material.receipt, "date"),
        "steps": steps(material),
        "task_source": source(run.run.task_source, shown, most=30_000),
    }


def _tiles(material: RunData) -> list[tuple[str, str, str]]:
    """(what, figure, beside it)."""
    run = material.trajectory
    tiles = []
    if material.best is not None and (timing := timing_of(material.best)):
        tiles.append(
            ("time", words.microseconds(timing.median_us), f"95 %: {timing.low_us:.2f} to {timing.high_us:.2f}")
        )
    accepted = sum(a.accepted for a in run.attempts)
    tiles.append(("attempts", f"{len(run.attempts)}", f"{accepted} right"))
    busy = words.duration(material.judge_s)
    tiles.append(("GPU" if run.run.gpu else "judge", busy, "busy checking" + (" and timing" if run.run.gpu else "")))
    costs = cost_lines(run)
    beside = run.run.author if costs else "no model was asked"
    tiles.append(("cost of the model", costs[-1].cost if costs else "none", beside))
    return tiles


def _best(material: RunData, shown: Sanitizer) -> dict[str, object] | None:
    best, run = material.best, material.trajectory
    if best is None:
        return None
    line = ancestors(run, best)
    first = line[-1] if line else None
    before = first.source if first else run.run.task_source
    return {
        "attempt": best,
        "source": source(best.source, shown),
        "against": f"attempt {first.number}, the first of its line" if first else "the PyTorch reference",
        "diff": diff(before, best.source, shown),
    }
