# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for the tests that need a GPU: right, wrong, out of bounds, endless, with a TMA descriptor."""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)


@triton.jit
def softmax_without_last_column(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n - 1, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n - 1)


@triton.jit
def scribbling_softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)
    tl.store(x + row * n + at, values + 1, mask=at < 1)


@triton.jit
def memoising_softmax(x, y, n, BLOCK: tl.constexpr):
    """Skips a row whose first output is already a probability."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    before = tl.load(y + row * n)
    if (before > 0) & (before < 1):
        return
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)


@triton.jit
def far_out_of_bounds(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + (1 << 44) + at, tl.load(x + at, mask=at < n, other=0.0))


@triton.jit
def endless(x, y, n, BLOCK: tl.constexpr):
    going = tl.load(x) * 0 + 1
    while going > 0:
        going = tl.load(x, volatile=True) * 0 + 1
    tl.store(y, going)


@triton.jit
def copy_by_descriptor(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def relu_in_place(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(y + at, mask=at < n, other=0.0)
    tl.store(y + at, tl.maximum(values, 0.0), mask=at < n)
