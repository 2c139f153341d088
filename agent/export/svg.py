"""A small pencil for figures: SVG text that is valid whatever the names say, and readable in light and dark."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from tools.words import plain

WIDTH = 760
_STYLE = """
.page{fill:#fff}.ink{fill:#1f2328}.dim{fill:#59636e}.line{stroke:#d1d9e0}.curve{stroke:#0072b2}.dot{fill:#0072b2}
.seg{stroke:#fff;stroke-width:.5}text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.head{font-size:15px;font-weight:600}.small{font-size:11px}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.dim{fill:#9198a1}.line{stroke:#3d444d}
.curve{stroke:#56b4e9}.dot{fill:#56b4e9}.seg{stroke:#0d1117}}
""".strip()


class Part(NamedTuple):
    """A piece of a stacked bar."""

    name: str
    value: int
    colour: str


class Bar(NamedTuple):
    """A stacked bar, and what stands at its end."""

    name: str
    parts: Sequence[Part]
    note: str


def words(text: str, most: int = 200) -> str:
    """The text on one line in printable characters, as XML has them."""
    return escape(" ".join(plain(text, most).split()), {'"': "&quot;"})


def short(text: str, most: int) -> str:
    """At most so many columns of a text; wide characters take two."""
    line, used, out = " ".join(plain(text).split()), 0, ""
    for character in line:
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > most:
            return out[:-1] + "…"
        out += character
    return out


def label(x: float, y: float, text: str, style: str = "ink", anchor: str = "start", most: int = 120) -> str:
    """Words at a place."""
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words(short(text, most))}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A thin line."""
    return f'<path class="line" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def box(x: float, y: float, width: float, height: float, colour: str, about: str) -> str:
    """A filled box that says what it is when pointed at."""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="seg" {at} fill="{colour}"><title>{words(about)}</title></rect>'


def page(title: str, about: str, body: Iterable[str], height: float) -> str:
    """A whole figure. `about` says in words what it shows, for those who cannot see it."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title about">',
            f'<title id="title">{words(title)}</title>',
            f'<desc id="about">{words(about, 4000)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="6"/>',
            label(20, 30, title, "ink head"),
            *body,
            "</svg>\n",
        ]
    )


def empty(title: str, why: str) -> str:
    """A figure without data says so."""
    return page(title, why, [label(20, 60, why, "dim")], 84)


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> tuple[list[str], float]:
    """Names beside their colours, as (name, colour), in as many rows as they need; and where the last row stands."""
    out, at = [], x
    for name, colour in entries:
        shown = short(name, 24)
        width = 30 + 7.2 * len(shown)
        if at + width > WIDTH - 20 and at > x:
            at, y = x, y + 20
        out += [box(at, y - 10, 12, 12, colour, name), label(at + 17, y, shown, "ink small")]
        at += width
    return out, y


def bars(
    title: str, about: str, rows: Sequence[Bar], entries: Sequence[tuple[str, str]], *, shares: bool = False
) -> str:
    """Stacked bars, one below the other; of the same length when `shares`, else on one scale."""
    left, right, step = 200, WIDTH - 110, 24
    body, y = legend(entries, 20, 56)
    longest = max(sum(part.value for part in row.parts) for row in rows)
    y += 20
    for row in rows:
        most = (sum(part.value for part in row.parts) if shares else longest) or 1
        x = float(left)
        body.append(label(left - 10, y + 13, row.name, "ink", "end", 25))
        for part in row.parts:
            width = part.value / most * (right - left)
            if part.value:
                body.append(box(x, y, max(width, 0.5), 17, part.colour, f"{row.name}: {part.name} {part.value:,}"))
            x += width
        body.append(label(x + 8, y + 13, row.note, "dim", most=16))
        y += step
    return page(title, about, body, y + 10)
