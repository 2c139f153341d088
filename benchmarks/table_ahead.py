"""What a task of the table needs but no GPU: TorchInductor is asked while baselines are built, and public kernels are
traced and compiled from then on, beside the search.

What it saves, on 2 busy cores without a GPU: the seconds of a search that wait for TorchInductor (softmax and
layer_norm 1 to 2, rope 4, gqa_attention 12; and 1.5 that a worker of its own for each task takes to import it), and
those in which a judge waits for public kernels: 1 to 3 each, 12 to 75 for one of FlagGems with 3 to 16 variants, and
two minutes for its group norm. Describing a task takes 0.2 s, so that is not done ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from agent.authors.offline.author import OfflineAuthor, through
from agent.compose.author import LOWER_TIMEOUT_S
from agent.compose.session import Patience, Session, Workshop, open_task, updater_for
from tools.children import Children
from tools.codec import Json
from tools.gpu_bench import GpuBench
from tools.gpus import arch_number
from tools.task import TaskFile
from tools.tooling import Tools
from tools.update import Update, Updater
from tools.verdict import Tier, Verdict

_COMPILED_AT_A_TIME = 2  # the search has the other cores


class Ahead:
    """At work from the start, in threads and workers of its own: what ends the search's workers does not end these.
    `sources`: of the candidates that will be judged; `lower`: whether there will be a search. Close it in the end."""

    def __init__(self, shop: Workshop, task_file: TaskFile, sources: Sequence[str], *, lower: bool) -> None:
        self._shop, self._children = shop, Children()
        self._pool = ThreadPoolExecutor(_COMPILED_AT_A_TIME + 1, thread_name_prefix="ahead")
        self._updater = self._pool.submit(self._described, task_file)  # the first thread's, and the others wait for it
        self._lowered = self._pool.submit(self._lower) if lower else None
        self._updates = {source: self._pool.submit(self._update, source) for source in dict.fromkeys(sources)}

    def wait_lowered(self) -> None:
        """Until TorchInductor has answered: no search may begin before. Two threads must not parse Python at a time:
        CPython 3.11 then fails in one of them ("AST constructor recursion depth mismatch")."""
        if self._lowered is not None:
            wait([self._lowered])

    def tools(self, opened: Session) -> "Beside":
        """Those of a session of public kernels: the session's own, but for what is begun already."""
        return Beside(opened.tools.updater, opened.tools.benches, opened.tools.bench_stage, self._updates)

    def close(self) -> None:
        """Let go of what is not done; the threads end when their workers have."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._children.now():
            worker.kill()
        if self._lowered is not None and not self._lowered.done():
            self._shop.lowering.close()

    def _described(self, task_file: TaskFile) -> Updater:
        with self._shop.machine.trusted("tools.judge.desk:main") as desk:
            task, _ = open_task(desk, task_file)
        return updater_for(self._shop, task, self._children, Patience())

    def _lower(self) -> None:
        """Ask TorchInductor all that the search will ask it. What fails here fails there, too, and is told there."""

        def call(body: dict[str, Json]) -> dict[str, Json]:
            return self._shop.lowering.call(body, LOWER_TIMEOUT_S)

        author = OfflineAuthor(through(call), arch_number(self._shop.arch))
        author.sketches(self._updater.result().task)

    def _update(self, source: str) -> Update:
        return self._updater.result().update(source)


@dataclass(frozen=True)
class Beside(Tools):
    """The tools of a session that compares ours with public kernels. What was begun is waited for; no verdict of the
    search before it is given again: the best of many was chosen by it, so that it tells too short a time."""

    begun: Mapping[str, Future[Update]] = field(default_factory=dict)

    def update(self, source: str, told: Callable[[str], None] = lambda _: None) -> Update:
        """As it was begun, else now."""
        begun = self.begun.get(source)
        return super().update(source, told) if begun is None else begun.result()

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Judge a compiled candidate anew."""
        if isinstance(self.benches, GpuBench):
            return self.benches.bench(update, tier, reuse=False)
        return super().bench(update, tier)  # draws new inputs each time
