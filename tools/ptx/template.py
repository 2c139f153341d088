"""PTX with open parameters: Jinja2 with marks that PTX has no use for.

`${NAME}` or `${expression}` is replaced; a line that begins with `//:` is a statement (`//: for i in range(UNROLL)` …
`//: endfor`, `//: if VEC == 4` … `//: endif`, `//: set N = 4`), and a comment to everything else that reads PTX.
"""

import traceback
from collections.abc import Mapping
from functools import lru_cache

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from tools.ptx.ir import PtxError
from tools.ptx.lexer import line_of

_MOST_WORDS = 400


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        line_statement_prefix="//:",
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )


@lru_cache(maxsize=64)
def _template(text: str) -> Template:
    return _environment().from_string(text)


def render(text: str, parameters: Mapping[str, object]) -> str:
    """The text with its parameters filled in. Raises PtxError, with the template's line where it is known."""
    try:
        return _template(text).render(parameters)
    except Exception as error:  # an expression of the template can raise anything
        said = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        line = getattr(error, "lineno", None) or _line_of(error)
        raise PtxError(line, f"the template cannot be filled in: {said[:_MOST_WORDS]}", line_of(text, line)) from error


def _line_of(error: Exception) -> int:
    """The template's line that raised; Jinja2 gives its frames the lines of the template."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == "<template>" and f.lineno), 1)
