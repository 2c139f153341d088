"""Lowering in the child process that the product uses."""

import contextlib
from pathlib import Path

import pytest

from kerneltune.agent.authors.search.author import OfflineAuthor, lowered, through
from kerneltune.agent.authors.search.clean import CaseArguments, LoweredCode, clean
from kerneltune.agent.authors.search.neighbours import CannotLower
from kerneltune.agent.commands.session import Lowering
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.sandbox.workers import started_base
from kerneltune.tools.schema.codec import Json, decode
from kerneltune.tools.schema.errors import WorkerTimeout
from kerneltune.tools.task.load import read_task
from kerneltune.tools.task.write import backward_source
from tests import shared_fork_server

ROOT = Path(__file__).resolve().parents[4]

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x.relu()
def get_inputs(): return [torch.ones(SIZE, 4)]
def get_init_inputs(): return []
SIZE = 3
"""

COPIES = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0), depth)
    def forward(self, x): return self.layers(x)
def get_inputs(): return [torch.rand(2, 5, 16)]
def get_init_inputs(): return [depth]
depth = 2
"""
READS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0.5, 1.5, 3)]
        self.w = torch.nn.Parameter(torch.rand(4))
    def forward(self, x): return (x * self.w * self.rates[2]).relu()
def get_inputs(): return [torch.rand(3, 4)]
def get_init_inputs(): return []
"""
RECURRENT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(4, 4, 3, bidirectional=True, proj_size=PROJECTED)
    def forward(self, x): return self.rnn(x)[0]
def get_inputs(): return [torch.rand(512, 2, 4)]
PROJECTED = 0
def get_init_inputs(): return []
"""


def test_copied_modules_constructors_that_read_values_and_long_recurrences_are_lowered() -> None:
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        lower = through(lambda body: lowering.call(body, 120.0))
        copies = lower(COPIES, {"cases": {"main": {}, "small": {"depth": 1}}}, 90)
        assert "layers.layers.1.norm2.weight" in copies.facts.state
        reads = lower(READS, {}, 90)
        assert ([*reads.facts.state], "1.5" in reads.text) == (["w"], True)
        long = lower(RECURRENT, {}, 90)
        assert (long.text.count("= torch.ops.kerneltune.recurrent.default("), len(long.kernels) < 20) == (3, True)
        with pytest.raises(CannotLower, match=r"3 recurrent layers of 512 steps, both ways, with projected states"):
            lower(RECURRENT, {"PROJECTED": 2}, 90)
        random = RECURRENT.replace("self.rnn(x)", "self.rnn(x, torch.randn(2, 6, 2, 4, device=x.device).unbind())")
        assert "torch.ops.aten.randn.default(" in lower(random, {}, 90).text
        gradient = RECURRENT.replace(
            "self.rnn(x)[0]", "torch.func.vjp(lambda x: self.rnn(x)[0].sum(), x)[1](x[0, 0, 0])"
        )
        with pytest.raises(CannotLower, match=r"512 steps, both ways, whose gradients are asked for"):
            lower(gradient, {}, 90)


LAYERS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(n, n + 1) for n in range(20, 29)])
    def forward(self, x):
        for layer in self.layers:
            x = torch.softmax(layer(x), 1)
        return x
def get_inputs(): return [torch.rand(24, 20)]
def get_init_inputs(): return []
"""


def test_a_model_of_many_kernels_is_lowered_as_it_comes_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(LAYERS)
    asked: list[Json] = []
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:

        def call(body: dict[str, Json]) -> dict[str, Json]:
            asked.append(body["overrides"].get("config"))
            return lowering.call(body, 120.0)

        author = OfflineAuthor(through(call), 90)
        task = describe(read_task(path))
        assert [sketch.name for sketch in author.sketches(task)] == ["split_products", "inductor"]  # of one lowering
        assert "class ModelNew" in lowered(through(call), 90, task).source  # what models are shown
    assert asked == [{}, {}]


def test_a_task_without_a_reduction_is_lowered_once_and_one_with_a_reduction_with_each_setting(tmp_path: Path) -> None:
    asked: list[Json] = []
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:

        def call(body: dict[str, Json]) -> dict[str, Json]:
            asked.append(body["overrides"].get("config"))
            return lowering.call(body, 120.0)

        for name, forward in {"relus": "x.relu()", "scans": "x.cumsum(1)"}.items():
            path = tmp_path / f"{name}.py"
            path.write_text(SOURCE.replace("x.relu()", forward))
            OfflineAuthor(through(call), 90).sketches(describe(read_task(path)))
            asked.append(name)
    assert asked == [{}, "relus", {}, {"triton.persistent_reductions": False}, {"split_reductions": False}, "scans"]


def test_one_candidate_of_inductors_comes_before_the_experts_and_its_variants_after_them(tmp_path: Path) -> None:
    path = ROOT / "tools" / "tasks" / "layer_norm.py"
    gradients = tmp_path / "mine.py"
    gradients.write_text(backward_source(describe(read_task(path)), path.read_text()))
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        author = OfflineAuthor(through(lambda body: lowering.call(body, 120.0)), 90)
        names = [sketch.name for sketch in author.sketches(describe(read_task(gradients)))]
    assert names == ["inductor", "row_backward", "inductor_looped", "inductor_unsplit"]


def test_a_child_answers_many_requests_and_survives_a_task_that_fails() -> None:
    with (
        shared_fork_server.forked(started_base()) as machine,
        machine.trusted("kerneltune.agent.authors.search.inductor:main") as worker,
    ):

        def call(body: dict[str, Json]) -> dict[str, Json]:
            return worker.call(body, timeout_s=120).body

        lower = through(call)
        with pytest.raises(CannotLower, match="NameError"):
            lower("missing", {}, 90)
        code = lower(SOURCE, {"SIZE": 7}, 90)
        assert code.facts.tensors == [([7, 4], "float32", None)]
        assert "def call(" in code.text
        anything = lower(SOURCE, {"dynamic": True}, 90).facts
        assert anything.covers(CaseArguments({}, [((100, 100), "float32")], {}))
        assert not anything.covers(CaseArguments({}, [((100, 100), "float16")], {}))
        assert not anything.covers(CaseArguments({}, [((100,), "float32")], {}))


LAYOUTS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, pair): return x.relu() + pair[0].relu() * 2
def get_inputs(): return [torch.ones(4, 6).t() if IS_TURNED else torch.ones(6, 4), [torch.ones(6, 4)]]
def get_init_inputs(): return []
IS_TURNED = True
"""


def test_code_for_a_tensor_that_lies_otherwise_serves_no_other_and_rows_only_what_is_copied_to_rows() -> None:
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        lower = through(lambda body: lowering.call(body, 120.0))
        turned, rows = (lower(LAYOUTS, {"IS_TURNED": is_turned}, 90) for is_turned in (True, False))
    both = [((6, 4), "float32")] * 2

    def served(code: LoweredCode) -> list[bool]:
        layouts: list[dict[int, list[int]]] = [{}, {0: [1, 6]}, {1: [1, 6]}]
        return [code.facts.covers(CaseArguments({}, both, {}, strides)) for strides in layouts]

    assert (served(turned), served(rows)) == ([False, True, False], [True, True, False])
    assert "and x.stride() == (1, 6)" in clean("mine", LAYOUTS, [turned]).source
    assert "and pair[0].is_contiguous()" in clean("mine", LAYOUTS, [rows]).source


def test_after_a_request_that_took_too_long_the_next_one_gets_its_own_answer() -> None:
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        asked = {"source": SOURCE, "overrides": {"SIZE": 7}, "arch": 90}
        with pytest.raises(WorkerTimeout):
            lowering.call(asked, 0.001)
        reply = lowering.call({**asked, "overrides": {"SIZE": 5}}, 120.0)
        assert decode(LoweredCode, reply["lowered"]).facts.tensors == [([5, 4], "float32", None)]
