"""A packaged file in somebody's program: who answers a call, and that nothing wrong ever does.

Candidates are plain torch here, and are run as if by Triton's interpreter; `test_builtin_packages` has real kernels.
"""

import copy
import ctypes
import functools
import gc
import importlib.util
import itertools
import re
import struct
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import checkpoint

from kerneltune.agent.authors.search.experts import experts, ptx_experts
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.languages.ptx.assemble import assemble
from kerneltune.tools.package.write import VerifiedKernel, packaged
from kerneltune.tools.schema.errors import CannotPackage
from kerneltune.tools.schema.sass import sections
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import described, find_task, read_task
from kerneltune.tools.task.write import backward_source

NORM = """
import torch, torch.nn as nn
COLS, ROWS, DTYPE = 8, 6, "float32"
CASES = [{"name": "more", "ROWS": 20, "cpu": True}, {"name": "wide", "COLS": 16, "cpu": True},
         {"name": "half", "DTYPE": "bfloat16", "cpu": True}, {"name": "hidden", "COLS": 32, "held_out": True}]
def patch(x): return x  # names that the file has for something else
class Model(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.rand(cols).to(getattr(torch, DTYPE)))
    def forward(self, x): return patch(nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps))
def get_inputs(): return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]
def get_init_inputs(): return [COLS, 1e-3]
"""
NORM_KERNEL = """
import torch
from torch import nn
calls = []
class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.empty(cols)), eps
    def forward(self, x):
        wide = x.float()
        return (wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * self.scale).to(x.dtype)
"""
PACKING = NORM_KERNEL.replace(
    "        wide =",
    "        if not hasattr(self, 'packed'):\n            self.packed = self.scale * 1\n        wide =",
).replace("* self.scale)", "* self.packed)")


_number = itertools.count()


class Norm(nn.Module):
    """The user's own: other words for the same."""

    def __init__(self, cols: int = 8, eps: float = 1e-3) -> None:
        super().__init__()
        self.gain, self.variance_epsilon, self.drop = nn.Parameter(torch.rand(cols)), eps, nn.Dropout(0.0)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)
        dropped: torch.Tensor = self.drop(hidden * scale * self.gain)
        return dropped


class Net(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Norm(**given), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def file_of(tmp_path: Path, task: str, kernel: str, name: str = "norm", arch: str = "sm_90") -> ModuleType:
    path = tmp_path / f"{name}.py"
    path.write_text(task)
    out = tmp_path / f"{name}_op.py"
    out.write_text(packaged([VerifiedKernel(describe(read_task(path)), kernel)], arch=arch, header="# a header\n\n"))
    return imported(out)


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{next(_number)}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which a file of the same second and size would be taken for
    with torch.no_grad():
        yield


@pytest.fixture
def op(tmp_path: Path) -> ModuleType:
    return file_of(tmp_path, NORM, NORM_KERNEL)


def test_the_kernel_answers_at_every_place_of_a_pattern_and_is_counted(op: ModuleType) -> None:
    net, x = Net().eval(), torch.randn(12, 8)
    wanted = net(x)
    op.patch(net, "layers.*.0")
    torch.testing.assert_close(net(x), wanted)
    net(x)
    assert op.calls(net) == {"layers.0.0": {"kernel": 2}, "layers.1.0": {"kernel": 2}}
    assert op.unpatch(net) == 2
    assert (op.calls(net), torch.equal(net(x), wanted)) == ({}, True)


def test_a_star_is_each_module_at_the_top_and_not_the_model(op: ModuleType) -> None:
    assert list(op.patch(nn.ModuleDict({"a": Norm(), "b": Norm()}).eval(), "*")) == ["a", "b"]


def test_sizes_between_those_that_were_verified_run_and_leading_dimensions_are_folded(op: ModuleType) -> None:
    norm = Norm().eval()
    op.patch(norm)
    for shape in [(6, 8), (20, 8), (13, 8), (3, 4, 8), (2, 2, 3, 8)]:
        x = torch.randn(shape)
        for _ in range(2):  # decided, then remembered
            torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    assert op.calls(norm) == {"": {"kernel": 10}}


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 8),
        torch.randn(21, 8),
        torch.randn(2, 2, 8),
        torch.randn(8),
        torch.randn(12, 8, dtype=torch.float64),
        torch.randn(12, 8).bfloat16(),  # verified, but with parameters of its own dtype
        torch.randn(8, 12).t(),
        torch.randn(97)[1:].view(12, 8),
        nn.functional.pad(torch.randn(12, 8), (0, 1))[:, :8],
    ],
    ids=["few", "many", "few_folded", "no_rows", "float64", "bfloat16", "transposed", "misaligned", "pitched"],
)
def test_what_was_not_verified_goes_to_the_original_with_one_warning(op: ModuleType, x: torch.Tensor) -> None:
    norm = Norm().eval()
    op.patch(norm)
    norm(torch.randn(12, 8))  # remembered
    with pytest.warns(UserWarning, match="the reference runs, not the kernel") as told:
        found = norm(x), norm(x)
    assert len(told) == 1
    assert all(torch.equal(one, Norm.forward(norm, x)) for one in found)
    assert op.calls(norm) == {"": {"kernel": 1, "reference": 2}}


def test_inputs_of_which_one_is_broadcast_over_the_other_are_the_original_s(tmp_path: Path) -> None:
    gated = """
import torch, torch.nn as nn
ROWS = 6
CASES = [{"name": "one", "ROWS": 1, "cpu": True}, {"name": "more", "ROWS": 20, "cpu": True}]
class Model(nn.Module):
    def forward(self, gate, up): return nn.functional.silu(gate) * up
def get_inputs(): return [torch.randn(ROWS, 8), torch.randn(ROWS, 8)]
"""
    kernel = (
        gated.partition("CASES")[0]
        + """
class ModelNew(nn.Module):
    def forward(self, gate, up): return nn.functional.silu(gate) * up[: len(gate)]  # as many rows as the gate has
"""
    )
    op = file_of(tmp_path, gated, kernel, "gated")
    model = op.ModelNew()
    gate, up = torch.randn(6, 8), torch.randn(6, 8)
    with pytest.warns(UserWarning, match="were not verified"):
        torch.testing.assert_close(model(gate[:1], up), nn.functional.silu(gate[:1]) * up)
    for a, b in ((gate, up), (gate[None, :1], up[None]), (gate.view(2, 3, 8), up.view(2, 3, 8))):
        torch.testing.assert_close(model(a, b), nn.functional.silu(a) * b)
    with pytest.raises(RuntimeError, match="must match the size"):
        model(gate[:5], up)
    assert op.calls(model)[""] == {"kernel": 2, "reference": 3}


def test_another_gpu_or_none_is_the_reference_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    op = file_of(tmp_path, NORM, NORM_KERNEL)
    norm = Norm().eval()
    op.patch(norm)
    with pytest.warns(UserWarning, match="verified for sm_90"):
        norm(torch.randn(12, 8))
    assert op.calls(norm) == {"": {"reference": 1}}


@pytest.mark.parametrize(
    ("model", "pattern", "said"),
    [
        (Net(eps=2e-3), "layers.*.0", "does not compute what was verified"),
        (Net(), "layers.*.1", r"other parameters .*weight \[8, 8\]"),
        (Net(), "layers.*", "other parameters"),
        (Net(), "layer.*.norm", "no module is called .* there is layers"),
        (nn.LayerNorm(8, bias=False, eps=1e-3), "", "does not compute"),
    ],
    ids=["another_epsilon", "another_shape", "more_than_it", "no_name", "another_norm"],
)
def test_a_module_that_is_not_what_was_verified_is_refused_and_none_is_patched(
    op: ModuleType, model: nn.Module, pattern: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        op.patch(model, pattern)
    assert op.calls(model) == {}


def test_gradients_are_refused_in_one_sentence_that_names_the_flag(op: ModuleType) -> None:
    norm, x = Norm().eval(), torch.randn(12, 8)
    op.patch(norm)
    norm(x)  # remembered
    with torch.enable_grad():
        with pytest.raises(RuntimeError, match=r"no verified backward: call it under torch\.no_grad.* --backward"):
            norm(x)
        norm.requires_grad_(requires_grad=False)
        norm(x)
        with pytest.raises(RuntimeError, match="--backward"):
            norm(x.requires_grad_())
        with pytest.warns(UserWarning, match="the reference runs"):
            norm(torch.randn(5, 8, requires_grad=True)).sum().backward()  # by the original's own


def test_a_module_that_drops_out_in_training_is_the_kernel_s_in_evaluation_only(op: ModuleType) -> None:
    norm, x = Norm().eval(), torch.randn(12, 8)
    norm.drop.p = 0.5
    op.patch(norm)
    norm(x)
    with pytest.warns(UserWarning, match="in training"):
        norm.train()(x)
    assert op.calls(norm) == {"": {"kernel": 1, "reference": 1}}


def test_a_module_that_gathers_statistics_in_training_is_the_kernel_s_in_evaluation_only(tmp_path: Path) -> None:
    counts = "self.register_buffer('steps', torch.zeros(()))\n        "
    task = NORM.replace("self.eps, self.weight", counts + "self.eps, self.weight").replace(
        "def forward(self, x): return",
        "def forward(self, x):\n        if self.training: self.steps.add_(1)\n        return",
    )
    op = file_of(tmp_path, task, NORM_KERNEL.replace("self.scale, self.eps", counts + "self.scale, self.eps"))
    model, x = op.ModelNew(8, 1e-3).eval(), torch.randn(6, 8)
    model(x)
    with pytest.warns(UserWarning, match="in training"):
        model.train()(x)
    assert (model.steps, op.calls(model)) == (1, {"": {"kernel": 1, "reference": 1}})


PACKING_IN_A_LIST = PACKING.replace("empty(cols)), eps", "empty(cols)), eps\n        self.packed = []")
PACKING_IN_A_LIST = PACKING_IN_A_LIST.replace("not hasattr(self, 'packed')", "not self.packed").replace(
    "self.packed = self.scale * 1\n", "self.packed.extend([self.scale * 1])\n"
)
PACKING_IN_A_LIST = PACKING_IN_A_LIST.replace("* self.packed)", "* self.packed[0])")
PACKING_BY_FUNCTOOLS = NORM_KERNEL.replace("calls = []", "import functools\npacked = functools.cache(lambda w: w * 1)")
PACKING_BY_FUNCTOOLS = PACKING_BY_FUNCTOOLS.replace("* self.scale)", "* packed(self.scale))")


@pytest.mark.parametrize(
    "kernel",
    [NORM_KERNEL, PACKING, PACKING_IN_A_LIST, PACKING_BY_FUNCTOOLS],
    ids=["plain", "keeps_what_it_packs", "in_a_list", "by_functools"],
)
def test_changed_parameters_are_what_the_next_call_computes_with(tmp_path: Path, kernel: str) -> None:
    op = file_of(tmp_path, NORM, kernel)
    norm, x = Norm().eval(), torch.randn(12, 8)
    op.patch(norm)
    norm(x)
    for change in (
        lambda: norm.gain.mul_(2.0),
        lambda: norm.load_state_dict({"gain": torch.rand(8)}),
        lambda: setattr(norm, "gain", nn.Parameter(torch.rand(8))),
        lambda: setattr(norm.gain, "data", torch.rand(8)),
    ):
        change()
        torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    assert op.calls(norm) == {"": {"kernel": 5}}


def test_a_kernel_whose_constructor_packs_random_parameters_is_refused(tmp_path: Path) -> None:
    packing = NORM_KERNEL.replace("empty(cols)), eps", "rand(cols)), eps\n        self.packed = self.scale * 2")
    op = file_of(tmp_path, NORM, packing.replace("* self.scale)", "* self.packed / 2)"))
    with pytest.raises(ValueError, match="times as far off as it may be"):
        op.patch(Norm().eval())


@pytest.mark.parametrize(
    ("its", "takes"),
    [("packed = self.scale * 1", "packed"), ("gamma = self.scale", "gamma")],
    ids=["packed", "named_twice"],
)
def test_a_kernel_that_reads_what_its_constructor_made_of_its_parameters_does_not_answer(
    tmp_path: Path, its: str, takes: str
) -> None:
    kernel = NORM_KERNEL.replace("empty(cols)), eps", f"ones(cols)), eps\n        self.{its}")
    op = file_of(tmp_path, NORM, kernel.replace("* self.scale)", f"* self.{takes})"))
    model, x = op.ModelNew(8, 1e-3).eval(), torch.randn(12, 8)
    model.weight.fill_(1.0)  # as its constructor had them, too
    with pytest.warns(UserWarning, match="constructor"):
        model(x)
    model.weight.mul_(3.0)
    assert torch.equal(model(x), type(model).forward(model, x))
    assert op.calls(model) == {"": {"reference": 2}}


def test_a_kernel_whose_constructor_makes_constants_answers(tmp_path: Path) -> None:
    kernel = NORM_KERNEL.replace("empty(cols)), eps", "empty(cols)), eps\n        self.ones = torch.ones(cols)")
    op = file_of(tmp_path, NORM, kernel.replace("* self.scale)", "* self.scale * self.ones)"))
    model, x = op.ModelNew(8, 1e-3).eval(), torch.randn(12, 8)
    torch.testing.assert_close(model(x), type(model).forward(model, x))
    assert op.calls(model) == {"": {"kernel": 1}}
    assert op._drawn.cache_info().currsize == 0


def test_a_case_that_sets_one_of_two_names_of_a_value_is_checked_with_its_own_shapes(tmp_path: Path) -> None:
    op = file_of(tmp_path, NORM.replace("COLS, ROWS, DTYPE = 8, 6,", "COLS = ROWS = 8\nDTYPE ="), NORM_KERNEL)
    shapes = {entry.cases: op._reference(n).get_inputs()[0].shape for n, entry in enumerate(op.VERIFIED)}
    assert (shapes["main, more"], shapes["wide"]) == ((8, 8), (8, 16))


def test_a_copied_model_has_places_of_its_own(op: ModuleType) -> None:
    norm, x = Norm().eval(), torch.randn(12, 8)
    op.patch(norm)
    norm(x)
    other = copy.deepcopy(norm)
    other.gain.mul_(3.0)
    torch.testing.assert_close(other(x), 3 * norm(x))
    assert (op.calls(norm), op.calls(other)) == ({"": {"kernel": 2}}, {"": {"kernel": 1}})


def test_a_compiled_model_has_the_kernel_as_an_operator_and_guards_its_shapes(op: ModuleType) -> None:
    torch.compiler.reset()
    net = Net().eval()
    op.patch(net, "layers.*.0")
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for rows in (12, 15, 18):
        torch.testing.assert_close(compiled(x := torch.randn(rows, 8)), net(x))
    assert op.calls(net)["layers.0.0"] == {"kernel": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(x := torch.randn(300, 8)), net(x))
    assert op.calls(net)["layers.0.0"] == {"kernel": 6, "reference": 1}  # what was compiled is not counted
    with torch.enable_grad(), pytest.raises(Exception, match="--backward"):
        compiled(torch.randn(12, 8))


def test_an_exported_model_has_the_operator(op: ModuleType) -> None:
    net = Net().eval()
    op.patch(net, "layers.*.0")
    program = torch.export.export(net, (torch.randn(12, 8),))
    assert [str(n.target) for n in program.graph.nodes].count(f"kerneltune.{op.OP}.default") == 2


def test_of_several_kernels_the_one_answers_that_was_timed_at_the_shape(tmp_path: Path) -> None:
    tasks = []
    for name, constants in (("prefill", "8, 20"), ("decode", "8, 1")):
        path = tmp_path / f"{name}.py"
        path.write_text(NORM.replace("COLS, ROWS, DTYPE = 8, 6", f"COLS, ROWS, DTYPE = {constants}"))
        tasks.append(describe(read_task(path)))
    kernels = [VerifiedKernel(task, NORM_KERNEL + f"# {task.name}\n") for task in tasks]
    (tmp_path / "two.py").write_text(packaged(kernels, arch="sm_90", header="# a header\n\n"))
    op = imported(tmp_path / "two.py")
    norm = Norm().eval()
    op.patch(norm)
    for rows in (20, 1, 1, 13):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    norm.gain = nn.Parameter(torch.rand(8))
    for rows in (1, 20):  # one kernel has seen it when the other is called as before
        x = torch.randn(rows, 8)
        torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    place, state = getattr(norm, op._ATTRIBUTE), [norm.gain]
    chosen = [op._match(place, [torch.randn(rows, 8)], state) for rows in (20, 1, 13)]
    assert [op.VERIFIED[entry].kernel for entry, _ in chosen] == [
        0,
        1,
        1,
    ]  # decode has 1 to 20 rows, prefill was timed at 20
    assert op.calls(norm) == {"": {"kernel": 6}}
    assert op._check() == 0
    assert op.ModelNew(8, 1e-3).eval()(torch.randn(2, 8)).shape == (2, 8)
    other = describe(read_task(_function_task(tmp_path)))
    with pytest.raises(CannotPackage, match="they are not one op"):
        packaged([kernels[0], VerifiedKernel(other, "")], arch="sm_90", header="")


def weighted_kernels(tmp_path: Path, *times_us: dict[str, float]) -> tuple[ModuleType, Callable[..., int | None]]:
    """A file of kernels of one task with cases of 6, 100 and 400 rows, and which of them answers so many rows."""
    path = tmp_path / "norm.py"
    path.write_text(NORM.replace("CASES = [", 'CASES = [{"name": "few", "ROWS": 100}, {"name": "many", "ROWS": 400}, '))
    task = describe(read_task(path))
    kernels = [VerifiedKernel(task, NORM_KERNEL + f"# {n}\n", its) for n, its in enumerate(times_us)]
    (tmp_path / "chosen.py").write_text(packaged(kernels, arch="sm_90", header="# a header\n\n"))
    op, norm = imported(tmp_path / "chosen.py"), Norm().eval()
    op.patch(norm)

    def answers(rows: int, columns: int = 8) -> int | None:
        found = op._match(getattr(norm, op._ATTRIBUTE), [torch.randn(rows, columns)], [norm.gain])
        return None if found is None else op.VERIFIED[found[0]].kernel

    return op, answers


def test_of_several_kernels_the_one_answers_that_was_the_fastest_at_the_nearest_timed_size(tmp_path: Path) -> None:
    op, answers = weighted_kernels(
        tmp_path, {"main": 1.0, "few": 3.0, "many": 9.0}, {"main": 2.0, "few": 2.0, "many": 12.0}
    )
    # main has 6 rows, few 100, many 400; between them the limits are 24 and 200
    assert [answers(rows) for rows in (6, 24, 25, 100, 200, 201, 400)] == [0, 0, 1, 1, 1, 0, 0]
    assert answers(401) is answers(100, columns=9) is None  # nothing was verified: the reference answers
    assert op._check() == 0


def test_a_kernel_that_is_the_slower_one_everywhere_answers_nowhere(tmp_path: Path) -> None:
    _, answers = weighted_kernels(tmp_path, {"main": 2.0, "many": 12.0}, {"main": 1.0, "many": 9.0})
    assert {answers(rows) for rows in (6, 100, 400)} == {1}


def test_without_times_the_first_of_several_kernels_answers(tmp_path: Path) -> None:
    _, answers = weighted_kernels(tmp_path, {}, {})
    assert {answers(rows) for rows in (6, 100, 400)} == {0}


def _function_task(tmp_path: Path) -> Path:
    path = tmp_path / "tail_task.py"
    path.write_text(FUNCTION)
    return path


NORM_GRADIENTS = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.forward_model = nn.Module()
        self.forward_model.weight = nn.Parameter(torch.empty(cols))
    def forward(self, x, gradient):
        wide, g = x.float(), gradient.float()
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-3)
        w = self.forward_model.weight.float()
        d = g * w
        dx = r * d - wide * r**3 * (d * wide).mean(-1, keepdim=True)
        return dx.to(x.dtype), (g * wide * r).sum(0).to(x.dtype)
"""


NORM_GRADIENTS_PACKED = NORM_GRADIENTS.replace(
    "empty(cols))", "empty(cols))\n        self.packed = torch.ones(cols)"
).replace("self.forward_model.weight.float()", "self.packed")


NORM_STEP = (
    NORM_GRADIENTS.partition("    def forward")[0]
    + """
    def save(self, x):
        wide = x.float()
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-3)
        return ((wide * r * self.forward_model.weight.float()).to(x.dtype),), (x, r)
    def gradients(self, saved, gradient):
        x, r = saved
        wide, g = x.float(), gradient.float()
        d = g * self.forward_model.weight.float()
        dx = r * d - wide * r**3 * (d * wide).mean(-1, keepdim=True)
        return dx.to(x.dtype), (g * wide * r).sum(0).to(x.dtype)
    def forward(self, x, gradient):
        outputs, saved = self.save(x)
        return (*outputs, *self.gradients(saved, gradient))
"""
)


def with_gradients(
    tmp_path: Path, task: str, gradients: str, kernel: str = NORM_KERNEL, *, step: bool = False
) -> ModuleType:
    """The file of a task's kernel and of one for its gradients, or for its training step."""
    forward, backward = gradient_tasks(tmp_path, task, step=step)
    out = tmp_path / "norm_op.py"
    kernels = [VerifiedKernel(forward, kernel)]
    out.write_text(
        packaged(kernels, arch="sm_90", header="# a header\n\n", backward=[VerifiedKernel(backward, gradients)])
    )
    return imported(out)


def gradient_tasks(tmp_path: Path, source: str, *, step: bool = False) -> tuple[TaskSpec, TaskSpec]:
    """A task, and the one of its gradients, or of its training step."""
    path = tmp_path / "norm.py"
    path.write_text(source)
    task = describe(read_task(path))
    (tmp_path / "norm_backward.py").write_text(backward_source(task, source, step=step))
    return task, describe(read_task(tmp_path / "norm_backward.py"))


def trained(model: nn.Module, *, compiled: bool = False) -> list[torch.Tensor | None]:
    """The parameters and the gradient of the input after two steps."""
    torch.manual_seed(3)
    steps = torch.optim.SGD(model.parameters(), lr=0.02)
    called: Any = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    with torch.enable_grad():
        for _ in range(2):
            x = torch.randn(6, 8, requires_grad=True)
            steps.zero_grad()
            checkpoint(called, x, use_reentrant=False).square().sum().backward()
            steps.step()
    return [*(p.detach() for p in model.parameters()), x.grad]


def test_a_file_with_gradients_checks_a_training_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong").mkdir()
    assert with_gradients(tmp_path, NORM, NORM_GRADIENTS)._check() == 0
    assert "✔ a training step, float32[6, 8]: the largest error of a gradient is " in capsys.readouterr().out
    halved = NORM_GRADIENTS.replace("(g * wide * r).sum(0)", "(g * wide * r / 2).sum(0)")
    assert with_gradients(tmp_path / "wrong", NORM, halved)._is_step_wrong(torch.device("cpu"))
    assert "✗ a training step: with the parameters of Model the kernel is" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch 2.11 within torch.compile
def test_on_a_gpu_a_file_with_gradients_times_a_training_step_as_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    both = [(task, experts(task)[0]) for task in gradient_tasks(tmp_path, find_task("rms_norm").source)]
    forward, backward = (VerifiedKernel(task, sketch.render(sketch.params)) for task, sketch in both)
    out = tmp_path / "rms_op.py"
    out.write_text(packaged([forward], arch="sm_90", header="# a header\n\n", backward=[backward]))
    assert imported(out)._check() == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"✔ a training step, .* allowed; \d+.\d us, the reference \d+.\d us, compiled \d+.\d us", told)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_with_verified_gradients_a_model_trains_as_it_did(tmp_path: Path, compiled: bool) -> None:
    torch.compiler.reset()
    op = with_gradients(tmp_path, NORM, NORM_GRADIENTS)
    assert op._check() == 0
    norm = Norm()
    untrained = copy.deepcopy(norm.gain)
    wanted = trained(copy.deepcopy(norm))
    op.patch(norm)
    for found, its in zip(trained(norm, compiled=compiled), wanted, strict=True):
        torch.testing.assert_close(found, its)
    assert (norm.gain - untrained).abs().min() > 0.01
    assert op.calls(norm)[""] == {"kernel": 4, "gradients": 2}  # a checkpoint runs each forward twice
    shapes = r"not verified. Verified: float32\[6, 8\]; .*\[6, 16\]; bf"
    with torch.enable_grad(), pytest.warns(UserWarning, match=shapes):
        norm(torch.randn(13, 8)).sum().backward()  # the kernel has them, its gradients do not


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)], ids=["flat", "folded"])
def test_a_kernel_of_a_training_step_is_given_what_it_saved_and_runs_whole_where_dimensions_are_folded_or_a_hook_saves(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    op, norm = with_gradients(tmp_path, NORM, NORM_STEP, step=True), Norm()
    plain = copy.deepcopy(norm)
    op.patch(norm)
    x = torch.randn(shape)

    def gradients(model: Norm) -> tuple[list[torch.Size], tuple[torch.Tensor, ...]]:
        answer = model(given := x.clone().requires_grad_())
        saved: Any = answer.grad_fn
        shapes = [t.shape for t in saved.saved_tensors] if model is norm else []
        return shapes, torch.autograd.grad(answer.square().sum(), [given, model.gain])

    with torch.enable_grad():
        for _ in range(3):  # decided, then remembered
            shapes, found = gradients(norm)
            torch.testing.assert_close(found, gradients(plain)[1])
            kept = [tuple(s) for s in shapes]
            assert kept[:2] == [shape, (8,)]
            assert kept[2:] == ([] if len(shape) > 2 else [(6, 8), (6, 1)])
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            torch.testing.assert_close(gradients(norm)[1], found)
    assert op.calls(norm)[""] == {"kernel": 4, "gradients": 4}


def test_a_training_step_s_kernel_compiles_as_one_of_gradients_and_is_refused_unless_it_is_in_halves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.compiler.reset()
    op = with_gradients(tmp_path, NORM, NORM_STEP, step=True)
    assert op._check() == 0
    assert "✔ a training step, float32[6, 8]: the largest error of a gradient is " in capsys.readouterr().out
    norm = Norm()
    wanted = trained(copy.deepcopy(norm))
    op.patch(norm)
    for found, its in zip(trained(norm, compiled=True), wanted, strict=True):
        torch.testing.assert_close(found, its)
    for amiss in ("saved = self.save(x + 0)", "saved = self.save(gradient)", "saved = self.save(x); saved = saved"):
        with pytest.raises(CannotPackage, match="not in two halves"):
            with_gradients(tmp_path, NORM, NORM_STEP.replace("saved = self.save(x)", amiss), step=True)


def test_what_is_folded_for_a_kernel_has_gradients_and_answers_that_can_be_changed_in_place(tmp_path: Path) -> None:
    op, norm = with_gradients(tmp_path, NORM, NORM_GRADIENTS), Norm()
    plain = copy.deepcopy(norm)
    op.patch(norm)
    x = torch.randn(2, 3, 8)
    with torch.enable_grad():
        for _ in range(3):  # decided, then remembered
            found, wanted = (
                torch.autograd.grad(
                    model(given := x.clone().requires_grad_()).mul_(2.0).square().sum(), [given, model.gain]
                )
                for model in (norm, plain)
            )
            torch.testing.assert_close(found, wanted)
    assert op.calls(norm)[""] == {"kernel": 3, "gradients": 3}


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)], ids=["flat", "folded"])
def test_gradients_are_right_for_what_a_hook_for_saved_tensors_laid_out_anew_and_refused_for_other_values(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    reads_memory = "        x = x.as_strided(x.shape, (x.shape[1], 1))\n        wide, g ="  # as a kernel does
    op = with_gradients(tmp_path, NORM, NORM_GRADIENTS.replace("        wide, g =", reads_memory))
    norm = Norm()
    plain = copy.deepcopy(norm)
    op.patch(norm)

    def gradient(model: nn.Module, unpack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(-1, 1, 48).reshape(shape).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), unpack):
            answer = model(x)
        return torch.autograd.grad(answer.square().sum(), x)[0]

    def columns_first(t: torch.Tensor) -> torch.Tensor:
        return t.reshape(-1, t.shape[-1]).t().contiguous().t().view(t.shape)

    with torch.enable_grad():
        for _ in range(2):  # decided, then remembered
            torch.testing.assert_close(gradient(norm, columns_first), gradient(plain, lambda t: t))
        for changed in (lambda t: t.double(), lambda t: t[:1]):
            with pytest.raises(RuntimeError, match="a hook for saved tensors gave"):
                gradient(norm, changed)
    assert op.calls(norm)[""]["gradients"] == 2


def test_a_call_like_an_earlier_one_is_seen_by_modes(op: ModuleType) -> None:
    norm, x = Norm().eval(), torch.randn(12, 8)
    op.patch(norm)
    norm(x)
    wanted = norm(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(norm(x), FakeTensor)
        assert isinstance(norm(mode.from_tensor(x)), FakeTensor)
    assert op.calls(norm)[""] == {"kernel": 2}
    with torch.inference_mode():
        torch.testing.assert_close(norm(x.clone()), wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch 2.13 within jvp
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_under_a_transform_of_torch_func_the_original_answers_with_one_warning(tmp_path: Path, compiled: bool) -> None:
    torch.compiler.reset()
    op, norm, x = with_gradients(tmp_path, NORM, NORM_GRADIENTS), Norm().eval(), torch.randn(3, 6, 8)
    plain = copy.deepcopy(norm)
    op.patch(norm)
    norm(x[0])  # a call like those of each element of the batch
    transforms: list[Callable[[Callable[..., Any]], Any]] = [
        lambda call: torch.vmap(call)(x),
        lambda call: torch.vmap(torch.func.grad(lambda one: call(one).square().sum()))(x),
        lambda call: torch.func.grad(lambda some: torch.vmap(call)(some).square().sum())(x),
        lambda call: torch.func.jvp(call, (x[0],), (x[1],))[1],
    ]

    def compare() -> None:
        for transform in transforms:
            apply = torch.compile(transform, backend="aot_eager", fullgraph=True) if compiled else transform
            torch.testing.assert_close(apply(norm), transform(plain))

    with torch.enable_grad(), pytest.warns(UserWarning, match="a transform of torch.func") as told:
        compare()
    assert len([one for one in told if "the reference runs" in str(one.message)]) == 1
    assert op.calls(norm)[""]["kernel"] == 1


UNSEEN = """
import ctypes, torch
class ModelNew(torch.nn.Module):
    def forward(self, x):  # by addresses, as a launch
        y = torch.empty_like(x)
        given, made = ((ctypes.c_float * x.numel()).from_address(t.data_ptr()) for t in (x, y))
        made[:] = [2 * value for value in given]
        return y
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, within torch
def test_a_derivative_in_forward_mode_is_the_original_s(tmp_path: Path) -> None:
    forward_ad: Any = torch.autograd.forward_ad
    model = (op := file_of(tmp_path, SUMS.replace("x.sum(-1)", "x * 2"), UNSEEN, "twice")).ModelNew()
    model(torch.randn(6, 8))  # remembered
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(6, 8), torch.ones(6, 8))
        with pytest.warns(UserWarning, match="forward mode"):
            found = model(x)
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, torch.full((6, 8), 2.0))
    assert op.calls(model) == {"": {"kernel": 1, "reference": 1}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is one
def test_a_graph_that_jit_traces_has_the_original_s_operators(tmp_path: Path) -> None:
    model = file_of(tmp_path, SUMS.replace("x.sum(-1)", "x * 2"), UNSEEN, "twice").ModelNew()
    model(torch.randn(6, 8))  # remembered
    jit: Any = torch.jit
    with pytest.warns(UserWarning, match=r"torch\.jit\.trace"):
        traced = jit.trace(model, (torch.randn(6, 8),))
    torch.testing.assert_close(traced(x := torch.randn(6, 8)), x * 2)


def test_an_answer_is_nobody_else_s_memory(tmp_path: Path) -> None:
    same = NORM_KERNEL.replace("        wide = x.float()\n", "        return x\n")
    task = NORM.replace("patch(nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps))", "x * 1.0")
    op = file_of(tmp_path, task, same)
    model, x = op.ModelNew(8, 1e-3).eval(), torch.randn(12, 8)
    kept = x.clone()
    for _ in range(3):
        model(x).zero_()
    assert torch.equal(x, kept)


def test_an_operator_with_gradients_is_as_torch_wants_it(tmp_path: Path) -> None:
    op, norm, x = with_gradients(tmp_path, NORM, NORM_GRADIENTS), Norm(), torch.randn(6, 8, requires_grad=True)
    op.patch(norm)
    place = vars(norm)[op._ATTRIBUTE]
    number, _ = op._match(place, [x], [norm.gain])
    gradients = op._backward_of(place, number, [x], [norm.gain])
    with torch.enable_grad():
        torch.library.opcheck(op._operator, ([x], [norm.gain], number, place.number))
    torch.library.opcheck(op._backward, ([x.detach()] * 2, [norm.gain.detach()], gradients, place.number))


def test_a_parameter_that_is_frozen_and_released_has_the_gradients_of_each_call(tmp_path: Path) -> None:
    op, norm, x = with_gradients(tmp_path, NORM, NORM_GRADIENTS), Norm(), torch.randn(6, 8)
    op.patch(norm)
    with torch.enable_grad():
        for _ in range(2):
            assert norm(x).requires_grad
            norm.gain.requires_grad_(False)
            assert not norm(x).requires_grad
            norm.gain.requires_grad_(True)
        norm(x).sum().backward()
    assert norm.gain.grad is not None
    assert op.calls(norm)[""] == {"kernel": 5, "gradients": 1}


def test_a_call_under_autocast_asks_the_original_for_its_dtypes_once(tmp_path: Path) -> None:
    class Counted(Norm):
        runs = 0

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return super().forward(hidden)

    op, norm, x = file_of(tmp_path, NORM, NORM_KERNEL), Counted(), torch.randn(6, 8)
    op.patch(norm)
    before = norm.runs
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            norm(x)
    norm(x)
    assert (norm.runs - before, op.calls(norm)[""]) == (1, {"kernel": 4})


def test_gradients_that_no_kernel_has_are_those_of_pytorch_or_an_error(tmp_path: Path) -> None:
    buffer = NORM.replace(
        "self.eps, self.weight = eps, nn.Parameter(", "self.eps = eps; self.register_buffer('weight', "
    )
    of_input = NORM_GRADIENTS.replace(", (g * wide * r).sum(0).to(x.dtype)", "")
    op, norm, x = with_gradients(tmp_path, buffer, of_input), Norm(), torch.randn(6, 8, requires_grad=True)
    op.patch(norm)
    with torch.enable_grad():
        with pytest.warns(UserWarning, match="what is a buffer of the reference, were not verified"):
            norm(x).sum().backward()  # what is a buffer of the reference is a parameter here
        assert norm.gain.grad is not None
        norm.gain.requires_grad = False
        (once,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.backward(once.sum())
    assert op.calls(norm)[""] == {"reference": 1, "kernel": 1, "gradients": 1}


def launching(source: str, output: str) -> str:
    """A kernel that launches something where it is traced without data, as a compiler does."""
    launches = source.replace("import torch\n", "import torch, triton\n@triton.jit\ndef kernel(x, y): pass\n", 1)
    without_data = (
        f"        if x.is_meta:\n            y = {output}\n            kernel[(1,)](x, torch.empty_like(x))\n"
        "            return y\n"
    )
    return launches.replace("        wide", f"{without_data}        wide", 1)


@pytest.mark.parametrize("of_backward", [False, True], ids=["forward", "both"])
def test_a_training_call_of_a_kernel_whose_launches_are_seen_is_counted_but_not_in_a_compiled_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_backward: bool
) -> None:
    torch.compiler.reset()
    gradients = launching(NORM_GRADIENTS, "torch.empty_like(x), self.forward_model.weight * 1")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    kernels = gradients if of_backward else NORM_GRADIENTS, launching(NORM_KERNEL, "torch.empty_like(x)")
    op, norm = with_gradients(tmp_path, NORM, *kernels), Norm()
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # a CPU is what it was verified for; it launches nothing here
    assert {op.VERIFIED[number].backward for number in op._seen} == {False, of_backward}
    wanted = trained(copy.deepcopy(norm))
    op.patch(norm)
    for compiled, counted in ((False, {"kernel": 4, "gradients": 2}), (True, {} if of_backward else {"gradients": 2})):
        again = copy.deepcopy(norm)
        for found, its in zip(trained(again, compiled=compiled), wanted, strict=True):
            torch.testing.assert_close(found, its)
        assert op.calls(again)[""] == counted
    x = torch.randn(6, 8)
    place = vars(norm)[op._ATTRIBUTE]
    (number,) = [n for n in place.backwards if op._fits(op.VERIFIED[n].inputs[:1], [x], (), 0)]
    torch.library.opcheck(op._backward, ([x, x], [norm.gain.detach()], number, place.number))


def test_gradients_that_are_one_tensor_in_the_reference_are_not_copied(tmp_path: Path) -> None:
    torch.compiler.reset()
    summed = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, residual):
        h = x + residual
        return h * h, h
def get_inputs(): return [torch.randn(4, 8), torch.randn(4, 8)]
def get_init_inputs(): return []
"""
    kernel = "from torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, {}):\n        return {}\n"
    forward, backward = gradient_tasks(tmp_path, summed)
    both = [
        VerifiedKernel(forward, kernel.format("x, r", "(x + r) ** 2, x + r")),
        VerifiedKernel(backward, kernel.format("x, r, g, through", "(d := 2 * (x + r) * g + through), d")),
    ]
    out = tmp_path / "sum_op.py"
    out.write_text(packaged(both[:1], arch="sm_90", header="# a header\n\n", backward=both[1:]))
    op = imported(out)
    model, inputs = op.ModelNew(), [torch.randn(4, 8, requires_grad=True) for _ in range(2)]
    place = vars(model)[op._ATTRIBUTE]
    (number,) = place.backwards
    drawn = [torch.randn(4, 8) for _ in range(4)]
    assert len(op._backward(drawn, [], number, place.number)) == 1
    torch.library.opcheck(op._backward, (drawn, [], number, place.number))
    for called in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        with torch.enable_grad():
            one, other = torch.autograd.grad(called(*inputs), inputs, drawn[:2])
        assert one.data_ptr() == other.data_ptr()
        torch.testing.assert_close(one, 2 * (inputs[0] + inputs[1]) * drawn[0] + drawn[1])


def test_a_kernel_of_gradients_is_given_tensors_that_begin_at_16_bytes(tmp_path: Path) -> None:
    asks = NORM_GRADIENTS.replace("        wide, g", "        assert gradient.data_ptr() % 16 == 0\n        wide, g")
    op, norm, x = with_gradients(tmp_path, NORM, asks), Norm(), torch.randn(6, 8, requires_grad=True)
    op.patch(norm)
    with torch.enable_grad():
        torch.autograd.backward(torch.cat([torch.zeros(1), norm(x).flatten()]).square().sum())
    assert op.calls(norm)[""]["gradients"] == 1


def test_gradients_of_another_op_or_of_packed_parameters_are_refused(tmp_path: Path) -> None:
    op = with_gradients(tmp_path, NORM, NORM_GRADIENTS_PACKED)
    with pytest.raises(ValueError, match="times as far off as it may be"):
        op.patch(Norm())
    task, gradients = gradient_tasks(tmp_path, NORM)
    other = replace(gradients, source=gradients.source.replace("1e-3", "1e-2"))
    for its_task in (task, other):
        with pytest.raises(CannotPackage, match="not the task of the gradients"):
            packaged(
                [VerifiedKernel(task, NORM_KERNEL)],
                arch="sm_90",
                header="",
                backward=[VerifiedKernel(its_task, NORM_GRADIENTS)],
            )


FUNCTION = """
import torch
ROWS = 6
CASES = [{"name": "more", "ROWS": 9, "cpu": True}]
def tail(x, bias=None, *, scale: float = 2.0, more=()):
    y = x * scale if bias is None else x * scale + bias
    return {"y": y, "both": (y.sum(-1), 7)}
class Model(torch.nn.Module):
    def forward(self, x, bias):
        return tail(x, bias, scale=3.0)
def get_inputs(): return [torch.randn(ROWS, 8), torch.randn(8)]
def get_init_inputs(): return []
"""
FUNCTION_KERNEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x, bias):
        y = 3 * x + bias
        return {"y": y.t().contiguous().t(), "both": (y.sum(-1), 7)}
"""


def test_a_function_is_replaced_under_its_own_name_with_its_own_arguments(tmp_path: Path) -> None:
    op = file_of(tmp_path, FUNCTION, FUNCTION_KERNEL, "tail_task")
    assert op.__all__ == ["tail", "ModelNew", "calls", "patch", "unpatch"]
    x, bias = torch.randn(6, 8), torch.randn(8)
    place = op._place_of_function()
    for found in (op.tail(x, bias, scale=3.0), op.tail(x=x, scale=3.0, bias=bias)):
        assert list(found) == ["y", "both"]
        assert (type(found["both"]), found["both"][1]) == (tuple, 7)
        torch.testing.assert_close(found["y"], 3 * x + bias)
        assert found["y"].is_contiguous()  # as the reference's
    assert place.calls == {"kernel": 2}
    with pytest.warns(UserWarning, match="other arguments"):
        assert torch.equal(op.tail(x)["y"], x * 2.0)
    assert torch.equal(op.tail(x, bias)["y"], x * 2.0 + bias)
    assert torch.equal(op.tail(x, bias, scale=3.0, more=(1,))["y"], x * 3.0 + bias)
    with pytest.raises(TypeError):
        op.tail(x, bias, size=1)
    assert place.calls == {"kernel": 2, "reference": 4}


class Gated(nn.Module):
    """A module that takes an argument by its name only, where the task's Model around it has none such."""

    def forward(self, x: torch.Tensor, *, gate: torch.Tensor) -> torch.Tensor:
        return x * gate.sigmoid()


@pytest.mark.parametrize("name", ["unpatch", "ModelNew"])
def test_a_function_that_is_called_as_one_of_ours_gets_another_name(tmp_path: Path, name: str) -> None:
    task = SUMS.replace("class Model", f"def {name}(x): return x.sum(-1)\nclass Model").replace(
        "x.sum(-1)\ndef", f"{name}(x)\ndef"
    )
    kernel = "from torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x): return x.sum(-1)\n"
    op, x = file_of(tmp_path, task, kernel, "sums"), torch.randn(6, 8)
    assert op.__all__ == [f"{name}_op", "ModelNew", "calls", "patch", "unpatch"]
    torch.testing.assert_close(getattr(op, f"{name}_op")(x), x.sum(-1))
    assert op.unpatch(op.ModelNew()) == 1


def test_a_module_that_takes_a_tensor_by_name_only_is_patched(tmp_path: Path) -> None:
    task = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, gate): return x * gate.sigmoid()
def get_inputs(): return [torch.randn(4, 8), torch.randn(4, 8)]
"""
    op = file_of(tmp_path, task, task.replace("Model", "ModelNew"), "gated")
    net, x = nn.Sequential(Gated()).eval(), torch.randn(4, 8)
    op.patch(net, "0")
    assert torch.equal(net[0](x, gate=x), x * x.sigmoid())
    assert op.calls(net) == {"0": {"kernel": 1}}


def test_importing_a_file_twice_or_two_of_them_is_no_clash(tmp_path: Path) -> None:
    one = file_of(tmp_path, NORM, NORM_KERNEL)
    again, other = file_of(tmp_path, NORM, NORM_KERNEL), file_of(tmp_path, NORM, NORM_KERNEL + "# another\n")
    models = [file.ModelNew(8, 1e-3).eval() for file in (one, again, other)]
    for model in models:
        model(torch.randn(12, 8))
    assert [file.calls(m) for file, m in zip((one, again, other), models, strict=True)] == [{"": {"kernel": 1}}] * 3


def test_a_file_for_what_it_holds_says_that_it_is_right_and_for_what_is_wrong_that_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert file_of(tmp_path, NORM, NORM_KERNEL)._check() == 0
    assert capsys.readouterr().out.count("✔") == 3  # rows together, wide, half
    wrong = NORM_KERNEL.replace("1e-3).sqrt", "2e-2).sqrt")
    assert file_of(tmp_path, NORM, wrong)._check() == 1
    assert "✗" in capsys.readouterr().out


PTX = r"""
.version 8.0
.target sm_90
.address_size 64
// .entry not_this(.param .u32 x)
.visible .entry relu(.param .u64 y, .param .u64 .ptr .global x, .param .u32 n) .reqntid 128, 1, 1 {
    .reg .f32 %f<2>; .reg .u64 %rd<3>;
    ld.param.u64 %rd1, [y]; ld.param.u64 %rd2, [x];
    ld.global.f32 %f1, [%rd2]; max.f32 %f1, %f1, ZERO; st.global.f32 [%rd1], %f1;
    ret;
}
"""


def test_a_kernel_in_ptx_brings_its_loader_which_fills_in_and_assembles_what_the_judge_did(tmp_path: Path) -> None:
    task = described(find_task("rms_norm"))
    assert task
    (sketch, *_) = ptx_experts(task)
    path = tmp_path / "rms_norm_op.py"
    path.write_text(
        packaged([VerifiedKernel(task, sketch.render(sketch.params))], arch="sm_90", header="# a header\n\n")
    )
    loader = path.read_text().partition("\nclass PackagedPtx")[2].partition("\n_HELD = ")[0]
    assert sum(bool(line.strip()) for line in loader.splitlines()) <= 60
    op = imported(path)
    assert op._new_kernel(0).PtxKernel is op.PackagedPtx
    wanted = assemble(PTX.replace("ZERO", "0f00000000"), "sm_90", tmp_path)
    template = op.PackagedPtx(PTX.replace("ZERO", "${ZERO}"), entry="relu", configs=[{"ZERO": "0f00000000"}])
    same = op.PackagedPtx
    again, other = (same(template.text, entry="relu", configs=[{"ZERO": zero}]) for zero in ("0f00000000", "1"))
    assert again.loaded is template.loaded is not other.loaded  # a forward that makes its kernel at each call
    cubin, *facts = template._assembled(template.configs[0], "sm_90")
    assert facts == ["relu", ["u64", "u64", "u32"], {"reqntid": [128, 1, 1]}]
    assert code_of(cubin) == code_of(wanted.cubin)  # the judge's has a table of lines, too


def test_a_launch_of_ptx_gives_the_driver_the_words_that_the_kernel_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a recorder in the place of the driver, which is opened once."""
    path = tmp_path / "rms_norm_op.py"
    task = described(find_task("rms_norm"))
    assert task
    (sketch, *_) = ptx_experts(task)
    path.write_text(
        packaged([VerifiedKernel(task, sketch.render(sketch.params))], arch="sm_90", header="# a header\n\n")
    )
    op, told = imported(path), []

    def recorded(launch: bytes, function: int, pointers: Any, _: None) -> int:
        told.append((struct.unpack("7I4xQQI4x", launch), [ctypes.string_at(at, 8) for at in pointers[:5]], function))
        attributes, count = ctypes.string_at(told[-1][0][-2], 300), told[-1][0][-1]
        assert [struct.unpack_from("I4x3I", attributes, 72 * n) for n in range(count)] == [
            (6, 1, 0, 0),
            (4, 2, 1, 1),
            (5, 1, 0, 0),
        ]
        return 0

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77 + device, raising=False)
    monkeypatch.setattr(op, "_driver_of", lambda call: {"cuLaunchKernelEx": recorded}[call])
    kernel = op.PackagedPtx("text", configs=[{"CLUSTER": 2}])
    kernel.loaded[0, 32, 0] = (55, ["u64", "s32", "f32", "f64", "b32"], {"reqntid": [128, 1, 1]})
    x = torch.zeros(4)
    kernel[lambda config: 10 * config["CLUSTER"]](
        x, -3, 2, 0.5, 1.5, shared_bytes=32, cluster=lambda config: config["CLUSTER"], pdl=True
    )
    ((launch, words, function),) = told
    assert (launch[:8], launch[8], function) == ((20, 1, 1, 128, 1, 1, 32, 77), launch[8], 55)
    wanted = ["<Q", "<i4x", "<f4x", "<d", "<f4x"]
    found = [struct.unpack_from(form, word)[0] for form, word in zip(wanted, words, strict=True)]
    assert found == [x.data_ptr(), -3, 2.0, 0.5, 1.5]
    kernel[0](x, 0, 0.0, 0.0, 0.0, shared_bytes=32, cluster=2, pdl=True)
    assert len(told) == 1  # of no blocks: nothing to launch


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch 2.11 within torch.compile
@pytest.mark.parametrize("language", ["triton", "ptx"])
def test_on_a_gpu_it_answers_in_eager_compiled_and_captured_calls_and_chooses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    torch.compiler.reset()
    task = described(find_task("rms_norm"))
    assert task
    (sketch, *_) = ptx_experts(task) if language == "ptx" else experts(task)
    (tmp_path / "rms_op.py").write_text(
        packaged([VerifiedKernel(task, sketch.render(sketch.params))], arch="sm_90", header="# a header\n\n")
    )
    op = imported(tmp_path / "rms_op.py")
    assert op._check() == 0
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    model = nn.Sequential(nn.RMSNorm(4096, 1e-6, **like))
    nn.init.normal_(next(model.parameters()))
    x = torch.randn(16384, 4096, **like)
    wanted = model(x)
    op.patch(model, "0")
    torch.testing.assert_close(model(x), wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), wanted, rtol=2e-2, atol=2e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-2)
    began = time.monotonic()
    for _ in range(100):
        model(x)
    torch.cuda.synchronize()
    assert time.monotonic() - began < 1.0  # choosing among configs takes 0.7 s


def code_of(cubin: bytes) -> bytes:
    return next(section.data(cubin) for section in sections(cubin) if section.name.startswith(".text."))


def test_a_kernel_in_cuda_c_is_refused_for_it_needs_its_compiler_wherever_it_runs() -> None:
    kernel = Path(__file__).resolve().parents[3] / "corpus/honest/cuda_softmax_in_registers.py"
    task = described(find_task("softmax"))
    assert task is not None
    with pytest.raises(CannotPackage, match="softmax is in CUDA C\\+\\+, which needs NVRTC"):
        packaged([VerifiedKernel(task, kernel.read_text())], arch="sm_90", header="")


@pytest.mark.parametrize("name", ["ptx_boxes_by_tensor_maps", "ptx_split_product", "ptx_attention"])
def test_ptx_that_takes_tensor_maps_is_refused_for_a_packaged_file_makes_none(name: str) -> None:
    kernel = Path(__file__).resolve().parents[3] / f"corpus/honest/{name}.py"
    task = described(find_task("softmax"))
    assert task is not None
    with pytest.raises(CannotPackage, match="softmax takes tensor maps in PTX"):
        packaged([VerifiedKernel(task, kernel.read_text())], arch="sm_90", header="")


PADDED = """
import torch
ROWS, COLS = 6, 5
CASES = [{"name": "more", "ROWS": 20, "cpu": True}]
INPUTS = {"x": {"values": "any", "pitch": 8, "slack": 4, "alignment": 64}}
class Model(torch.nn.Module):
    def forward(self, x): return x.sum(-1)
def get_inputs(): return [torch.randn(ROWS, COLS)]
"""
READS_THE_PADDING = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert x.data_ptr() % 64 == 0
        whole = x.as_strided((x.shape[0] * 8 + 1,), (1,), x.storage_offset())[:-1]  # one of four behind its last row
        return torch.where(torch.arange(8) < 5, whole.view(-1, 8), 0.0).sum(-1)
"""


def padded(rows: int, *, behind: int = 4, first: int = 0) -> torch.Tensor:
    """Rows of 5, 8 apart, at a multiple of 64 bytes or `first` elements behind one."""
    memory = torch.full((rows * 8 - 3 + behind + first + 16,), float("nan"))
    start = -memory.data_ptr() % 64 // 4 + first
    memory = torch.frombuffer(memory.numpy().data, dtype=torch.float32, count=start + rows * 8 - 3 + behind)
    return memory.as_strided((rows, 5), (8, 1), start).copy_(torch.randn(rows, 5))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: padded(6), ""),
        (lambda: padded(20, behind=100), ""),
        (lambda: padded(6, behind=3), "the kernel may read behind the end of a tensor"),
        (lambda: padded(6, first=4), "address is not a multiple of 16 or 64 bytes"),
        (lambda: torch.randn(6, 5), "strides were not verified. Verified: float32[6, 5] stride [8, 1]"),
        (lambda: torch.randn(6, 16)[:, :5], "strides were not verified"),
    ],
)
def test_a_kernel_runs_for_tensors_that_keep_its_task_s_contract(
    given: Callable[[], torch.Tensor], why: str, tmp_path: Path
) -> None:
    model = (op := file_of(tmp_path, PADDED, READS_THE_PADDING, "padded")).ModelNew().eval()
    good, x = padded(6), given()
    for _ in range(2):  # decided, then remembered
        torch.testing.assert_close(model(good), good.sum(-1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.testing.assert_close(model(x), x.sum(-1))
    assert [why in str(warning.message) for warning in told] == [True] * bool(why)
    assert op.calls(model)[""] == ({"kernel": 2, "reference": 1} if why else {"kernel": 3})


def test_a_call_at_an_address_that_only_a_contract_allows_is_remembered_once(tmp_path: Path) -> None:
    task, kernel = (text.replace("64", "4") for text in (PADDED, READS_THE_PADDING))
    model = (op := file_of(tmp_path, task, kernel, "padded")).ModelNew().eval()
    x = padded(6, first=1)
    for _ in range(3):
        torch.testing.assert_close(model(x), x.sum(-1))
    assert op.calls(model)[""] == {"kernel": 3}
    assert [len(its) for its in vars(model)[op._ATTRIBUTE].known.values()] == [1]


def test_compiled_code_whose_tensors_lack_what_a_contract_says_gives_the_kernel_copies_that_have_it(
    tmp_path: Path,
) -> None:
    op = file_of(tmp_path, PADDED, READS_THE_PADDING, "padded")
    model = op.ModelNew().eval()
    compiled = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
    for x in (padded(6), padded(6, behind=0), padded(6, first=1)):
        torch.testing.assert_close(compiled(x), x.sum(-1))
    assert op.calls(model)[""] == {"kernel": 3}


def test_a_file_checks_a_kernel_on_tensors_that_keep_its_task_s_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert file_of(tmp_path, PADDED, READS_THE_PADDING, "padded")._check() == 0
    assert capsys.readouterr().out.count("✔") == 2


ROWS_OF_EIGHT = """
import torch, triton, triton.language as tl
@triton.jit
def sum_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + tl.program_id(0), tl.sum(tl.where(i < 5, tl.load(x + tl.program_id(0) * B + i), 0.0)))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        sum_kernel[(x.shape[0],)](x, y, B=8)
        return y
"""


@pytest.mark.parametrize(("contract", "seen"), [("{'alignment': 16}", True), ("{'pitch': 8}", False)])
def test_a_compiler_does_not_see_into_a_kernel_whose_tensors_must_keep_a_contract(
    contract: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    task = "\n".join(line for line in PADDED.splitlines() if not line.startswith("INPUTS"))
    op = file_of(tmp_path, f"{task}\nINPUTS = {{'x': {contract}}}", ROWS_OF_EIGHT, "padded")
    assert bool(op._seen) is seen


TWO_SUMS = """
import torch, triton, triton.language as tl
@triton.jit
def sums_kernel(x, y, first, second, COLS: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    row = tl.program_id(0) * COLS + i
    total = tl.sum(tl.load(x + row, mask=i < 5, other=0.0) + tl.load(y + row, mask=i < 5, other=0.0))
    tl.store(first + tl.program_id(0), total)
    tl.store(second + tl.program_id(0), total)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        other = torch.empty_like(y)
        sums_kernel[(x.shape[0],)](LEFT, RIGHT, y, AGAIN, COLS=10, B=8)
        return y
"""
TEN_COLUMNS = """
import torch
BATCH = 6
CASES = [{"name": "two", "BATCH": 2, "cpu": True}]
class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1)
def get_inputs(): return [torch.randn(BATCH, 10)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("left", "right", "again", "seen"),
    [
        ("x[:, :5]", "x[:, 5:]", "other", True),
        ("x[:, :5]", "x[:, 5:]", "y", False),  # a compiled graph kept what nothing was written to
        ("x[:, :6]", "x[:, 4:]", "other", False),
        ("x", "x[:, 5:]", "other", False),
        ("x[:1]", "x[1:2]", "other", True),
        ("x[:2]", "x[1:3]", "other", False),
        ("x.T[:5]", "x.T[5:]", "other", True),
    ],
)
def test_a_compiler_does_not_see_a_launch_that_is_given_an_element_twice(
    left: str, right: str, again: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    kernel = TWO_SUMS.replace("LEFT", left).replace("RIGHT", right).replace("AGAIN", again)
    assert bool(file_of(tmp_path, TEN_COLUMNS, kernel, "ten")._seen) is seen


def test_a_model_that_is_made_with_other_arguments_than_were_verified_is_refused(op: ModuleType) -> None:
    with pytest.raises(ValueError, match="does not compute what was verified"):
        op.ModelNew(8, 0.1)
    for model in (op.ModelNew(8, 1e-3), op.ModelNew(8, eps=1e-3)):
        torch.testing.assert_close(model.eval()(x := torch.randn(12, 8)), type(model).forward(model, x))
        assert op.calls(model) == {"": {"kernel": 1}}


DICTS = """
import torch, torch.nn as nn
ROWS = 6
CASES = [{"name": "more", "ROWS": 20, "cpu": True}]
class Model(nn.Module):
    def forward(self, given): return {"less": given["b"] - 2 * given["a"], "more": given["b"] + given["a"]}
def get_inputs(): return [{"b": torch.randn(ROWS, 8), "a": torch.randn(ROWS, 8)}]
"""


def test_a_dict_is_known_by_its_keys_whatever_their_order(tmp_path: Path) -> None:
    kernel = """
from torch import nn
class ModelNew(nn.Module):
    def forward(self, given): return {"more": given["b"] + given["a"], "less": given["b"] - 2 * given["a"]}
"""
    model = (op := file_of(tmp_path, DICTS, kernel, "dicts")).ModelNew()
    a, b = torch.randn(2, 3, 8)
    for given in ({"b": b, "a": a}, {"a": a, "b": b}):
        found = model({key: t.repeat(4, 1) for key, t in given.items()})
        torch.testing.assert_close(found, {"less": (b - 2 * a).repeat(4, 1), "more": (b + a).repeat(4, 1)})
    assert op.calls(model) == {"": {"kernel": 2}}


class InATuple(Norm):
    def forward(self, hidden: torch.Tensor) -> Any:
        return (super().forward(hidden),)


class InADict(Norm):
    def forward(self, hidden: torch.Tensor) -> Any:
        return {"hidden": super().forward(hidden)}


@pytest.mark.parametrize("its", [InATuple, InADict])
def test_a_module_that_returns_the_same_tensor_within_something_else_is_refused(op: ModuleType, its: Any) -> None:
    with pytest.raises(ValueError, match="does not compute what was verified"):
        op.patch(its().eval())


def test_an_answer_stays_when_the_kernel_writes_its_next_one_into_the_same_memory(tmp_path: Path) -> None:
    keeping = (
        NORM_KERNEL.replace("return (", "found = (")
        + """
        if not hasattr(self, "kept") or self.kept.shape != x.shape:
            self.kept = torch.empty_like(x)
        return self.kept.copy_(found)
"""
    )
    model = file_of(tmp_path, NORM, keeping).ModelNew(8, 1e-3).eval()
    inputs = [torch.randn(12, 8) for _ in range(3)]
    for one, answer in zip(inputs, [model(x) for x in inputs], strict=True):
        torch.testing.assert_close(answer, type(model).forward(model, one))


SUMS = """
import torch, torch.nn as nn
ROWS = 6
CASES = [{"name": "more", "ROWS": 20, "cpu": True}]
class Model(nn.Module):
    def forward(self, x): return x.sum(-1)
def get_inputs(): return [torch.randn(ROWS, 8)]
"""
ADDS = """
import torch
timed = []
def autotune(launch, rows):  # as Triton's does without reset_to_zero: each config runs on the arguments of the launch
    if rows not in timed:
        timed.insert(0, rows)
        launch()
        launch()
    launch()
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros(x.shape[0], device=x.device)
        autotune(lambda: y.add_(x.sum(-1)), x.shape[0])
        return y
"""


def test_a_kernel_that_adds_to_its_output_is_right_in_the_call_that_chooses_its_config(tmp_path: Path) -> None:
    model = file_of(tmp_path, SUMS, ADDS, "sums").ModelNew()
    for rows in (6, 7):
        torch.testing.assert_close(model(x := torch.randn(rows, 8)), x.sum(-1))


def test_a_copy_answers_with_its_own_parameters_where_the_original_had_a_forward_of_its_own(op: ModuleType) -> None:
    norm = Norm().eval()
    vars(norm)["forward"] = functools.partial(Norm.forward, norm)
    op.patch(norm)
    other = copy.deepcopy(norm)
    other.gain.mul_(3.0)
    x = torch.randn(50, 8)
    with pytest.warns(UserWarning, match="were not verified"):
        torch.testing.assert_close(other(x), 3 * norm(x))


@pytest.mark.parametrize("unpatched", [True, False])
def test_parameters_of_a_model_that_was_patched_are_freed_with_it(op: ModuleType, unpatched: bool) -> None:
    norm = Norm().eval()
    op.patch(norm)
    norm(torch.randn(12, 8))
    gain = weakref.ref(norm.gain)
    if unpatched:
        op.unpatch(norm)
    del norm
    gc.collect()
    assert gain() is None
    assert op._drawn.cache_info().currsize == 0


def test_an_exported_model_answers_where_no_module_was_patched(op: ModuleType) -> None:
    torch.compiler.reset()
    norm, x = Norm().eval(), torch.randn(12, 8)
    op.patch(norm)
    exported = torch.export.export(norm, (x,)).module()
    wanted = norm(x)
    del norm
    op._places.clear()
    torch.testing.assert_close(exported(x), wanted)


@pytest.mark.parametrize("grad", [True, False])
def test_an_op_without_floating_outputs_has_no_gradients_to_refuse(tmp_path: Path, grad: bool) -> None:
    task = SUMS.replace("x.sum(-1)", "x.argmax(-1)")
    kernel = task.partition("CASES")[0] + "class ModelNew" + task.partition("class Model")[2].partition("def get_in")[0]
    model = (op := file_of(tmp_path, task, kernel, "top")).ModelNew()
    with torch.enable_grad():
        x = torch.randn(6, 8, requires_grad=grad)
        assert torch.equal(model(x), x.argmax(-1))
    assert op.calls(model) == {"": {"kernel": 1}}


@pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse CSR)")  # torch's own: prototypes
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged),
        lambda: torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)]),
        lambda: torch.randn(6, 8).to_sparse_csr(),
        lambda: torch.randn(6, 8).to_mkldnn(),
        lambda: torch._neg_view(torch.randn(6, 8)),
    ],
    ids=["jagged", "nested", "sparse", "mkldnn", "negative"],
)
def test_tensors_whose_elements_do_not_lie_as_strides_say_go_to_the_original(
    tmp_path: Path, made: Callable[[], torch.Tensor]
) -> None:
    x = made()
    task = SUMS.replace("x.sum(-1)", "torch.relu(x)")
    kernel = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
    model = (op := file_of(tmp_path, task, kernel, "positive")).ModelNew()
    with pytest.warns(UserWarning, match="were not verified"):
        assert model(x).layout == x.layout
    assert op.calls(model) == {"": {"reference": 1}}


def test_compiled_code_gives_a_kernel_parameters_that_begin_at_16_bytes(tmp_path: Path) -> None:
    torch.compiler.reset()
    kernel = NORM_KERNEL.replace("wide =", "assert self.scale.data_ptr() % 16 == 0\n        wide =")
    norm, x = Norm().eval(), torch.randn(12, 8)
    file_of(tmp_path, NORM, kernel).patch(norm)
    norm.gain = nn.Parameter(torch.rand(9)[1:])
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), Norm.forward(norm, x))


def test_a_compiler_does_not_see_into_a_kernel_whose_constructor_keeps_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    kernel = TWO_SUMS.replace("LEFT", "x").replace("RIGHT", "self.zeros").replace("AGAIN", "other")
    kernel = kernel.replace(
        "    def forward", "    def __init__(self):\n        super().__init__()\n        KEPT\n    def forward"
    )
    for kept, seen in (("self.zeros = torch.zeros(6, 10)", False), ("pass", True)):
        text = kernel.replace("KEPT", kept).replace(
            "self.zeros,", "self.zeros," if not seen else "torch.zeros_like(x),"
        )
        assert bool(file_of(tmp_path, TEN_COLUMNS, text, f"ten_{seen}")._seen) is seen


def test_neither_import_nor_patch_seeds_gpus_that_have_not_begun(tmp_path: Path) -> None:
    seeds: Any = torch.cuda._lazy_seed_tracker
    before = list(seeds.get_calls())
    file_of(tmp_path, NORM, NORM_KERNEL).patch(Norm().eval())
    assert seeds.get_calls() == before


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_kernel_runs_on_the_gpu_of_its_tensors_whichever_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    task = described(find_task("rms_norm"))
    assert task
    (sketch, *_) = experts(task)
    (tmp_path / "rms_op.py").write_text(
        packaged([VerifiedKernel(task, sketch.render(sketch.params))], arch="sm_90", header="# a header\n\n")
    )
    op = imported(tmp_path / "rms_op.py")
    for device in ("cuda:1", "cuda:0"):
        norm = nn.RMSNorm(4096, 1e-6, device=device, dtype=torch.bfloat16)
        x = torch.randn(16384, 4096, device=device, dtype=torch.bfloat16)
        wanted = norm(x)
        op.patch(norm)
        for _ in range(2):
            torch.testing.assert_close(norm(x), wanted, rtol=2e-2, atol=2e-2)
        assert op.calls(norm) == {"": {"kernel": 2}}


def test_an_op_that_reads_parameters_alone_is_the_kernel_s(tmp_path: Path) -> None:
    torch.compiler.reset()
    task = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))
    def forward(self): return self.table.exp()
def get_inputs(): return []
"""
    kernel = task.partition("def get_in")[0].replace("Model", "ModelNew")
    model = (op := file_of(tmp_path, task, kernel, "table")).ModelNew().eval()
    for change in (1.0, 2.0):
        model.table.mul_(change)
        torch.testing.assert_close(model(), model.table.exp())
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), model.table.exp())
    assert op.calls(model) == {"": {"kernel": 3}}


def test_a_tensor_that_the_task_gives_for_a_parameter_with_a_default_is_an_input(tmp_path: Path) -> None:
    task = """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x, bias=None, scale=1.0):
        y = x * scale
        return y if bias is None else y + bias
def get_inputs(): return [torch.randn(6, 8), torch.randn(8)]
"""
    kernel = task.partition("def get_in")[0].replace("Model", "ModelNew")
    model = (op := file_of(tmp_path, task, kernel, "biased")).ModelNew()
    x, bias = torch.randn(6, 8), torch.randn(8)
    torch.testing.assert_close(model(x, bias), x + bias)
    torch.testing.assert_close(model(x, bias=bias), x + bias)
    with pytest.warns(UserWarning, match="other arguments"):
        torch.testing.assert_close(model(x), x)
    torch.testing.assert_close(model(x, bias, 2.0), 2 * x + bias)
    assert op.calls(model) == {"": {"kernel": 2, "reference": 2}}


@pytest.mark.parametrize(
    ("returned", "taken"),
    [
        ("torch.max(x, -1)", lambda found: (found.values, found.indices)),
        ("Found(x.amax(-1), x.argmax(-1))", lambda found: (found.best, found.place)),
        ("[Found(x.amax(-1), x.argmax(-1))]", lambda found: (found[0].best, found[0].place)),
        ("collections.OrderedDict(b=x.amax(-1), a=x.argmax(-1))", lambda found: tuple(found.values())),
    ],
    ids=["torch_s", "named", "within", "ordered"],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_answer_has_the_names_that_the_original_s_has(
    tmp_path: Path, returned: str, taken: Callable[[Any], Any], compiled: bool
) -> None:
    torch.compiler.reset()
    head = "import collections\nFound = collections.namedtuple('Found', 'best place')\n"
    task = head + SUMS.replace("x.sum(-1)", returned)
    kernel = head + "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return " + returned
    model, x = (op := file_of(tmp_path, task, kernel, "best")).ModelNew(), torch.randn(6, 8)
    called: Any = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    for _ in range(2):
        torch.testing.assert_close(taken(called(x)), (x.amax(-1), x.argmax(-1)))
    with pytest.warns(UserWarning, match="were not verified"):
        torch.testing.assert_close(taken(model(x[:3])), (x[:3].amax(-1), x[:3].argmax(-1)))
    assert op.calls(model) == {"": {"kernel": 2, "reference": 1}}
