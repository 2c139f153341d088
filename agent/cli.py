"""`optimize`: its commands, its exit codes, and the one line on stderr when something is wrong.

Each command is a file of `agent.commands`, imported when it is asked for; nothing heavy is imported here.
"""

import contextlib
import difflib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Annotated, Any, Literal, get_args

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
)
from cyclopts.command_spec import CommandSpec
from cyclopts.exceptions import UnknownCommandError, UnusedCliTokensError

from kerneltune.agent.commands.run import run
from kerneltune.agent.models.types import LlmError
from kerneltune.agent.settings import flag_of
from kerneltune.tools.schema.codec import did_you_mean, one_line, plain, reason
from kerneltune.tools.schema.errors import NO_ROOM, GpuLost, KerneltuneError, Unfit, UsageError
from kerneltune.tools.schema.verdict import versions

ABOUT = {  # with what the first page says of each, for which none has to be imported: that takes 100 ms
    "suite": "Optimise many tasks with one budget, spent where there is most to gain.",
    "eval": "Draw independent samples of a model on many tasks, and estimate pass@k.",
    "bench": "Check and time existing kernel files.",
    "verify": "Judge a stored attempt again, here or on another GPU.",
    "selftest": "Attack the evaluator of this machine with known cheats.",
    "runs": "List the stored runs, latest first.",
    "browse": "Look through stored runs in the terminal.",
    "show": "Show a stored run, or all that is known of one attempt.",
    "merge": "Join the records of other machines into this one.",
    "export": "Write stored runs as training data.",
    "package": "Write a verified kernel as a file that can be put into a model.",
    "report": "Write a report for a colleague: one HTML file, readable offline, without scripts.",
    "watch": "Watch a run while it runs or later: follow it, look at its attempts, play it back, save a picture.",
    "mcp": "Serve the tools to a coding agent over standard input and output.",
    "tasks": "List the built-in tasks, or show or check one.",
    "serve": "Keep the evaluator warm, and judge for clients over HTTP.",
    "convert": "Write a candidate from CUDA C++ with a launcher.",
    "init": "Write a task file from a PyTorch function or module.",
    "capture": "Run a program, and write a task from how it calls a function or module.",
    "doctor": "Check this machine, and print how to fix each problem.",
    "config": "Show every setting, its value, and where it came from.",
}


class _Commands(App):
    """An app whose first page does not import its commands."""

    def help_print(
        self,
        tokens: Annotated[str | Iterable[str] | None, Parameter(show=False)] = None,
        *,
        console: Annotated[Any, Parameter(parse=False)] = None,
    ) -> None:
        """Print the page of the command that `tokens` name, or the first one."""
        later = [c for c in self._commands.values() if isinstance(c, CommandSpec) and not c.is_resolved]
        for command in later:
            command.help = ABOUT[str(command.name)]
        try:
            super().help_print(tokens, console=console)
        finally:
            for command in later:
                command.help = None  # a page of its own says more


def _whole(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a fraction where a whole number is wanted: cyclopts rounds it."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


app = _Commands(
    name="optimize",
    help="Find the fastest GPU kernel for a PyTorch task and verify it.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False, name_transform=flag_of),
    config=_whole,
    suppress_keyboard_interrupt=False,  # who presses Ctrl-C is told how to go on
    help_epilogue="""
Examples:
    optimize                                   how to begin, on this machine
    optimize --task softmax                    a built-in task, default budget
    optimize --task path/to/23_Softmax.py      any KernelBench problem file
    optimize --task softmax --max-attempts 12 --json | tail -1
    optimize --task softmax --model anthropic --max-cost 2
    optimize --task softmax --model chat:qwen --base-url http://host:8000/v1
    optimize --task softmax --language ptx     kernels in PTX, from Triton's
    optimize --task softmax --from best        start from the best stored kernel
    optimize --resume 20260101-120000-softmax-ab12
    optimize init mymodel.py:attention_block   a task from your own code

Every command has a page of its own: optimize COMMAND --help
Flags can be set once in the environment too; see optimize config --help
Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 something is missing
here, 4 a fault of kerneltune, 5 the GPU stopped
answering, 6 the model's provider did, 130 Ctrl-C.
""",
    version=lambda: versions()["kerneltune"],
    version_flags=["--version"],
)


app.default(run)
for _name in ABOUT:
    app.command(f"kerneltune.agent.commands.{_name}:command", name=_name)


@app.command(
    help_epilogue="""
Examples:
    eval "$(optimize completion bash)"           for this shell
    optimize completion bash >> ~/.bash_completion
    optimize completion zsh > ~/.zfunc/_optimize   (fpath+=~/.zfunc, compinit)
    optimize completion fish > ~/.config/fish/completions/optimize.fish
"""
)
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Which shell.")], /) -> int:
    """Print a shell completion script."""
    print(app.generate_completion(shell=shell, prog_name="optimize"))
    return 0


def exit_code(command: Callable[[], Any], if_interrupted: str = "interrupted") -> int:
    """Run `command` and return its exit code. What it raises becomes a line on stderr and the code of its kind."""
    try:
        code = int(command() or 0)
        sys.stdout.flush()  # here, where a reader that is gone can still be told from success
    except (BrokenPipeError, SystemExit):  # SystemExit is how rich says it
        return _reader_gone()
    except KeyboardInterrupt:
        return _failed(130, if_interrupted)
    except Exception as error:  # noqa: BLE001 - whatever comes up this far gets a code and a line
        return _failed(*_told(error))
    return code


def _told(error: Exception) -> tuple[int, str]:
    """Return the exit code for an error of that kind, and its line. What is ours, and no answer to the question, leaves
    its traceback before it."""
    match error:
        case CycloptsError():
            return 2, error_line(error)
        case LlmError() | Unfit():
            return 3, str(error)
        case UsageError():
            return 3 if _is_of_disk(error) else 2, str(error)
        case GpuLost():
            return 5, str(error)
        case KerneltuneError():
            return 4, f"internal failure: {error}"
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return 3, f"{place}{reason(error)}"
    if lacking := _lacking(error):
        return 3, lacking
    sys.stderr.write(plain("".join(traceback.format_exception(error)), None))
    return 4, f"internal failure: {type(error).__name__}: {error}"


def _is_of_disk(error: BaseException) -> bool:
    """Whether it comes of a disk that is full, at a quota or limit, or failing."""
    by_sqlite = getattr(error, "sqlite_errorcode", 0) & 0xFF in (10, 13)  # SQLITE_IOERR, SQLITE_FULL
    by_system = isinstance(error, OSError) and error.errno in NO_ROOM | {errno.EIO}
    return by_sqlite or by_system or (error.__cause__ is not None and _is_of_disk(error.__cause__))


def _lacking(error: Exception) -> str:
    """What memory, threads or packages are too short for, and the way out; "" for any other error."""
    match error:
        case MemoryError():
            return f"no memory is left{f': {error}' if str(error) else ''}; end other programs, or raise `ulimit -v`"
        case RuntimeError() if str(error) == "can't start new thread":
            return f"{error}: memory or processes are short; end other programs, or raise `ulimit -v` and `ulimit -u`"
        case ImportError() if not (error.name or "").startswith("kerneltune"):
            why = one_line(str(error.__cause__ or error), 300)
            return f"{why}; is memory short (`ulimit -v`)? Else install that package again"
    return ""


def _failed(code: int, text: str) -> int:
    """Print the line, whether or not anybody reads it, and return the code."""
    with contextlib.suppress(OSError):
        shown = plain(text, None).replace("\n", "\n  ")  # further lines cannot be taken for lines of their own
        print(f"optimize: {shown}", file=sys.stderr, flush=True)
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


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def error_line(error: CycloptsError) -> str:
    """Say in one line what is wrong with a command line, which value, and what to type instead."""
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


def _page(error: CycloptsError) -> str:
    """Return the command that prints the command's page."""
    return " ".join(["optimize", *(error.command_chain or ()), "--help"])


def _chain(error: CycloptsError) -> str:
    return " ".join(error.command_chain or ())


def _unknown(flag: str, known: Iterable[str], error: CycloptsError) -> str:
    name = flag.partition("=")[0]
    of = f"{_chain(error)} has no flag {name}" if error.command_chain else f"no flag {name}"
    return f"{of}; {did_you_mean(name, known, f'see {_page(error)}')}"


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
        return f"{place} is not one of {', '.join(choices)}{did_you_mean(error.token.value, choices, lead='; ')}"
    kind = _KINDS.get(error.target_type) if error.target_type else None
    return f"{place} is not {kind or 'of the right kind'}; see {_page(error)}"


def _one_too_many(token: str, error: CycloptsError) -> str:
    """A word that nothing asked for: a command misspelt, or a task or a run without its flag."""
    if error.command_chain:
        return f"{_chain(error)}: {token!r} is one word too many; see {_page(error)}"
    from kerneltune.tools.task.load import builtin_names

    tasks, commands = builtin_names(), sorted(name for name in (error.app or ()) if not name.startswith("-"))
    if token in tasks or token.endswith(".py"):
        return f"{token} is a task, not a command; did you mean: optimize --task {token}"
    if hint := did_you_mean(token, commands):
        return f"no command {token!r}; {hint}"
    if close := difflib.get_close_matches(token, tasks, n=1):
        return f"no command {token!r}; did you mean: optimize --task {close[0]}"
    return f"no command {token!r}; commands: {', '.join(commands)}"


_GO_ON = "interrupted; `optimize runs` lists what is stored, and `optimize --resume RUN` goes on with a run"


def interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised in a callback, of its import system for instance: a Ctrl-C that lands there comes
    once more, 50 ms later. Without it 1 of some 200 runs went on to its end. Anything else is told as usual."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(dropped)


def as_ctrl_c(_number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does just now: asyncio cancels its main task then. An exception in the middle of one of its
    callbacks left, at times, a coroutine that nobody waited for, of which asyncio printed pages. Where Ctrl-C is
    ignored, as in what a shell started in the background, raise KeyboardInterrupt."""
    ours = signal.getsignal(signal.SIGINT)
    (ours if callable(ours) else signal.default_int_handler)(signal.SIGINT, frame)


def main() -> None:
    """Entry point of the console script. SIGTERM ends a run as Ctrl-C does: all stored, the screen restored."""
    signal.signal(signal.SIGTERM, as_ctrl_c)
    sys.unraisablehook = interrupt_again
    is_run = any(word.startswith(("--task", "--resume")) for word in sys.argv[1:] if sys.argv[1].startswith("-"))
    if_interrupted = _GO_ON if is_run else "interrupted"
    try:
        code = exit_code(
            lambda: app(result_action="return_value", exit_on_error=False, print_error=False), if_interrupted
        )
    except KeyboardInterrupt:  # another one, while the first was told of
        code = 130
    except MemoryError:  # not even for a line of its own
        os.write(2, b"optimize: no memory is left\n")
        code = 3
    sys.exit(code)
