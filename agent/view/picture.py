"""Frames of the screen as SVG, through rich's own export: one picture, or a film that a browser plays.

The files load nothing: no fonts of the net, no scripts. The same frames give the same bytes. A film holds each line of
the screen that ever looked so once, and shows it wherever it is needed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from io import StringIO
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.terminal_theme import TerminalTheme

from agent.view.picture_shapes import SHAPE, Cell, path

_FONTS = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'
_ASPECT = 0.602  # width to height of a cell in most of these fonts
_CHAR_HEIGHT = 20
_BASELINE = 18.2
_EXPORTED_LINE = 24.4  # rich's; its vertical lines have gaps in most fonts
_LINE = 23.2
_CELL = Cell(_CHAR_HEIGHT * _ASPECT, _LINE)
_MARGIN, _TITLE_BAR = 14.0, 42.0
_THEME = TerminalTheme(
    (13, 17, 23), (215, 221, 228),
    [(72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255), (86, 212, 221),
     (215, 221, 228)],
    [(125, 133, 144), (255, 161, 152), (126, 231, 135), (242, 204, 96), (165, 214, 255), (226, 197, 255),
     (134, 230, 236), (255, 255, 255)],
)  # fmt: skip
_PARTS = "{styles}\0{backgrounds}\0{matrix}"
_TEXT = re.compile(r'<text class="([^"]*)" x="([^"]*)" y="([^"]*)"[^>]*>([^<]*)</text>')
_RECT = re.compile(r'<rect fill="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)"[^>]*/>')
_ILLEGAL = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, even as an entity
_ID = "kt"


class FilmFrame(NamedTuple):
    """What is shown, and for how long."""

    page: RenderableType
    seconds: float


@dataclass(frozen=True)
class _Drawn:
    """Lines of a screen as SVG, each with its top at y = 0, and the styles that they share."""

    styles: str
    rows: list[str]


def picture(page: RenderableType, width: int, height: int, title: str) -> str:
    """One frame of `width` x `height` cells."""
    drawn = _draw([page], width, height)
    body = "".join(f'<g transform="translate(0,{_at(y)})">{row}</g>\n' for y, row in enumerate(drawn.rows) if row)
    return _document(width, height, title, drawn.styles, "", body)


def film(frames: Sequence[FilmFrame], width: int, height: int, title: str) -> str:
    """Frames one after the other, for ever; who asks for less motion gets the last one. Raises ValueError for none."""
    if not frames:
        raise ValueError("a film needs a frame")
    drawn = _draw([frame.page for frame in frames], width, height)
    names = {row: f"{_ID}-l{i}" for i, row in enumerate(dict.fromkeys(row for row in drawn.rows if row))}
    defs = "".join(f'<g id="{name}">{row}</g>\n' for row, name in names.items())
    strip = "".join(_use(names, row, y) for y, row in enumerate(drawn.rows))
    clip = f'<svg width="{_number(width * _CELL.width)}" height="{_at(height)}">'
    styles = f"{drawn.styles}\n{_motion([frame.seconds for frame in frames], height)}"
    return _document(width, height, title, styles, defs, f'{clip}<g class="{_ID}-film">\n{strip}</g></svg>')


def _use(names: dict[str, str], row: str, y: int) -> str:
    return f'<use href="#{names[row]}" y="{_at(y)}"/>\n' if row else ""


def _motion(seconds: Sequence[float], height: int) -> str:
    """A strip of frames, moved up by one at its time."""
    total, begin, keys = sum(seconds), 0.0, []
    for i, lasts in enumerate(seconds):
        keys.append(f"{_number(100 * begin / total, 3)}%{{transform:translateY(-{_at(i * height)}px)}}")
        begin += lasts
    last = f"translateY(-{_at((len(seconds) - 1) * height)}px)"
    return (
        f"@keyframes {_ID}-roll{{{''.join(keys)}100%{{transform:{last}}}}}\n"
        f".{_ID}-film{{animation:{_ID}-roll {_number(total)}s step-end infinite}}\n"
        f"@media (prefers-reduced-motion: reduce){{.{_ID}-film{{animation:none;transform:{last}}}}}"
    )


def _draw(pages: Sequence[RenderableType], width: int, height: int) -> _Drawn:
    """All pages below one another through one export, so that they share their styles."""
    console = Console(
        file=StringIO(), record=True, width=width, height=height, force_terminal=True, color_system="truecolor",
        no_color=False, legacy_windows=False,
    )  # fmt: skip
    options = console.options.update_dimensions(width, height)
    for page in pages:
        lines = Segment.set_shape(console.render_lines(page, options), width, height)
        console.print(Segments([segment for line in lines for segment in (*line, Segment.line())]), end="")
    text = console.export_svg(theme=_THEME, code_format=_PARTS, font_aspect_ratio=_ASPECT, unique_id=_ID)
    styles, backgrounds, matrix = text.split("\0")
    rows = [""] * (len(pages) * height)
    for fill, x, y, cells_width in _RECT.findall(backgrounds):
        row = round((float(y) - 1.5) / _EXPORTED_LINE)
        rows[row] += f'<rect fill="{fill}" x="{x}" y="0" width="{cells_width}" height="{_LINE + 0.25}"/>'
    for name, x, y, words in _TEXT.findall(matrix):
        if words == "\n":  # the export says where lines end
            continue
        row = round((float(y) - _CHAR_HEIGHT) / _EXPORTED_LINE)
        rows[row] += _run(name, float(x), unescape(words).replace("\xa0", " "))
    return _Drawn(styles, rows)


def _run(name: str, x: float, words: str) -> str:
    """A run of characters in one style: its shapes as a path, the rest as text."""
    shapes, texts, done = "", "", 0
    for found in SHAPE.finditer(words):
        texts += _text(name, x, words, done, found.start())
        shapes += path(found[0], x + cell_len(words[: found.start()]) * _CELL.width, _CELL)
        done = found.end()
    texts += _text(name, x, words, done, len(words))
    return (f'<path class="{name}" d="{shapes}"/>' if shapes else "") + texts


def _text(name: str, x: float, words: str, begin: int, end: int) -> str:
    """Some of the words, stretched to their cells whatever font there is. Blanks at the ends are cut off: browsers
    would drop them and stretch the rest."""
    part = words[begin:end]
    shown = part.strip(" ")
    if not shown:
        return ""
    x += cell_len(words[: begin + len(part) - len(part.lstrip(" "))]) * _CELL.width
    inner = _escaped(shown).replace("  ", "\xa0\xa0").replace("\xa0 ", "\xa0\xa0")
    length = _number(cell_len(shown) * _CELL.width)
    return f'<text class="{name}" x="{_number(x)}" y="{_BASELINE}" textLength="{length}">{inner}</text>'


def _document(width: int, height: int, title: str, styles: str, defs: str, body: str) -> str:
    cells = width * _CELL.width
    page_width, page_height = _number(cells + 2 * _MARGIN), _number(height * _LINE + _TITLE_BAR + _MARGIN)
    back, front = _THEME.background_color.hex, _THEME.foreground_color.hex
    name = _escaped(title)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {page_width} {page_height}" role="img">
<title>{name}</title>
<style>
.{_ID}-text{{font-family:{_FONTS};font-size:{_CHAR_HEIGHT}px}}
{styles}
</style>
<defs>
{defs}</defs>
<rect width="{page_width}" height="{page_height}" rx="10" fill="{back}"/>
<g fill="{front}" opacity="0.25"><circle cx="24" cy="22" r="6"/><circle cx="44" cy="22" r="6"/>\
<circle cx="64" cy="22" r="6"/></g>
<text class="{_ID}-text" x="50%" y="28" text-anchor="middle" fill="{front}" opacity="0.7">{name}</text>
<g class="{_ID}-text" transform="translate({_number(_MARGIN)},{_number(_TITLE_BAR)})">
{body}</g>
</svg>
"""


def _escaped(text: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", text), quote=False)


def _at(row: int) -> str:
    return _number(row * _LINE)


def _number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
