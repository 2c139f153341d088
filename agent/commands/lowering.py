"""TorchInductor's worker: kept from request to request, since its imports take seconds, and replaced when it failed."""

import json
import threading

from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import Json


class Lowering:
    """Asks `agent.authors.search.inductor` in a process of its own. Any thread may ask. Close it in the end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._worker: Worker | None = None
        self._asking = threading.Lock()
        self._answers: dict[str, dict[str, Json]] = {}

    def call(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        """Its answer, the same again to what was asked before; the errors of `Worker.call`. After one of them the next
        request has a fresh worker: a late answer of the old one would be taken for the next request's."""
        name = json.dumps(body, sort_keys=True)
        with self._asking:
            if name not in self._answers:
                self._answers[name] = self._asked(body, timeout_s)
            return self._answers[name]

    def _asked(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        self._worker = worker = self._worker or self._machine.trusted("kerneltune.agent.authors.search.inductor:main")
        try:
            return worker.call(body, timeout_s=timeout_s).body
        except BaseException:  # Ctrl-C leaves an answer on its way, too
            self.close()
            raise

    def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
