"""The lineage of attempts as a tree, a row for each."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from agent.report import axes, looks
from agent.report.family import Node
from agent.report.material import hardest, timing_of
from agent.report.shown import Shown
from agent.view import text as words

_ROW = 22.0


def lineage(nodes: Sequence[Node], shown: Shown, width: float) -> Markup:
    """Each attempt below what it was derived from; the way to the best is drawn thick."""
    deepest = max((node.depth for node in nodes), default=0)
    step = min(22.0, width * (0.4 if width > 500 else 0.22) / max(deepest, 1))
    best = next((node for node in reversed(nodes) if node.on_best_line), None)
    body: list[str] = []
    for node in sorted(nodes, key=lambda n: n.on_best_line):
        if node.up is not None:
            body.append(_edge(node, nodes[node.up], step))
    for node in nodes:
        body += _drawn(node, shown, step, width, best=node is best)
    about = f"Tree of {words.plural(len(nodes), 'attempt')}" + (f"; the best is {best.attempt.number}" if best else "")
    return axes.drawing(width, _ROW * len(nodes) + 10, about, body)


def _place(node: Node, step: float) -> tuple[float, float]:
    return 12 + node.depth * step, 16 + node.row * _ROW


def _edge(node: Node, parent: Node, step: float) -> str:
    (x1, y1), (x2, y2) = _place(parent, step), _place(node, step)
    bend = min(7.0, step / 2)
    drawn = f"M{x1:.1f} {y1:.1f}V{y2 - bend:.1f}Q{x1:.1f} {y2:.1f} {x1 + bend:.1f} {y2:.1f}H{x2:.1f}"
    return f'<path class="{"line-of-best" if node.on_best_line else "edge"}" d="{drawn}"/>'


def _drawn(node: Node, shown: Shown, step: float, width: float, *, best: bool) -> Iterator[str]:
    attempt = node.attempt
    x, y = _place(node, step)
    kind, style = looks.MARKS.get(attempt.status, "bar") if attempt.status else "bar", looks.css_class(attempt.status)
    yield axes.marks(kind, [(x, y)], f"{style} node", 5.0 if node.on_best_line else 4.2)
    label = axes.fitted(shown.line(_label(node), 140), width - x - 14, bold=best)
    yield axes.text(x + 12, y + 4, label, style="strong" if best else "", most=300)


def _label(node: Node) -> str:
    attempt = node.attempt
    against = hardest(attempt)
    result = [f"#{attempt.number}"]
    timing = timing_of(attempt)
    if timing is not None:
        result.append(words.microseconds(timing.median_us))
    if against is not None:
        result.append(f"{against.speedup:.2f}x")
    if timing is None:
        result.append(looks.name(attempt.status))
    if attempt.parent_id and node.up is None:
        result.append(f"(from {attempt.parent_id})")
    hidden = f" [+{node.hidden.total()} not drawn: {_counted(node)}]" if node.hidden else ""
    return f"{' '.join(result)}{hidden}  {attempt.rationale}"


def _counted(node: Node) -> str:
    return ", ".join(f"{n} {status}" for status, n in node.hidden.most_common(3))
