"""Host code that is guessed around a PTX file."""

import pytest

from kerneltune.tools.languages.ptx.candidate import guessed_candidate
from kerneltune.tools.languages.ptx.ir import PtxError
from kerneltune.tools.languages.ptx.loader import PtxLaunchError
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.plan import ScalarArg, TensorArg
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.update import Updater
from tests.tools.conftest import tensor

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
SOURCE = (
    "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
)


def entry(params: str, body: str, more: str = ".reqntid 128") -> str:
    """A kernel whose parameters come before an output pointer `out`, which it stores to."""
    listed = ",\n".join(f".param {p}" for p in params.split(", "))
    return f"{HEAD}.visible .entry k({listed})\n{more}\n{{\n.reg .b64 %d<9>; .reg .b32 %r<9>;\n{body}\nret;\n}}\n"


def task(
    *inputs: object, output: object = None, source: str = SOURCE, state: dict[str, TensorSpec] | None = None
) -> TaskSpec:
    case = CaseSpec("main", tuple(inputs), (), output or inputs[0], state or {})
    return TaskSpec("twice", "0" * 64, "float32", source, (case,))


COPY = (
    "ld.param.u64 %d0, [src]; ld.param.u64 %d1, [dst]; cvta.to.global.u64 %d2, %d0; add.s64 %d3, %d1, 4;\n"
    "ld.global.b32 %r0, [%d2]; st.global.b32 [%d3], %r0;"
)


def test_pointers_that_are_stored_to_are_outputs_wherever_they_stand(machine: Machine) -> None:
    its = task(tensor(1000))
    made = guessed_candidate(entry(".u64 dst, .u32 n, .u64 src", COPY), its, "mine.ptx")
    update = Updater(its, "sm_90", machine.tracer, machine.compiler).update(made)
    assert update.failure is None
    assert update.main_plan is not None
    (launch,) = update.main_plan.launches
    origins = [update.main_plan.storage(a.tensor.storage).origin for a in launch.args if isinstance(a, TensorArg)]
    assert origins == ["scratch", "input"]
    assert [a.value for a in launch.args if isinstance(a, ScalarArg)] == [1000]
    assert launch.grid == (8, 1, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_cols", "x.shape[-1]"),
        ("N", "x.shape[-1]"),
        ("rows", "x.shape[0]"),
        ("M", "x.shape[0]"),
        ("n_elements", "x.numel()"),
    ],
)
def test_numbers_are_taken_for_the_sizes_that_their_names_say(name: str, value: str) -> None:
    made = guessed_candidate(entry(f".u64 src, .u64 dst, .u32 {name}", COPY), task(tensor(8, 16)), "k.ptx")
    assert f"        {value},  # {name}, .u32" in made.replace("            ", "        ")


def test_a_wide_number_is_no_pointer_unless_something_is_read_there() -> None:
    body = COPY + " ld.param.u64 %d5, [n]; mul.lo.u64 %d6, %d5, 2;"
    made = guessed_candidate(entry(".u64 src, .u64 dst, .u64 n", body), task(tensor(8, 16)), "k.ptx")
    assert "x.shape[-1],  # n, .u64" in made


def test_what_was_guessed_says_look_and_names_the_file() -> None:
    made = guessed_candidate(entry(".u64 src, .u64 dst", COPY, more=""), task(tensor(8, 16)), 'a"""b.ptx')
    assert made.startswith('"""a???b.ptx, with host code that was guessed')
    assert made.count("# LOOK: ") == 2
    assert "block=256" in made
    compile(made, "made.py", "exec")


def test_a_module_with_parameters_keeps_them_and_passes_them_behind_the_inputs() -> None:
    source = (
        "import torch\nimport torch.nn as nn\nEPS = 1e-5\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.weight = nn.Parameter(torch.ones(16))\n\n"
        "    def forward(self, x):\n        return x * self.weight\n"
    )
    text = entry(".u64 src, .u64 w, .u64 dst", COPY + " ld.param.u64 %d7, [w]; ld.global.b32 %r3, [%d7];")
    made = guessed_candidate(
        text, task(tensor(8, 16), source=source, state={"weight": TensorSpec((16,), "float32")}), "k.ptx"
    )
    assert "class ModelNew(Model):" in made
    assert "EPS = 1e-5" in made
    assert made.index("x,  # src") < made.index("self.weight,  # w") < made.index("y,  # dst")


def test_text_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(PtxError, match="PTX begins with"):
        guessed_candidate("int main() {}", task(tensor(8)), "k.ptx")
    with pytest.raises(PtxLaunchError, match="no entry"):
        guessed_candidate(HEAD, task(tensor(8)), "k.ptx")
