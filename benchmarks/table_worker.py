"""A worker of the table: opens one GPU for good, and does with one task after the other what it is asked to.

    python -m benchmarks.table_worker     reads requests and answers them, as `benchmarks.worker_steps` says

{"do": "start", "flags": {…}} first, "calibrate", {"do": "open", "task", "files", "search"}, {"do": "search", "time_s"},
{"do": "public", "files"}. A task stays open until the next one is opened.
"""

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent.compose.author import OFFLINE, chosen
from agent.compose.ceilings import measure_with
from agent.compose.files import bench_opened
from agent.compose.run import fan_out, run_opened
from agent.compose.session import Session, Workshop, session, workshop
from agent.compose.sources import read_candidates
from agent.compose.start import checked
from agent.record.events import Event, Judged
from agent.record.store import Store
from agent.settings import Settings, chosen_settings, environment
from agent.view.files import FilesView
from agent.view.plain import PlainView
from agent.view.summary import summary_text
from benchmarks.table_ahead import Ahead
from benchmarks.worker_steps import More, Request, Step, said, served, tenths
from tools.task import find_task


class TableWorker:
    """What has been opened, and the steps."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self._held, self._task = held, contextlib.ExitStack()
        self._settings = Settings()
        self._shop: Workshop | None = None
        self._opened: Session | None = None
        self._ahead: Ahead | None = None
        self.steps: Mapping[str, Step] = {
            "start": self._start, "calibrate": self._calibrate, "open": self._open, "search": self._search,
            "public": self._public,
        }  # fmt: skip

    def _start(self, asked: Request, _more: More) -> int:
        flags = asked["flags"] | {"runs_dir": Path(asked["flags"]["runs_dir"]), "model": OFFLINE}
        self._settings = chosen_settings(flags)
        self._shop = self._held.enter_context(workshop(self._settings, said))
        self._held.enter_context(self._task)
        self._shop.machine.enforced()  # waits until all zygotes are warm
        return 0

    def _calibrate(self, _asked: Request, _more: More) -> int:
        shop = self._started()
        if shop.gpu is None:
            print("there is no GPU to calibrate here")
            return 1
        print(measure_with(shop.machine, shop.gpu, self._settings.cache_dir))
        return 0

    def _open(self, asked: Request, _more: More) -> int:
        shop, task_file = self._started(), find_task(asked["task"])
        self._opened = self._ahead = None
        self._task.close()
        sources = [candidate.source for candidate in read_candidates(asked["files"]) if not candidate.problem]
        self._ahead = Ahead(shop, task_file, sources, lower=asked["search"])
        self._task.callback(self._ahead.close)
        self._opened = self._task.enter_context(session(shop, task_file))
        self._ahead.wait_lowered()
        return 0

    def _search(self, asked: Request, more: More) -> int:
        """As `optimize --task T --model offline --plain --max-time S`."""
        settings, began_s = replace(self._settings, max_time_s=asked["time_s"]), time.monotonic()
        judged_s: list[float] = []  # when each was; what comes after the last is the end

        def clock(event: Event) -> None:
            judged_s.extend([time.monotonic()] * isinstance(event, Judged))

        view, opened = PlainView(sys.stderr), self._open_task()
        with contextlib.closing(chosen(settings, environment())) as choice, Store.open(settings.runs_dir) as store:
            try:
                start = checked(settings.from_, store, opened.file)
                outcome = run_opened(opened, choice, settings, store, fan_out(view, clock), named_start=start)
            finally:
                now_s = time.monotonic()
                last_s = judged_s[-1] if judged_s else now_s
                more |= {"search_s": tenths(last_s - began_s), "end_s": tenths(now_s - last_s)}
        print(summary_text(view.state), end="")
        return outcome.exit_code

    def _public(self, asked: Request, _more: More) -> int:
        """As `optimize bench FILES --task T --tier judged --plain`."""
        opened, ahead = self._open_task(), self._ahead
        candidates = read_candidates(asked["files"])
        if ahead is not None:
            candidates = [replace(candidate, tools=ahead.tools(opened)) for candidate in candidates]
        settings = replace(self._settings, tier="judged")
        with Store.open(settings.runs_dir) as store:
            view = FilesView(sys.stdout, sys.stderr, total=len(candidates))
            return bench_opened(opened, candidates, settings, view, store)

    def _started(self) -> Workshop:
        if self._shop is None:
            raise RuntimeError("start first")
        return self._shop

    def _open_task(self) -> Session:
        if self._opened is None:
            raise RuntimeError("open a task first")
        return self._opened


def main() -> int:
    """Answer until there are no more requests."""
    return served(lambda held: TableWorker(held).steps)


if __name__ == "__main__":
    sys.exit(main())
