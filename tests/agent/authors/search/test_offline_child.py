"""Lowering in the child process that the product uses."""

import contextlib

import pytest

from kerneltune.agent.authors.search.author import through
from kerneltune.agent.authors.search.clean import CaseArguments, split
from kerneltune.agent.authors.search.sketch import CannotLower
from kerneltune.agent.commands.session import Lowering
from kerneltune.tools.sandbox.workers import started_base
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import WorkerTimeout

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x.relu()
def get_inputs(): return [torch.ones(SIZE, 4)]
def get_init_inputs(): return []
SIZE = 3
"""


def test_a_child_answers_many_requests_and_survives_a_task_that_fails() -> None:
    with started_base() as machine, machine.trusted("kerneltune.agent.authors.search.inductor:main") as worker:

        def call(body: dict[str, Json]) -> dict[str, Json]:
            return worker.call(body, timeout_s=120).body

        lower = through(call)
        with pytest.raises(CannotLower, match="NameError"):
            lower("missing", {}, 90)
        text, facts = split(lower(SOURCE, {"SIZE": 7}, 90)[0])
        assert facts.tensors == [([7, 4], "float32", True)]
        assert "def call(" in text
        _, anything = split(lower(SOURCE, {"dynamic": True}, 90)[0])
        assert anything.covers(CaseArguments({}, [((100, 100), "float32")], {}))
        assert not anything.covers(CaseArguments({}, [((100, 100), "float16")], {}))
        assert not anything.covers(CaseArguments({}, [((100,), "float32")], {}))


def test_after_a_request_that_took_too_long_the_next_one_gets_its_own_answer() -> None:
    with started_base() as machine, contextlib.closing(Lowering(machine)) as lowering:
        asked = {"source": SOURCE, "overrides": {"SIZE": 7}, "arch": 90}
        with pytest.raises(WorkerTimeout):
            lowering.call(asked, 0.001)
        codes = lowering.call({**asked, "overrides": {"SIZE": 5}}, 120.0)["codes"]
        assert split(codes[0])[1].tensors == [([5, 4], "float32", True)]
