from pathlib import Path

import pytest

from agent.export.leakage import Benchmark, Leak, load
from tools.errors import UsageError

TASKS = Path(__file__).resolve().parents[3] / "tools/tasks"
PROBLEM = '''import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Simple model that performs {about}.
    """
    def __init__(self{parameters}):
        super(Model, self).__init__()
        {setup}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Applies it. Args and more words that are no part of the work.
        """
        {body}

batch_size = 4096
dim = 393216

def get_inputs():
    x = torch.rand(batch_size, dim)
    return [x]

def get_init_inputs():
    return []
'''


def problem(body: str, about: str = "something", setup: str = "pass", parameters: str = "") -> str:
    return PROBLEM.format(body=body, about=about, setup=setup, parameters=parameters)


FUSED = problem(
    "x = self.gemm(x)\n        x = torch.sigmoid(x * 2.5) + self.scale\n        x = x - x.mean(dim=1, keepdim=True)\n"
    "        return torch.clamp(x, -1.0, 1.0)",
    "a product, a gate, a shift",
    "self.gemm = nn.Linear(a, b); self.scale = nn.Parameter(torch.ones(b))",
    ", a, b",
)
PROBLEMS = {
    "level1/softmax": problem("return torch.softmax(x, dim=1)", "a softmax"),
    "level1/layer_norm": problem("return self.ln(x)", "layer norm", "self.ln = nn.LayerNorm(normalized_shape)"),
    "level1/tanh": problem("return torch.tanh(x)", "tanh"),
    "level2/fused": FUSED,
}


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return Benchmark(PROBLEMS.items())


def test_a_problem_is_found_again_without_its_words_about_it(benchmark: Benchmark) -> None:
    assert benchmark.of(FUSED) == Leak("level2/fused", 1.0, "words")
    other_words = FUSED.replace("a product, a gate, a shift", "nothing").replace(
        "batch_size = 4096", "batch_size = 8  # few"
    )
    found = benchmark.of(other_words)
    assert found is not None
    assert (found.problem, found.how) == ("level2/fused", "words")
    assert 0.8 <= found.score < 1


def test_the_word_jaccard_is_that_of_the_definition() -> None:
    """{import, torch, a, b} and {import, torch, a, c}: three of five words shared."""
    found = Benchmark([("p", "import torch\na = b")]).nearest("import torch  # no word\na = c")
    assert found == Leak("p", 0.6, "words")


def test_the_threshold_is_the_caller_s() -> None:
    source = "import torch\na = c"
    assert Benchmark([("p", "import torch\na = b")]).of(source) is None
    assert Benchmark([("p", "import torch\na = b")], jaccard=0.6).of(source) == Leak("p", 0.6, "words")
    for wrong in (0, -1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="word-Jaccard"):
            Benchmark([], jaccard=wrong)


def test_our_own_tasks_that_do_what_a_problem_does_are_found(benchmark: Benchmark) -> None:
    found = {p.stem: benchmark.of(p.read_text()) for p in TASKS.glob("*.py") if p.stem != "__init__"}
    assert found["softmax"] == Leak("level1/softmax", 1.0, "body")
    assert found["layer_norm"] == Leak("level1/layer_norm", 1.0, "operations")
    assert {name for name, leak in found.items() if leak} == {"softmax", "layer_norm"}


def test_a_body_is_found_under_other_names_and_constants(benchmark: Benchmark) -> None:
    bare = "import triton\ndef reference(rows):\n    'for tests'\n    return torch.softmax(rows, dim=-7)  # so\n"
    assert benchmark.of(bare) == Leak("level1/softmax", 1.0, "body")
    assert benchmark.of(bare.replace("softmax", "other")) is None


def test_a_problem_inside_a_longer_source_is_contained(benchmark: Benchmark) -> None:
    kernels = "\n".join(
        f"@triton.jit\ndef k{i}(x{i}, y{i}):\n    tl.store(y{i}, tl.load(x{i}) * {i})" for i in range(60)
    )
    changed = FUSED.replace("torch.sigmoid", "sigmoid").replace("class Model(", "class Reference(")
    found = benchmark.of(f"{kernels}\n{changed}")
    assert found is not None
    assert (found.problem, found.how) == ("level2/fused", "contained")
    assert found.score >= 0.9


def test_honest_kernels_are_no_leak_of_what_they_compute(benchmark: Benchmark) -> None:
    folders = ("tests/exploits/honest", "agent/authors/offline/library")
    paths = [p for f in folders for p in (TASKS.parents[1] / f).glob("*.py")]
    assert len(paths) > 50
    assert [p.name for p in paths if benchmark.of(p.read_text())] == []


@pytest.mark.parametrize(
    "odd", ["", "(" * 100_000, "\0", "\ud800 def ", "class Model:\n def", "class Model: pass", "1"]
)
def test_odd_sources_are_no_leak(benchmark: Benchmark, odd: str) -> None:
    assert benchmark.of(odd) is None


def test_without_problems_nothing_leaks() -> None:
    assert Benchmark([]).of(FUSED) is None
    assert Benchmark([("empty", "")]).of("") is None


def test_problems_are_read_from_a_folder_and_what_is_below(tmp_path: Path) -> None:
    for name, source in PROBLEMS.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    (tmp_path / "level1/helper.py").write_text("x = 1\n")
    (tmp_path / "level1/odd.py").write_bytes(b"\xff class Model")
    (tmp_path / "level1/loop").symlink_to(tmp_path)
    found = dict(load(tmp_path))
    assert set(PROBLEMS) < set(found)
    assert "level1/helper" not in found


def test_a_folder_without_problems_is_an_error_that_says_what_was_wanted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        load(tmp_path / "none")
    with pytest.raises(UsageError, match="no Python file there has a `class Model`"):
        load(tmp_path)
