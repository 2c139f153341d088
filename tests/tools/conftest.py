"""Real worker processes for the tests, started once per session."""

from collections.abc import Iterator

import pytest

from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The real warm workers: fork servers, sandbox and all."""
    with workers.started() as started:
        yield started
