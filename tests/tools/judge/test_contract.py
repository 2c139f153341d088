"""What a task's inputs may be is read from its file or from its own draws; whatever looks like a structure is kept."""

from pathlib import Path

import pytest
import torch

from kerneltune.tools.judge.correctness.problem import Problem, describe
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import find_task, read_task
from tests.tools.judge.drawing import applying


def kinds(folder: Path, forward: str, inputs: str, extra: str = "") -> dict[str, str]:
    path = folder / "mine.py"
    arguments, _, body = forward.partition(":")
    path.write_text(
        f"import torch\nimport torch.nn.functional as F\n{extra}\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, {arguments}):\n        {body}\ndef get_inputs():\n    return {inputs}\n"
    )
    return dict(Problem.load(read_task(path)).kinds)


@pytest.mark.parametrize(
    "draw",
    [
        "torch.randn(64, 48)",
        "torch.rand(64, 48)",
        "torch.rand(64, 48).bfloat16()",
        "torch.randn(64, 48).half()",
        "torch.randn(4, 8, 6, 8)",
        "torch.randn(2000)",
        "torch.rand(2000, 1)",
        "torch.randn(64, 48).T",
        "torch.randn(64, 48) * 0.02",
        "torch.randn(64, 48) + 5",
        "torch.randn(64, 48) * torch.rand(64, 1)",
        "torch.randint(0, 40, (500,))",
        "torch.randint(-128, 128, (50, 60), dtype=torch.int8)",
        "torch.rand(64, 48) > 0.3",
    ],
)
def test_independent_values_may_be_replaced(tmp_path: Path, draw: str) -> None:
    assert kinds(tmp_path, "x: return x * 2 if x.dtype != torch.bool else ~x", f"[{draw}]") == {"0": "any"}


STRUCTURED = {
    "rope tables with equal halves": "torch.outer(torch.arange(32.) + torch.rand(1), torch.rand(8)).cos().repeat(1, 2)",
    "rope tables": "torch.outer(torch.arange(64.), 10000.0 ** (-torch.arange(0, 32) / 32)).cos()",
    "probabilities": "torch.randn(16, 100).softmax(-1)",
    "probabilities over the first dimension": "torch.randn(100, 16).softmax(0)",
    "log probabilities": "torch.randn(16, 4).repeat(1, 5).log_softmax(-1)",
    "unit vectors": "F.normalize(torch.randn(32, 64), dim=-1)",
    "whitened rows": "F.layer_norm(torch.randn(32, 64), (64,))",
    "a mask of zeros and ones": "(torch.rand(32, 64) > 0.5).float()",
    "signs": "torch.randint(0, 2, (64,)).float() * 2 - 1",
    "an attention bias with -inf": "torch.zeros(32, 32).masked_fill(torch.rand(32, 32) > 0.5, -torch.inf)",
    "half zeros": "torch.relu(torch.randn(32, 64))",
    "a constant": "torch.full((32, 64), float(torch.rand(1)))",
    "a sorted vector": "torch.rand(100).sort().values",
    "a cumulated sum": "torch.randn(1000).cumsum(0)",
    "repeated rows": "torch.randn(4, 64).repeat(8, 1)",
    "repeated columns": "torch.randn(64, 1).expand(64, 16)",
    "a symmetric matrix": "(lambda a: a + a.T)(torch.randn(32, 32))",
    "a triangle": "torch.randn(32, 32).tril()",
    "whole numbers": "torch.randint(0, 1000, (64, 64)).float()",
    "one number": "torch.rand(1)",
    "a causal mask": "torch.ones(32, 32, dtype=torch.bool).tril()",
    "a padding mask": "torch.arange(40) < torch.randint(5, 40, (16, 1))",
    "positions": "torch.arange(50)",
    "a permutation": "torch.randperm(50)",
    "offsets": "torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(1, 9, (30,)).cumsum(0)])",
    "targets to be ignored": "torch.where(torch.rand(90) < 0.1, -100, torch.randint(0, 40, (90,)))",
    "distinct experts of a token": "torch.rand(200, 8).topk(2).indices",
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_structure_keeps_its_own_values(tmp_path: Path, name: str) -> None:
    found = kinds(tmp_path, "x, y: return x, y", f"[{STRUCTURED[name]}, torch.randn(16, 16)]")
    assert found == {"0": "own", "1": "any"}


@pytest.mark.parametrize(
    ("forward", "draw", "kind"),
    [
        ("x: return x / torch.sqrt(x.mean(-1, keepdim=True) + 1e-5)", "torch.rand(32, 64)", "positive"),
        ("x: return torch.log(x)", "torch.rand(32, 64) + 0.5", "positive"),
        ("x: return torch.rsqrt(x + 1e-5)", "torch.rand(32, 64)", "positive"),
        ("x: return torch.acos(x)", "torch.rand(32, 64)", "own"),
        ("x: return torch.log1p(-x)", "torch.rand(32, 64)", "own"),
        ("x: return F.binary_cross_entropy(x, torch.ones_like(x))", "torch.rand(32, 64)", "own"),
        ("x: return x.exp()", "torch.rand(32, 64)", "any"),
    ],
)
def test_an_input_is_kept_where_the_reference_is_defined(tmp_path: Path, forward: str, draw: str, kind: str) -> None:
    assert kinds(tmp_path, forward, f"[{draw}]") == {"0": kind}


def test_a_file_that_seeds_its_own_draws_has_free_inputs_all_the_same(tmp_path: Path) -> None:
    draws = "(torch.manual_seed(0), [torch.randn(32, 64), torch.randn(64, 8)])[1]"
    assert kinds(tmp_path, "a, b: return a @ b", draws) == {"0": "any", "1": "any"}


def test_a_declaration_wins_over_what_the_values_look_like(tmp_path: Path) -> None:
    extra = 'INPUTS = {"p": "any", 1: "own", "n": "special"}'
    draws = "[torch.randn(16, 100).softmax(-1), torch.randn(8, 8), [torch.randn(9, 9), torch.randint(0, 5, (20,)), 3]]"
    found = kinds(tmp_path, "p, x, n: return p, x, n[0], n[1]", draws, extra)
    assert found == {"0": "any", "1": "own", "2.0": "special", "2.1": "any"}


def test_a_rope_kernel_that_reads_half_of_a_doubled_table_is_right_with_every_battery(tmp_path: Path) -> None:
    path = tmp_path / "rope.py"
    path.write_text("""
import torch
class Model(torch.nn.Module):
    def forward(self, q, cos, sin):
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin
def get_inputs():
    angles = torch.outer(torch.arange(40.), 10000.0 ** (-torch.arange(0, 32, 2) / 32)).repeat(1, 2)
    return [torch.randn(2, 40, 32), angles.cos(), angles.sin()]
""")
    problem = Problem.load(read_task(path))
    batteries = applying(problem)
    assert {"scaled", "spikes", "integers"} <= set(batteries)
    for battery in batteries:
        drawn = problem.draw(1, battery)
        assert drawn is not None
        cos = drawn.inputs[1]
        assert bool((cos[:, :16] == cos[:, 16:]).all())


def test_nan_and_infinities_are_fed_where_the_task_says_that_it_defines_them(tmp_path: Path) -> None:
    path = tmp_path / "maximum.py"
    source = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.amax(-1)\n"
    source += "def get_inputs(): return [torch.randn(40, 60)]\n"
    path.write_text(source)
    assert "specials" not in applying(Problem.load(read_task(path)))
    path.write_text(source + 'INPUTS = {"x": "special"}\n')
    assert "specials" in applying(Problem.load(read_task(path)))


def test_the_main_case_takes_its_contract_from_the_smallest_one_without_being_drawn() -> None:
    assert Problem.load(find_task("cross_entropy"), "narrow").kinds == {"0": "any", "1": "any"}
    assert Problem.load(find_task("rope"), "ragged").kinds == {"0": "any", "1": "any", "2": "own", "3": "own"}


def promising(folder: Path, contract: str, made: str = "torch.randn(R, C)", forward: str = "x * 2") -> Path:
    path = folder / "promising.py"
    path.write_text(
        "import torch\nR, C = 6, 5\nCASES = [{'name': 'wide', 'C': 9, 'cpu': True}]\n"
        f"class Model(torch.nn.Module):\n    def forward(self, x): return {forward}\n"
        f"def get_inputs(): return [{made}]\nINPUTS = {{'x': {contract}}}\n"
    )
    return path


def test_a_pitch_moves_rows_apart_in_every_case_and_battery_and_changes_no_value(tmp_path: Path) -> None:
    plain = Problem.load(read_task(promising(tmp_path, "'any'")))
    wanted = {battery: plain.draw(1, battery) for battery in applying(plain)}
    task = read_task(promising(tmp_path, "{'values': 'any', 'pitch': 8, 'slack': 2}"))
    problem = Problem.load(task)
    assert list(applying(problem)) == list(wanted)
    for battery, other in wanted.items():
        drawn = problem.draw(1, battery)
        assert drawn is not None
        assert other is not None
        assert drawn.inputs[0].stride() == (8, 1)
        assert torch.equal(drawn.inputs[0].nan_to_num(), other.inputs[0].nan_to_num())
    strides = [case.inputs[0]["$tensor"]["stride"] for case in describe(task).cases]
    assert strides == [[8, 1], [16, 1]]


def test_what_may_be_read_of_an_input_comes_with_it_undefined_and_another_for_each_seed(tmp_path: Path) -> None:
    problem = Problem.load(read_task(promising(tmp_path, "{'values': 'any', 'pitch': 8, 'slack': 4}")))
    found = []
    for seed in (1, 2, 3):
        drawn = problem.draw(seed)
        assert drawn is not None
        words = torch.frombuffer(bytearray(drawn.blobs()["input:0"]), dtype=torch.float32)
        assert len(words) == 5 * 8 + 5 + 4
        rows = torch.cat([words, words.new_zeros(-len(words) % 8)])[:48].reshape(6, 8)
        assert torch.equal(rows[:, :5], drawn.inputs[0])
        found.append(torch.cat([rows[:5, 5:].reshape(-1), words[45:]]))
    assert [bool(seen.isnan().all()) for seen in found] == [False, True, False]
    assert not torch.equal(found[0].view(torch.int32), found[2].view(torch.int32))
    among = torch.cat([found[0], found[2]])
    assert all(bool(those.any()) for those in (among > 1e30, among < -1e30, among == 0, among == 1))


@pytest.mark.parametrize(
    ("contract", "made", "words"),
    [
        ("{'alignment': 2}", "torch.randn(R, C)", "an alignment of 2 bytes, but its elements have 4"),
        ("{'pitch': 8}", "torch.randn(C, R).t()", "a pitch is for tensors that get_inputs makes row-major"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_told_with_the_argument(
    tmp_path: Path, contract: str, made: str, words: str
) -> None:
    with pytest.raises(TaskError, match=rf"INPUTS\['x'\]: {words}"):
        describe(read_task(promising(tmp_path, contract, made)))
