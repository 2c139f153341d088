"""Real worker processes for the tests, started once per session."""

from collections.abc import Iterator

import pytest

from kerneltune.tools.sandbox import machine as machines
from kerneltune.tools.sandbox.machine import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The real warm workers: fork servers, sandbox and all."""
    with machines.started() as started:
        yield started
