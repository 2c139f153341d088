"""The command as a person types it: a process of its own in a folder of its own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests import shared_fork_server
from tests.agent import warm

ROOT = Path(__file__).resolve().parents[2]
SOFTMAX = str(ROOT / "tests" / "agent" / "tasks" / "softmax.py")


def optimize(
    *arguments: str,
    cwd: Path,
    timeout_s: float = 120,
    stdin: str | None = None,
    more_env: dict[str, str] | None = None,
    cold: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end: forked from a process that has its modules, or `cold`, from the interpreter's start on."""
    variables = env() | (more_env or {})
    if not cold:
        return warm.call(arguments, cwd, variables, timeout_s, stdin)
    return subprocess.run(
        command(*arguments), cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout_s, input=stdin
    )


def command(*arguments: str) -> list[str]:
    """Its argument vector, for an interpreter of its own; workers come from the shared process."""
    return program("from kerneltune.agent.cli import main; main()", *arguments)


def program(code: str, *arguments: str) -> list[str]:
    """The same of a program that calls the command."""
    shared = f"from tests import shared_fork_server; shared_fork_server.use({shared_fork_server.address()!r})"
    return [sys.executable, "-c", f"{shared}\n{code}", *arguments]


def env() -> dict[str, str]:
    """This environment without keys and settings."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and not k.startswith("KERNELTUNE_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def is_alive(pid: int) -> bool:
    """Whether it has not ended. A keeper that has stays until those inside are reaped, which is for PID 1 to do once
    their parent is gone: in one container that looked for orphans every 2 s, and took 10 when it was busy. Our own
    processes were gone after 0.2 s there, with eighteen others at work on two cores."""
    try:
        if Path(f"/proc/{pid}/wchan").read_text() == "zap_pid_ns_processes":
            return False
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def process_tree(root: int) -> dict[int, tuple[int, str]]:
    """Each process below `root` with the time at which it began, in ticks, and its state."""
    found: dict[int, tuple[int, str]] = {}
    left = [root]
    while left:
        with contextlib.suppress(OSError):
            for thread in os.scandir(f"/proc/{left.pop()}/task"):
                with contextlib.suppress(OSError):
                    left += [int(pid) for pid in Path(thread.path, "children").read_text().split()]
        for pid in left:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = (int(words[19]), words[0])
    return found
