"""Plans replayed by the TTIR interpreter, from the source of a candidate on."""

import pytest
import torch

from kerneltune.tools.replay.interpret import interpret, sample
from kerneltune.tools.schema.messages import UNCHECKABLE, InterpretRequest
from kerneltune.tools.schema.verdict import Status
from tests.tools.conftest import Trace, tensor

COPY_BY_DESCRIPTORS = """
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def copy_kernel(x, y, R: tl.constexpr, C: tl.constexpr):
    y.store([tl.program_id(0) * R, 0], x.load([tl.program_id(0) * R, 0]))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        x_desc, y_desc = (TensorDescriptor.from_tensor(t, [4, 64]) for t in (x, y))
        copy_kernel[(triton.cdiv(x.shape[0], 4),)](x_desc, y_desc, R=4, C=64)
        return y
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_host_made_descriptors_carry_every_dtype(trace: Trace, dtype: str) -> None:
    reply = trace(COPY_BY_DESCRIPTORS, tensor(10, 48, dtype=dtype))
    assert reply.failure is None
    data = torch.arange(480).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
    answer, blobs = interpret(InterpretRequest(reply.plans[0], ("input:0",)), [data])
    assert (answer.problem, answer.detail) == (None, "")
    assert blobs[0].tobytes() == data


def test_an_input_without_elements_is_no_fault_of_the_candidate(trace: Trace) -> None:
    reply = trace(COPY_BY_DESCRIPTORS.replace("(self, x)", "(self, x, nothing)"), tensor(8, 64), tensor(0, 64))
    assert reply.failure is None
    data = torch.arange(512.0).view(torch.uint8).numpy().tobytes()
    answer, blobs = interpret(InterpretRequest(reply.plans[0], ("input:0", "input:1")), [data, b""])
    assert (answer.problem, answer.detail) == (None, "")
    assert blobs[0].tobytes() == data


def test_a_descriptor_that_rounds_to_tf32_is_rejected_as_a_plan_cannot_say_so(trace: Trace) -> None:
    """Judged without that it would be right, and in its user's program it would not be."""
    rounding = COPY_BY_DESCRIPTORS.replace("[4, 64])", "[4, 64], round_f32_to_tf32=True)")
    reply = trace(rounding, tensor(16, 64))
    assert reply.failure is not None
    assert reply.failure.status is Status.REJECTED
    assert "round_f32_to_tf32" in reply.failure.message


OVERLAPPING = """
@triton.jit
def first_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) * 2)
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def second_kernel(y, z, B: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    i = tl.arange(0, B)
    tl.store(z + i, tl.load(y + i) + 1)


class ModelNew(nn.Module):
    def forward(self, x):
        y, z = torch.empty_like(x), torch.empty_like(x)
        first_kernel[(1,)](x, y, B=16, launch_pdl=True)
        second_kernel[(1,)](y, z, B=16, launch_pdl=True)
        return z
"""


def test_dependent_launches_run_one_after_the_other(trace: Trace) -> None:
    reply = trace(OVERLAPPING, tensor(16))
    assert reply.failure is None
    data = torch.arange(16.0).numpy().tobytes()
    answer, blobs = interpret(InterpretRequest(reply.plans[0], ("input:0",)), [data])
    assert (answer.problem, answer.detail) == (None, "")
    assert torch.frombuffer(bytearray(blobs[0].tobytes()), dtype=torch.float32).tolist() == [
        2 * n + 1 for n in range(16)
    ]


KEEPS = """
@triton.jit
def relu_kernel(x, y, kept, B: tl.constexpr):
    i = tl.arange(0, B)
    calls = tl.load(kept)
    tl.store(y + i, tl.maximum(tl.load(x + i), 0.0) {by})
    tl.store(kept, {after})


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = torch.zeros(1, device=x.device)
        y = torch.empty_like(x)
        relu_kernel[(1,)](x, y, self.kept, B=16)
        return y
"""


@pytest.mark.parametrize(
    ("by", "after", "problem"),
    [("+ calls", "calls + 1", "changes"), ("", "calls + 1", None), ("+ calls", "calls * 0", None)],
)
def test_a_second_call_gives_what_the_first_gave(trace: Trace, by: str, after: str, problem: str | None) -> None:
    reply = trace(KEEPS.format(by=by, after=after), tensor(16))
    assert reply.failure is None
    answer, blobs = interpret(InterpretRequest(reply.plans[0], ("input:0",)), [torch.ones(16).numpy().tobytes()])
    assert answer.problem == problem
    assert problem or torch.frombuffer(bytearray(blobs[0].tobytes()), dtype=torch.float32).tolist() == [1.0] * 16


def test_a_workspace_beyond_the_memory_is_no_fault_of_the_candidate(trace: Trace) -> None:
    source = KEEPS.replace("torch.zeros(1,", "torch.empty(1 << 44,").format(by="", after="calls")
    reply = trace(source, tensor(16))
    assert reply.failure is None
    answer, _ = interpret(InterpretRequest(reply.plans[0], ("input:0",)), [bytes(64)])
    assert (answer.problem, "70,368,744,177,664 bytes" in answer.detail) == (UNCHECKABLE, True)


def test_whatever_torch_says_of_an_operator_is_a_reply(trace: Trace) -> None:
    """An IndexError once ended the process without a word."""
    source = """
class ModelNew(nn.Module):
    def forward(self, x):
        return scale(torch.ops.aten._unsafe_index(x, [torch.full((4,), 1 << 40, device=x.device)]))
"""
    reply = trace(source, tensor(16))
    assert reply.failure is None
    answer, _ = interpret(InterpretRequest(reply.plans[0], ("input:0",)), [bytes(64)])
    assert answer.problem == "failed"
    assert "index 1099511627776 is out of bounds" in answer.detail


def test_a_sample_has_the_ends_of_each_axis_and_a_program_of_every_tenth_of_the_grid() -> None:
    for _ in range(100):
        chosen = sample((70_000, 1, 1), 12)
        assert chosen[:2] == [0, 69_999]
        assert {program // 7_000 for program in chosen[2:]} | {0, 9} == set(range(10))
        assert len(chosen) == len(set(chosen))
        assert all(0 <= program < 70_000 for program in chosen)
    assert sample((5, 3, 2), 12)[:6] == [0, 29, 4, 14, 25, 15]
    assert sample((5, 3, 2), 2) == [0, 29]


BESIDE_ITS_INPUT = """
@triton.jit
def beside_kernel(x, y, FIRST: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + FIRST + i))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        beside_kernel[(1,)](x, y, FIRST=0, B=16)
        return y
"""


@pytest.mark.parametrize(
    ("first", "behind", "problem", "words"),
    [
        (0, 0, None, ""),
        (1, 1, None, ""),
        (1, 0, "out_of_bounds", "byte offset 64 of 64"),
        (2, 1, "out_of_bounds", "byte offset 68 of 68"),
        (-1, 0, "out_of_bounds", "byte offset -4 of 64"),
    ],
)
def test_what_comes_before_an_unaligned_input_is_not_its_own_and_what_was_sent_behind_it_is(
    trace: Trace, first: int, behind: int, problem: str | None, words: str
) -> None:
    reply = trace(BESIDE_ITS_INPUT.replace("FIRST=0", f"FIRST={first}"), tensor(16))
    assert reply.failure is None
    values = torch.arange(16.0 + behind)
    request = InterpretRequest(reply.plans[0], ("input:0",), {"input:0": 4})
    answer, blobs = interpret(request, [values.numpy().tobytes()])
    assert answer.problem == problem
    assert words in answer.detail
    if problem is None:
        assert blobs[0].tobytes() == values[first : first + 16].numpy().tobytes()
