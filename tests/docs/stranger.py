"""Somebody who follows a document from its top: saves its files and types its commands into one empty folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.agent import warm
from tests.agent.shell import env
from tests.docs.documents import SHELLS, Block, Command, Document, commands
from tests.docs.expected import Ids, difference, missing
from tests.docs.typed import problem

LIMIT_S = 600  # on a machine that does ten other things
_RUN_FOLDER = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{4,8}")


class Stranger:
    """Reads documents. Each one's folder is kept, so that another document can continue in a copy of it; a command that
    was typed there already, such as the first run, is not typed again, and its output is looked at again."""

    def __init__(self, home: Path, documents: dict[str, Document], *, gpu: bool) -> None:
        self._home = home
        self._documents = documents
        self._gpu = gpu
        self._folders: dict[str, Path] = {}
        self._left: dict[str, tuple[Path, list[str]]] = {}
        self._done: dict[tuple[str, str, bool], subprocess.CompletedProcess[str]] = {}
        # beside a GPU each command is a process of its own: CUDA cannot be used in a fork of a process that has used it
        cold = [sys.executable, "-c", "from kerneltune.agent.cli import main; raise SystemExit(main())"]
        self._path = _folder_with_the_command(home, cold if gpu else warm.command())

    def follow(self, name: str) -> tuple[Path, list[str]]:
        """The folder that the document leaves behind, and everything that was not as it says, once."""
        if name not in self._left:
            document = self._documents[name]
            folder = self._home / name.replace("/", "-").removesuffix(".md")
            if document.continues:
                shutil.copytree(self.follow(document.continues)[0], folder)
            else:
                folder.mkdir()
            self._folders[name] = folder
            self._left[name] = folder, self._read(document, folder)
        return self._left[name]

    def _read(self, document: Document, folder: Path) -> list[str]:
        wrong: list[str] = []
        ids = Ids()
        for block in document.blocks:
            if file := block.marks.get("file"):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(block.text + "\n")
            if block.language in SHELLS:
                for command in commands(block):
                    said = self._said_of(document, block, command, ids)
                    wrong += [f"{document.name}:{command.line}: $ {command.text}\n{said}"] if said else []
        return wrong

    def _said_of(self, document: Document, block: Block, command: Command, ids: Ids) -> str:
        if block.needs and not (block.needs == "gpu" and self._gpu):
            return problem(command.text)
        folder = self._folders[document.name]
        line = ids.in_command(command.text, _latest_run(folder))
        gpu = block.needs == "gpu"
        done = self._done.get((document.continues, line, gpu)) or self._type(line, folder, gpu=gpu)
        self._done[document.name, line, gpu] = done
        if done.returncode not in block.exit_codes:
            return f"exit code {done.returncode}, not {block.exit_codes}:\n{done.stdout[-3000:]}"
        if command.expected is None:
            return ""
        return (difference if block.in_order else missing)(command.expected, done.stdout, ids)

    def _type(self, line: str, folder: Path, *, gpu: bool) -> "subprocess.CompletedProcess[str]":
        hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        order = {"LC_ALL": "C.UTF-8"}  # of names in a folder
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=folder, env=env() | {"PATH": self._path} | order | hidden,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        print(f"{time.monotonic() - began:6.1f} s  {line}")  # seen with pytest -s: where the time goes
        return done


def _latest_run(folder: Path) -> str:
    runs = [path.name for path in folder.glob("runs/*") if _RUN_FOLDER.fullmatch(path.name)]
    return max(runs, default="")


def _folder_with_the_command(home: Path, command: list[str]) -> str:
    """A PATH on which `optimize` is the one of this checkout, whether or not it is installed."""
    home.mkdir(parents=True, exist_ok=True)
    commands = home / "bin"
    commands.mkdir()
    script = commands / "optimize"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    return os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
