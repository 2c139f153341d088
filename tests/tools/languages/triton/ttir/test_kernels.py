"""Whole kernels, compared with torch in float64."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import pytest
import torch

from kerneltune.tools.languages.triton.ttir.interpreter import RunStats, run
from kerneltune.tools.languages.triton.ttir.ir import UnsupportedOp, parse
from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue
from tests.tools.languages.triton.ttir import kernels
from tests.tools.languages.triton.ttir.lowering import launch, lower, pointer


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kernel", "block"), [(kernels.softmax_row, 128), (kernels.softmax_online, 32)])
def test_softmax_matches_torch_in_one_pass_and_online(kernel: Any, block: int) -> None:
    x, y = torch.randn(37, 100), torch.empty(37, 100)
    launch(kernel, (37,), x=x, y=y, n=100, B=block)
    close(y, x.double().softmax(1))


def test_programs_are_batched() -> None:
    x, y = torch.randn(64, 128), torch.empty(64, 128)
    alone = launch(kernels.softmax_row, (1,), x=x, y=y, n=128, B=128)
    assert launch(kernels.softmax_row, (64,), x=x, y=y, n=128, B=128) == RunStats(64, batches=1, ops=alone.ops)


def test_layernorm_of_fp16_matches_torch() -> None:
    x, y = torch.randn(9, 100).half(), torch.empty(9, 100).half()
    w, b = torch.randn(100), torch.randn(100)
    launch(kernels.layernorm, (9,), x=x, w=w, b=b, y=y, n=100, eps=1e-5, B=128)
    close(y, torch.nn.functional.layer_norm(x.double(), (100,), w.double(), b.double(), 1e-5), 2e-3)


def run_matmul(dtype: torch.dtype, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, c = torch.randn(70, 90).to(dtype), torch.randn(90, 50).to(dtype), torch.empty(70, 50)
    sizes = {"M": 70, "N": 50, "K": 90, "sam": 90, "sak": 1, "sbk": 50, "sbn": 1, "scm": 50, "scn": 1}
    launch(kernels.matmul, (20,), a=a, b=b, c=c, **sizes, BM=16, BN=16, BK=32, G=2, PREC=precision)
    return c, a.double() @ b.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matmul_with_swizzle_and_masks_matches_torch(dtype: torch.dtype) -> None:
    close(*run_matmul(dtype, "ieee"), 1e-4)


def test_tf32_products_lose_precision_and_tf32x3_products_do_not() -> None:
    found, wanted = run_matmul(torch.float32, "tf32")
    assert 1e-3 < (found - wanted).abs().max() < 5e-2
    close(*run_matmul(torch.float32, "tf32x3"), 1e-4)


def test_split_k_adds_partial_products_atomically() -> None:
    a, b, c = torch.randn(32, 64), torch.randn(64, 32), torch.zeros(32, 32)
    launch(kernels.matmul_split_k, (2, 2, 2), a=a, b=b, c=c, M=32, N=32, K=64, BM=16, BN=16, BK=16, S=2)
    close(c, a.double() @ b.double(), 1e-4)


def test_persistent_programs_run_their_own_number_of_tiles() -> None:
    a, b, c = torch.randn(48, 32).bfloat16(), torch.randn(32, 48).bfloat16(), torch.empty(48, 48)
    launch(kernels.matmul_persistent, (4,), a=a, b=b, c=c, M=48, N=48, K=32, BM=16, BN=16, BK=16, P=4)
    close(c, a.double() @ b.double(), 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_matches_torch(causal: bool) -> None:
    q, k, v = (torch.randn(2, 100, 32).half() for _ in range(3))
    o = torch.empty_like(q)
    launch(kernels.attention, (4, 2), q=q, k=k, v=v, o=o, T=100, scale=0.2, D=32, BM=32, BN=32, CAUSAL=causal)
    attend = torch.nn.functional.scaled_dot_product_attention
    close(o, attend(q.double(), k.double(), v.double(), is_causal=causal, scale=0.2), 2e-3)


@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_runs_in_both_directions(reverse: bool) -> None:
    x, y = torch.randn(5, 100), torch.empty(5, 100)
    launch(kernels.cumsum, (5,), x=x, y=y, n=100, B=128, REVERSE=reverse)
    wanted = x.double().flip(1).cumsum(1).flip(1) if reverse else x.double().cumsum(1)
    close(y, wanted)


def test_argmax_finds_the_first_of_equals_and_argmin_can_find_any() -> None:
    x = torch.randint(0, 10, (20, 100)).float()
    values, indices = torch.empty(20), torch.empty(20, dtype=torch.int32)
    launch(kernels.argmax, (20,), x=x, yv=values, yi=indices, n=100, B=128)
    close(values, x.max(1).values, 0)
    first = (x == x.max(1, keepdim=True).values).int().argmax(1)
    assert indices.tolist() == first.tolist()
    launch(kernels.argmin_last, (20,), x=x, yi=indices, n=100, B=128)
    assert x[torch.arange(20), indices.long()].tolist() == x.min(1).values.tolist()


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_are_clipped_at_the_edges() -> None:
    x, y = torch.randn(20, 40), torch.zeros(20, 40)
    launch(kernels.block_pointer_copy, (2,), x=x, y=y, M=20, N=40, BM=16, BN=16)
    close(y, x * 2)


@pytest.mark.parametrize("capability", [80, 90])
def test_device_made_descriptors_are_clipped_at_the_edges(capability: int) -> None:
    x, y = torch.randn(20, 36), torch.zeros(20, 36)
    launch(kernels.descriptor_device, (2, 3), capability, x=x, y=y, M=20, N=36, BM=16, BN=16)
    close(y, x + 1)


@pytest.mark.parametrize("capability", [80, 90])
def test_a_host_made_descriptor_fills_its_own_shape_and_stride_arguments(capability: int) -> None:
    x, y = torch.randn(20, 36), torch.zeros(20, 36)
    dx, dy = (DescriptorValue(pointer(name, t), (20, 36), (36, 1), (16, 16), "f32") for name, t in (("x", x), ("y", y)))
    text = lower(
        kernels.descriptor_host,
        {"dx": "tensordesc<fp32[16, 16]>", "dy": "tensordesc<fp32[16, 16]>", "scale": "fp32"},
        {"BM": 16, "BN": 16},
        capability,
    )
    run(parse(text), (2, 3, 1), [dx, dy, 3.0])
    close(y, x * 3, 1e-6)


def test_descriptors_gather_scatter_and_reduce_rows() -> None:
    x, y, z = torch.randn(16, 16), torch.ones(16, 16), torch.zeros(16, 16)
    rows = torch.randperm(16)[:8].int()
    launch(kernels.descriptor_reduce_gather, (1,), x=x, idx=rows, y=y, z=z, M=16, N=16, BN=16, R=8)
    close(y[:8], x[rows.long()] + 1)
    close(z[rows.long()], x[rows.long()])


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32, torch.int64])
def test_descriptors_of_integers_compare_them_with_the_sign_that_they_have(dtype: torch.dtype) -> None:
    x, middle = (torch.tensor([row] * 8).to(dtype) for row in ([-1, 1, 9, -(2**31)] * 4, [7] * 16))
    low, high = middle.clone(), middle.clone()
    launch(kernels.descriptor_extremes, (1,), x=x, low=low, high=high, M=8, N=16, BM=8, BN=16)
    pairs = [(min(a, 7), max(a, 7)) for a in x[0].tolist()]
    assert list(zip(low[0].tolist(), high[0].tolist(), strict=True)) == pairs


@pytest.mark.parametrize("descending", [False, True])
def test_sort_orders_rows(descending: bool) -> None:
    x, y = torch.randn(6, 32), torch.empty(6, 32)
    launch(kernels.sort_rows, (6,), x=x, y=y, B=32, DESC=descending)
    close(y, x.sort(1, descending=descending).values, 0)


def test_cross_entropy_skips_ignored_labels() -> None:
    x, labels, loss = torch.randn(8, 100).bfloat16(), torch.randint(0, 100, (8,)), torch.empty(8)
    labels[3] = -100
    launch(kernels.cross_entropy, (8,), x=x, labels=labels, loss=loss, n=100, B=32)
    close(loss, torch.nn.functional.cross_entropy(x.double(), labels, reduction="none"), 1e-4)


def test_rope_rotates_in_place() -> None:
    x, angle = torch.randn(5, 64), torch.randn(5, 32)
    a, b = x[:, :32].clone(), x[:, 32:].clone()
    launch(kernels.rope, (5,), x=x, cos=angle.cos(), sin=angle.sin(), n=64, H=32)
    close(x, torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1))


def test_int8_quantisation_matches_torch() -> None:
    x, q, s = torch.randn(7, 100), torch.empty(7, 100, dtype=torch.int8), torch.empty(7)
    launch(kernels.quantise_int8, (7,), x=x, q=q, s=s, n=100, B=128)
    close(s, x.abs().max(1).values / 127)
    assert torch.equal(q, (x / s[:, None]).round().clamp(-127, 127).to(torch.int8))


def test_philox_gives_the_published_words() -> None:
    words = torch.empty(16, dtype=torch.int32)
    launch(kernels.philox_words, (1,), y=words, seed=0, B=16)
    # Random123's known answer for a zero counter and key
    assert int(words[0]) & 0xFFFFFFFF == 0x6627E8D5


def test_dropout_keeps_and_scales_the_expected_share() -> None:
    x, y = torch.ones(4096), torch.empty(4096)
    launch(kernels.dropout, (32,), x=x, y=y, n=4096, p=0.25, seed=42, B=128)
    assert sorted(set(y.tolist())) == pytest.approx([0, 1 / 0.75])
    assert 0.70 < (y > 0).float().mean() < 0.80


def test_join_split_interleave_and_cat_move_every_element() -> None:
    x, y, z = torch.randn(32), torch.empty(32), torch.empty(16)
    launch(kernels.interleave, (1,), x=x, y=y, z=z, B=16)
    mixed = torch.stack([x[:16], x[16:]], 1).reshape(-1)
    close(y, mixed, 0)
    close(z, mixed[:16] - mixed[16:], 0)
    launch(kernels.cat_pair, (1,), x=x, y=y, B=16)
    close(y.sort().values, x.sort().values, 0)


def test_while_loops_end_per_program() -> None:
    starts = torch.arange(1, 30, dtype=torch.int32)
    steps = torch.empty_like(starts)
    launch(kernels.collatz, (29,), x=starts, y=steps)
    assert steps[26].item() == 111
    assert steps[:4].tolist() == [0, 1, 7, 2]


def test_loops_of_different_length_and_divergent_branches_agree_with_a_sequential_run() -> None:
    x, y = torch.randn(40), torch.empty(40)
    launch(kernels.triangular, (40,), x=x, y=y, n=40)
    close(y, (x.double().clamp(min=0) * torch.arange(40)).cumsum(0), 1e-4)


def test_early_returns_and_calls_of_noinline_functions_follow_each_program() -> None:
    x, y = torch.randn(6, 16), torch.zeros(6, 16)
    launch(kernels.early_return, (6,), x=x, y=y, n=4, B=16)
    close(y, torch.cat([x[:4], torch.zeros(2, 16)]), 0)
    launch(kernels.noinline_call, (6,), x=x, y=y, B=16)
    seed = x.reshape(-1)[:6]
    factor = torch.where(torch.arange(6) > 2, seed * seed, seed + 1)
    close(y, x * factor[:, None])


def test_loops_may_count_down() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    launch(kernels.countdown, (1,), y=y, n=7)
    assert y.item() == 7531


def test_welford_reduces_triples_through_its_region() -> None:
    x, mean, var = torch.randn(6, 100), torch.empty(6), torch.empty(6)
    launch(kernels.welford, (6,), x=x, mean=mean, var=var, n=100, B=128)
    close(mean, x.double().mean(1))
    close(var, x.double().var(1, correction=0), 1e-4)


def test_an_associative_scan_of_pairs_solves_a_recurrence() -> None:
    a, b, y = torch.rand(3, 32), torch.randn(3, 32), torch.empty(3, 32)
    launch(kernels.linear_recurrence, (3,), a=a, b=b, y=y, B=32)
    wanted, h = [], torch.zeros(3, dtype=torch.float64)
    for i in range(32):
        h = a[:, i].double() * h + b[:, i].double()
        wanted.append(h)
    close(y, torch.stack(wanted, 1))


def test_gather_and_histogram_index_within_the_tensor() -> None:
    x, y, h = torch.randn(32), torch.empty(32), torch.empty(16, dtype=torch.int32)
    index = torch.randint(0, 16, (32,), dtype=torch.int32)
    launch(kernels.gather_histogram, (1,), x=x, idx=index, y=y, h=h, B=32, BINS=16)
    close(y, x[index.long()], 0)
    assert h.tolist() == torch.bincount(index, minlength=16).tolist()


def test_transpose_moves_rows_to_columns() -> None:
    x, y = torch.randn(16, 32), torch.empty(32, 16)
    launch(kernels.transpose, (1,), x=x, y=y, M=16, N=32)
    close(y, x.T, 0)


def test_integer_reductions_are_exact() -> None:
    x, y = torch.randint(-1000, 1000, (4, 32), dtype=torch.int32), torch.empty(4, 4, dtype=torch.int32)
    launch(kernels.reduce_kinds, (4,), x=x, y=y, B=32)
    xor = torch.tensor([reduce(operator.xor, row) for row in x.tolist()])
    wanted = torch.stack([xor, x.max(1).values, x.min(1).values, x.sum(1)], 1)
    assert y.tolist() == wanted.tolist()


def test_batched_and_int8_dots_match_torch() -> None:
    a, b, c = torch.randn(4, 16, 16), torch.randn(4, 16, 16), torch.empty(4, 16, 16)
    launch(kernels.batched_dot, (1,), a=a, b=b, c=c, L=4, B=16)
    close(c, a.double() @ b.double(), 1e-4)
    p, q = (torch.randint(-128, 128, (32, 32), dtype=torch.int8) for _ in range(2))
    r = torch.empty(32, 32, dtype=torch.int32)
    launch(kernels.dot_int8, (1,), a=p, b=q, c=r, B=32)
    assert torch.equal(r, p.int() @ q.int())


FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def narrow(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """32 rows of 64 numbers of a narrow format, as stored and as float64."""
    if kind == "e2m1":
        codes = torch.randint(0, 256, (32, 32), dtype=torch.uint8)
        return codes, FOUR_BITS[torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()]
    stored = torch.randn(32, 64).to(
        {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[kind]
    )
    return stored, stored.double()


@pytest.mark.parametrize(("kind", "other"), [("e4m3", "e5m2"), ("e2m1", "e2m1"), ("e4m3", "e2m1"), ("bf16", "e4m3")])
def test_a_scaled_dot_of_narrow_floats_matches_torch(kind: str, other: str) -> None:
    (a, left), (b, right) = narrow(kind), narrow(other)
    by, by_right = (torch.randint(120, 135, (32, 2), dtype=torch.uint8) for _ in range(2))
    c = torch.empty(32, 32)
    sizes = {"KA": a.shape[1], "KB": b.shape[1]}
    launch(kernels.dot_scaled, (1,), a=a, by=by, b=b, by_right=by_right, c=c, KIND=kind, OTHER=other, **sizes)
    wide, wide_right = (torch.exp2(s.double() - 127).repeat_interleave(32, 1) for s in (by, by_right))
    left, right = left * (1 if kind == "bf16" else wide), (right * wide_right).T
    close(c / (left.abs() @ right.abs()), left @ right / (left.abs() @ right.abs()), 1e-6)


def test_a_scale_of_all_ones_is_not_a_number() -> None:
    (a, _), (b, _) = narrow("e4m3"), narrow("e4m3")
    by, c = torch.full((32, 2), 127, dtype=torch.uint8), torch.empty(32, 32)
    by[3, 1] = 255
    sizes = {"KA": 64, "KB": 64}
    plain = torch.full((32, 2), 127, dtype=torch.uint8)
    launch(kernels.dot_scaled, (1,), a=a, by=by, b=b, by_right=plain, c=c, KIND="e4m3", OTHER="e4m3", **sizes)
    assert c.isnan().all(1).tolist() == [row == 3 for row in range(32)]
    assert not c[:3].isnan().any()


def test_scaled_operands_in_float16_are_left_to_a_gpu() -> None:
    (b, _), a = narrow("e4m3"), torch.randn(32, 64).half()
    by, c = torch.full((32, 2), 127, dtype=torch.uint8), torch.empty(32, 32)
    sizes = {"KA": 64, "KB": 64}
    with pytest.raises(UnsupportedOp, match="format fp16"):
        launch(kernels.dot_scaled, (1,), a=a, by=by, b=b, by_right=by, c=c, KIND="fp16", OTHER="e4m3", **sizes)
