"""`optimize` with nothing else: where somebody new begins. Neither torch nor the store is imported for it."""

from importlib import metadata

from kerneltune.agent.record.query import latest_runs
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.setup import MachineFacts, print_welcome
from kerneltune.tools.backends.cuda.device import gpu_info
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.task.load import builtin_names


def teach(settings: Settings, environment: Environment) -> int:
    """Print the page."""
    gpu = gpu_info()
    machine = MachineFacts(
        gpu=gpu.name if gpu else None,
        memory_bytes=gpu.memory_bytes if gpu else 0,
        arch=settings.arch or (f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH),
        versions={name: _version(name) for name in ("torch", "triton")},
        model=settings.model,
        keys=environment.keys,
    )
    latest = latest_runs(settings.runs_dir / "runs.db")
    print_welcome(machine, latest[0] if latest else None, len(builtin_names()))
    return 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
