"""How a command ends: its exit code, and one line on stderr that says what is wrong and what to type instead."""

import contextlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from cyclopts import CycloptsError

from kerneltune.agent.cli_words import words_of
from kerneltune.agent.models.errors import LlmError
from kerneltune.tools.schema.errors import KerneltuneError, Unfit, UsageError

CODES = {
    0: "done: something was accepted, held, was written, or there was nothing against it",
    1: "done, and the answer is no: nothing accepted, a verdict that did not hold, an attack that got through, a lack",
    2: "not done: the command line, a file or a setting is not as it must be; the line on stderr says how",
    3: "not done: this machine lacks something (a GPU, a package, a sandbox, a key, disk); see `optimize doctor`",
    4: "not done: a fault of kerneltune's own; the line on stderr is worth a report",
    130: "ended by Ctrl-C or SIGTERM; what was finished is stored",
}


def exit_code(command: Callable[[], Any], if_interrupted: str = "interrupted") -> int:
    """Run `command`, and tell what it came to. What it raises becomes a line on stderr and the code of its kind."""
    try:
        code = int(command() or 0)
        sys.stdout.flush()  # here, where a reader that is gone can still be told from success
    except (BrokenPipeError, SystemExit):  # SystemExit is how rich says it
        return _reader_gone()
    except KeyboardInterrupt:
        return _said(130, if_interrupted)
    except CycloptsError as error:
        return _said(2, words_of(error))
    except (LlmError, Unfit) as error:
        return _said(3, str(error))
    except UsageError as error:
        return _said(2, str(error))
    except KerneltuneError as error:
        return _said(4, f"internal failure: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _said(3, f"{place}{error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - whatever else comes up this far is ours, and no answer to the question
        traceback.print_exc()
        return _said(4, f"internal failure: {type(error).__name__}: {error}")
    return code


def _said(code: int, text: str) -> int:
    """Whether or not anybody reads it."""
    with contextlib.suppress(OSError):
        print(f"optimize: {text}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()
    return code


def _reader_gone() -> int:
    """`| head` has seen enough, which is no failure."""
    _silence_stdout()
    return 0


def _silence_stdout() -> None:
    from kerneltune.agent.view.output import silence  # rich, which takes 50 ms

    silence(sys.stdout)
