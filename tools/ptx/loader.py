"""What a candidate launches its PTX with. Where launches go is decided by who is in charge of the process: a tracer
writes them down; elsewhere they go to the GPU (`tools.ptx.gpu`)."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.ptx.binding import PtxLaunchError, bind, entry_of
from tools.ptx.ir import Function, PtxError
from tools.ptx.launch import Backend, PtxLaunch
from tools.ptx.parser import parse
from tools.ptx.template import render

LARGEST_BLOCK = 1024
LARGEST_CLUSTER = 16
_AXES = 3


_backend: Backend | None = None


def use(backend: Backend) -> None:
    """All launches of this process go there from now on."""
    global _backend
    _backend = backend


def _in_charge() -> Backend:
    if _backend is None:
        from tools.ptx.gpu import GpuBackend

        use(GpuBackend())
    assert _backend is not None
    return _backend


class PtxKernel:
    """An entry of a PTX text, to be launched as a Triton kernel is: `kernel[grid](*args, block=256)`.

    text     PTX; with `configs`, a template (`tools.ptx.template`): each config fills it in, and the fastest is used
    entry    its name; may be left out where the text has one
    configs  dicts of parameters; grid, block and shared_bytes may be functions of the config, and "block" and
             "shared_bytes" in a config stand for arguments that a launch leaves out

    Raises PtxError for text that is not PTX, with its line, at the first launch.
    """

    def __init__(self, text: str, *, entry: str | None = None, configs: Sequence[Mapping[str, Any]] = ()) -> None:
        if not isinstance(text, str):
            raise PtxLaunchError(f"PtxKernel takes PTX as a str, not {type(text).__name__}")
        self.text, self.entry = text, entry
        self.configs = tuple(dict(config) for config in configs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch over that many blocks: an int, up to three of them, or a function of the config."""
        return lambda *args, **options: self._choose(grid, args, options)

    def _choose(self, grid: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        backend = _in_charge()

        def run(config: Mapping[str, Any]) -> None:
            backend.launch(self._bound(config, grid, args, **options))

        try:
            if not self.configs:
                run({})
                return
            key = self.entry or self._entry(self.configs[0])[1].name
            run(self.configs[backend.choose(key, args, self.configs, run)])
        except (PtxError, PtxLaunchError) as error:
            error.whole = self.text
            raise

    def _entry(self, config: Mapping[str, Any]) -> tuple[str, Function]:
        text = render(self.text, config) if self.configs else self.text
        return text, entry_of(parse(text), self.entry)

    def _bound(
        self,
        config: Mapping[str, Any],
        grid: Any,
        args: tuple[Any, ...],
        *,
        block: Any = None,
        shared_bytes: Any = None,
        cluster: Any = None,
        cooperative: bool = False,
        pdl: bool = False,
    ) -> PtxLaunch:
        text, entry = self._entry(config)
        wanted = config.get("block") if block is None else block
        shared = config.get("shared_bytes", 0) if shared_bytes is None else shared_bytes
        blocks = sizes("grid", _filled(grid, config), least=0)
        return PtxLaunch(
            text,
            entry.name,
            blocks,
            block_of(_filled(wanted, config), entry.directives, entry.name),
            args,
            bind(entry, args),
            _size("shared_bytes", _filled(shared, config)),
            cluster_of(_filled(cluster, config), blocks, entry.directives),
            bool(cooperative),
            bool(pdl),
        )


def _filled(value: Any, config: Mapping[str, Any]) -> Any:
    return value(config) if callable(value) else value


def _size(name: str, value: Any) -> int:
    try:
        size = operator.index(value)
    except (TypeError, ValueError) as error:
        raise PtxLaunchError(f"{name} is a whole number, not {value!r:.40} (divide with // or triton.cdiv)") from error
    if size < 0:
        raise PtxLaunchError(f"{name} cannot be {size}")
    return size


def sizes(name: str, value: Any, *, least: int = 1) -> tuple[int, int, int]:
    """One to three sizes as three. Raises PtxLaunchError."""
    given = [_size(name, v) for v in (value if isinstance(value, list | tuple) else (value,))]
    if not 1 <= len(given) <= _AXES or min(given) < least:
        raise PtxLaunchError(f"{name} has one to three sizes of at least {least}, not {value!r:.60}")
    first, second, third = (*given, 1, 1)[:_AXES]
    return first, second, third


def block_of(wanted: Any, directives: Mapping[str, tuple[int, ...]], entry: str) -> tuple[int, int, int]:
    """Threads of a block, which the text may demand (.reqntid) or bound (.maxntid). Raises PtxLaunchError."""
    demanded, bound = directives.get("reqntid"), directives.get("maxntid")
    if wanted is None and demanded is None:
        raise PtxLaunchError(f"say how many threads a block of {entry} has: kernel[grid](…, block=256)")
    block = sizes("block", demanded if wanted is None else wanted)
    threads = math.prod(block)
    if demanded is not None and block != sizes("block", demanded):
        raise PtxLaunchError(f"block={block}, but the text says .reqntid {', '.join(map(str, demanded))}")
    if bound is not None and threads > math.prod(bound):
        raise PtxLaunchError(f"a block of {threads} threads, but the text says .maxntid {', '.join(map(str, bound))}")
    if threads > LARGEST_BLOCK:
        raise PtxLaunchError(f"a block of {threads} threads; the most is {LARGEST_BLOCK}")
    return block


def cluster_of(
    wanted: Any, grid: tuple[int, int, int], directives: Mapping[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Blocks of a cluster, which the text may demand (.reqnctapercluster) and the grid must be made of. Raises
    PtxLaunchError."""
    demanded = directives.get("reqnctapercluster")
    cluster = sizes("cluster", (demanded or (1, 1, 1)) if wanted is None else wanted)
    if demanded and cluster != sizes("cluster", demanded):
        raise PtxLaunchError(f"cluster={cluster}, but the text says .reqnctapercluster {', '.join(map(str, demanded))}")
    if math.prod(cluster) > LARGEST_CLUSTER:
        raise PtxLaunchError(f"a cluster of {math.prod(cluster)} blocks; the most is {LARGEST_CLUSTER}")
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise PtxLaunchError(f"a grid of {grid} blocks cannot be divided into clusters of {cluster}")
    return cluster
