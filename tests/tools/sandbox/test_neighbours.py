"""Hostile candidates beside honest ones: a verdict is about the candidate."""

import pytest

from benchmarks.neighbours import ATTACKS, compare
from kerneltune.tools.sandbox.confine import available

HERE = available()
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")


def test_who_takes_leases_locks_aio_processors_and_memory_changes_no_verdict_on_others() -> None:
    found = compare(rounds=1, honest=2, hostile=len(ATTACKS), width=2)
    assert found.differing() == []
    assert [one.verdict.split()[0] for one in found.alone] == ["checked", "checked"]
