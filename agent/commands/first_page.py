"""What `optimize` alone prints: how to begin on this machine. Neither torch nor the store is imported for it."""

from rich.table import Table

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.commands import DATABASE
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.record.query import Filter, RunSummary, at_once, summaries
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import heading, standard_page
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.schema.codec import one_line, shell_word
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.schema.verdict import versions
from kerneltune.tools.task.load import builtin_names


def print_first_page(settings: Settings, environment: Environment) -> None:
    """Print how to begin, what this machine can do, and the latest run."""
    page, gpu = standard_page(colour=True), gpu_info()
    begin = (
        (
            "optimize --task softmax",
            f"optimise a built-in task; `optimize tasks` lists all {len(builtin_names())}",
        ),
        ("optimize init FILE.py:NAME", "make a task of a PyTorch function or module of your own"),
        ("optimize doctor", "check this machine, and how to fix each problem"),
    )
    software = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("torch", "triton"))
    machine = (("GPU", _gpu(gpu, settings)), ("author", _author(settings, environment)), ("software", software))
    page.print("kerneltune finds the fastest GPU kernel for a PyTorch task, and verifies it.")
    page.print(heading("begin with"), _rows(*begin, style="cyan"), heading("this machine"), _rows(*machine))
    if latest := at_once(settings.runs_dir / DATABASE, lambda record: summaries(record, Filter(limit=1))):
        page.print(heading("latest run"), _rows(*_latest_run(latest[0]), style="cyan"))
        page.print(_rows(("optimize browse", "all stored runs, in this terminal"), style="cyan"))
    page.print("", "optimize --help lists all commands and flags.")


def _rows(*rows: tuple[str, str], style: str = "") -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(f"  {name}", one_line(value))
    return table


def _gpu(gpu: GpuInfo | None, settings: Settings) -> str:
    if gpu is None:
        return f"none: kernels are compiled for {settings.arch or DEFAULT_ARCH} and checked, not timed"
    return f"{gpu.name}, {gpu.memory_bytes / (1 << 30):.0f} GiB: kernels are checked and timed"


def _author(settings: Settings, environment: Environment) -> str:
    if settings.model:
        return f"{settings.model} (the setting model)"
    if environment.keys:
        return f"{environment.keys[0]}, whose API key is set; --model offline needs none"
    return f"offline: expert kernels and a search; set {' or '.join(KEY_VARIABLES.values())} for a model"


def _latest_run(run: RunSummary) -> list[tuple[str, str]]:
    said = "" if run.best_us is None else "best "
    best = f", {said}{words.best_in_words(run, in_full=True)}" if run.best_attempt_id else ""
    run_id = shell_word(run.run_id)
    rows = [(f"optimize show {run_id}", f"{run.task}, {words.plural(run.attempts, 'attempt')}{best}")]
    if run.why in (None, StopReason.INTERRUPTED):
        rows.append((f"optimize --resume {run_id}", "continue it: it has not ended"))
    return rows
