"""`optimize bench FILE --watch`: each time that a file is saved it is compiled, checked and timed, and compared with
the version before and the best.

It is a client's run: of the service of these runs where there is one, else of a service in this process. What came of
a version is read from the record.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kerneltune.agent.attempt import Attempt, best
from kerneltune.agent.commands import begun_workers, may_use_service, service_client
from kerneltune.agent.settings import Settings, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.attempt import label, speedup_words, time_words
from kerneltune.agent.view.output import Page, StatusLine, standard_page, status_line
from kerneltune.tools.schema.codec import Json, one_line, parsed, read_file
from kerneltune.tools.schema.errors import StoreError, Unfit, UsageError

if TYPE_CHECKING:
    from kerneltune.agent.commands.service import CallResult
    from kerneltune.agent.commands.session import Workshop
    from kerneltune.agent.record.store import Store

_LOOK_S = 0.05  # between two looks at the file
_SETTLED_S = 0.03  # an editor may write in pieces
_CLIENT = "edit"
_MOST_SAVES = 100_000  # attempts of the run
_MOST_LINES = 24  # of what was wrong with a version


@dataclass(frozen=True)
class Tools:
    """Those of a run. `update` takes a source, what it is called and the number of the version before, and returns the
    number of the attempt, or why there is none; `bench` takes that number. `shop`: compilers for its machine code."""

    run_id: str
    update: Callable[[str, str, int | None], int | str]
    bench: Callable[[int], object]
    shop: "Callable[[], contextlib.AbstractContextManager[Workshop]]"


def edit_loop(path: Path, task: str, settings: Settings, *, service: bool) -> int:
    """Judge each version of a file until Ctrl-C; 0. Raises UsageError for a file that is not there."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; --watch judges one file each time that it is saved")
    settings = replace(settings, tier=settings.tier or "screened", max_attempts=_MOST_SAVES, confirm=False)
    page = standard_page(colour=True)
    with contextlib.ExitStack() as held:
        status = held.enter_context(status_line(f"opening {task}"))
        from kerneltune.agent.record.store import Store

        store = held.enter_context(Store.open(settings.runs_dir))
        opened = _of_service if service and may_use_service(settings) else _of_its_own
        tools = held.enter_context(opened(task, settings))
        loop = _Loop(tools, store, page, status)
        with contextlib.suppress(KeyboardInterrupt):
            waits = functools.partial(status.show, f"waiting for {path.name} to be saved; Ctrl-C ends")
            for saved_s, source in saves(path, waits):
                loop.judge(source, path.name, saved_s)
    page.print(f"kept as run {tools.run_id}; optimize browse {tools.run_id} shows all versions")
    return 0


def saves(path: Path, waits: Callable[[], None]) -> Iterator[tuple[float, str]]:
    """The text of a file now, and each time that it was saved with another one, with the moment on the monotonic clock;
    `waits` is called before each wait. One that is not there for a moment, as while an editor replaces it, is waited
    for."""
    last: tuple[int, int] | None = None
    before: str | None = None
    waits()
    while True:
        with contextlib.suppress(OSError):
            found = path.stat()
            if (found.st_mtime_ns, found.st_size) != last:
                saved_s = time.monotonic()
                time.sleep(_SETTLED_S)
                again = path.stat()
                if (again.st_mtime_ns, again.st_size) == (found.st_mtime_ns, found.st_size):
                    last = (found.st_mtime_ns, found.st_size)
                    text = read_file(path).decode(errors="replace")
                    if text.strip() and text != before:
                        before = text
                        yield saved_s, text
                        waits()
                continue
        time.sleep(_LOOK_S)


class _Loop:
    """The versions of a file so far."""

    def __init__(self, tools: Tools, store: "Store", page: Page, status: StatusLine) -> None:
        self._tools, self._store, self._page, self._status = tools, store, page, status
        self._last: Attempt | None = None
        self._best: Attempt | None = None
        self._n = 0

    def judge(self, source: str, name: str, saved_s: float) -> None:
        """Judge a version, and print what came of it."""
        self._n += 1
        self._status.show(f"compiling version {self._n}")
        number = self._tools.update(source, f"{name}, version {self._n}", self._last.number if self._last else None)
        if isinstance(number, str):
            return self._print([one_line(number)])
        attempt = self._stored(number)
        if attempt.verdict is None:
            self._status.show(f"judging version {self._n}")
            self._tools.bench(number)
            attempt = self._stored(number)
        self._print([*_verdict_lines(attempt, time.monotonic() - saved_s), *self._compared(attempt)])
        if not attempt.accepted:
            return None
        if self._last is not None:
            self._status.show("comparing machine code")
            self._print(self._machine_code(self._last, attempt))
        self._best = best(known for known in (self._best, attempt) if known)
        self._last = attempt
        return None

    def _stored(self, number: int) -> "Attempt":
        return self._store.find_attempt(f"{self._tools.run_id}/{number}")[1]

    def _print(self, lines: Sequence[Text | str]) -> None:
        with self._status.cleared():
            self._page.print(*lines)

    def _compared(self, attempt: "Attempt") -> Iterator[Text]:
        if not attempt.accepted or self._last is None:
            return
        before, now = _numbers(self._last), _numbers(attempt)
        told = [f"{name} {before[name]} -> {now[name]}" for name in now if before.get(name) != now[name]]
        yield Text(f"    against #{self._last.number}: {', '.join(told) or 'the same numbers'}")
        if self._best is not None and self._best is not self._last:
            known = ", ".join(f"{name} {value}" for name, value in _numbers(self._best).items())
            yield Text(f"    best so far: #{self._best.number}, {known}")

    def _machine_code(self, before: "Attempt", after: "Attempt") -> list[Text]:
        from kerneltune.agent.commands.show import compiled_attempts
        from kerneltune.tools.schema.sass import changes

        try:
            found = compiled_attempts(self._store, [before.attempt_id, after.attempt_id], self._tools.shop)
        except (StoreError, Unfit) as error:
            return [Text(f"    {one_line(str(error), 200)}")]
        return [Text(f"    {line}") for line in changes(found[0].sass, found[1].sass).split("\n")]


def _verdict_lines(attempt: "Attempt", took_s: float) -> Iterator[Text]:
    line = Text(f"#{attempt.number}  ").append_text(label(attempt.status))
    if attempt.accepted:
        said = [time_words(attempt), speedup_words(attempt)] if attempt.timing else []
        kernels = attempt.kernels
        said += [f"regs {words.registers(kernels)}", f"spills {words.size(words.spill_bytes(kernels))}"]
        line.append("  " + "  ".join([words.error(attempt.judged), *said]), style="default")
    yield line.append(f"  ({took_s:.1f} s after it was saved)", style="dim")
    if not attempt.accepted:
        told = words.lines(attempt.detail).split("\n")
        yield from (Text(f"    {part}") for part in told[:_MOST_LINES])


def _numbers(attempt: "Attempt") -> dict[str, str]:
    kernels, known = attempt.kernels, {}
    if attempt.timing:
        known["time"] = words.microseconds(attempt.timing.median_us)
    return known | {
        "regs": words.registers(kernels),
        "spills": words.size(words.spill_bytes(kernels)),
        "occupancy": f"{words.occupancy(kernels):.0%}",
        "shared": words.size(words.shared_bytes(kernels)),
    }


# Whose tools ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _of_its_own(task: str, settings: Settings) -> Iterator[Tools]:
    """A service for this command alone."""
    with begun_workers(settings) as begun:
        from kerneltune.agent.commands.service import Service

        with Service(settings, environment(), begun) as service:
            run = service.start(task, f"http:{_CLIENT}")
            run.opening.result()

            def call(name: str, arguments: Mapping[str, Json]) -> "CallResult":
                made = run.call(name, arguments).result()
                if not made.was_made:
                    run.outcome.result()  # raises why
                return made

            def update(source: str, what: str, parent: int | None) -> int | str:
                made = call("update", _update_arguments(source, what, parent))
                return made.attempt.number if made.attempt else made.text

            shop = contextlib.nullcontext(service.shop.result())
            yield Tools(run.run_id, update, lambda n: call("bench", {"attempt": n}), lambda: shop)


def _update_arguments(source: str, what: str, parent: int | None) -> dict[str, Json]:
    return {"source": source, "rationale": what} | ({} if parent is None else {"parent": parent})


@contextlib.contextmanager
def _of_service(task: str, settings: Settings) -> Iterator[Tools]:
    """The service of these runs."""
    import httpx2

    from kerneltune.agent.commands.session import workshop

    with contextlib.ExitStack() as held, service_client(settings.runs_dir) as client:

        def ask(method: str, path: str, **body: Any) -> dict[str, Any]:
            """What the service answers; {} where it has no such session any more."""
            try:
                answer = client.request(method, path, json=body or None)
            except httpx2.TransportError as error:
                raise Unfit(f"the service is gone ({error}); what it had judged is stored") from error
            told: dict[str, Any] = parsed(answer.text)
            if answer.status_code == 404:
                return {}
            if answer.status_code >= 300:
                raise Unfit(f"the service says: {told.get('error')}; --no-service judges here")
            return told

        limits = {"max_attempts": _MOST_SAVES}
        asked = {"tier": settings.tier, "confirm": False, "client": _CLIENT, "limits": limits}
        begun = ask("POST", "/sessions", task=task, **asked)
        run_id = str(begun["run_id"])

        def call(name: str, arguments: Mapping[str, Json]) -> dict[str, Any]:
            nonlocal begun
            while not (told := ask("POST", f"/sessions/{begun['session']}/call", name=name, arguments=arguments)):
                begun = ask("POST", "/sessions", resume=run_id, **asked)  # nobody saved for a quarter of an hour
            return told

        compilers = functools.cache(lambda: held.enter_context(workshop(settings, lambda _: None)))

        def update(source: str, what: str, parent: int | None) -> int | str:
            told = call("update", _update_arguments(source, what, parent))
            return int(told["attempt"]["number"]) if told["attempt"] else str(told["text"])

        try:
            yield Tools(
                run_id,
                update,
                lambda n: call("bench", {"attempt": n}),
                lambda: contextlib.nullcontext(compilers()),
            )
        finally:
            with contextlib.suppress(Unfit):  # what ended it is told
                ask("DELETE", f"/sessions/{begun['session']}")
