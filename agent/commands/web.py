"""Stored runs, their attempts and suites as pages that `optimize serve --web` answers a browser with: those of
`optimize report`, which follow the record."""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from kerneltune.agent.commands.report import materials_of
from kerneltune.agent.commands.show import shown_attempt
from kerneltune.agent.export.privacy import names_known
from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.agent.report.page import Site, attempt_page, run_page, runs_page
from kerneltune.agent.report.suite import suite_page
from kerneltune.agent.report.text import Sanitizer
from kerneltune.agent.view.text import said_of
from kerneltune.tools.schema.codec import one_line
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import versions

COOKIE = "kerneltune"
MOST_RUNS, _MOST_SUITES = 500, 100  # in the list
_MOST_MADE = 2  # pages at a time: each reads its run whole


class NoPage(Exception):
    """There is no such page."""


class RecordPages:
    """Answers GET requests of a browser. `token`: what it must have shown once, by ?token=…; then its cookie does."""

    def __init__(self, runs_dir: Path, token: str) -> None:
        self._runs_dir, self._token = runs_dir, token
        self._cookie = secrets.token_urlsafe(24)  # not the token itself, which opens more than pages
        self._version = versions()["kerneltune"]
        self._making = asyncio.Semaphore(_MOST_MADE)

    def routes(self) -> list[Route]:
        """All pages."""
        return [
            Route("/", self._answered(self._runs)),
            Route("/seq", self._answered(self._seq)),
            Route("/runs/{run}", self._answered(self._run)),
            Route("/runs/{run}/{number:int}", self._answered(self._attempt)),
            Route("/suites/{suite}", self._answered(self._suite)),
        ]

    def may_see(self, request: Request) -> bool:
        """Whether a browser has shown the token here before: enough for a page, and for nothing else."""
        is_page = request.method == "GET" and request.url.path.split("/")[1] in ("", "seq", "runs", "suites")
        return is_page and secrets.compare_digest(request.cookies.get(COOKIE, "").encode(), self._cookie.encode())

    def let_in(self, request: Request) -> Response | None:
        """The answer to whoever opens a page with the token: the cookie, and the page's address without the token."""
        shown = request.query_params.get("token", "")
        if not (request.method == "GET" and shown.isascii() and secrets.compare_digest(shown, self._token)):
            return None
        answer = RedirectResponse(request.url.path, 303)
        answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict")
        return answer

    def _answered(self, make: "Callable[[Store, Request], str | Response]") -> "Callable[[Request], object]":
        async def answer(request: Request) -> Response:
            async with self._making:
                return await asyncio.to_thread(self._made, make, request)

        return answer

    def _made(self, make: "Callable[[Store, Request], str | Response]", request: Request) -> Response:
        try:
            with Store.open(self._runs_dir, to_look=True) as store:
                made = make(store, request)
        except (NoPage, StoreError) as error:
            return PlainTextResponse(f"{one_line(str(error), 500)}\n", 404)
        headers = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
        return made if isinstance(made, Response) else HTMLResponse(made, headers=headers)

    def _seq(self, store: Store, request: Request) -> Response:
        """How far the record is: all of it, or a run."""
        return PlainTextResponse(str(store.last_seq(request.query_params.get("of") or None)))

    def _runs(self, store: Store, request: Request) -> str:
        query = request.query_params.get("q", "")[:200]
        found = store.runs(Filter(limit=MOST_RUNS))
        passing = [run for run in found if all(word in said_of(run) for word in query.lower().split())]
        about = {"query": query, "total": len(found), "suites": store.suites()[:_MOST_SUITES]}
        return runs_page(passing, _sanitizer(store), Site(store.last_seq()), version=self._version, **about)

    def _run(self, store: Store, request: Request) -> str:
        run_id = request.path_params["run"]
        seq = store.last_seq(run_id)
        material = next(materials_of(store, [run_id], conversations=True), None) if seq else None
        if material is None:
            raise NoPage(f"no run {run_id}")
        site = Site(seq, run_id, _path_of(run_id))
        return run_page(material, _sanitizer(store), version=self._version, site=site)

    def _attempt(self, store: Store, request: Request) -> str:
        run_id, number = request.path_params["run"], request.path_params["number"]
        seq = store.last_seq(run_id)
        numbers = [attempt.number for attempt in store.attempts(run_id)] if seq else []
        if number not in numbers:
            raise NoPage(f"no attempt {number} of run {run_id}")
        known = shown_attempt(store, f"{run_id}/{number}")
        site = Site(seq, run_id, _path_of(run_id))
        return attempt_page(known, numbers, _sanitizer(store), version=self._version, site=site)

    def _suite(self, store: Store, request: Request) -> str:
        name = request.path_params["suite"]
        run_ids = store.of_suite(name)
        if not run_ids:
            raise NoPage(f"no suite {name}")
        materials = sorted(materials_of(store, run_ids), key=lambda m: m.trajectory.run.task)
        links = {run_id: _path_of(run_id) for run_id in run_ids}
        site = Site(store.last_seq())
        chosen = f"These are the runs of suite {name}."
        shown = _sanitizer(store)
        return suite_page(materials, shown, version=self._version, chosen=chosen, links=links, site=site)


def _path_of(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='')}"


def _sanitizer(store: Store) -> Sanitizer:
    return Sanitizer(names_known(store.machines()))
