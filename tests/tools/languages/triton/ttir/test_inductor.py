"""The helper functions that TorchInductor's kernels are made of: regions for reduce, scan and sort, libdevice calls."""

from __future__ import annotations

import pytest
import torch

from tests.tools.languages.triton.ttir import inductor_kernels as kernels
from tests.tools.languages.triton.ttir.lowering import launch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_a_pointwise_kernel_with_libdevice_erf_matches_torch() -> None:
    x, bias, y = torch.randn(3, 64).half(), torch.randn(64).half(), torch.empty(3, 64).half()
    launch(kernels.pointwise_gelu, (2,), in_ptr0=x, in_ptr1=bias, out_ptr0=y, xnumel=192, XBLOCK=128)
    wanted = torch.nn.functional.gelu(x.double() + bias.double())
    torch.testing.assert_close(y.double(), wanted, rtol=2e-3, atol=2e-3)


def test_a_persistent_reduction_matches_torch() -> None:
    x, y = torch.randn(10, 100), torch.empty(10, 100)
    launch(kernels.persistent_softmax, (3,), in_ptr0=x, out_ptr0=y, xnumel=10, r0_numel=100, XBLOCK=4, R0_BLOCK=128)
    torch.testing.assert_close(y, x.softmax(1))


def test_a_looped_welford_reduction_matches_torch() -> None:
    x, mean, rstd = torch.randn(6, 200) + 3, torch.empty(6), torch.empty(6)
    sizes = {"xnumel": 6, "r0_numel": 200, "XBLOCK": 4, "R0_BLOCK": 64}
    launch(kernels.looped_welford, (2,), in_ptr0=x, out_ptr0=mean, out_ptr1=rstd, **sizes)
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(rstd, (x.var(1, correction=0) + 1e-5).rsqrt())


def test_reductions_with_indices_any_and_stable_sorts_match_torch() -> None:
    x = torch.randint(-3, 4, (6, 32)).float()
    largest, some, order = (torch.empty(n, dtype=torch.int32) for n in (6, 6, 192))
    sizes = {"xnumel": 6, "XBLOCK": 4, "R0_BLOCK": 32}
    launch(kernels.index_reductions, (2,), in_ptr0=x, out_ptr0=largest, out_ptr1=some, out_ptr2=order, **sizes)
    assert largest.tolist() == (x == x.max(1, keepdim=True).values).int().argmax(1).tolist()
    assert some.tolist() == (x > 2).any(1).int().tolist()
    assert order.tolist() == x.sort(dim=1, stable=True).indices.reshape(-1).tolist()


def test_an_associative_scan_matches_torch() -> None:
    x, y = torch.rand(6, 32) + 0.5, torch.empty(6, 32)
    launch(kernels.split_cumprod, (2,), in_ptr0=x, out_ptr0=y, xnumel=6, XBLOCK=4, R0_BLOCK=32)
    torch.testing.assert_close(y, x.cumprod(1))
