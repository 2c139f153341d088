"""TorchInductor's worker: kept from request to request, since its imports take seconds, and replaced when it failed."""

from tools.codec import Json
from tools.errors import WorkerError
from tools.machine import Machine
from tools.workers import Worker


class Lowering:
    """Asks `agent.authors.offline.inductor` in a process of its own. Close it in the end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._worker: Worker | None = None

    def call(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        """Its answer; the errors of `Worker.call`. After one of them the next request has a fresh worker: a late answer
        of the old one would be taken for the next request's."""
        if self._worker is None:
            self._worker = self._machine.trusted("agent.authors.offline.inductor:main")
        try:
            return self._worker.call(body, timeout_s=timeout_s).body
        except WorkerError:
            self.close()
            raise

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None
