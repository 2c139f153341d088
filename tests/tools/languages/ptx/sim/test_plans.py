"""Plans whose kernels are PTX, replayed on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kerneltune.tools.replay.interpret import interpret
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import InterpretReply, InterpretRequest
from kerneltune.tools.schema.plan import Aten, Kernel, Launch, Plan, ScalarArg, Storage, TensorArg, TensorRef
from tests.tools.languages.ptx.sim.threads import HEAD

SCALE = f"""{HEAD}
.visible .entry scale(.param .u64 out, .param .u64 x, .param .f32 by, .param .u32 n) .reqntid 128 {{
    .reg .b32 i, t, most; .reg .b64 p, q; .reg .f32 v, f; .reg .pred out_of;
    mov.u32 i, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 i, i, 128, t;
    ld.param.u32 most, [n]; setp.ge.u32 out_of, i, most; @out_of ret;
    ld.param.u64 p, [x]; ld.param.u64 q, [out]; ld.param.f32 f, [by];
    mad.wide.u32 p, i, 4, p; mad.wide.u32 q, i, 4, q;
    ld.global.f32 v, [p]; mul.f32 v, v, f; st.global.f32 [q], v;
}}"""


def plan(text: str = SCALE, name: str = "scale", **options: object) -> Plan:
    """y = x * 3 for 200 numbers."""
    x, y = (TensorRef(i, "float32", (200,), (1,)) for i in range(2))
    chosen = {"block": [128, 1, 1], "shared_bytes": 0, "cluster": [1, 1, 1], **options}
    kernel = Kernel(name, "ptx", text, ("*fp32", "*fp32", "fp32", "i32"), chosen)
    args = (TensorArg(y), TensorArg(x), ScalarArg(3.0, "fp32"), ScalarArg(200, "i32"))
    storages = (Storage(0, 800, "input", "0"), Storage(1, 800, "scratch"))
    outputs = {"$tensor": {"storage": 1, "dtype": "float32", "shape": [200], "stride": [1], "offset": 0}}
    made = Aten("aten::empty.memory_format", ([200],), {"dtype": {"$dtype": "float32"}}, (y,))
    return Plan("main", "", "sm_90a", storages, (kernel,), (), (made, Launch(0, (2, 1, 1), args)), outputs)


def replayed(one: Plan) -> tuple[InterpretReply, list[float]]:
    data = torch.arange(200, dtype=torch.float32).numpy().tobytes()
    reply, blobs = interpret(InterpretRequest(one, ("input:0",)), [data])
    return reply, torch.frombuffer(bytearray(blobs[0].tobytes()), dtype=torch.float32).tolist() if blobs else []


def test_a_plan_with_a_ptx_kernel_is_replayed() -> None:
    reply, found = replayed(plan())
    assert (reply.problem, reply.detail) == (None, "")
    assert found == [3.0 * i for i in range(200)]


@pytest.mark.parametrize(
    ("change", "problem", "words"),
    [
        (("out_of, i, most", "out_of, i, 201"), "out_of_bounds", "byte 800 of x, which has 800"),
        (("ld.global.f32 v, [p]", "ld.global.f32 v, [p+2]"), "misaligned", "ld.global.f32 needs 4-byte alignment"),
        (("mul.f32 v, v, f", "top: bra top"), "step_limit", "no end in sight"),
        (("@out_of ret", "@out_of trap"), "assert_failed", "trap, PTX line"),
        (("mul.f32 v, v, f", "tcgen05.wait::ld.sync.aligned"), "uncheckable", "tcgen05.wait::ld.sync.aligned"),
        (("mul.f32 v, v, f", "mul.f32 v, v, nowhere"), "uncheckable", "'nowhere' is not declared"),
        (("@out_of ret;", "bar.sync 1, 256; @out_of ret;"), "deadlock", "bar.sync, PTX line"),
        (("mul.f32 v, v, f", "mul.f32 v, v, f f"), "failed", "PTX line"),
        ((", .param .u32 n)", ")"), "failed", "takes 3 arguments, 4 were given"),
        ((".reqntid 128", ".reqntid 64"), "failed", "reqntid 64"),
    ],
)  # fmt: skip
def test_each_way_to_fail_has_its_name_and_its_line(change: tuple[str, str], problem: str, words: str) -> None:
    reply, _ = replayed(plan(SCALE.replace(*change)))
    assert reply.problem == problem
    assert words in reply.detail


def test_blocks_that_only_begin_together_are_replayed_like_others() -> None:
    reply, found = replayed(plan(cluster=[2, 1, 1]))
    assert (reply.problem, found[199]) == (None, 597.0)


def test_clusters_and_unknown_entries_are_named() -> None:
    rank = SCALE.replace("@out_of ret;", "@out_of ret; mov.u32 %told, %cluster_ctarank;", 1).replace(
        "{", "{ .reg .b32 %told;", 1
    )
    told = replayed(plan(rank, cluster=[2, 1, 1]))[0]
    assert (told.problem, "clusters whose blocks know of each other" in told.detail) == ("uncheckable", True)
    assert "it has scale" in replayed(plan(name="other"))[0].detail
    assert replayed(plan(block=[2048, 1, 1]))[0].problem == "failed"


def test_cooperative_launches_have_all_their_blocks_at_once() -> None:
    one = plan()
    launch = one.launches[0]
    assert replayed(replace(one, run=(one.run[0], replace(launch, cooperative=True))))[0].problem is None
    many = replayed(replace(one, run=(one.run[0], replace(launch, cooperative=True, grid=(100_000, 1, 1)))))[0]
    assert (many.problem, "cooperative" in many.detail) == ("uncheckable", True)


def test_the_confined_interpreter_knows_ptx(machine: Machine) -> None:
    data = torch.arange(200, dtype=torch.float32).numpy().tobytes()
    with machine.interpreter() as worker:
        message = worker.call(
            encode(InterpretRequest(plan(), ("input:0",))), [data], timeout_s=60, max_blob_bytes=len(data)
        )
    assert decode(InterpretReply, message.body).problem is None
    assert torch.frombuffer(bytearray(message.blobs[0]), dtype=torch.float32).tolist() == [3.0 * i for i in range(200)]
