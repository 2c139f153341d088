"""Sources that say the same, families of tasks and their splits, tasks that are a benchmark's problems."""

import random
import re
import time
from pathlib import Path

import pytest

from kerneltune.agent.export.similarity import (
    Benchmark,
    Duplicates,
    Fractions,
    families,
    lexemes,
    load_problems,
    parse,
    placements,
    split_of,
)
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.task.load import builtin_tasks
from tests.agent.export.made_runs import TASK, source

ODD = ["", "(" * 100_000, "x = 1\n" * 60_000, "def f(:", "\0", "\ud800", "-" * 5000 + "1", "[" * 90 + "]" * 90]


def seen(*sources: str) -> Duplicates:
    found = Duplicates()
    for i, text in enumerate(sources):
        found.see(str(i), text)
    return found


@pytest.mark.parametrize(
    "other",
    [
        source("other words"),
        source("x").replace("    # the row stays in registers\n", "\n\n    # elsewhere\n"),
        source("x").replace("axis=0", "axis = 0").replace("    ", "\t"),
        source("x").replace("\n", "\r\n"),
        source("x").replace("torch.empty_like(x)", "torch.empty_like(\n            x\n        )").replace("\n", "\n\n"),
    ],
)
def test_layout_comments_and_docstrings_make_no_other_source(other: str) -> None:
    found = seen(source("x"), other)
    first, second = found.of("0"), found.of("1")
    assert first.exact == second.exact
    assert (first.exact_first, second.exact_first, second.near_first) == (True, False, False)


def test_what_changes_the_kernel_changes_the_id_and_a_small_change_is_near() -> None:
    longer = source("x") + "".join(f"\n\ndef helper_{i}(a, b):\n    return a * {i} + b\n" for i in range(20))
    changed = longer.replace("a * 7", "a - 7")
    found = seen(longer, changed, TASK)
    assert found.of("0").exact != found.of("1").exact
    assert found.of("1").near == found.of("0").exact
    assert (found.of("1").exact_first, found.of("1").near_first) == (True, False)
    assert found.of("2").near_first


def test_other_names_make_no_other_source() -> None:
    two = source("x").replace("values", "data").replace("powers", "weights")
    every = two
    for name in ("softmax_kernel", "out", "x", "n_cols", "BLOCK", "row", "cols"):
        every = re.sub(rf"\b{name}\b", f"{name}_1", every)
    found = seen(source("x"), two, every)
    assert [found.of(str(i)).near for i in range(3)] == [found.of("0").exact] * 3
    assert [found.of(str(i)).exact_first for i in range(3)] == [True, True, True]
    other = source("x").replace(
        "tl.exp(values - tl.max(values, axis=0))", "tl.sqrt(tl.abs(tl.sin(values) * values) + 1)"
    )
    assert seen(source("x"), other).of("1").near_first


def test_one_lies_in_each_group_and_ids_are_the_same_in_every_export_of_the_same_attempts() -> None:
    rng = random.Random(4)
    sources = [
        source("x").replace("axis=0", f"axis={rng.randrange(4)}") + "\n# end" * rng.randrange(3) for _ in range(60)
    ]
    found, again = seen(*sources), seen(*sources)
    mine = [found.of(str(i)) for i in range(60)]
    assert mine == [again.of(str(i)) for i in range(60)]
    for name in ("exact", "near"):
        firsts = [getattr(d, name) for d in mine if getattr(d, f"{name}_first")]
        assert sorted(firsts) == sorted({getattr(d, name) for d in mine})


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_no_source_crashes_it(odd: str) -> None:
    assert isinstance(lexemes(odd), list)
    assert seen(odd, odd).of("1").exact_first is False
    assert Benchmark([("a", TASK)]).of(odd) is None
    assert families({"1": ("odd", odd)}) == {"1": "odd"}


@pytest.mark.parametrize(
    "other",
    [
        source("x").replace("axis=0", "axis=1"),
        source("x").replace("        return out", "    return out"),
        source("x").replace('"inf"', '"in f"'),
        source("x").replace("out = torch.empty_like(x)", "out = torch.empty_like(x)\n        'out'.upper()"),
    ],
)
def test_what_python_would_run_otherwise_is_another_source(other: str) -> None:
    assert seen(source("x"), other).of("1").exact_first


def test_lexemes_are_taken_in_linear_time_whatever_a_model_wrote() -> None:
    begin = time.thread_time()
    for part in ('"\\', '\\"', "'" * 3, '"' * 3 + "\\", 'rb"', "(", "\n ", "\\\n", "r"):
        assert isinstance(lexemes(part * 100_000 + "x"), list)
    assert time.thread_time() - begin < 10


def test_what_would_overflow_the_parser_s_stack_is_not_parsed() -> None:
    assert parse("(" * 100_000) is None
    assert parse("x = " + "-" * 100_000 + "1") is None


def test_tasks_of_one_name_file_or_model_are_a_family_named_after_the_first() -> None:
    wider = TASK.replace("4096", "512").replace("2048", "77")
    tasks = {
        "a": ("softmax", TASK),
        "b": ("other", "class Model: ..."),
        "c": ("softmax_wide", wider),
        "d": ("other", "x"),
    }
    assert families(tasks) == {"a": "softmax", "b": "other", "c": "softmax", "d": "other"}


def test_a_family_costs_time_in_proportion_to_its_tasks() -> None:
    def cost(n: int) -> float:
        tasks, times = {str(i): ("one", f"class Model: x.y{i}") for i in range(n)}, []
        for _ in range(3):
            begin = time.thread_time()
            assert set(families(tasks).values()) == {"one"}
            times.append(time.thread_time() - begin)
        return min(times)

    assert cost(800) < 16 * cost(200), "4 times as many took 54 times as long"


def test_a_family_lies_in_one_split_which_no_new_task_moves() -> None:
    tasks = {t.sha256: (t.name, t.source) for t in builtin_tasks()}
    fractions = Fractions(0.2, 0.3)
    all_of_them = placements(tasks, fractions, 5)
    assert {p.split for p in all_of_them.values()} == {"train", "validation", "test"}
    assert all(p.split == split_of(p.family, fractions, 5) for p in all_of_them.values())
    for sha in list(tasks)[:5]:
        assert placements({sha: tasks[sha]}, fractions, 5)[sha].split == split_of(tasks[sha][0], fractions, 5)
    share = sum(split_of(f"f{i}", fractions) == "test" for i in range(4000)) / 4000
    assert abs(share - 0.3) < 0.03


def test_the_family_of_a_leaked_task_is_tested_on_or_left_out() -> None:
    tasks = {"a": ("softmax", TASK), "b": ("softmax", TASK + "\n# b"), "c": ("x", "class Model: ...")}
    for leaked_to, split in (("test", "test"), ("exclude", None)):
        found = placements(tasks, Fractions(0, 0), leaked={"b": "1/23"}, leaked_to=leaked_to)  # type: ignore[arg-type]
        assert [found[sha].split for sha in "abc"] == [split, split, "train"]
    assert [found[sha].leaked for sha in "abc"] == [None, "1/23", None]


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.6, 0.6), (float("nan"), 0.1)])
def test_shares_lie_within_0_and_1(shares: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="shares lie within"):
        Fractions(*shares)


PROBLEM = '''import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax."""

    def __init__(self):
        super(Model, self).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(4096, 393216)]


def get_init_inputs():
    return []
'''


@pytest.mark.parametrize(
    "task",
    [
        PROBLEM,
        PROBLEM.replace("393216", "128").replace("Softmax.", "Other."),
        PROBLEM.replace("torch.softmax(x, dim=1)", "nn.functional.softmax(x, -1)").replace("x: torch.Tensor", "y, x"),
        PROBLEM + "".join(f"\n\ndef more_{i}(a):\n    return a + {i}\n" for i in range(30)),
    ],
)
def test_a_task_that_is_or_holds_a_problem_is_leaked(task: str) -> None:
    problems = [
        ("level1/23_Softmax", PROBLEM),
        ("level1/1_Matmul", PROBLEM.replace("torch.softmax(x, dim=1)", "x @ x.T")),
    ]
    assert Benchmark(problems).of(task) == "level1/23_Softmax"
    assert Benchmark(problems).of(TASK.replace("softmax", "cumsum")) is None


def test_problems_are_python_files_with_a_model(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "23_Softmax.py").write_text(PROBLEM)
    (tmp_path / "readme.py").write_text("x = 1")
    assert [name for name, _ in load_problems(tmp_path)] == ["level1/23_Softmax"]
    for folder in (tmp_path / "none", tmp_path / "level1" / "23_Softmax.py"):
        with pytest.raises(UsageError):
            load_problems(folder)
    (tmp_path / "level1" / "23_Softmax.py").unlink()
    with pytest.raises(UsageError, match="no benchmark problem"):
        load_problems(tmp_path)


WORDS = "alpha = beta = gamma = delta = epsilon = zeta = eta = theta = iota = kappa = 1  # by which no two are near\n"
MODEL = """
import torch
from torch.nn import functional as F

class Model(torch.nn.Module):
    def forward(self, x, y):
"""


def model(*lines: str) -> str:
    return MODEL + "".join(f"        {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("problem", "same", "other"),
    [
        (
            model("return torch.softmax(x, dim=-1)"),
            model("e = torch.exp(x - x.amax(-1, keepdim=True))", "return e / e.sum(-1, keepdim=True)"),
            model("e = torch.exp(x - x.amax(-1, keepdim=True))", "return e / e.mean(-1, keepdim=True)"),
        ),
        (model("return torch.matmul(x, y)"), model("return F.linear(x, y.t())"), model("return F.linear(x, y).relu()")),
        (model("return x.T @ y"), model("return torch.addmm(self.b, x, y)"), model("return x * y")),
        (
            model("return x / torch.sqrt(torch.mean(x ** 2, dim=1) + 1e-6)"),
            model("return F.rms_norm(x, (9,))"),
            model("return F.layer_norm(x, (9,))"),
        ),
        (model("return F.silu(x)"), model("return x * torch.sigmoid(x)"), model("return F.silu(x) * y")),
    ],
)
def test_a_task_is_a_problem_whichever_way_its_operations_are_written(problem: str, same: str, other: str) -> None:
    benchmark = Benchmark([("the problem", WORDS + problem)])
    assert benchmark.of(same) == "the problem"
    assert benchmark.of(other) is None


def test_arithmetic_alone_is_nobody_s_problem() -> None:
    assert Benchmark([("p", WORDS + model("return x + x * y"))]).of(model("return x * y - x")) is None
