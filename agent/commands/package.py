"""`optimize package`: a verified kernel as a file to put into a model, or as a folder for the Hugging Face Hub.

Nothing of the kernel is run here. A task that is not built in is described again, as when it is opened, by a worker.
"""

import json as jsonlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from kerneltune.agent.commands import AsJson, MovedTask, RunsDir, TrustTask, require_free, require_record
from kerneltune.agent.record.folder import is_plain, packaged_attempts, write_whole
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import LineWriter, say
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import Json, one_line
from kerneltune.tools.schema.errors import CannotPackage, StoreError, TaskError, UsageError

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.events import RunStarted
    from kerneltune.agent.record.folder import Accepted
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.schema.task import TaskSpec

SCHEMA_VERSION = 1
Layout = Literal["file", "huggingface"]

command = App(
    name="package",
    help_epilogue="""
Examples:
    optimize package 20260101-120000-softmax-ab12 -o fused_tail.py
    optimize package 20260101-12/7                  one attempt, to NAME_op.py
    optimize package PREFILL DECODE -o tail.py      two runs, at different sizes
    optimize package FORWARD --backward BACKWARD -o tail.py
    optimize package 20260101-12 --layout huggingface -o fused-tail

Then, in your program:
    from fused_tail import patch
    patch(model, "layers.*.norm")

python fused_tail.py checks and times the kernel on the machine it is on.
""",
)


@command.default
def package(
    *attempts: Annotated[
        str,
        Parameter(
            metavar="ATTEMPT",
            help="RUN/NUMBER, a run (its best attempt), or the start of either; several of one op are one file.",
        ),
    ],
    output: Annotated[
        Path | None,
        Parameter(metavar="PATH", name=["--output", "-o"], help="The file to write, or the folder of the layout."),
    ] = None,
    layout: Annotated[
        Layout, Parameter(help="One file, or a folder as the Hugging Face kernels library reads it.")
    ] = "file",
    overwrite: Annotated[bool, Parameter(help="Replace what is there.", negative="")] = False,
    backward: Annotated[
        str | None,
        Parameter(metavar="ATTEMPT", help="The kernel of its gradients, of a run with --backward or --step."),
    ] = None,
    task: MovedTask = None,
    trust_task: TrustTask = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write a verified kernel as a file that can be put into a model.

    The file imports torch and triton only. It holds the kernel, the PyTorch code that it was verified against, and
    which shapes it was verified for; other calls go to PyTorch. In a file of several kernels, the one answers that was
    the fastest at the nearest timed shape. For a run with weighted cases, the file also holds the attempts that are
    faster in one of them.
    """
    settings = chosen_settings(locals())
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.package.write import file_name

    if not attempts:
        raise UsageError("a package of which run? `optimize runs` lists them")
    require_record(settings.runs_dir)
    with Store.open(settings.runs_dir, to_look=True) as store:
        chosen = [_accepted(store, text, task, trust_task=trust_task) for text in attempts]
        accepted = [one for text, its in zip(attempts, chosen, strict=True) for one in _of_run(store, text, its)]
        gradients = [_accepted(store, text, None, trust_task=trust_task) for text in filter(None, [backward])]
    spec = accepted[0][2]
    path = output or Path(file_name(spec) if layout == "file" else hub_name(spec.name))
    if layout == "file":
        module = path.stem if path.stem.isidentifier() and path.suffix == ".py" else ""
        files = {path: packaged_attempts(accepted, module, gradients)}
    else:
        text = packaged_attempts(accepted, hub_name(spec.name).replace("-", "_"), gradients)
        files = _hub_files(path, text, spec, accepted[0][1])
    _write(files, path, overwrite=overwrite)
    _tell(path, [found for found, _, _ in accepted], [found for found, _, _ in gradients], json=json)
    return 0


def _accepted(store: "Store", text: str, task: str | None, *, trust_task: bool) -> "Accepted":
    """A stored attempt that was accepted, its run and its task. Raises UsageError for another one."""
    run, found = store.find_attempt(text)
    if not found.accepted:
        raise UsageError(f"attempt {found.attempt_id} was not accepted; a package is made of a verified kernel")
    if found.refuted:
        raise UsageError(
            f"attempt {found.attempt_id} was accepted, but `optimize verify` found since that it is not right"
        )
    return found, run, _described(store, run, task, trust_task=trust_task)


def _of_run(store: "Store", text: str, chosen: "Accepted") -> "list[Accepted]":
    """What a person named: an attempt; or a run, of which other attempts come along that are faster in a case."""
    from kerneltune.agent.attempt import faster_in_a_case

    best, run, task = chosen
    others = [] if "/" in text else faster_in_a_case(best, store.load_trajectory(run.run_id).attempts)
    return [chosen, *((other, run, task) for other in others)]


def _described(store: "Store", run: "RunStarted", given: str | None, *, trust_task: bool) -> "TaskSpec":
    """The task of a run as data. Raises TaskError."""
    from kerneltune.agent.commands.session import stored_task
    from kerneltune.agent.commands.tasks import checked_task
    from kerneltune.tools.task.load import described, read_task

    with ScratchFolder() as scratch:
        came = store.merged_from(run.run_id)
        try:
            file, _ = stored_task(run, given, scratch, merged_from=came, trusted=trust_task)
        except TaskError:
            if given is not None or came is not None or not is_plain(run.task):
                raise
            # its file is gone; the record has all of it but the cases that were held out, which no package holds
            path = scratch / f"{run.task}.py"
            path.write_bytes(run.task_source.encode())
            file = read_task(path)
        return described(file) or checked_task(file).task


def _write(files: dict[Path, str], output: Path, *, overwrite: bool) -> None:
    require_free(output, overwrite=overwrite)
    for path, text in files.items():
        try:
            data = text.encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, 0o644)
        except UnicodeEncodeError as error:
            raise CannotPackage(
                f"the kernel has characters that cannot be encoded as UTF-8: {one_line(str(error), 100)}"
            ) from error
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _tell(path: Path, attempts: "Sequence[Attempt]", gradients: "Sequence[Attempt]", *, json: bool) -> None:
    if json:
        facts: dict[str, Json] = {
            "path": str(path),
            "attempt": attempts[0].attempt_id,
            "attempts": [attempt.attempt_id for attempt in attempts],
            "backward": gradients[0].attempt_id if gradients else None,
            "verdict": attempts[0].judged.status.value,
        }
        print(jsonlib.dumps({"type": "package", "schema_version": SCHEMA_VERSION, **facts}))
        return
    LineWriter(sys.stdout).write(str(path))
    for attempt in (*attempts, *gradients):
        timed = "" if attempt.judged.timing is not None else ", not timed: there was no GPU"
        say(f"attempt {attempt.attempt_id}: {attempt.judged.status.value}{timed}")
    if not gradients:
        say("it has no backward: under grad it raises an error where the kernel would run")


def hub_name(task: str) -> str:
    """A task's name as the Hub's kernels are named: lower-case letters, digits and dashes."""
    from kerneltune.tools.package.write import op_name

    return re.sub(r"[^a-z0-9]+", "-", op_name(task).lower()).strip("-").ljust(2, "x")


def _hub_files(folder: Path, text: str, task: "TaskSpec", run: "RunStarted") -> dict[Path, str]:
    """The folder of a kernel as `kernels` 0.17 loads it: one variant for all versions of torch with CUDA."""
    import hashlib

    name = hub_name(task.name)
    module, variant = name.replace("-", "_"), folder / "build" / "torch-cuda"
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    number = run.arch.removeprefix("sm_")
    metadata = {
        "name": name,
        "id": f"_{module}_cuda_{digest}",
        "version": 1,
        "license": "other",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": [f"{number[:-1]}.{number[-1]}"]},
    }
    card = (
        f"---\nlibrary_name: kernels\nlicense: other\n---\n\n# {name}\n\n"
        f"A verified kernel for `{one_line(task.name, 100)}`. "
        f"What was verified stands at the top of `build/torch-cuda/__init__.py`.\n\n```python\n"
        f'from pathlib import Path\n\nfrom kernels import get_local_kernel\n\n{module} = get_local_kernel(Path("."))\n'
        f'{module}.patch(model, "layers.*.NAME")\n```\n'
    )
    return {
        variant / "__init__.py": text,
        variant / "metadata.json": jsonlib.dumps(metadata, indent=2) + "\n",
        folder / "README.md": card,
    }
