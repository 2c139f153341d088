"""Expert kernels: which task files get which, and that what they compute is right on a small case of each."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.authors.search.experts import experts, ptx_experts
from kerneltune.agent.authors.search.neighbours import Sketch
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.task.load import builtin_names, described, find_task, read_task
from kerneltune.tools.task.write import backward_source
from tests.agent.authors.search.offline_bench import run

ROOT = Path(__file__).resolve().parents[4]
LIBRARY = ROOT / "agent" / "authors" / "search" / "experts"
FILES = sorted(p.stem for p in LIBRARY.glob("*.py") if not p.name.startswith(("__", "ptx_")))
GRADIENTS = {
    "row_backward": ("rms_norm", "layer_norm", "add_rms_norm", "layer_norm_residual"),
    "gated_backward": ("swiglu", "geglu"),
    "bias_gelu_backward": ("gelu_bias",),
    "softmax_gradient": ("softmax",),
    "attention_backward": ("causal_attention", "gqa_attention", "more_keys", "more_queries", "exact_heads"),
    "rope_backward": ("rope", "rope_of_one_head"),
    "depthwise_conv_backward": ("causal_conv1d",),
    "log_softmax_backward": ("log_softmax", "cross_entropy", "long_log_softmax", "long_cross_entropy"),
}
# take the places of library calls: see test_offline_products, and "recurrent" in test_offline_odd_tasks
NO_TASK = {"split_products", "recurrent_steps"}
SHAPES = {
    "a": (64, 32),
    "b": (32, 48),
    "w": (48, 32),
    "x": (8, 16),
    "image": (2, 4, 8, 8),
    "cube": (3, 40, 24),
    "wide": (8, 400000),
}


def own_task(
    body: str, arguments: str, init: str = "pass", given: tuple[Json, ...] = (), **state: tuple[int, ...]
) -> TaskSpec:
    """A file such as a user has, under a name that no expert knows."""
    source = (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        f"class Model(nn.Module):\n    def __init__(self{', n' * len(given)}):\n"
        f"        super().__init__()\n        {init}\n"
        f"    def forward(self, {arguments}):\n        " + body.replace("\n", "\n        ")
    )
    specs = [{"$tensor": TensorSpec(SHAPES[name.strip()], "float32")} for name in arguments.split(",")]
    held = {name: TensorSpec(shape, "float32") for name, shape in state.items()}
    return TaskSpec("mine", "0", "float32", source, (CaseSpec("main", tuple(specs), given, None, held),))


def names(task: TaskSpec) -> set[str]:
    return {sketch.name for sketch in experts(task)}


def call_of(sketch: Sketch) -> str:
    return sketch.source.rstrip().splitlines()[-1].strip()


def problems(paths: Sequence[Path]) -> list[tuple[str, str, str]]:
    """(task, expert, what is wrong); tracing changes torch for good, so it is a process of its own."""
    traced = run("trace_experts", [str(path) for path in paths])
    return [(task, expert, problem) for task, expert, problem in run("compare_experts", traced)]


def test_every_expert_computes_what_torch_computes_on_a_small_case_of_its_tasks() -> None:
    found = problems([ROOT / "tools" / "tasks" / f"{name}.py" for name in builtin_names()])
    assert [row for row in found if row[2]] == []
    assert set(FILES) - {expert for _, expert, _ in found} - NO_TASK - GRADIENTS.keys() == set(OWN)  # no built-in task
    assert {task for task, _, _ in found} == set(builtin_names())


OWN = {
    "matrix_vector": (
        "class Model(nn.Module):\n    def forward(self, a, b): return a @ b\n"
        "def get_inputs(): return [torch.randn(5, 9001), torch.randn(9001, 1)]\n"
    ),
    "softmax_split_row": (
        "class Model(nn.Module):\n    def forward(self, x): return torch.softmax(x, -1)\n"
        "def get_inputs(): return [torch.randn(3, 9001)]\n"
    ),
    "middle_norm": (
        "class Model(nn.Module):\n    def forward(self, x):\n"
        "        return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)\n"
        "def get_inputs(): return [torch.randn(2, 6, 5, 11)]\n"
    ),
    "conv_implicit": (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.ConvTranspose2d(6, 10, (3, 2), stride=(2, 3), padding=1, output_padding=1, "
        "dilation=2, groups=2)\n"
        "    def forward(self, x): return self.layer(x)\n"
        "def get_inputs(): return [torch.randn(2, 6, 5, 7)]\n"
    ),
    "rope_strided": (
        "def rotate_half(x):\n    x1 = x[..., : x.shape[-1] // 2]\n    x2 = x[..., x.shape[-1] // 2 :]\n"
        "    return torch.cat((-x2, x1), dim=-1)\n"
        "def apply(q, k, cos, sin, unsqueeze_dim=1):\n"
        "    cos = cos.unsqueeze(unsqueeze_dim)\n    sin = sin.unsqueeze(unsqueeze_dim)\n"
        "    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)\n"
        "class Model(nn.Module):\n    def forward(self, q, k, cos, sin): return apply(q, k, cos, sin)\n"
        "def get_inputs():\n    q, k = (torch.randn(2, 37, heads, 22).transpose(1, 2) for heads in (6, 2))\n"
        "    return [q, k, torch.randn(2, 37, 22), torch.randn(2, 37, 22)]\n"
    ),
    "pool_3d": (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.AvgPool3d(3, stride=2, padding=1)\n"
        "    def forward(self, x): return self.layer(x)\n"
        "def get_inputs(): return [torch.randn(2, 3, 5, 9, 71)]\n"
    ),
}
LAYERS = {
    "line": ("Conv1d(6, 10, 3, stride=2, padding=1, dilation=2, groups=2)", (2, 6, 37)),
    "plain": ("Conv2d(3, 5, 3)", (2, 3, 9, 8)),
    "strided": ("Conv2d(4, 6, (5, 3), stride=(2, 1), padding=(2, 0), dilation=(1, 2), groups=2)", (1, 4, 11, 9)),
    "depthwise": ("Conv2d(5, 5, 3, padding=1, groups=5, bias=False)", (2, 5, 6, 7)),
    "cube": ("Conv3d(3, 4, (1, 3, 2), stride=2, padding=1)", (1, 3, 4, 6, 5)),
    "back_in_one": ("ConvTranspose1d(4, 3, 5, stride=3, padding=2, output_padding=1)", (2, 4, 9)),
    "back_in_three": ("ConvTranspose3d(4, 6, 3, stride=2, padding=1, groups=2)", (1, 4, 3, 4, 2)),
}


def test_the_expert_for_convolutions_computes_all_kinds_of_them(tmp_path: Path) -> None:
    for name, (layer, shape) in LAYERS.items():
        (tmp_path / f"own_{name}.py").write_text(
            "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.layer = nn.{layer}\n"
            "    def forward(self, x): return self.layer(x)\n"
            f"def get_inputs(): return [torch.randn{shape}]\ndef get_init_inputs(): return []\n"
        )
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == [(f"own_{name}", "conv_implicit", "") for name in sorted(LAYERS)]


POOLS = {
    "own_window": "AvgPool3d((2, 3, 1), padding=(1, 1, 0))",
    "own_overlap": "AvgPool3d(3, stride=(1, 2, 3), padding=1, count_include_pad=False)",
    "own_divisor": "AvgPool3d(2, divisor_override=5)",
    "own_most": "MaxPool3d((3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 1), dilation=(1, 2, 2))",
}


def test_the_expert_for_pooling_divides_and_compares_as_it_is_told(tmp_path: Path) -> None:
    for name, layer in POOLS.items():
        (tmp_path / f"{name}.py").write_text(
            "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.layer = nn.{layer}\n"
            "    def forward(self, x): return self.layer(x)\n"
            "def get_inputs(): return [torch.randn(2, 2, 4, 7, 9)]\ndef get_init_inputs(): return []\n"
        )
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == [(name, "pool_3d", "") for name in sorted(POOLS)]


def test_experts_that_no_builtin_task_asks_for_compute_what_torch_computes(tmp_path: Path) -> None:
    for name, text in OWN.items():
        head = "import torch\nimport torch.nn as nn\n"
        (tmp_path / f"own_{name}.py").write_text(f"{head}{text}def get_init_inputs(): return []\n")
    found = problems(sorted(tmp_path.glob("*.py")))
    assert [row for row in found if row[2]] == []
    assert {(f"own_{name}", name) for name in OWN} <= {(task, expert) for task, expert, _ in found}


# rows that no program holds whole, the last step of a walk not full; and a row that counts for nothing
LONG = """import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, {arguments}): return {value}
def get_inputs(): return [torch.randn(3, 33001){more}]
def get_init_inputs(): return []
"""


def test_experts_for_gradients_compute_those_of_autograd(tmp_path: Path) -> None:
    loss = "nn.functional.cross_entropy(x, target, reduction='none')"
    rope = (ROOT / "tools" / "tasks" / "rope.py").read_text().replace('DTYPE = "bfloat16"', 'DTYPE = "float32"')
    forwards = {
        "rope_of_one_head": rope.replace('"BATCH": 2, "HEADS": 3', '"BATCH": 1, "HEADS": 1'),  # no sums to be added
        "more_keys": hard_task("F.scaled_dot_product_attention(x, y, z)", ((1, 2, 70, 32), *[(1, 2, 131, 32)] * 2)),
        "more_queries": hard_task("F.scaled_dot_product_attention(x, y, z)", ((1, 2, 131, 32), *[(1, 2, 70, 32)] * 2)),
        "exact_heads": hard_task("F.scaled_dot_product_attention(x, y, z, is_causal=True)", ((2, 1, 45, 24),) * 3)
        .replace(".bfloat16()", "")
        .replace("'bfloat16'", "'float32'"),
        "long_log_softmax": LONG.format(arguments="x", value="torch.log_softmax(x, -1)", more=""),
        "long_cross_entropy": LONG.format(
            arguments="x, target", value=loss, more=", torch.tensor([33000, -100, 4096])"
        ),
    }
    for name in (name for names in GRADIENTS.values() for name in names):
        path = tmp_path / f"{name}.py"
        builtin = ROOT / "tools" / "tasks" / f"{name}.py"
        # in bfloat16 autograd's sums down columns are off by 1 % with some numbers of threads
        path.write_text(forwards.get(name) or builtin.read_text().replace('DTYPE = "bfloat16"', 'DTYPE = "float32"'))
        path.write_text(backward_source(describe(read_task(path)), path.read_text()))
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == sorted((name, expert, "") for expert, names in GRADIENTS.items() for name in names)


def test_attention_s_expert_for_a_training_step_saves_levels_and_is_none_for_gradients_alone(tmp_path: Path) -> None:
    deep = hard_task("F.scaled_dot_product_attention(x, y, z)", ((1, 2, 70, 128), *[(1, 2, 33, 128)] * 2))
    forwards = {name: find_task(name).source for name in ("causal_attention", "gqa_attention")} | {"deep": deep}
    for name, text in forwards.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        path.write_text(backward_source(describe(read_task(path)), text, step=True))
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == [(name, "attention_backward", "") for name in sorted(forwards)]
    step = describe(read_task(tmp_path / "deep.py"))
    (sketch,) = experts(step)
    assert "    def save(self, x, y, z):\n        return attention_saving(x, y, z, False)\n" in sketch.source
    assert names(replace(step, source=step.source.replace("*_results, ", ""))) == {"attention_backward"}
    swiglu = ROOT / "tools" / "tasks" / "swiglu.py"
    other = backward_source(describe(read_task(swiglu)), swiglu.read_text(), step=True)
    assert names(replace(describe(read_task(swiglu)), name="mine", source=other)) == set()


ROTARY = """import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.randn{tables})
        self.register_buffer("sin", torch.randn{tables})
    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)
    def forward(self, {arguments}): return {value}
def get_inputs(): return {inputs}
def get_init_inputs(): return []
"""
TOKENS, HEADS = "torch.randn(2, 37, 5, 22)", "torch.randn(2, 5, 37, 22)"


def test_rotary_embedding_whose_tables_are_buffers_has_an_expert_for_it_and_its_gradients(tmp_path: Path) -> None:
    pair = {"arguments": "q, k", "value": "self.rotate(q), self.rotate(k)"}
    alone = {"arguments": "x", "value": "self.rotate(x)"}
    fewer = "torch.randn(2, 37, 3, 22)"
    modules = {
        "tokens": ROTARY.format(tables=(37, 1, 11), inputs=f"[{TOKENS}, {fewer}]", **pair),
        "token": ROTARY.format(tables=(37, 1, 11), inputs=f"[{TOKENS}]", **alone),
        "heads": ROTARY.format(tables=(37, 11), inputs=f"[{HEADS}]", **alone),
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
        gradients = backward_source(describe(read_task(tmp_path / f"{name}.py")), text)
        (tmp_path / f"{name}_backward.py").write_text(gradients)
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == sorted((f"{n}{of}", "rope_strided", "") for n in modules for of in ("", "_backward"))


LOSSES = {
    "own_loss_of_rows": ("CrossEntropyLoss()", "nn.functional.cross_entropy(x, target)", "7, 1003", True),
    "own_loss_of_tokens": (
        "CrossEntropyLoss()",
        "self.loss(x.view(-1, x.size(-1)), target.view(-1))",
        "2, 3, 33001",
        True,
    ),
    "own_loss_of_flat": ("CrossEntropyLoss()", "self.loss(x.flatten(0, 1), target=target.flatten())", "2, 3, 77", True),
    "own_ignoring": ("CrossEntropyLoss(ignore_index=0)", "self.loss(x, target)", "7, 77", False),
    "own_smoothed": ("CrossEntropyLoss(label_smoothing=0.1)", "self.loss(x, target)", "7, 77", False),
    "own_weighed": ("CrossEntropyLoss(torch.rand(77))", "self.loss(x, target)", "7, 77", False),
}


def test_a_mean_loss_over_rows_that_count_has_experts_as_function_and_module_and_for_its_gradients(
    tmp_path: Path,
) -> None:
    for name, (made, value, shape, _) in LOSSES.items():
        path = tmp_path / f"{name}.py"
        path.write_text(
            "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.loss = nn.{made}\n"
            f"    def forward(self, x, target): return {value}\ndef get_init_inputs(): return []\n"
            f"def get_inputs():\n    x = torch.randn({shape})\n"
            "    target = torch.randint(0, x.shape[-1], x.shape[:-1])\n"
            "    target[..., -1] = -100\n    return [x, target]\n"
        )
        gradients = backward_source(describe(read_task(path)), path.read_text())
        (tmp_path / f"{name}_gradients.py").write_text(gradients)
    found = problems(sorted(tmp_path.glob("*.py")))
    fitting = [name for name, (*_, fits) in LOSSES.items() if fits]
    assert sorted(found) == sorted(
        (f"{name}{suffix}", expert, "")
        for name in fitting
        for suffix, expert in (("", "cross_entropy_online"), ("_gradients", "log_softmax_backward"))
    )


def test_an_expert_for_a_value_is_not_for_its_gradients_and_the_reverse() -> None:
    path = ROOT / "tools" / "tasks" / "swiglu.py"
    task = describe(read_task(path))
    gradients = replace(task, name="mine", source=backward_source(task, path.read_text()))
    assert names(task) == {"gated"}
    assert names(gradients) == {"gated_backward"}
    swapped = gradients.source.replace("_outputs, _parameters, gate, up)", "_outputs, _parameters, up, gate)")
    assert swapped != gradients.source
    assert names(replace(gradients, source=swapped)) == set()  # the results' order is another


HARD = {
    "long_sums": ("x.t() @ y", ((300, 264), (300, 40))),  # two tiles, and a last block of the sum that is not full
    "long_sums_of_odd_rows": ("x.t() @ y", ((509, 37), (509, 29))),  # which TMA cannot read
    "one_block": ("x @ y", ((64, 32), (32, 16))),
    "few_rows": ("x @ y", ((24, 1000), (1000, 272))),
    "one_row": ("F.linear(x, y)", ((1, 384), (200, 384))),
    "a_vector": ("x @ y", ((21, 5000), (5000, 1))),
    "a_vector_of_weights": ("F.linear(x, y)", ((3, 9001), (1, 9001))),
    "more_keys_than_queries": ("F.scaled_dot_product_attention(x, y, z)", ((1, 2, 70, 32), *[(1, 2, 131, 32)] * 2)),
    "odd_heads": ("F.scaled_dot_product_attention(x, y, z, is_causal=True)", ((2, 1, 45, 24),) * 3),
}


def hard_task(value: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """A task file in bfloat16: `value` of operands x, y and z."""
    names = ", ".join("xyz"[: len(shapes)])
    made = ", ".join(f"torch.randn{shape}.bfloat16()" for shape in shapes)
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nPRECISION = 'bfloat16'\n"
        f"class Model(nn.Module):\n    def forward(self, {names}):\n        return {value}\n"
        f"def get_inputs(): return [{made}]\ndef get_init_inputs(): return []\n"
    )


def test_ragged_sums_and_heads_are_right_whichever_kernel_of_an_expert_can_read_them(tmp_path: Path) -> None:
    for name, (value, shapes) in HARD.items():
        (tmp_path / f"{name}.py").write_text(hard_task(value, shapes))
    found = problems(sorted(tmp_path.glob("*.py")))
    assert {name for name, _, _ in found} == set(HARD)
    assert {"matmul_split_k", "matrix_vector", "attention_flash"} <= {expert for _, expert, _ in found}
    assert [row for row in found if row[2]] == []


@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("specialised", [0, 1])
def test_attention_computes_the_same_whether_its_loads_have_warps_of_their_own(specialised: int, depth: int) -> None:
    value = "F.scaled_dot_product_attention(x, y, z, is_causal=True, enable_gqa=True)"
    shapes = ((1, 4, 200, depth), (1, 2, 200, depth), (1, 2, 200, depth))
    source = hard_task(value, shapes)
    specs = [{"$tensor": TensorSpec(shape, "bfloat16")} for shape in shapes]
    task = TaskSpec("mine", "0", "bfloat16", source, (CaseSpec("main", tuple(specs), (), None),))
    (own,) = (sketch for sketch in experts(task) if sketch.name == "attention_flash")
    candidate = own.render({**own.params, "SPECIALISED": specialised})
    traced = run("trace", {"mine": {"source": source, "candidates": {own.name: candidate}}})
    work = [[name, source, sketch, plans, failure] for name, sketch, plans, failure in traced]
    assert run("check", work) == [["mine", own.name, "main", ""]]


def test_four_bit_weights_are_right_where_shares_end_in_the_middle_of_a_tile() -> None:
    source = (ROOT / "tools" / "tasks" / "int4_matmul.py").read_text()
    for name, value in {"TOKENS": 3, "K": 256, "N": 2200, "GROUP": 32}.items():
        source = re.sub(rf"(?m)^{name} = \d+", f"{name} = {value}", source)
    source = re.sub(r"(?ms)^CASES = \[.*?^\]$", "CASES = []", source)
    shapes = (((3, 256), "bfloat16"), ((128, 2200), "uint8"), ((8, 2200), "bfloat16"))
    specs = [{"$tensor": TensorSpec(shape, dtype)} for shape, dtype in shapes]
    task = TaskSpec("int4_matmul", "0", "bfloat16", source, (CaseSpec("main", tuple(specs), (32,), None),))
    (own,) = experts(task)
    candidate = own.render({**own.params, "PROGRAMS_PER_SM": 1, "NUM_WARPS": 2})  # 144 groups of tiles, two a program
    traced = run("trace", {"int4_matmul": {"source": source, "candidates": {own.name: candidate}}})
    work = [[name, source, sketch, plans, failure] for name, sketch, plans, failure in traced]
    assert run("check", work) == [["int4_matmul", own.name, "main", ""]]


SWITCHES = {
    "group_norm_walk": (
        ("F.group_norm(x, 4, y, z, 1e-5)", ((2, 40, 9, 11), (40,), (40,))),  # ten channels: tiles of eight and of two
        ({"PROGRAMS_PER_SM": 2}, {"HELD": 0}, {"HELD": 0, "BLOCK": 4096, "PROGRAMS_PER_SM": 2}),
    ),
    "log_softmax_online": (
        ("torch.log_softmax(x, -1)", ((5, 3001),)),
        ({"HELD": 0}, {"HELD": 0, "BLOCK": 1024, "NUM_WARPS": 8}),
    ),
    "softmax_row": (
        ("torch.softmax(x, -1)", ((37, 130),)),
        ({"TILE": 2048, "NUM_WARPS": 4}, {"TILE": 16384, "NUM_WARPS": 32}),
    ),
    "row_sum": (("x.sum(-1)", ((7, 2500),)), ({"NUM_WARPS": 1}, {"ACCESSES": 2, "NUM_WARPS": 8})),
    "row_norm": (
        ("F.layer_norm(x, (333,), y, z, 1e-5)", ((9, 333), (333,), (333,))),
        ({"TILE": 2048, "LEAVES_LAST": 0}, {"PER_THREAD": 8}),
    ),
    "row_backward": (
        ("F.layer_norm(x, (333,), y, z, 0.0)", ((9, 333), (333,), (333,))),  # three rows stand after the last one
        ({"ROWS": 4, "NUM_STAGES": 1}, {"PER_THREAD": 32}),
    ),
    "attention_backward": (
        ("F.scaled_dot_product_attention(x, y, z, is_causal=True)", ((1, 2, 150, 40),) * 3),
        ({"BLOCK_M": 128, "STEP_N": 32, "STEP_M": 128}, {"BLOCK_N": 128, "STEP_N": 128, "STEP_M": 32, "KEY_WARPS": 8}),
    ),
    "gated": (("F.silu(x) * y", ((9, 333),) * 2), ({"ACCESSES": 2, "NUM_WARPS": 4}, {"NUM_WARPS": 8})),
    "bias_gelu": (
        ("F.gelu(x + y)", ((9, 333), (333,))),
        ({"ROWS": 4, "ACCESSES": 2}, {"ROWS": 1, "NUM_WARPS": 1}),
    ),
    "middle_sum": (("x.sum(0)", ((700, 45),)), ({"PROGRAMS_PER_SM": 1}, {"BLOCK_COLS": 64, "PROGRAMS_PER_SM": 64})),
}


def test_every_switch_of_an_expert_leads_to_the_same_result(tmp_path: Path) -> None:
    work: dict[str, Json] = {}
    for name, ((value, shapes), settings) in SWITCHES.items():
        path = tmp_path / "mine.py"
        path.write_text(hard_task(value, shapes))
        if name in GRADIENTS:
            path.write_text(backward_source(describe(read_task(path)), path.read_text()))
        (sketch,) = (sketch for sketch in experts(describe(read_task(path))) if sketch.name == name)
        candidates = {str(changed): sketch.render({**sketch.params, **changed}) for changed in settings}
        assert len({*candidates.values(), sketch.source}) == len(settings) + 1
        work[name] = {"source": path.read_text(), "candidates": candidates}
    traced = [[name, work[name]["source"], key, *rest] for name, key, *rest in run("trace", work)]
    found = run("check", traced)
    assert [row for row in found if row[3]] == []
    assert len(found) == sum(len(settings) for _, settings in SWITCHES.values())


@pytest.mark.parametrize("file", FILES)
def test_an_expert_says_its_idea_its_tasks_and_a_space_around_its_defaults(file: str) -> None:
    text = (LIBRARY / f"{file}.py").read_text()
    assert re.findall(r"(?m)^# says: .{20,}", text)
    assert re.findall(r"(?m)^# (?:fits|gradients|task|takes): ", text)
    for name, values in re.findall(r"(?m)^# search: (\w+) = (.*)$", text):
        defaults = re.findall(rf"(?m)^{name} = (\d+)", text)
        assert len(defaults) == 1
        assert defaults[0] in values.split()
    assert " 132" not in text  # multiprocessors are asked for


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("return a @ b", "a, b"),
        ("return torch.matmul(a, b)", "a, b"),
        ("return a.mm(b)", "a, b"),
        ("c = torch.mm(a, b)\nreturn c", "a, b"),
    ],
)
def test_a_task_file_of_any_name_gets_the_experts_for_what_it_computes(body: str, arguments: str) -> None:
    assert {"matmul_tiles", "matmul_persistent"} <= names(own_task(body, arguments))


def test_a_transposed_operand_is_read_where_it_lies() -> None:
    found = {s.name: call_of(s) for s in experts(own_task("return torch.matmul(a, w.T)", "a, w"))}
    assert found["matmul_tiles"] == "return matmul(a, w.t(), precision='float32')"
    assert found["matmul_persistent"] == "return matmul(a, w, turned=True, precision='float32')"


def test_a_module_counts_as_the_function_that_it_calls() -> None:
    task = own_task(
        "return self.act(self.layer(a))",
        "a",
        "self.layer = nn.Linear(32, 48)\n        self.act = nn.ReLU()",
        **{"layer.weight": (48, 32), "layer.bias": (48,)},
    )
    found = {s.name: s for s in experts(task)}
    assert call_of(found["matmul_tiles"]).startswith("return matmul(a, self.layer.weight.t(), self.layer.bias, 'relu'")
    assert "self.layer = nn.Linear(32, 48)" in found["matmul_tiles"].source


NORMS = {
    "own_layer_norm": ("LayerNorm(500, eps=1e-3)", "self.norm(x + y), x + y", "3, 11, 500", {"row_norm"}),
    "own_rms_norm": ("RMSNorm(500, 1e-3)", "self.norm(x)", "3, 11, 500", {"rms_norm"}),
    "own_group_norm": ("GroupNorm(2, 6)", "self.norm(x)", "2, 6, 5, 7", {"group_norm_split", "group_norm_walk"}),
    "own_bare": ("LayerNorm(500, bias=False)", "self.norm(x)", "33, 500", set()),
    "own_plain": ("RMSNorm(500, elementwise_affine=False, eps=1e-3)", "self.norm(x)", "33, 500", set()),
    "own_smallest": ("RMSNorm(500)", "self.norm(x)", "33, 500", set()),  # its eps is None
    "own_none": ("RMSNorm(500, eps=None)", "self.norm(x)", "33, 500", set()),
    "own_images": ("GroupNorm(2, 6, affine=False)", "self.norm(x)", "2, 6, 5, 7", set()),
}


def test_a_module_that_normalises_has_the_experts_of_its_function(tmp_path: Path) -> None:
    for name, (made, value, shape, _) in NORMS.items():
        arguments = "x, y" if "y" in value else "x"
        given = ", ".join(f"torch.randn({shape})" for _ in arguments.split(","))
        (tmp_path / f"{name}.py").write_text(
            f"import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.norm = nn.{made}\n"
            f"    def forward(self, {arguments}): return {value}\n"
            f"def get_inputs(): return [{given}]\ndef get_init_inputs(): return []\n"
        )
    found = problems(sorted(tmp_path.glob("*.py")))
    assert sorted(found) == sorted((name, expert, "") for name, row in NORMS.items() for expert in row[3])


def test_an_einsum_that_is_a_product_has_the_experts_of_a_product(tmp_path: Path) -> None:
    (tmp_path / "own_product.py").write_text(
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n"
        "    def forward(self, a, b): return torch.einsum('bijl, lk -> bijk', a, b)\n"
        "def get_inputs(): return [torch.randn(2, 3, 40, 24), torch.randn(24, 33)]\n"
        "def get_init_inputs(): return []\n"
    )
    assert ("own_product", "matmul_tiles", "") in problems([tmp_path / "own_product.py"])
    for equation, whose in (("ik,kj->ij", "a @ b"), ("ik,kj->ji", ""), ("ii,ij->ij", ""), ("ab,bc,cd->ad", "")):
        task = own_task(f"return torch.einsum({equation!r}, a, b)", "a, b")
        assert names(task) == (names(own_task(f"return {whose}", "a, b")) if whose else set()), equation
    assert names(own_task("return torch.einsum('ij,ij->i', a, b)", "a, b")) == set()


def test_operands_with_the_same_leading_dimensions_have_the_experts_of_rows() -> None:
    body = "return F.silu(a) * b"
    task = own_task(body, "a, b")
    for shapes, expected in {
        ((2, 3, 16), (2, 3, 16)): {"gated"},
        ((16,), (16,)): {"gated"},
        ((2, 3, 16), (3, 16)): set(),  # which torch would broadcast
        ((2, 3, 16), (2, 1, 16)): set(),
    }.items():
        inputs: tuple[Json, ...] = tuple({"$tensor": TensorSpec(shape, "float32")} for shape in shapes)
        assert names(replace(task, cases=(replace(task.main, inputs=inputs),))) == expected


def test_an_argument_of_the_constructor_may_be_the_dimension() -> None:
    made = own_task("return torch.sum(cube, dim=self.dim, keepdim=True)", "cube", "self.dim = n", (1,))
    assert names(made) == {"middle_sum"}
    assert names(own_task("return torch.sum(cube, dim=self.dim)", "cube", "self.dim = n", (0,))) == set()


@pytest.mark.parametrize(
    ("body", "arguments", "rest"),
    [
        ("return cube.sum(1)", "cube", ()),
        ("return cube @ w", "cube, w", ((24, 48),)),
        ("return image / torch.sqrt(torch.mean(image ** 2, dim=1, keepdim=True) + 1e-5)", "image", ()),
    ],
)
def test_a_batch_longer_than_a_grid_may_be_gets_no_expert_that_has_it_there(
    body: str, arguments: str, rest: tuple[tuple[int, ...], ...]
) -> None:
    task = own_task(body, arguments)

    def found(batch: int) -> set[str]:
        shapes = ((batch, *SHAPES[arguments.partition(",")[0]][1:]), *rest)
        given = tuple({"$tensor": TensorSpec(shape, "float32")} for shape in shapes)
        return names(replace(task, cases=(replace(task.main, inputs=given),)))

    assert found(65535) != set()
    assert found(65536) == set()


def test_normalisation_over_channels_is_known_by_its_formula() -> None:
    body = "rms = torch.sqrt(torch.mean(image ** 2, dim=1, keepdim=True) + self.eps)\nreturn image / rms"
    (found,) = experts(own_task(body, "image", "self.eps = n", (1e-5,)))
    assert found.name == "middle_norm"
    assert call_of(found) == "return rms_norm_over_1(image, 1e-05)"


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("return a @ b + 1", "a, b"),
        ("return torch.softmax(cube, 1)", "cube"),
        ("return torch.softmax(x, 0)", "x"),
        ("if x.sum() > 0:\n    return x.softmax(-1)\nreturn x", "x"),
        ("for _ in range(2):\n    x = x.softmax(-1)\nreturn x", "x"),
        ("x = x.softmax(-1)\nx += 1\nreturn x", "x"),
        ("return torch.matmul(*[a, b])", "a, b"),
        ("return (lambda y: y.softmax(-1))(x)", "x"),
        ("return x.exp().softmax(-1)", "x"),  # the operand would have to be computed by a library call
        ("return torch.softmax(x, -1, dtype=torch.float64)", "x"),
        ("y = x.mul_(2)\nreturn torch.softmax(x, -1)", "x"),  # x is another by then
        ("y = F.relu(x, inplace=True)\nreturn torch.softmax(x, -1)", "x"),
    ],
)
def test_what_is_not_exactly_the_formula_gets_no_expert(body: str, arguments: str) -> None:
    assert names(own_task(body, arguments)) == set()


@pytest.mark.parametrize(
    "init",
    [
        "self.dim = n\n        self.dim += 1",
        "n = n - 1\n        self.dim = n",
        "self.dim = n\n        if n:\n            self.dim = 0",
    ],
)
def test_an_attribute_that_is_changed_is_not_taken_for_its_argument(init: str) -> None:
    assert names(own_task("return torch.sum(cube, dim=self.dim)", "cube", init, (1,))) == set()


def test_a_function_of_the_file_is_what_it_computes_and_not_torchs_of_its_name() -> None:
    task = own_task("return softmax(x, -1)", "x")

    def with_own(text: str) -> set[str]:
        return names(replace(task, source=f"{text}\n{task.source}"))

    assert with_own("def softmax(x, dim): return x.cumsum(dim)") == {"scan_rows"}
    of_torch = with_own("")
    assert with_own("def softmax(y, d, *, scale=1.0): return torch.softmax(y, dim=d)") == set()
    assert (
        with_own("def softmax(y, d, more=None):\n    'Rows.'\n    z = torch.exp(y)\n    return F.softmax(y, d)")
        == of_torch
    )
    assert with_own("@changed\ndef softmax(y, d): return torch.softmax(y, dim=d)") == set()
    assert with_own("def softmax(y, d): return softmax(y, d)") == set()
    assert of_torch != set()


def test_a_class_of_the_file_is_no_module_of_torchs_of_its_name() -> None:
    task = own_task("return self.act(x)", "x", "self.act = Softmax(dim=-1)")
    own = "class Softmax(nn.Module):\n    def forward(self, x): return x.cumsum(-1)\n"
    assert names(replace(task, source=task.source.replace("class Model", f"{own}class Model"))) == set()
    imported = task.source.replace("class Model", "from torch.nn import Softmax\nclass Model")
    assert names(replace(task, source=imported)) == names(own_task("return x.softmax(-1)", "x"))


@pytest.mark.parametrize("more", ["N -= 1", "if True:\n    N = 0", "N = int(0)"])
def test_a_constant_of_the_file_that_is_set_again_is_not_taken_for_its_first_value(more: str) -> None:
    task = own_task("return torch.softmax(x, N)", "x")
    assert names(replace(task, source=f"N = 1\n{task.source}")) == names(own_task("return x.softmax(-1)", "x"))
    assert names(replace(task, source=f"N = 1\n{more}\n{task.source}")) == set()


def test_an_argument_that_a_case_leaves_out_has_its_default_there() -> None:
    def found(*init_args: tuple[Json, ...]) -> set[str]:
        task = own_task("return torch.sum(cube, dim=self.dim)", "cube", "self.dim = n", (1,))
        cases = tuple(replace(task.main, init_args=given) for given in init_args)
        return names(replace(task, source=task.source.replace("self, n)", "self, n=-1)"), cases=cases))

    assert found((1,), (1,)) == {"middle_sum"}
    assert found((1,), ()) == set()
    assert found((-1,), ()) == found(()) == {"row_sum"}


def test_an_argument_of_the_constructor_is_no_constant_of_the_file_of_its_name() -> None:
    def found(*init_args: Json) -> set[str]:
        task = own_task("return self.act(x)", "x", "self.act = nn.Softmax(dim=n)", init_args)
        return names(replace(task, source=f"n = 1\n{task.source}"))

    assert found(0) == set()
    assert found(1) == names(own_task("return x.softmax(-1)", "x"))


def test_an_expert_whose_names_the_constructor_needs_for_something_else_is_not_proposed() -> None:
    task = own_task("return torch.softmax(x, -1)", "x", "self.size = BLOCK")
    found = experts(replace(task, source=f"BLOCK = 64\n{task.source}"))
    assert {sketch.name for sketch in experts(task)} - {sketch.name for sketch in found} == {
        "softmax_online",
        "softmax_split_row",
    }
    assert all(sketch.render(sketch.params).count("\nBLOCK = 64\n") == 1 for sketch in found)


def test_a_batch_that_is_turned_has_the_experts_of_a_product(tmp_path: Path) -> None:
    (tmp_path / "own_batch.py").write_text(
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, a, b): return a @ b.mT\n"
        "def get_inputs(): return [torch.randn(3, 40, 24), torch.randn(3, 33, 24)]\n"
        "def get_init_inputs(): return []\n"
    )
    assert problems([tmp_path / "own_batch.py"]) == [("own_batch", "matmul_tiles", "")]


def test_defaults_of_forward_are_kept_and_annotations_are_not() -> None:
    task = own_task("return torch.softmax(x, -1)", "x")
    (*_, found) = experts(
        replace(task, source=task.source.replace("(self, x)", "(self, x: torch.Tensor, scale: 'Any' = 2)"))
    )
    assert "def forward(self, x, scale=2):" in found.source


def test_experts_for_a_built_in_task_are_for_what_it_computes_not_for_what_its_file_is_called() -> None:
    spec = described(find_task("rms_norm_backward"))
    assert spec

    def found(name: str, source: str) -> set[str]:
        task = replace(spec, name=name, source=source)
        return {sketch.name for sketch in (*experts(task), *ptx_experts(task))}

    builtin = find_task("rms_norm_backward").source
    at_other_sizes = builtin.replace("COLS = 4096", "COLS = 512  # ours").replace('"""n = x / r', '"""Ours: n = x / r')
    other = builtin.replace("self.weight", "self.gain")
    assert found("mine", at_other_sizes) == {"row_backward"}
    assert found("rms_norm_backward", other) == set()
    for name in ("softmax", "swiglu", "rms_norm"):
        assert f"ptx_{name}" in found("mine", find_task(name).source)
        assert found(name, other) == set()
    fp8 = find_task("quantize_fp8").source
    assert found("mine", fp8) == {"quantize_rows"}
    assert found("quantize_fp8", fp8.replace("LARGEST = ", "LARGEST = 0.5 * ")) == set()


def test_a_file_that_is_no_python_gets_no_expert() -> None:
    assert experts(TaskSpec("mine", "0", "float32", "class Model(", (CaseSpec("main", (), (), None),))) == []
