"""Replaying a plan on the CPU with a launcher that computes with torch."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kerneltune.tools.replay.replay import (
    Argument,
    NotAllowed,
    Replay,
    ReplayError,
    gather_outputs,
    output_layout,
    poison,
    resolve,
    view_of,
)
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.plan import (
    ALLOWED,
    Aten,
    Kernel,
    Launch,
    Plan,
    ScalarArg,
    Step,
    Storage,
    TensorArg,
    TensorRef,
    is_allowed,
)

DOUBLE = Kernel("double", "ttir", "", ("*fp32", "*fp32", "i32"))


class Doubling:
    """Writes twice the first argument into the second."""

    def launch(
        self, kernel_index: int, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Argument], launch: Launch
    ) -> None:
        source, target = args[0], args[1]
        assert isinstance(source, torch.Tensor)
        assert isinstance(target, torch.Tensor)
        target.copy_(source * 2)


def ref(storage: int, *shape: int, offset: int = 0, dtype: str = "float32") -> TensorRef:
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return TensorRef(storage, dtype, shape, tuple(stride[: len(shape)]), offset)


def tagged(tensor: TensorRef) -> dict[str, Any]:
    return {"$tensor": encode(tensor)}


def make_plan(
    storages: Sequence[Storage], run: Sequence[Step], output: TensorRef, prepare: Sequence[Step] = ()
) -> Plan:
    return Plan("main", "", "sm_90", tuple(storages), (DOUBLE,), tuple(prepare), tuple(run), tagged(output))


def doubling(source: TensorRef, target: TensorRef) -> Launch:
    return Launch(0, (1, 1, 1), (TensorArg(source), TensorArg(target), ScalarArg(4, "i32")))


def empty(out: TensorRef) -> Aten:
    return Aten("aten::empty.memory_format", (list(out.shape),), {"dtype": {"$dtype": out.dtype}}, (out,))


def as_bytes(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(torch.uint8)


X, Y, Z = Storage(0, 16, "input", "0"), Storage(1, 16, "scratch"), Storage(2, 16, "scratch")


def test_a_launch_writes_the_output_that_an_allocation_made() -> None:
    plan = make_plan([X, Y], [empty(ref(1, 4)), doubling(ref(0, 4), ref(1, 4))], ref(1, 4))
    out = Replay(plan, "cpu", Doubling(), {"input:0": as_bytes(1, 2, 3, 4)}).run()
    assert out.tolist() == [2, 4, 6, 8]


def test_what_nobody_writes_is_nan() -> None:
    plan = make_plan([X, Y], [empty(ref(1, 4))], ref(1, 4))
    out = Replay(plan, "cpu", Doubling(), {"input:0": as_bytes(1, 2, 3, 4)}).run()
    assert out.isnan().all()


def test_a_bound_output_lies_in_the_caller_s_memory() -> None:
    plan = make_plan([X, Y], [empty(ref(1, 4)), doubling(ref(0, 4), ref(1, 4))], ref(1, 4))
    mine = torch.zeros(512, dtype=torch.uint8)
    replay = Replay(plan, "cpu", Doubling(), {"input:0": as_bytes(1, 2, 3, 4)}, bound={1: mine[:16]})
    replay.run()
    assert mine[:16].view(torch.float32).tolist() == [2, 4, 6, 8]
    assert not mine[16:].any()


def test_a_view_inside_a_slice_counts_from_the_slice() -> None:
    whole = as_bytes(0, 1, 2, 3, 4, 5, 6, 7)
    assert view_of(whole[8:24], ref(0, 2, offset=1)).tolist() == [3, 4]


@pytest.mark.parametrize("bad", [ref(0, 5), ref(0, 4, offset=1), TensorRef(0, "float32", (2,), (-1,), 1)])
def test_a_view_that_leaves_its_storage_is_refused(bad: TensorRef) -> None:
    with pytest.raises(ReplayError, match="leaves its storage"):
        view_of(as_bytes(1, 2, 3, 4), bad)


def test_a_library_operator_s_result_becomes_a_storage_and_a_second_run_makes_it_anew() -> None:
    add = Aten("aten::add.Tensor", (tagged(ref(0, 4)), 1), {}, (ref(1, 4),), library=True)
    replay = Replay(make_plan([X, Y], [add], ref(1, 4)), "cpu", None, {"input:0": as_bytes(1, 2, 3, 4)})
    first, second = replay.run(), replay.run()
    assert first.tolist() == second.tolist() == [2, 3, 4, 5]
    assert first.data_ptr() != second.data_ptr()


def test_a_result_in_other_strides_than_recorded_is_copied_into_them() -> None:
    column_major = TensorRef(1, "float32", (2, 2), (1, 2))
    clone = Aten("aten::clone", (tagged(ref(0, 2, 2)),), {}, (column_major,))
    out = Replay(make_plan([X, Y], [clone], column_major), "cpu", None, {"input:0": as_bytes(1, 2, 3, 4)}).run()
    assert out.tolist() == [[1, 2], [3, 4]]
    assert out.stride() == (1, 2)


def test_an_in_place_operator_changes_the_storage_that_it_names() -> None:
    steps = [empty(ref(1, 4)), Aten("aten::fill_.Scalar", (tagged(ref(1, 4)), 7), {}, (ref(1, 4),))]
    out = Replay(make_plan([X, Y], steps, ref(1, 2, offset=2)), "cpu", None, {"input:0": as_bytes(0, 0, 0, 0)}).run()
    assert out.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("op", "args", "value"),
    [
        ("aten::zeros", ([4],), 0.0),
        ("aten::full", ([4], {"$float": "inf"}), float("inf")),
        ("aten::full_like", ({"$tensor": encode(ref(0, 4))}, 3), 3.0),
        ("aten::new_full", ({"$tensor": encode(ref(0, 4))}, [4], 2.5), 2.5),
        ("aten::ones", ([4],), 1.0),
    ],
)
def test_a_fill_is_done_again_in_the_same_memory_in_every_run(op: str, args: tuple[Any, ...], value: float) -> None:
    plan = make_plan([X, Y], [Aten(op, args, {}, (ref(1, 4),))], ref(1, 4))
    replay = Replay(plan, "cpu", None, {"input:0": as_bytes(1, 2, 3, 4)})
    first = replay.run()
    first.zero_()
    assert replay.run().tolist() == [value] * 4
    assert replay.run().data_ptr() == first.data_ptr()


def test_a_second_replay_shares_constants_and_prepared_storages() -> None:
    data = base64.b64encode(zlib.compress(np.arange(4, dtype=np.float32).tobytes())).decode()
    constant, kept = Storage(1, 16, "constant", data=data), Storage(2, 16, "prepared")
    clone = Aten("aten::clone", (tagged(ref(1, 4)),), {}, (ref(2, 4),))
    plan = make_plan([X, constant, kept], [], ref(2, 4), [clone])
    first = Replay(plan, "cpu", None, {"input:0": as_bytes(0, 0, 0, 0)})
    first.prepare()
    second = Replay(plan, "cpu", None, {"input:0": as_bytes(0, 0, 0, 0)}, ready=first.shareable())
    assert second.run().tolist() == [0, 1, 2, 3]
    assert second.run().data_ptr() == first.run().data_ptr()


def test_an_operator_off_the_list_is_refused() -> None:
    save = Aten("aten::from_file", ("/etc/passwd",), {}, (ref(1, 4),))
    with pytest.raises(NotAllowed, match="from_file"):
        Replay(make_plan([X, Y], [save], ref(1, 4)), "cpu", None, {"input:0": as_bytes(1, 2, 3, 4)}).run()


def test_an_operator_of_another_library_is_refused() -> None:
    assert not is_allowed("mylib::add")
    with pytest.raises(NotAllowed):
        resolve("aten::add.NoSuchOverload")


def test_every_operator_on_the_list_exists() -> None:
    assert [name for name in sorted(ALLOWED) if not hasattr(torch.ops.aten, name)] == []


def test_an_input_that_was_not_given_is_named() -> None:
    with pytest.raises(ReplayError, match="input:0"):
        Replay(make_plan([X], [], ref(0, 4)), "cpu", None, {})


def test_an_input_that_is_too_small_is_refused() -> None:
    with pytest.raises(ReplayError, match="needs 16"):
        Replay(make_plan([X], [], ref(0, 4)), "cpu", None, {"input:0": as_bytes(1)})


def test_a_constant_that_unpacks_to_more_than_it_says_is_refused() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(1 << 20))).decode()
    with pytest.raises(ReplayError, match="more than 16 bytes"):
        Replay(make_plan([Storage(0, 16, "constant", data=bomb)], [], ref(0, 4)), "cpu", None, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_first_poison_is_nan_in_every_format(dtype: torch.dtype) -> None:
    flat = torch.zeros(64, dtype=torch.uint8)
    poison(flat, 0)
    assert flat.view(dtype).isnan().all()


def test_poison_covers_the_odd_bytes_at_the_end() -> None:
    flat = torch.zeros(7, dtype=torch.uint8)
    poison(flat, 1)
    assert (flat != 0).all()


def test_outputs_leave_as_bytes_in_row_major_order() -> None:
    leaves: list[np.ndarray[Any, Any]] = []
    tree = gather_outputs({"a": (torch.arange(4.0).reshape(2, 2).t(), 3), "b": torch.tensor(2.0)}, leaves)
    pair = {"$tuple": [{"$blob": 0, "dtype": "float32", "shape": [2, 2]}, 3]}
    assert tree == {"$dict": {"a": pair, "b": {"$blob": 1, "dtype": "float32", "shape": []}}}
    assert leaves[0].view(np.float32).tolist() == [0, 2, 1, 3]


def test_only_outputs_that_the_run_allocates_lie_in_the_caller_s_buffer() -> None:
    add = Aten("aten::add.Tensor", (tagged(ref(0, 4)), 1), {}, (ref(2, 4),), library=True)
    outputs = [tagged(ref(1, 4)), tagged(ref(1, 2, offset=2)), tagged(ref(2, 4)), tagged(ref(0, 4))]
    plan = Plan("main", "", "sm_90", (X, Y, Z), (DOUBLE,), (), (empty(ref(1, 4)), add), outputs)
    layout = output_layout(plan)
    assert layout.bound == {1: 0}
    assert [r.storage for r, _ in layout.copied] == [2, 0]
    assert layout.nbytes == 3 * 512
