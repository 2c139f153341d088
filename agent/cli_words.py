"""What is wrong with a command line, in one line that names the value and says what to type instead."""

import difflib
from collections.abc import Iterable, Sequence
from typing import get_args

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, UnknownOptionError
from cyclopts.exceptions import UnknownCommandError, UnusedCliTokensError

from kerneltune.tools.schema.errors import UsageError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def words_of(error: CycloptsError) -> str:
    """The line, in our words where the library's do not say what to type instead."""
    if isinstance(error, UnknownOptionError):
        known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
        return _unknown(error.token.keyword or error.token.value, known, error)
    if isinstance(error, UnusedCliTokensError | UnknownCommandError) and error.unused_tokens:
        return _one_too_many(error.unused_tokens[0], error)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _missing(error)
    if isinstance(error, CoercionError) and error.token is not None and error.msg is None:
        return _not_a_value(error)
    text = " ".join(str(error).split())
    return f"{text[:1].lower()}{text[1:]}" if text else f"see {_page(error)}"


def refuse_flags(words: Iterable[str], command: App) -> None:
    """Raise UsageError for a misspelt flag where anything may stand, since - alone means something there."""
    for word in words:
        if word.startswith("-") and word != "-":
            known = [name for argument in command.assemble_argument_collection() for name in argument.names]
            raise UsageError(_unknown(word, known, CycloptsError(command_chain=command.name)))


def _page(error: CycloptsError) -> str:
    """Where it can be read how the command is meant."""
    return " ".join(["optimize", *(error.command_chain or ()), "--help"])


def _chain(error: CycloptsError) -> str:
    return " ".join(error.command_chain or ())


def _unknown(flag: str, known: Iterable[str], error: CycloptsError) -> str:
    name = flag.partition("=")[0]
    of = f"{_chain(error)} has no flag {name}" if error.command_chain else f"no flag {name}"
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"{of}; did you mean {close[0]}?" if close else f"{of}; see {_page(error)}"


def _missing(error: MissingArgumentError) -> str:
    """A flag without its value, or something that must be given; it may be there, misspelt."""
    assert error.argument is not None
    name, where = error.argument.name, f"{_chain(error)}: " if error.command_chain else ""
    flags = [t for t in error.root_input_tokens or () if t.startswith("-") and t not in error.argument.names]
    misspelt = difflib.get_close_matches(name, flags, n=1)
    if misspelt:
        return f"{where}no flag {misspelt[0]}; did you mean {name}?"
    if error.argument.field_info.is_positional:
        return f"{where}give {name.lstrip('-').upper()}; see {_page(error)}"
    lack = "needs a value" if error.argument.tokens or error.keyword else "must be given"
    return f"{where}{error.keyword or name} {lack}; see {_page(error)}"


def _not_a_value(error: CoercionError) -> str:
    assert error.token is not None
    flag = error.token.keyword or (error.argument.name.lstrip("-").upper() if error.argument else "")
    place = f"{flag} {error.token.value!r}".strip()
    choices = [c for c in get_args(error.target_type) if isinstance(c, str)]
    if choices:
        return f"{place} is not one of {', '.join(choices)}{_meant(error.token.value, choices)}"
    kind = _KINDS.get(error.target_type) if error.target_type else None
    return f"{place} is not {kind or 'of the right kind'}; see {_page(error)}"


def _meant(typed: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(typed, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _one_too_many(token: str, error: CycloptsError) -> str:
    """A word that nothing asked for: a command misspelt, or a task or a run without its flag."""
    if error.command_chain:
        return f"{_chain(error)}: {token!r} is one word too many; see {_page(error)}"
    from kerneltune.tools.task.load import builtin_names

    tasks, commands = builtin_names(), sorted(name for name in (error.app or ()) if not name.startswith("-"))
    if token in tasks or token.endswith(".py"):
        return f"{token} is a task, not a command; did you mean: optimize --task {token}"
    if close := difflib.get_close_matches(token, commands, n=1):
        return f"no command {token!r}; did you mean {close[0]}?"
    if close := difflib.get_close_matches(token, tasks, n=1):
        return f"no command {token!r}; did you mean: optimize --task {close[0]}"
    return f"no command {token!r}; commands: {', '.join(commands)}"
