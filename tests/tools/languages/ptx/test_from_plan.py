"""A PTX candidate made of a Triton candidate's plans, in the real workers."""

from collections.abc import Callable, Sequence

import pytest

from kerneltune.tools.languages.ptx.candidate import CannotSay, ptx_candidate, short
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.update import Update, Updater
from tests.tools.conftest import HEADER, tensor

SCALE = '''
@triton.jit
def scale_kernel(x, y, n, factor, B: tl.constexpr):
    """Doubles."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * factor, mask=i < n)


def scale(x, factor=2.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), factor, B=256)
    return y

'''
MODEL = "\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
Says = Callable[..., tuple[str, Update, Updater]]


@pytest.fixture
def says(machine: Machine) -> Says:
    """A source as PTX, the update that it was made of, and the updater; for cases of these inputs."""

    def run(
        source: str, *inputs: Sequence[Json], outputs: Json = None, **fields: object
    ) -> tuple[str, Update, Updater]:
        cases = [
            CaseSpec(f"case{i}", tuple(its), (), outputs or its[0], **fields)  # type: ignore[arg-type]
            for i, its in enumerate(inputs)
        ]
        task = TaskSpec("scale", "0" * 64, "float32", "", tuple(cases))
        updater = Updater(task, "sm_90", machine.tracer, machine.compiler)
        update = updater.update(HEADER + SCALE + source)
        assert update.failure is None, update.failure
        return updater.as_ptx(HEADER + SCALE + source, update), update, updater

    return run


def work(plan: Plan) -> list[object]:
    """What a plan launches, without which kernels those are."""
    return [(launch.grid, launch.args) for launch in plan.launches] + [plan.outputs, plan.storages]


@pytest.mark.parametrize(
    "body",
    [
        "return scale(x)",
        "return scale(scale(x), 0.5)",
        "return scale(x[2:])[1:]",
        "y = torch.zeros_like(x)\n        scale_kernel[(2,)](x, y[100:], 300, 2.0, B=256)\n        return y",
        "return scale(x, float('inf'))",
        "return (scale(x), {'twice': scale(scale(x))})",
        "x.copy_(scale(x))\n        return x",
        "return scale(x, 3)",
        "return scale(x.view(torch.int32)).view(torch.float32)",
    ],
)
def test_the_ptx_candidate_launches_what_the_triton_candidate_launched(says: Says, body: str) -> None:
    source = MODEL + f"        {body}\n"
    shape = {"return scale(x[2:])[1:]": tensor(997)}.get(body, tensor(1000))
    if "{" in body:
        shape = {"$tuple": [tensor(1000), {"$dict": {"twice": tensor(1000)}}]}
    made, update, updater = says(source, [tensor(1000)], outputs=shape)
    again = updater.update(made)
    assert again.failure is None, again.failure
    assert again.main_plan is not None
    assert update.main_plan is not None
    assert {k.language for k in again.main_plan.kernels} == {"ptx"}
    assert work(again.main_plan) == work(update.main_plan)


def test_shapes_that_were_not_traced_go_the_triton_way(says: Says, machine: Machine) -> None:
    made, _, _ = says(MODEL + "        return scale(x)\n", [tensor(1000)])
    case = CaseSpec("other", (tensor(1001),), (), tensor(1001))
    task = TaskSpec("scale", "0" * 64, "float32", "", (case,))
    plan = Updater(task, "sm_90", machine.tracer, machine.compiler).update(made).main_plan
    assert plan is not None
    assert {k.language for k in plan.kernels} == {"ttir"}


def test_a_kernel_of_several_cases_is_written_once(says: Says) -> None:
    made, _, updater = says(MODEL + "        return scale(x)\n", [tensor(1000)], [tensor(3001)])
    assert made.count("PtxKernel(r") == 1
    assert made.count("scale_kernel_ptx[(") == 2
    assert made.count("\nclass ModelNew") == 2
    for plans in updater.update(made).plans.values():
        assert {k.language for plan in plans for k in plan.kernels} == {"ptx"}


def test_cases_with_the_same_inputs_are_told_apart_by_what_the_module_was_made_with(machine: Machine) -> None:
    source = (
        HEADER + SCALE + "\nclass ModelNew(nn.Module):\n    def __init__(self, factor):\n        super().__init__()\n"
        "        self.factor = factor\n\n    def forward(self, x):\n        return scale(x, self.factor)\n"
    )
    cases = tuple(CaseSpec(f"case{f}", (tensor(1000),), (f,), tensor(1000)) for f in (2.5, 3.5))
    updater = Updater(TaskSpec("scale", "0" * 64, "float32", "", cases), "sm_90", machine.tracer, machine.compiler)
    update = updater.update(source)
    again = updater.update(updater.as_ptx(source, update))
    assert again.failure is None
    for name, (plan,) in again.plans.items():
        assert work(plan) == work(update.plans[name][0])
        assert plan.kernels[0].language == "ptx"


def test_parameters_are_read_from_the_module(machine: Machine) -> None:
    source = (
        HEADER + SCALE + "\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.ModuleList([nn.Linear(8, 4)])\n\n    def forward(self, x):\n"
        "        return scale(self.inner[0].weight)\n"
    )
    state = {"inner.0.weight": TensorSpec((4, 8), "float32"), "inner.0.bias": TensorSpec((4,), "float32")}
    case = CaseSpec("main", (tensor(3),), (), tensor(4, 8), state)
    updater = Updater(TaskSpec("scale", "0" * 64, "float32", "", (case,)), "sm_90", machine.tracer, machine.compiler)
    made = updater.as_ptx(source, update := updater.update(source))
    assert "getattr(self.inner, '0').weight" in made
    again = updater.update(made)
    assert again.main_plan is not None
    assert update.main_plan is not None
    assert work(again.main_plan) == work(update.main_plan)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.relu(scale(x))", "library operators compute between the kernels: relu"),
        ("return scale(x) + 1", "library operators"),
        (
            "if not hasattr(self, 'w'):\n            self.w = scale(torch.ones_like(x))\n        return scale(self.w)",
            "before",
        ),
        ("return scale(torch.tensor([1.0, 2.0] * 500, device=x.device))", "constant data of its own"),
        ("y = scale(x.view(torch.int32))\n        return y.view(torch.float32)[3:]", "read as float32 that was made"),
    ],
)
def test_what_cannot_be_said_is_refused_in_words(says: Says, body: str, words: str) -> None:
    with pytest.raises(CannotSay, match=words):
        says(MODEL + f"        {body}\n", [tensor(1000)], outputs=tensor(997) if "[3:]" in body else None)


def test_text_without_its_shared_memory_or_without_a_kernel_is_refused(says: Says) -> None:
    source = HEADER + SCALE + MODEL + "        return scale(x)\n"
    _, update, updater = says(MODEL + "        return scale(x)\n", [tensor(1000)])
    plan, cases = update.main_plan, updater.task.cases
    assert plan is not None
    with pytest.raises(CannotSay, match="there is no PTX of kernel 'scale_kernel'"):
        ptx_candidate(source, {"case0": plan}, {}, cases=cases)
    text = (
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 global_smem[];\n"
        ".visible .entry k(.param .u64 a, .param .u64 b, .param .u32 n, .param .f32 f)\n"
        "{ st.shared.b32 [global_smem], 1; ret; }"
    )
    with pytest.raises(CannotSay, match="how much shared memory"):
        ptx_candidate(source, {"case0": plan}, {plan.kernels[0].sha256: text}, cases=cases)
    with pytest.raises(CannotSay, match="no plan"):
        ptx_candidate(source, {}, {}, cases=cases)


def test_long_texts_of_further_cases_are_left_to_triton(says: Says) -> None:
    _, update, _ = says(MODEL + "        return scale(x, float(x.numel()))\n", [tensor(1000)], [tensor(4096)])
    plans = {name: its[0] for name, its in update.plans.items()}
    kernels = {k.sha256 for p in plans.values() for k in p.kernels}
    assert len(kernels) == 2
    assert list(short(plans, dict.fromkeys(kernels, "short"))) == ["case0", "case1"]
    assert list(short(plans, dict.fromkeys(kernels, "long" * 100_000))) == ["case0"]
