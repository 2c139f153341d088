"""The commands of `optimize`, one file each, and the flags that several of them share.

A command's file holds its flags, what it does and what it prints; it imports the store, workers and lexers only when
it runs, since its page waits for what stands at its top.
"""

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from kerneltune.tools.schema.errors import Unfit, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import httpx2

    from kerneltune.agent.settings import Settings
    from kerneltune.tools.sandbox.workers import Workers

DATABASE = "runs.db"  # agent.record.store knows it too, and takes a third of a second to import

Task = Annotated[
    str,
    Parameter(metavar="TASK", help="A built-in task's name, a KernelBench problem file, or FILE.py:NAME of your code."),
]
Shape = Annotated[
    tuple[str, ...],
    Parameter(
        metavar="NAME=SIZES",
        negative="",
        consume_multiple=False,
        help="The shape of an argument of FILE.py:NAME, such as x=8,2048,4096; the others follow.",
    ),
]
Dtype = Annotated[str | None, Parameter(metavar="DTYPE", help="The dtype of its tensors: bf16, fp16, fp32, …")]
Tier = Annotated[Literal["screened", "judged", "confirmed"] | None, Parameter(help="How thoroughly to judge on a GPU.")]
Width = Annotated[int | None, Parameter(metavar="N", help="Candidates under way at a time.")]
Arch = Annotated[str | None, Parameter(metavar="ARCH", help="Compile target when there is no GPU, such as sm_90.")]
Unsandboxed = Annotated[bool | None, Parameter(help="Run candidates even if they cannot be confined.", negative="")]
TrustTask = Annotated[
    bool, Parameter(help="Run the task's Python that came with a merged run, as you would a program.", negative="")
]
Counters = Annotated[
    bool | None, Parameter(help="Read hardware counters with ncu, for kernels that are judged in full.", negative="")
]
MovedTask = Annotated[str | None, Parameter(help="The run's task file, if it has moved.")]
NewTask = Annotated[
    Path | None,
    Parameter(metavar="FILE", name=["--output", "-o"], help="The task file to write; NAME_task.py by default."),
]
Overwrite = Annotated[bool, Parameter(help="Replace the file if there is one.", negative="")]
RunsDir = Annotated[Path | None, Parameter(metavar="DIR", help="Where runs are kept.")]
VerdictName = Literal[
    "accepted", "correct", "checked", "unchecked", "wrong", "compile_failed", "crashed", "timed_out", "rejected",
    "impossible",
]  # fmt: skip
Verdict = Annotated[
    VerdictName | None,
    Parameter(
        metavar="VERDICT",
        help="Only those with this verdict: accepted, correct, checked, wrong, rejected, …",
    ),
]
MinSpeedup = Annotated[
    float | None, Parameter(metavar="FACTOR", help="Only those at least this fast, over the fastest baseline.")
]
AsJson = Annotated[bool, Parameter(help="Print one JSON value on stdout.", negative="")]
AsLines = Annotated[bool, Parameter(help="Print one JSON object a line, ending in a result.", negative="")]
NoColour = Annotated[bool, Parameter(help="No colour.", negative="")]
UseService = Annotated[bool, Parameter(help="Have a running `optimize serve` judge, if there is one.")]


def missing_for_export() -> list[str]:
    """The packages of the extra `export` that are not installed."""
    return [name for name in ("orjson", "pyarrow", "rensa") if util.find_spec(name) is None]


def service_socket(runs_dir: Path) -> Path:
    """Where the service of these runs listens, if there is one and it was told no other place."""
    return runs_dir / "service" / "optimize.sock"


def may_use_service(settings: "Settings") -> bool:
    """Whether a service may be there, and nothing is asked for that it may have otherwise."""
    of_its_own = (settings.arch, settings.width, settings.gpu_memory_gib)
    is_for_any = not (settings.counters or settings.allow_unsandboxed or any(of_its_own))
    return is_for_any and service_socket(settings.runs_dir).is_socket()


def service_client(runs_dir: Path) -> "httpx2.Client":
    """Speaks to the service of these runs, which may take as long as it needs to answer."""
    import httpx2

    transport = httpx2.HTTPTransport(uds=str(service_socket(runs_dir)))
    return httpx2.Client(transport=transport, base_url="http://service", timeout=httpx2.Timeout(5.0, read=None))


@contextlib.contextmanager
def service_answer(
    runs_dir: Path, path: str, asked: Mapping[str, Any], why_not: str = "", *, module: str = ""
) -> "Iterator[httpx2.Response | None]":
    """What the service of these runs answers, as it comes; None where it does not judge, of which a person is told the
    reason: that of the caller (`why_not`), or the service's own. Raises Unfit when it ends on the way. `module`: what
    reading the answer needs is imported while the service judges."""
    import httpx2

    from kerneltune.agent.view.output import say
    from kerneltune.tools.schema.codec import one_line

    try:
        with service_client(runs_dir) as client:
            about = _told_by(client.get("/health"))
            its = f"the service, process {about.get('pid')}"
            if why := _other_evaluator(about) or why_not:
                say(f"… judged here, not by {its}: {why}")
                yield None
                return
            if module:
                threading.Thread(target=importlib.import_module, args=[module]).start()
            with client.stream("POST", path, json=asked) as answer:
                if answer.status_code != 200:
                    answer.read()
                    say(one_line(f"… judged here, not by {its}: {_told_by(answer)['error']}", 500))
                    yield None
                    return
                say(f"… judged by {its}; --no-service judges here")
                yield answer
    except httpx2.ConnectError:
        yield None  # a socket that a dead one has left
    except httpx2.TransportError as error:
        raise Unfit(f"the service is gone ({error}); what it had judged is stored; give the command again") from error


def _told_by(answer: "httpx2.Response") -> dict[str, Any]:
    """The object that a service answers with; of one that is ending there may be none, which is its `error` then."""
    from kerneltune.tools.schema.codec import parsed

    with contextlib.suppress(ValueError):
        if isinstance(told := parsed(answer.text), dict):
            return {"error": None, **told}
    return {"error": f"it answers with status {answer.status_code} and no more"}


def _other_evaluator(about: Mapping[str, Any]) -> str:
    """Why a service's verdicts are not those of this command; "" where they are."""
    from kerneltune.tools.schema.verdict import evaluator_sha256

    if about.get("evaluator") == evaluator_sha256():
        return ""
    return "it is of another version" if about.get("evaluator") else f"it says: {about.get('error')}"


def begun_workers(settings: "Settings") -> "AbstractContextManager[Workers]":
    """Begin to start the workers, which takes seconds; what else a command needs is imported meanwhile."""
    from kerneltune.tools.sandbox import workers

    return workers.begun(allow_unconfined=settings.allow_unsandboxed, cache_dir=settings.cache_dir)


def require_free(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError where a file or folder would be replaced that nobody said may be."""
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; give --overwrite to replace it, or another -o")


def write_text(path: Path, text: str) -> None:
    """Write a file that a person asked for, and folders above it that are not there. Raises UsageError."""
    try:
        if not path.parent.exists():  # else mkdir would say of a file in its place that it exists
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def require_record(runs_dir: Path) -> None:
    """Raise UsageError where nothing is stored: opening a record would make an empty one."""
    if not (runs_dir / DATABASE).is_file():
        raise no_runs(runs_dir)


def no_runs(runs_dir: Path) -> UsageError:
    """Return the error of a command that needs a stored run."""
    return UsageError(f"no runs in {runs_dir}; make one with: optimize --task softmax")
