"""Renders the prompts: Jinja2 templates, which get plain values and decide nothing.

agent/authors/llm/prompts.py makes the values. What a template names and nobody gave is an error.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_SHORTEST_FENCE = 3


def render(template: str, **values: object) -> str:
    """Render a template ("history.j2"), without white space around it. Raises jinja2.UndefinedError for a value
    that is missing and jinja2.TemplateNotFound for a template that does not exist."""
    return _environment().get_template(template).render(values).strip()


def render_text(text: str, **values: object) -> str:
    """Render a template that is kept elsewhere, as `render` does."""
    return _environment().from_string(text).render(values).strip()


@cache
def _environment() -> "Environment":
    return templates("kerneltune.prompts", ".", cell=cell, clip=clip, code=code)


def templates(package: str, folder: str, **filters: Callable[..., object]) -> "Environment":
    """Load the templates of a package, strict about missing values. Nothing is escaped: they are for models and for Markdown,
    not for browsers."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not before somebody needs words

    made = Environment(
        loader=PackageLoader(package, folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - a prompt is no HTML
    )
    made.filters |= filters
    return made


def clip(text: str, most: int) -> str:
    """Put the text on one line, and cut it to at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def cell(text: str) -> str:
    """Escape the text as a cell of a Markdown table."""
    return text.replace("|", "\\|")


def code(source: str, language: str = "python") -> str:
    """Fence a block of code, word for word; the fence is longer than any that the source holds."""
    fences = re.findall(r"`{3,}", source) if "```" in source else []
    longest = max(map(len, fences), default=_SHORTEST_FENCE - 1)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{source.strip(chr(10))}\n{fence}"
