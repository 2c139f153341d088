"""The expert PTX kernels as candidates: right without a GPU, and made for every length of row."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kerneltune.agent.authors.search.experts import ptx_experts
from kerneltune.tools.languages.ptx import loader, parse
from kerneltune.tools.languages.ptx.assemble import assemble
from kerneltune.tools.languages.ptx.checks import findings
from kerneltune.tools.languages.ptx.loader import PtxLaunch, entry_of
from kerneltune.tools.languages.ptx.sim.launch import run
from kerneltune.tools.languages.triton.ttir.memory import Pointer
from kerneltune.tools.schema.messages import Lowered, Program
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import described, find_task
from tests.agent.shell import optimize

TASKS = ("softmax", "rms_norm", "swiglu")
SHAPES = (
    (5, 1, torch.float32), (9, 3, torch.bfloat16), (3, 77, torch.float16), (2, 258, torch.bfloat16),
    (2, 1000, torch.float32), (3, 2053, torch.float16), (1, 8192, torch.float32), (1, 66000, torch.bfloat16),
    (1, 100003, torch.float16),
)  # fmt: skip


class Launches:
    """Keeps launches, of every config where there are several."""

    def __init__(self) -> None:
        self.seen: list[PtxLaunch] = []
        self.configs: Sequence[Mapping[str, Any]] = ()  # of the latest kernel

    def launch(self, launch: PtxLaunch) -> None:
        """Keep it."""
        self.seen.append(launch)

    def lowered(self, program: Program) -> Lowered:
        """The library is PTX already."""
        raise AssertionError(program.language)

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """All of them run; the first is chosen."""
        assert 1 <= len(configs) <= 16, key
        self.configs = configs
        for config in configs[1:]:
            run(config)
        return 0


def spec_of(task: str) -> TaskSpec:
    """A built-in task."""
    found = described(find_task(task))
    assert found
    return found


def scope_of(task: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    (sketch,) = ptx_experts(spec_of(task))
    exec(compile(sketch.source, task, "exec"), scope)  # our own file
    return scope


def model(task: str, cols: int, dtype: torch.dtype) -> torch.nn.Module:
    scope = scope_of(task)
    made: torch.nn.Module = scope["ModelNew"](cols, 1e-6) if task == "rms_norm" else scope["ModelNew"]()
    return made.to(dtype)


@pytest.fixture
def launches() -> Any:
    before, kept = loader._launcher, Launches()
    loader.use(kept)
    yield kept
    loader._launcher = before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", TASKS)
def test_every_config_for_every_length_of_row_is_ptx_that_launches(task: str, launches: Launches) -> None:
    for rows, cols, dtype in SHAPES:
        x = torch.empty(rows, cols, dtype=dtype)
        model(task, cols, dtype)(*([x, x] if task == "swiglu" else [x]))
    assert len(launches.seen) >= len(SHAPES)
    for launch in launches.seen:
        module = parse(launch.text)
        found = findings(module, entry_of(module, launch.entry), "sm_90")
        assert not [finding for finding in found if finding.fatal], launch.text
        assert launch.block[0] * launch.block[1] <= 1024


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("task", TASKS)
def test_the_first_config_assembles_on_each_generation_without_spills(
    task: str, arch: str, launches: Launches, tmp_path: Path
) -> None:
    for cols, dtype in ((8192, torch.float32), (4096, torch.bfloat16), (2053, torch.bfloat16), (100003, torch.float16)):
        launches.seen.clear()
        x = torch.empty(1, cols, dtype=dtype)
        model(task, cols, dtype)(*([x, x] if task == "swiglu" else [x]))
        first = launches.seen[-1]  # the others were run before it
        done = assemble(first.text, arch, tmp_path)
        assert done.resources[first.entry].spill_store_bytes == 0
        assert done.resources[first.entry].registers <= 128


def test_a_view_that_begins_off_a_boundary_gets_narrower_accesses(launches: Launches) -> None:
    x = torch.empty(4 * 64 + 1)[1:].view(4, 64)
    model("softmax", 64, torch.float32)(x)
    assert x.data_ptr() % 16 == 4
    assert not re.search(r"\.global\S*\.v[24]\.", launches.seen[-1].text)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", TASKS)
def test_it_is_right_on_all_small_cases(task: str) -> None:
    (sketch,) = ptx_experts(spec_of(task))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "expert.py").write_text(sketch.source)
        done = optimize("bench", "expert.py", "--task", task, "--plain", cwd=Path(folder), timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked" in done.stdout


def test_other_tasks_have_none() -> None:
    assert ptx_experts(spec_of("matmul_bias_relu")) == []


def _reference(task: str, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """In float64; `other`: the weight, or what goes up."""
    x, other = x.double(), other.double()
    if task == "softmax":
        return torch.softmax(x, -1)
    return nn.functional.rms_norm(x, other.shape, other, 1e-6) if task == "rms_norm" else nn.functional.silu(x) * other


def _answer(launch: PtxLaunch) -> torch.Tensor:
    """What a recorded launch leaves in its first argument."""
    out: torch.Tensor = launch.values[0].fill_(float("nan"))
    args = [
        Pointer(a.detach().view(torch.uint8).numpy().reshape(-1), 0, f"argument {i}") if torch.is_tensor(a) else a
        for i, a in enumerate(launch.values)
    ]
    run(replace(launch, values=tuple(args)))
    return out.double()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("rows", "cols", "dtype"), [(37, 4096, torch.bfloat16), (5, 77, torch.float32), (3, 8192, torch.float32)]
)
def test_every_config_computes_the_same(
    task: str, rows: int, cols: int, dtype: torch.dtype, launches: Launches
) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
    made = model(task, cols, dtype)
    made(*([x, y] if task == "swiglu" else [x]))
    want = _reference(task, x, next(iter(made.parameters())).detach() if task == "rms_norm" else y)
    for launch in launches.seen:
        error = (_answer(launch) - want).abs() / (want.abs() + 1e-3)
        assert error.max() < (1e-2 if dtype is torch.bfloat16 else 1e-5), (launch.grid, launch.block)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shift", [0.0, -200.0])
def test_the_configs_for_long_streams_of_softmax_compute_the_same(shift: float, launches: Launches) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4096) * 5 + shift
    x[1], x[2, 7] = -float("inf"), -0.0
    x[1, 100] = -1e30
    scope = scope_of("softmax")
    configs = scope["row_configs"]({"COLS": 4096, "VEC": 4, "BITS": 32, "T": "f32"}, 1 << 26)
    assert [(config["LAST"], config["STORE"]) for config in configs[-2:]] == [(True, ".cs"), (False, "")]
    loader.PtxKernel(scope["ROW"], configs=configs)[3](torch.empty_like(x), x, 3)
    for launch in launches.seen:
        assert ((_answer(launch) - torch.softmax(x.double(), -1)).abs() < 1e-6).all(), launch.block


@pytest.mark.parametrize(
    ("task", "shape", "dtype", "first"),
    [
        ("softmax", (8192, 8192), torch.float32, {"LANES": 1024, "ROWS": 1, "LAST": True, "STORE": ""}),
        ("rms_norm", (16384, 4096), torch.bfloat16, {"LANES": 256, "ROWS": 1, "BATCH": 1, "LAST": True}),
        ("swiglu", (8192, 11008), torch.bfloat16, {"block": 1024, "UNROLL": 1, "LAST": True}),
    ],
)
def test_what_was_fastest_on_a_gpu_comes_first(
    task: str, shape: tuple[int, int], dtype: torch.dtype, first: dict[str, Any], launches: Launches
) -> None:
    x = torch.empty(shape, dtype=dtype)  # nothing touches its pages
    model(task, shape[1], dtype)(*([x, x] if task == "swiglu" else [x]))
    assert first.items() <= launches.configs[0].items()
    text, last = launches.seen[-1].text, first["LAST"]
    for load in re.findall(r"ld\.global\S*v4\S* \{[^;]*;", text):
        assert (".L2::cache_hint" in load and load.endswith(", %last;")) == last, load
    assert ("createpolicy.fractional.L2::evict_last.b64 %last, 1.0;" in text) == last


@pytest.mark.parametrize("task", TASKS)
def test_a_tensor_that_the_l2_holds_is_read_without_a_policy_first(task: str, launches: Launches) -> None:
    x = torch.empty(64, 4096, dtype=torch.bfloat16)
    model(task, 4096, torch.bfloat16)(*([x, x] if task == "swiglu" else [x]))
    assert not any(config["LAST"] for config in launches.configs)
    assert not any("createpolicy" in launch.text for launch in launches.seen)


def test_a_row_with_a_nan_becomes_nan(launches: Launches) -> None:
    x = torch.randn(2, 4096)
    x[0, 4095] = float("nan")
    scope = scope_of("softmax")
    configs = scope["row_configs"]({"COLS": 4096, "VEC": 4, "BITS": 32, "T": "f32"}, 1 << 26)
    loader.PtxKernel(scope["ROW"], configs=configs)[2](torch.empty_like(x), x, 2)
    for launch in launches.seen:
        answer = _answer(launch)
        assert answer[0].isnan().all()
        assert not answer[1].isnan().any()


@pytest.mark.timeout(300)
def test_the_configs_for_long_streams_of_the_others_compute_the_same(launches: Launches) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 2048).to(torch.bfloat16), torch.randn(9, 2048).to(torch.bfloat16)
    weight = y[0].clone()
    rms, swiglu = scope_of("rms_norm"), scope_of("swiglu")
    rms_configs = rms["configs"]({"COLS": 2048, "VEC": 8, "T": "bf16"}, 2, 1 << 26)
    swiglu_configs = swiglu["configs"]("bf16", 2, 1 << 26)
    assert all(configs[0]["LAST"] for configs in (rms_configs, swiglu_configs))
    rms_configs += rms["shaped"]({"COLS": 2048, "VEC": 8, "T": "bf16"}, 2, rms["SHAPES"][:1], True)
    swiglu_configs.append({**swiglu_configs[0], "CLUSTER": 2})
    assert [configs[-1]["CLUSTER"] for configs in (rms_configs, swiglu_configs)] == [2, 2]
    rms_kernel = loader.PtxKernel(rms["ROW"], configs=rms_configs)
    rms_kernel[lambda c: -(-9 // (c["ROWS"] * c["BATCH"] * c["CLUSTER"])) * c["CLUSTER"]](
        torch.empty_like(x), x, weight, 9, 1 / 2048, 1e-6, cluster=lambda c: c["CLUSTER"]
    )
    for launch in launches.seen:
        assert ((_answer(launch) - _reference("rms_norm", x, weight)).abs() < 0.05).all(), launch.block
    launches.seen.clear()
    swiglu_kernel = loader.PtxKernel(swiglu["TEXT"], configs=swiglu_configs)
    swiglu_kernel[lambda c: -(-x.numel() // (c["block"] * c["UNROLL"] * 8 * c["CLUSTER"])) * c["CLUSTER"]](
        torch.empty_like(x), x, y, x.numel(), cluster=lambda c: c["CLUSTER"]
    )
    for launch in launches.seen:
        assert ((_answer(launch) - _reference("swiglu", x, y)).abs() < 0.05).all(), launch.block
