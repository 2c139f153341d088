"""`optimize convert`: a candidate from a person's CUDA C++, whose launchers become Python. It is read and not run."""

import json as jsonlib
import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.commands import AsJson, Overwrite, require_free, write_text
from kerneltune.agent.view.output import standard_page
from kerneltune.tools.schema.codec import one_line, read_file, reason, shell_word
from kerneltune.tools.schema.errors import UsageError

command = App(
    name="convert",
    help_epilogue="""
Examples:
    optimize convert softmax.cu                  kernels and launchers, as softmax_cuda.py
    optimize convert mine.py -o mine_cuda.py     a file that builds them by load_inline

Device code stays as it is. Launchers (`kernel<<<grid, block>>>(...)`) become
Python functions that launch it by CudaKernel.
""",
)


@command.default
def convert(
    source: Annotated[str, Parameter(help="FILE.cu, or a FILE.py that calls load_inline.")],
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(metavar="FILE", name=["--output", "-o"], help="The file to write; NAME_cuda.py by default."),
    ] = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> int:
    """Write a candidate from CUDA C++ with a launcher.

    Look at the lines marked LOOK: they are guesses.

    Exit code 0: written; 2: bad input, or not of a form that it knows.
    """
    from kerneltune.tools.languages.cuda.convert import CannotConvert, converted, converted_python

    given = Path(os.path.expanduser(source))
    path = output or Path(f"{given.stem}_cuda.py")
    require_free(path, overwrite=overwrite)
    try:
        text = read_file(given).decode("utf-8-sig")
        made = converted_python(text) if given.suffix == ".py" else converted(text, given.name)
    except (OSError, UnicodeDecodeError, CannotConvert) as error:
        raise UsageError(f"{source}: {reason(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: an expression or a block is nested too deeply") from error
    write_text(path, made)
    looks = [(number, line.strip()) for number, line in enumerate(made.split("\n"), 1) if "# LOOK" in line]
    if json:
        told = {"type": "convert", "schema_version": 1, "path": str(path), "origin": source}
        print(jsonlib.dumps(told | {"looks": [{"line": n, "guess": line} for n, line in looks]}, indent=2))
        return 0
    page = standard_page(colour=True)
    page.print(f"wrote {path} from {source}")
    page.print(*(Text(f"  line {number}: {one_line(line)}", style="yellow") for number, line in looks))
    page.print(Text(f"next: optimize bench {shell_word(str(path))} --task TASK", style="cyan"))
    return 0
