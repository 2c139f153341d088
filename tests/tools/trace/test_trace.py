"""What the tracer makes of candidates as people and models write them, in its real confinement."""

import base64
import struct
import zlib

import pytest

from kerneltune.tools.schema.messages import TraceReply
from kerneltune.tools.schema.plan import Aten, Plan, ScalarArg, TensorArg
from kerneltune.tools.schema.task import Contract, TensorSpec
from kerneltune.tools.schema.verdict import Status
from tests.tools.conftest import COPY_KERNEL, HEADER, Trace, tensor


def module(body: str, init: str = "pass") -> str:
    """A ModelNew with this forward body."""
    return f"""
class ModelNew(nn.Module):
    def __init__(self, *args):
        super().__init__()
        {init}

    def forward(self, *xs):
        x = xs[0]
        {body}
"""


def plan(reply: TraceReply) -> Plan:
    assert reply.failure is None, reply.failure
    return reply.plans[0]


def rejected(reply: TraceReply) -> str:
    assert reply.failure is not None
    assert reply.failure.status is Status.REJECTED, reply.failure
    return reply.failure.message


def test_a_launch_becomes_a_step_with_its_grid_and_arguments(trace: Trace) -> None:
    result = plan(trace(module("return scale(x, 3.0)"), tensor(1000)))
    (launch,) = result.launches
    assert launch.grid == (4, 1, 1)
    assert [a.value for a in launch.args if isinstance(a, ScalarArg)] == [1000, 3.0]
    assert [s.origin for s in result.storages] == ["input", "scratch"]


def test_views_vanish_into_offset_and_strides(trace: Trace) -> None:
    result = plan(trace(module("return scale(x[1:, ::2].t())"), tensor(5, 8)))
    first = result.launches[0].args[0]
    assert first.tensor.offset == 8  # type: ignore[union-attr]
    assert first.tensor.stride == (2, 8)  # type: ignore[union-attr]


def test_constants_made_by_host_code_become_plan_data(trace: Trace) -> None:
    result = plan(trace(module("return scale(torch.tensor([1.0, 2.5], device='cuda'))"), tensor(2)))
    (constant,) = [s for s in result.storages if s.origin == "constant"]
    assert constant.data is not None
    assert struct.unpack("<2f", zlib.decompress(base64.b64decode(constant.data))) == (1.0, 2.5)


@pytest.mark.parametrize(
    ("array", "shape", "stride", "data"),
    [
        ("np.arange(6.0, dtype='f').reshape(2, 3).T", (3, 2), (1, 3), range(6)),
        ("np.arange(7.0, dtype='f')[::3]", (3,), (3,), range(7)),
        ("np.broadcast_to(np.arange(2.0, dtype='f'), (3, 2))", (3, 2), (0, 1), range(2)),
    ],
)
@pytest.mark.filterwarnings("ignore:The given NumPy array")
def test_an_array_that_is_not_row_major_is_plan_data_as_it_lies_in_memory(
    trace: Trace, array: str, shape: tuple[int, ...], stride: tuple[int, ...], data: range
) -> None:
    body = f"import numpy as np; return scale(torch.from_numpy({array}).to(x.device).contiguous())"
    result = plan(trace(module(body), tensor(6)))
    (constant,) = [s for s in result.storages if s.origin == "constant"]
    assert constant.data is not None
    assert list(struct.unpack(f"<{len(data)}f", zlib.decompress(base64.b64decode(constant.data)))) == list(data)
    read = next(step for step in result.run if isinstance(step, Aten)).args[0]["$tensor"]
    assert (tuple(read["shape"]), tuple(read["stride"]), read["offset"]) == (shape, stride, 0)


def test_a_tensor_that_only_the_constructor_is_given_is_refused_with_what_the_task_can_do(trace: Trace) -> None:
    reply = trace(module("return scale(x * self.w)", "self.w = args[0]"), tensor(6), init=(tensor(6),))
    assert "register_buffer" in rejected(reply)


def test_parameters_are_tied_to_the_reference_by_name(trace: Trace) -> None:
    source = module("return scale(self.proj.weight)", "self.proj = nn.Linear(4, 6)")
    state = {"proj.weight": TensorSpec((6, 4), "float32"), "proj.bias": TensorSpec((6,), "float32")}
    result = plan(trace(source, tensor(4), state=state))
    assert "proj.weight" in [s.name for s in result.storages if s.origin == "state"]
    assert not result.prepare


def test_parameters_with_other_names_are_tied_by_order_and_shape(trace: Trace) -> None:
    source = module("return scale(self.w)", "self.w = nn.Parameter(torch.randn(6, 4))")
    result = plan(trace(source, tensor(4), state={"proj.weight": TensorSpec((6, 4), "float32")}))
    assert [s.name for s in result.storages if s.origin == "state"] == ["proj.weight"]


def test_a_layer_that_a_module_copies_is_tied_to_the_reference_as_one_that_it_made(trace: Trace) -> None:
    init = "import copy; made = nn.Linear(4, 6); self.layers = nn.ModuleList([copy.deepcopy(made) for _ in range(2)])"
    state = {
        f"layers.{i}.{n}": TensorSpec(s, "float32") for i in range(2) for n, s in (("weight", (6, 4)), ("bias", (6,)))
    }
    result = plan(trace(module("return scale(self.layers[1].weight)", init), tensor(4), state=state))
    assert {s.name for s in result.storages if s.origin == "state"} == state.keys()
    assert result.storages[result.launches[0].args[0].tensor.storage].name == "layers.1.weight"  # type: ignore[union-attr]
    assert not result.prepare


def test_weights_packed_in_init_are_prepared_from_the_parameter(trace: Trace) -> None:
    init = "self.w = nn.Parameter(torch.randn(6, 4)); self.packed = self.w.detach().t().contiguous()"
    result = plan(
        trace(module("return scale(self.packed)", init), tensor(4), state={"w": TensorSpec((6, 4), "float32")})
    )
    assert [s.op for s in result.prepare if isinstance(s, Aten)] == ["aten::clone"]
    assert {s.origin for s in result.storages} == {"input", "state", "prepared", "scratch"}


def test_weights_packed_lazily_by_the_first_forward_are_prepared_too(trace: Trace) -> None:
    body = """if self.packed is None:
            self.packed = self.w.detach().t().contiguous()
        return scale(self.packed)"""
    init = "self.w = nn.Parameter(torch.randn(6, 4)); self.packed = None"
    result = plan(trace(module(body, init), tensor(4), state={"w": TensorSpec((6, 4), "float32")}))
    assert len(result.prepare) == 1
    assert len(result.launches) == 1


def test_each_autotune_config_becomes_a_variant(trace: Trace) -> None:
    source = """
@triton.autotune([triton.Config({"B": b}, num_warps=w) for b in (128, 256) for w in (2, 4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def tuned(x, y, n, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
""" + module("y = torch.empty_like(x); tuned[lambda m: (triton.cdiv(x.numel(), m['B']),)](x, y, x.numel()); return y")
    reply = trace(source, tensor(1024), max_variants=16)
    assert reply.failure is None
    assert [p.launches[0].grid[0] for p in reply.plans] == [8, 8, 4, 4]
    assert [p.kernels[0].options["num_warps"] for p in reply.plans] == [2, 4, 2, 4]


TUNED = """
@triton.autotune([triton.Config({{"B": block}}) for block in ({blocks})], key=["n"]{more})
@triton.jit
def scaled(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""
LAUNCHED = "{}[lambda c: (triton.cdiv({}.numel(), c['B']),)]({}, {}, {}.numel())"


def test_autotuned_kernels_of_one_name_are_told_apart_by_what_they_offer(trace: Trace) -> None:
    source = TUNED.format(blocks="64, 128", more="") + "first = scaled\n" + TUNED.format(blocks="32, 256, 512", more="")
    body = f"""a, b = torch.empty_like(x), torch.empty_like(x)
        {LAUNCHED.format("first", "x", "x", "a", "x")}
        {LAUNCHED.format("scaled", "a", "a", "b", "a")}
        return b"""
    reply = trace(source + module(body), tensor(1024), max_variants=9)
    grids = [tuple(launch.grid[0] for launch in its.launches) for its in reply.plans]
    assert grids == [(16, 32), (8, 32), (16, 4), (16, 2)]
    assert [its.variant[:17] for its in reply.plans[1:]] == [
        "scaled: B: 128, n",
        "scaled (2): B: 25",
        "scaled (2): B: 51",
    ]


def test_a_call_for_which_configs_are_pruned_leaves_another_one_its_own(trace: Trace) -> None:
    few = "def few(configs, named, **_): return configs[:1] if named['n'] < 100 else configs\n"
    source = few + TUNED.format(blocks="64, 128", more=", prune_configs_by={'early_config_prune': few}")
    body = f"""part, a, b = x[:50], torch.empty(50, device=x.device), torch.empty_like(x)
        {LAUNCHED.format("scaled", "part", "part", "a", "part")}
        {LAUNCHED.format("scaled", "x", "x", "b", "x")}
        return a, b"""
    reply = trace(source + module(body), tensor(1024), max_variants=9)
    assert [tuple(launch.grid[0] for launch in its.launches) for its in reply.plans] == [(1, 16), (1, 8)]


def test_tuples_and_dicts_of_outputs_keep_their_structure(trace: Trace) -> None:
    result = plan(trace(module("return {'a': scale(x), 'b': (x, 3)}"), tensor(8)))
    assert result.outputs["$dict"]["b"]["$tuple"][1] == 3


def test_torch_glue_is_a_step_and_computing_operators_are_counted_as_library(trace: Trace) -> None:
    result = plan(trace(module("return scale(torch.zeros_like(x) + x @ x)"), tensor(8, 8)))
    assert result.library_ops == ("mm", "add.Tensor")


def test_the_limit_of_launches_and_calls_is_one_of_a_forward_not_of_all_that_are_traced(trace: Trace) -> None:
    source = module("y = torch.zeros_like(x)\n        for _ in range({}): y.add_(x)\n        return scale(y)")
    assert len(plan(trace(source.format(3_400), tensor(8))).run) == 3_404
    assert "more than 10000 launches and operator calls" in rejected(trace(source.format(10_000), tensor(8)))


def test_a_custom_operator_is_traced_through(trace: Trace) -> None:
    source = """
@torch.library.custom_op("mylib::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return scale(x)
""" + module("return twice(x)")
    assert len(plan(trace(source, tensor(8))).launches) == 1


def test_a_cuda_graph_is_written_down_once_per_replay(trace: Trace) -> None:
    body = """if self.g is None:
            self.sx = torch.empty_like(x); self.g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.g):
                self.sy = scale(self.sx)
        self.sx.copy_(x); self.g.replay(); return self.sy.clone()"""
    result = plan(trace(module(body, "self.g = None"), tensor(8)))
    assert len(result.launches) == 1


def test_a_side_stream_that_is_joined_leaves_no_trace_in_the_plan(trace: Trace) -> None:
    body = """here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            y = scale(x)
        x.record_stream(side)
        here.wait_stream(side)
        return y"""
    assert [step.kind for step in plan(trace(module(body), tensor(8))).run] == ["aten", "launch"]


def test_a_compiled_kernel_launched_as_in_the_softmax_tutorial_is_seen(trace: Trace) -> None:
    body = """y = torch.empty_like(x)
        k = scale_kernel.warmup(x, y, x.numel(), 2.0, B=256, grid=(1,)); k._init_handles()
        k[(4, 1, 1)](x, y, x.numel(), 2.0, 256); return y"""
    assert len(plan(trace(module(body), tensor(1024))).launches) == 1


def test_memory_that_a_kernel_is_given_and_does_not_touch_is_made_nevertheless(trace: Trace) -> None:
    source = """
@triton.jit
def marked(x, label, y, n, HAS_LABEL: tl.constexpr):
    i = tl.arange(0, 64)
    v = tl.load(x + i, mask=i < n)
    if HAS_LABEL:
        v += tl.load(label)
    tl.store(y + i, v, mask=i < n)
""" + module(
        "y = torch.empty_like(x); marked[(1,)](x, torch.empty(1, device=x.device), y, 50, HAS_LABEL=False); return y"
    )
    result = plan(trace(source, tensor(50)))
    (launch,) = result.launches
    given = {a.tensor.storage for a in launch.args if isinstance(a, TensorArg)}
    made = {ref.storage for step in result.run if isinstance(step, Aten) for ref in step.outs if ref is not None}
    assert len(given) == 3
    assert given <= made | {s.id for s in result.storages if s.origin == "input"}


def test_properties_of_the_target_gpu_are_served(trace: Trace) -> None:
    body = """n = torch.cuda.get_device_properties(x.device).multi_processor_count
        return scale(torch.empty(n, device=x.device))"""
    assert plan(trace(module(body), tensor(8))).launches[0].args[2].value == 132  # type: ignore[union-attr]


@pytest.mark.parametrize("read", ["x.sum().item()", "int(x[0])", "x.max().tolist()", "bool(x[0] > 0)"])
def test_reading_a_value_on_the_host_is_rejected_with_a_way_out(trace: Trace, read: str) -> None:
    message = rejected(trace(module(f"v = {read}; return scale(x)"), tensor(8)))
    assert "reads a tensor's value" in message


def test_reading_a_value_that_depends_on_constants_only_is_allowed(trace: Trace) -> None:
    body = "n = int((torch.tensor([3, 4], device='cuda') * 2).sum().item()); return scale(x, float(n))"
    launch = plan(trace(module(body), tensor(8))).launches[0]
    assert launch.args[3].value == 14.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.relu(x)", "launches no kernel"),
        ("return x[x > 0]", "depends on values"),
        ("return torch.compile(torch.relu)(x)", "torch.compile"),
        ("self.n = getattr(self, 'n', 0) + 1; return scale(x, float(self.n))", "two traces"),
        ("return scale(x.cpu())", "is on the cpu device"),
        ("torch.backends.cuda.matmul.allow_tf32 = True; return scale(x)", "sets TF32"),
        ("torch.set_float32_matmul_precision('high'); return scale(x)", "sets TF32"),
        ("torch.backends.fp32_precision = 'tf32'; return scale(x)", "sets TF32"),
        (
            "z = torch.view_as_complex(x.view(4, 2)); return scale(torch.view_as_real(z.conj() * z))",
            "Write the sign out",
        ),
        ("return scale(torch.view_as_complex(x.view(4, 2)).conj().imag.contiguous())", "Write the sign out"),
    ],
)
def test_what_a_plan_cannot_say_is_rejected_in_plain_words(trace: Trace, body: str, words: str) -> None:
    assert words in rejected(trace(module(body), tensor(8)))


def test_a_result_cached_between_calls_is_rejected(trace: Trace) -> None:
    body = """if not hasattr(self, 'y'):
            self.y = scale(x)
        return self.y"""
    reply = trace(module(body), tensor(8))
    assert reply.failure is not None
    assert reply.failure.status is Status.REJECTED


def test_a_kernel_that_does_not_compile_names_the_line_of_the_candidate(trace: Trace) -> None:
    source = """
@triton.jit
def broken(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, undefined_name)
""" + module("broken[(1,)](x, B=8); return x")
    reply = trace(source, tensor(8))
    assert reply.failure is not None
    assert reply.failure.status is Status.COMPILE_FAILED
    assert "undefined_name" in (HEADER + COPY_KERNEL + source).split("\n")[(reply.failure.line or 0) - 1]


def test_a_host_exception_is_a_crash_with_its_line(trace: Trace) -> None:
    reply = trace(module("raise ValueError('no such shape')"), tensor(8))
    assert reply.failure is not None
    assert (reply.failure.status, "no such shape" in reply.failure.message) == (Status.CRASHED, True)
    assert reply.failure.line is not None


def test_parameters_take_the_dtype_of_the_case(trace: Trace) -> None:
    source = module("return scale(self.w)", "self.w = nn.Parameter(torch.randn(6, 4))")
    result = plan(trace(source, tensor(4), state={"w": TensorSpec((6, 4), "bfloat16")}))
    assert result.launches[0].args[0].tensor.dtype == "bfloat16"  # type: ignore[union-attr]


def test_an_object_that_wraps_a_tensor_is_known_by_its_address(trace: Trace) -> None:
    source = """
class Strided:
    def __init__(self, base):
        self.inner, self.dtype = base, base.dtype

    def data_ptr(self):
        return self.inner.data_ptr() + 16

""" + module("y = torch.empty_like(x); scale_kernel[(1,)](Strided(x), y, 4, 2.0, B=256); return y")
    first = plan(trace(source, tensor(8))).launches[0].args[0]
    assert first.tensor.offset == 4  # type: ignore[union-attr]


def test_a_kernel_argument_from_a_made_up_address_is_rejected(trace: Trace) -> None:
    source = """
class Wild:
    dtype = torch.float32

    def data_ptr(self):
        return 1 << 45

""" + module("y = torch.empty_like(x); scale_kernel[(1,)](Wild(), y, 4, 2.0, B=256); return y")
    assert "no tensor's address" in rejected(trace(source, tensor(8)))


@pytest.mark.parametrize("body", ["return x.numpy()", "x.sum().backward(); return scale(x)"])
def test_what_leaves_the_device_or_runs_autograd_is_rejected(trace: Trace, body: str) -> None:
    assert rejected(trace(module(body), tensor(8)))


def test_host_code_may_take_a_philox_seed_from_the_device_generator(trace: Trace) -> None:
    body = """state = torch.cuda.default_generators[0].get_state().view(torch.int64)
        return scale(x, float(int(state[0]) + 1))"""
    assert plan(trace(module(body), tensor(8))).launches[0].args[3].value == 1.0  # type: ignore[union-attr]


def test_a_view_of_inductor_is_a_view(trace: Trace) -> None:
    body = "v = torch.ops.inductor._reinterpret_tensor(x, [2, 2], [2, 1], 4); return scale(v)"
    assert plan(trace(module(body), tensor(8))).launches[0].args[0].tensor.offset == 4  # type: ignore[union-attr]


def test_a_table_of_device_addresses_is_rejected_as_what_it_is(trace: Trace) -> None:
    body = "table = torch.tensor([x.data_ptr()], device=x.device); return scale(table)"
    assert "device addresses" in rejected(trace(module(body), tensor(8)))


def test_an_input_that_need_not_be_aligned_is_not_and_a_kernel_is_specialised_to_that(trace: Trace) -> None:
    body = "assert x.data_ptr() % 16 == {}; return scale(x[1:])"
    aligned = plan(trace(module(body.format(0)), tensor(256)))
    unaligned = plan(trace(module(body.format(8)), tensor(256), contracts=(Contract(0, "x", alignment=8),)))
    whole = plan(trace(module("return scale(x)"), tensor(256), contracts=(Contract(0, "x", alignment=128),)))
    divisible = [p.kernels[0].text.count("tt.divisibility = 16") for p in (aligned, unaligned, whole)]
    assert divisible[0] == divisible[1] == divisible[2] - 2  # of x and of n, which is 255
    assert unaligned.launches[0].args[0].tensor.offset == 1  # type: ignore[union-attr]
    odd = plan(trace(module("return scale(x)"), tensor(256), contracts=(Contract(0, "x", alignment=8),)))
    assert odd.kernels[0].text.count("tt.divisibility = 16") == divisible[2] - 1
