"""A task is described without its memory, answered in float64, and its faults are one line with their place."""

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltune.tools.judge.correctness import reference_model
from kerneltune.tools.judge.correctness.problem import Problem, counter, describe, expanded
from kerneltune.tools.judge.correctness.tree import leaves, spec_of
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import TaskSpec, rebuilt
from kerneltune.tools.task.load import TaskFile, builtin_tasks, described, find_task, read_task
from tests import shared_fork_server
from tests.tools.judge.drawing import applying


def task_of(folder: Path, source: str, name: str = "mine") -> TaskFile:
    path = folder / f"{name}.py"
    path.write_text(source)
    return read_task(path)


def model(forward: str, inputs: str, extra: str = "") -> str:
    return f"""
import torch
import torch.nn as nn
{extra}
class Model(nn.Module):
    def forward(self, {forward.split(":")[0]}):
        {forward.split(":", 1)[1]}
def get_inputs():
    return {inputs}
"""


def shapes_of(spec: Any) -> Any:
    """A result's structure without strides, which differ between a layer's ways to run."""
    if isinstance(spec, dict) and "$tensor" in spec:
        return spec["$tensor"]["shape"], spec["$tensor"]["dtype"]
    return [shapes_of(part) for part in (spec["$tuple"] if isinstance(spec, dict) else spec)]


def test_softmax_is_described_in_no_time_and_without_its_half_gigabyte() -> None:
    start = time.monotonic()
    task = describe(find_task("softmax"))
    assert time.monotonic() - start < 5.0
    assert task.main.inputs == ({"$tensor": {"shape": [8192, 8192], "dtype": "float32", "stride": None}},)
    assert task.main.bytes_moved == 2 * 4 * 8192**2
    assert (task.main.runs_on_cpu, task.case("ragged").runs_on_cpu, task.case("prime").held_out) == (False, True, True)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, proj_size=3)", "[torch.rand(4, 5, 8)]"),
        ("nn.GRU(8, 6, 3, bidirectional=True, bias=False)", "[torch.rand(5, 4, 8), torch.rand(6, 4, 6)]"),
        ("nn.RNN(8, 6, nonlinearity='relu')", "[torch.rand(5, 8)]"),
    ],
)
def test_recurrent_layers_are_described_as_they_run_though_not_step_by_step(
    tmp_path: Path, made: str, given: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.rnn = {made}\n    def forward(self, *x): return self.rnn(*x)\ndef get_inputs(): return {given}\n"
    )
    described = describe(read_task(path)).main
    problem = Problem.load(read_task(path))
    inputs = problem.inputs(0)
    assert inputs is not None
    assert shapes_of(described.outputs) == shapes_of(spec_of(problem.native(inputs)))
    assert described.flops > 0


def test_an_infinite_number_among_the_inputs_stays_a_number(tmp_path: Path) -> None:
    source = model(
        "x, low: return torch.maximum(x, torch.full_like(x, low[0]))", "[torch.rand(3, 4), [float('-inf'), 1.5]]"
    )
    main = describe(task_of(tmp_path, source)).main
    assert rebuilt(main.inputs[1], {}) == [-math.inf, 1.5]


def test_a_constructor_that_reads_values_is_described(tmp_path: Path) -> None:
    source = model("x: return x * self.rates[2]", "[torch.rand(3, 4)]")
    made = "def __init__(self):\n        super().__init__()\n        self.rates = torch.linspace(0, 1, 3).tolist()\n"
    source = source.replace("    def forward", f"    {made}    def forward")
    main = describe(task_of(tmp_path, source)).main
    assert shapes_of(main.outputs) == ([3, 4], "float32")


def test_a_constructor_that_converts_its_module_is_described_without_its_tensors(tmp_path: Path) -> None:
    """As every file of `optimize init` does; its reference was run at the timed size, here of two terabytes."""
    source = model("x: return x * self.weight", "[torch.randn(1 << 22, 1 << 18).to(torch.bfloat16)]")
    made = (
        "def __init__(self):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(1 << 18))\n        self.to(torch.bfloat16)\n"
    )
    main = describe(task_of(tmp_path, source.replace("    def forward", f"    {made}    def forward"))).main
    assert shapes_of(main.outputs) == ([1 << 22, 1 << 18], "bfloat16")
    assert main.state["weight"].dtype == "bfloat16"


def test_described_steps_cost_what_all_of_them_cost(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rnn = nn.LSTM(128, 256, 6)\n    def forward(self, x): return self.rnn(x)[0]\n"
        "def get_inputs(): return [torch.rand(512, 10, 128)]\n"
    )
    start = time.process_time()
    main = describe(read_task(path)).main
    assert time.process_time() - start < 20  # step by step, more than 120 s on two busy cores
    assert main.flops == 2 * 5120 * 4 * 256 * (128 + 5 * 256 + 6 * 256)


def test_every_built_in_task_is_described_and_survives_the_wire() -> None:
    for file in builtin_tasks():
        task = described(file)  # held against what `describe` says in tests/agent/test_task_table.py, which takes 5 s
        assert task is not None
        assert decode(TaskSpec, encode(task)) == task
        assert 50e6 < task.main.bytes_moved < 2e9, task.name
        assert "held_out" not in task.source
    for file in map(find_task, ("argmax", "causal_attention", "rope", "softmax")):
        assert describe(file) == described(file)


def test_flops_count_contractions_and_a_causal_mask_halves_them() -> None:
    assert describe(find_task("matmul_bias_relu")).main.flops == 2 * 8192 * 4096 * 4096
    attention = describe(find_task("causal_attention")).main
    assert attention.flops == pytest.approx(4 * 4 * 16 * 4096**2 * 64 / 2, rel=1e-3)


def test_attention_with_grouped_heads_is_counted_whichever_operator_does_it() -> None:
    q, kv = torch.empty(2, 8, 16, 32, device="meta"), torch.empty(2, 2, 16, 32, device="meta")
    whole = 2 * 2 * 2 * 8 * 16 * 16 * 32
    aten = torch.ops.aten
    plain = (None, True, 0.0, False)  # a mask, whether to keep sums, dropout, causal
    for operator, more, seen in (
        (aten._scaled_dot_product_flash_attention, (0.0, True), whole * 17 // 32),  # 17 of 32 pairs are seen
        (aten._scaled_dot_product_efficient_attention, plain, whole),
        (aten._scaled_dot_product_cudnn_attention, plain, whole),
    ):
        with counter() as counted, counter(whole=True) as all_of_it:
            operator(q, kv, kv, *more)
        assert (counted.get_total_flops(), all_of_it.get_total_flops()) == (seen, whole)


def test_gradients_of_attention_are_five_products_whichever_operator_does_them() -> None:
    q, kv = torch.empty(2, 8, 16, 32, device="meta"), torch.empty(2, 2, 16, 32, device="meta")
    sums, none = torch.empty(2, 8, 16, device="meta"), torch.empty(0, device="meta")
    whole = 5 * 2 * 2 * 8 * 16 * 16 * 32
    aten = torch.ops.aten
    for operator, more, seen in (
        (aten._scaled_dot_product_flash_attention_for_cpu_backward, (0.0, True), whole * 17 // 32),
        (
            aten._scaled_dot_product_flash_attention_backward,
            (none, none, 16, 16, 0.0, True, none, none),
            whole * 17 // 32,
        ),
        (aten._scaled_dot_product_cudnn_attention_backward, (none, none, none, none, none, 16, 16, 0.0, False), whole),
    ):
        with counter() as counted, counter(whole=True) as all_of_it:
            operator(q, q, kv, kv, q, sums, *more)
        assert (counted.get_total_flops(), all_of_it.get_total_flops()) == (seen, whole)
    with counter() as counted:
        aten._scaled_dot_product_efficient_attention_backward(
            q, q, kv, kv, none, q, sums, none, none, 0.0, [True, True, True, False], True
        )
    assert counted.get_total_flops() == whole * 17 // 32


def test_parameters_are_in_the_state_and_none_of_them_is_an_identity() -> None:
    problem = Problem.load(find_task("layer_norm"), "narrow", seed=3)
    state = problem.state()
    assert sorted(state) == ["bias", "weight"]
    assert all(float(t.std()) > 0.1 for t in state.values())


def test_foreign_ones_and_zeros_are_randomised_with_their_sign_kept(tmp_path: Path) -> None:
    source = model("x: return self.n(x)", "[torch.rand(8, 4, 5, 5)]").replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.n = nn.BatchNorm2d(4)\n    def forward",
    )
    problem = Problem.load(task_of(tmp_path, source), seed=1)
    first = {name: t.clone() for name, t in problem.state().items()}
    assert all(len(set(t.tolist())) == 4 for name, t in first.items() if t.is_floating_point())
    assert bool((first["n.running_var"] > 0).all())
    problem.reseed(2)
    assert not torch.equal(problem.state()["n.weight"], first["n.weight"])
    problem.reseed(1)
    assert all(torch.equal(t, first[name]) for name, t in problem.state().items())


def test_the_answer_is_float64_even_where_the_model_casts_by_itself(tmp_path: Path) -> None:
    forward = "x: return (x.float() @ torch.ones(6, 2, dtype=torch.float32) + torch.zeros(2)).to(torch.bfloat16)"
    problem = Problem.load(task_of(tmp_path, model(forward, "[torch.rand(4, 6).bfloat16()]")))
    inputs = problem.inputs(1)
    assert inputs is not None
    answer = problem.reference(inputs)
    assert answer.exact
    assert torch.equal(answer.values, inputs[0].double().sum(1, keepdim=True).expand(4, 2))
    assert problem.native(inputs).dtype == torch.bfloat16
    assert problem.precision == "bfloat16"


def test_a_reference_that_cannot_run_in_float64_answers_in_its_own_dtype_and_says_so(tmp_path: Path) -> None:
    source = model("x: return (x.view(torch.int32) & -4096).view(torch.float32) * 2", "[torch.rand(3, 4)]")
    problem = Problem.load(task_of(tmp_path, source))
    inputs = problem.inputs(1) or ()
    answer = problem.reference(inputs)
    assert not answer.exact
    assert "float64" in answer.note
    assert torch.allclose(answer.values, inputs[0].double() * 2, rtol=1e-3)
    assert problem.expect(inputs).noise is None


def test_a_reference_that_writes_into_its_input_leaves_ours_alone(tmp_path: Path) -> None:
    problem = Problem.load(task_of(tmp_path, model("x: return x.mul_(2)", "[torch.rand(3, 4)]")))
    inputs = problem.inputs(1) or ()
    before = inputs[0].clone()
    problem.native(inputs), problem.reference(inputs), problem.expect(inputs)
    assert torch.equal(inputs[0], before)


def test_mixed_arguments_and_several_outputs_are_supported(tmp_path: Path) -> None:
    forward = 'x, mask, n, pair: return {"y": x * n + pair[0], "arg": x.argmax(-1), "any": mask.any(-1)}'
    inputs = "[torch.randn(5, 7), torch.rand(5, 7) > 0.5, 3, (torch.rand(7), 1.5)]"
    task = task_of(tmp_path, model(forward, inputs))
    case = describe(task).main
    assert case.inputs[2] == 3
    assert case.outputs["$dict"]["arg"]["$tensor"]["dtype"] == "int64"
    drawn = Problem.load(task).draw(1)
    assert drawn is not None
    assert list(drawn.blobs()) == ["input:0", "input:1", "input:3.0"]
    assert [path for path, _ in leaves(drawn.inputs)] == ["0", "1", "2", "3.0", "3.1"]


def test_blobs_hold_the_bytes_of_every_input_and_parameter() -> None:
    drawn = Problem.load(find_task("rms_norm"), "ragged").draw(4)
    assert drawn is not None
    blobs = drawn.blobs()
    assert {name: len(blob) for name, blob in blobs.items()} == {"input:0": 129 * 1000 * 2, "state:weight": 2000}
    again = torch.frombuffer(bytearray(blobs["state:weight"]), dtype=torch.bfloat16)
    assert torch.equal(again, drawn.state["weight"])


def test_draws_differ_by_seed_and_repeat_by_seed() -> None:
    problem = Problem.load(find_task("layer_norm"), "narrow")
    first, other, again = (drawn.blobs() for drawn in map(problem.draw, (1, 2, 1)) if drawn is not None)
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_a_battery_on_which_the_reference_is_not_finite_does_not_apply(tmp_path: Path) -> None:
    forward = "x: return x.exp()"
    problem = Problem.load(task_of(tmp_path, model(forward, "[torch.rand(30, 40)]")))
    assert {"spikes", "offset", "huge"}.isdisjoint(applying(problem))
    assert {"own", "zero_mean", "structure", "integers", "tiny"} <= set(applying(problem))


def test_a_battery_that_the_reference_refuses_does_not_apply(tmp_path: Path) -> None:
    forward = "x, t: return nn.functional.binary_cross_entropy(x, t, reduction='none')"
    problem = Problem.load(task_of(tmp_path, model(forward, "[torch.rand(30, 40), torch.rand(30, 40)]")))
    assert problem.kinds == {"0": "own", "1": "own"}
    assert applying(problem) == ("own",)
    path = task_of(tmp_path, model(forward, "[torch.rand(30, 40), torch.rand(30, 40)]", 'INPUTS = {"x": "any"}'))
    declared = Problem.load(path)
    assert declared.kinds["0"] == "any"
    assert declared.draw(1, "scaled") is None


def test_what_a_task_prints_stays_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "print('hello')\n" + model("x: print('forward'); return x", "[torch.rand(3)]")
    describe(task_of(tmp_path, source))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import torch\nraise SystemExit(3)\nclass Model: pass\ndef get_inputs(): pass",
            r"mine\.py, line 2: the task file",
        ),
        (model("x: return x @ x", "[torch.rand(3, 4)]"), r"mine\.py, line 7: forward\(\) failed: RuntimeError: .*mul"),
        (model("x: return x", "1 / 0"), r"mine\.py, line 9: get_inputs\(\) failed: ZeroDivisionError"),
        (model("x: return x", "torch.rand(3)"), r"get_inputs\(\) failed: TypeError: get_inputs\(\) returned a Tensor"),
        ("class Model: pass\ndef get_inputs(): return []", r"Model\(…\) failed: TypeError: Model is not a torch"),
        (
            "import nonesuch_\n" + model("x: return x", "[]"),
            r"line 1: the task file needs the package nonesuch_, which is not installed; .* pip install nonesuch_$",
        ),
        (
            model("x: return x, object()", "[torch.rand(2)]"),
            r"describing the answer failed: TypeError: .* are tensors, .* not object, which Model itself can make",
        ),
        (
            model("x: return x", "[torch.rand(2)]").replace(
                "    def f", "    def __init__(self, c): super().__init__()\n    def f"
            )
            + "\ndef get_init_inputs(): return [object()]\n",
            r"describing get_init_inputs\(\) failed: TypeError: .* not object, which Model itself can make",
        ),
    ],
)
def test_a_reference_that_fails_is_one_line_with_its_place(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        describe(task_of(tmp_path, source))
    assert "\n" not in str(caught.value)


def test_a_reference_that_fails_in_another_case_than_the_timed_one_names_it_and_its_constants(tmp_path: Path) -> None:
    constants = 'ROWS = 4\nCASES = [{"name": "ragged", "ROWS": 3}]'
    source = model("x: return x @ x", "[torch.rand(ROWS, 4)]", constants)
    with pytest.raises(TaskError, match=r"line 8: forward\(\) failed: .*; in case ragged, with ROWS = 3$"):
        describe(task_of(tmp_path, source))


FOREIGN = {
    "large_softmax": model("x: return torch.softmax(x, 1)", "[torch.rand(batch, dim)]", "batch = 4096\ndim = 393216"),
    "large_matmul": model(
        "a, b: return a @ b", "[torch.rand(M, K), torch.rand(K, N)]", "M = 1024 * 8\nK, N = 4096, 2048"
    ),
    "tuple_of_sizes": model("x: return x.relu()", "[torch.rand(batch, *shape)]", "batch = 128\nshape = (256, 64, 64)"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_task_gets_a_small_case_for_the_cpu(tmp_path: Path, name: str) -> None:
    task = task_of(tmp_path, FOREIGN[name])
    spec = describe(task)
    assert [c.name for c in spec.cases] == ["main", "small"]
    assert [c.runs_on_cpu for c in spec.cases] == [False, True]
    assert spec.case("small").bytes_moved <= 4 * 2_000_000
    assert expanded(task).cases[1] == expanded(expanded(task)).cases[1]
    assert Problem.load(task, "small").draw(1) is not None


def test_constants_that_depend_on_each_other_stay_compatible(tmp_path: Path) -> None:
    source = model(
        "x: return nn.functional.group_norm(x, groups)", "[torch.rand(batch, channels, size, size)]",
        "batch = 64\nchannels = 96\ngroups = 32\nsize = 256",
    )  # fmt: skip
    small = describe(task_of(tmp_path, source)).case("small")
    assert small.runs_on_cpu
    assert small.inputs[0]["$tensor"]["shape"][1] % 32 == 0


def test_constants_that_must_be_equal_are_halved_together(tmp_path: Path) -> None:
    source = model(
        "x, y: return x * y", "[torch.rand(batch, *shape), torch.rand(batch)]", "batch = 32768\nshape = (32768,)"
    )
    small = describe(task_of(tmp_path, source)).case("small")
    assert small.inputs[0]["$tensor"]["shape"] == [512, 512]


def test_a_foreign_task_that_is_small_already_needs_no_further_case(tmp_path: Path) -> None:
    spec = describe(task_of(tmp_path, model("x: return x + 1", "[torch.rand(64, 64)]")))
    assert ([c.name for c in spec.cases], spec.main.runs_on_cpu) == (["main"], True)


def test_a_task_that_nothing_makes_small_keeps_its_main_case_alone(tmp_path: Path) -> None:
    spec = describe(task_of(tmp_path, model("x: return x + 1", "[torch.rand(5000, 1, 5000)]")))
    assert ([c.name for c in spec.cases], spec.main.runs_on_cpu) == (["main"], False)


def test_inputs_that_lead_a_reference_out_of_range_are_found_before_a_gpu_runs_it(tmp_path: Path) -> None:
    forward = "x: return x.gather(-1, (x + 1 > x).sum(-1, keepdim=True) - 1)"
    task = task_of(tmp_path, model(forward, "[torch.rand(4, 64)]"))
    problem = Problem.load(task)
    assert problem.takes("zero_mean")
    assert not problem.takes("huge")
    assert problem.draw(1, "huge") is None


ILL_BEHAVED = {
    "hangs in get_inputs": ("return x", "[1 for _ in iter(int, 1)]", "get_inputs() takes longer than 0.5 s"),
    "hangs in forward": ("return x + len([1 for _ in iter(int, 1)])", "[torch.ones(4)]", "takes longer than 0.5 s"),
    "catches what it can": (
        "return x",
        "[caught() for _ in range(10**9)]",
        "get_inputs() takes longer than 0.5 s",
    ),
    "exits": ("raise SystemExit(3)", "[torch.ones(4)]", "forward() failed: SystemExit: 3"),
    "forks": ("os.fork(); return x", "[torch.ones(4)]", "described"),
    "prints": ("print('x'); os.write(2, b''); return x", "[torch.ones(4)]", "described"),
}


def describes(channel: Any) -> None:
    """What is said of each path, in a process of its own: pytest's own limit of time uses the same alarm."""
    vars(reference_model.blame)["__wrapped__"].__kwdefaults__["limit_s"] = 0.5
    paths = map(Path, channel.receive().body["paths"])
    channel.send({path.parent.name: described_by_a_child(path) for path in paths})


def described_by_a_child(path: Path) -> str:
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(theirs, 1)
        try:
            describe(read_task(path))
            print("described", flush=True)
        except TaskError as error:
            print(error, flush=True)
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        said = pipe.read()  # until nobody is left who could say more
    assert os.waitpid(pid, 0)[1] == 0, path
    return said


@pytest.fixture(scope="module")
def described_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said of each of them, by its name."""
    extra = "import os, time\ndef caught():\n    try: time.sleep(1)\n    except Exception: pass"
    folder = tmp_path_factory.mktemp("ill behaved")
    paths = []
    for how, (forward, inputs, _) in ILL_BEHAVED.items():
        (folder / how).mkdir()
        paths.append(str(task_of(folder / how, model(f"x: {forward}", inputs, extra)).path))
    return shared_fork_server.answer(f"{__name__}:describes", {"paths": paths}, timeout_s=120)


@pytest.mark.parametrize("how", ILL_BEHAVED)
def test_ill_behaved_references_end_as_an_error_of_the_task(how: str, described_alone: dict[str, str]) -> None:
    """Says one line, whatever forks."""
    assert len(described_alone[how].splitlines()) == 1
    assert ILL_BEHAVED[how][2] in described_alone[how]


def test_each_answer_of_a_module_that_keeps_its_hidden_state_starts_from_what_its_constructor_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.hidden = torch.zeros(4)\n"
        "        self.register_buffer('seen', torch.zeros(4))\n"
        "    def forward(self, x):\n        self.hidden, self.seen = torch.tanh(x + self.hidden), self.seen + x\n"
        "        self.last = self.hidden\n        return self.hidden + self.seen\n"
        "def get_inputs(): return [torch.rand(4)]\n"
    )
    problem = Problem.load(read_task(path))
    inputs = problem.inputs(0)
    assert inputs is not None
    first, exact = problem.native(inputs), problem.reference(inputs).values
    assert torch.equal(problem.native(inputs), first)
    assert torch.equal(problem.reference(inputs).values, exact)
    assert torch.allclose(exact.float(), first)
    assert not hasattr(problem.model, "last")
