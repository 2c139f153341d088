"""Would this command be understood? For commands that cannot be run here, and for those in the middle of a sentence."""

import importlib.util
import re
import shlex
from functools import cache

from cyclopts import CycloptsError

from kerneltune.agent.cli import app
from tests.docs.documents import ROOT

_ENDS_A_COMMAND = {"|", "||", "&&", ";", "&"}
_REDIRECTIONS = {">", ">>", "<", ">&"}
_OTHERS = {
    *". eval pip pipx apt export git cat head tail less jq diff patch sed grep ls cp cd time nvidia-smi bash".split(),
    *"ray sleep srun".split(),
}


def problem(command: str) -> str:
    """What is wrong with a line of shell; "" if nothing is."""
    try:
        parts = simple_commands(command)
    except ValueError as error:
        return f"{command}: {error}"
    return next((wrong for part in parts if (wrong := _problem(part))), "")


def simple_commands(line: str) -> list[list[str]]:
    """The commands between pipes, `&&` and `;`, without redirections, variables set before them and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in _ENDS_A_COMMAND:
            commands.append([])
        elif word in _REDIRECTIONS:
            if commands[-1][-1:] == ["2"]:
                commands[-1].pop()
            next(words, "")
        elif commands[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):
            commands[-1].append(word)
    return [words for words in commands if words]


def _problem(words: list[str]) -> str:
    name, arguments = words[0], words[1:]
    if name == "optimize":
        return optimize_problem(arguments)
    if name == "make":
        return _make_problem(arguments)
    if name in ("python", "python3") and arguments[:1] == ["-m"]:
        return "" if importlib.util.find_spec(arguments[1]) else f"no module {arguments[1]}"
    if name == "pytest":
        return next((f"no test at {a}" for a in arguments if a.startswith("tests") and not (ROOT / a).exists()), "")
    if "/" in name:
        return "" if (ROOT / name).is_file() else f"no file {name}"
    return "" if name in _OTHERS else f"unknown command {name}"


def optimize_problem(arguments: list[str]) -> str:
    """What `optimize` would say of these arguments before it does anything; "" if it understands them."""
    try:
        app.parse_args(arguments, exit_on_error=False, print_error=False, help_on_error=False)
    except CycloptsError as error:
        return f"optimize {shlex.join(arguments)}: {str(error).strip()}"
    return ""


def _make_problem(arguments: list[str]) -> str:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return next((f"make: no target {a}" for a in arguments if "=" not in a and a not in targets), "")


@cache
def flags() -> dict[str, set[str]]:
    """Every command of `optimize` ("" is the one without a name), with its flags."""
    named = {name: app[name] for name in app if not name.startswith("-")} | {"": app}
    return {
        name: {
            flag
            for argument in part.assemble_argument_collection(default_parameter=app.default_parameter)
            if argument.index is None  # what has a place is typed without its name
            for flag in argument.names
            if flag[:2] == "--"
        }
        for name, part in named.items()
    }
