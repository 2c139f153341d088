"""How a command ends: its exit code, and one line on stderr that says what is wrong and what to type instead."""

import contextlib
import difflib
import sys
from collections.abc import Callable
from typing import Any

from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from agent.llm.errors import LlmError
from agent.view.lines import silence
from tools.errors import KerneltuneError, Unfit, UsageError

CODES = {
    0: "done: something was accepted, held, was written, or there was nothing against it",
    1: "done, and the answer is no: nothing accepted, a verdict that did not hold, an attack that got through, a lack",
    2: "not done: the command line, a file or a setting is not as it must be; the line on stderr says how",
    3: "not done: this machine lacks something (a GPU, a package, a sandbox, a key, disk); see `optimize doctor`",
    4: "not done: a fault of kerneltune's own; the line on stderr is worth a report",
    130: "ended by Ctrl-C or SIGTERM; what was finished is stored",
}


def exit_code(command: Callable[[], Any]) -> int:
    """Run `command`, and tell what it came to. What it raises becomes a line on stderr and the code of its kind."""
    try:
        code = int(command() or 0)
        sys.stdout.flush()  # here, where a reader that is gone can still be told from success
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return _said(
            130, "interrupted; what was finished is stored: `optimize runs` lists runs, `optimize --resume RUN` goes on"
        )
    except CycloptsError as error:
        return _said(2, _words(error))
    except (LlmError, Unfit) as error:
        return _said(3, str(error))
    except UsageError as error:
        return _said(2, str(error))
    except KerneltuneError as error:
        return _said(4, f"internal failure: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _said(3, f"{place}{error.strerror or error}")
    return code


def _said(code: int, text: str) -> int:
    """Whether or not anybody reads it."""
    with contextlib.suppress(OSError):
        print(f"optimize: {text}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    return code


def _reader_gone() -> int:
    """`| head` has seen enough, which is no failure."""
    silence(sys.stdout)
    return 0


def _words(error: CycloptsError) -> str:
    """What is wrong with the command line, in our words where the library's do not say what to type instead."""
    typed = " ".join(["optimize", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError | UnknownCommandError) and error.unused_tokens:
        return _unused(error.unused_tokens[0], error, typed)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if error.argument.field_info.is_positional:
            return f"{typed}: give {name.lstrip('-').upper().replace('-', '_')}; see {typed} --help"
        lack = "needs a value" if error.argument.tokens or error.keyword else "must be given"
        return f"{typed}: {name} {lack}; see {typed} --help"
    text = str(error).strip().replace("\n", " ")
    return text[:1].lower() + text[1:] if text else f"see {typed} --help"


def _unused(token: str, error: CycloptsError, typed: str) -> str:
    """A word that nothing asked for: a command misspelt, or a task or a run without its flag."""
    if error.command_chain:
        return f"{typed}: {token!r} is one word too many; see {typed} --help"
    from tools.task import builtin_names

    commands = [name for name in (error.app or ()) if not name.startswith("-")]
    close = difflib.get_close_matches(token, commands, n=1)
    if token in builtin_names() or token.endswith(".py"):
        return f"{token} is a task, not a command; did you mean: optimize --task {token}"
    if close:
        return f"no command {token!r}; did you mean {close[0]}?"
    if near := difflib.get_close_matches(token, builtin_names(), n=1):
        return f"no command {token!r}; did you mean: optimize --task {near[0]}"
    return f"no command {token!r}; commands: {', '.join(sorted(commands))}"
