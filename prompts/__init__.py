"""The prompts, as Jinja2 templates beside this file. Knows neither agent nor tools: it gets plain values."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("prompts", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, **values: Any) -> str:
    """A template with its values. Raises jinja2.UndefinedError when one is missing."""
    return _environment().get_template(template).render(**values)
