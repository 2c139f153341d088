"""An exact comparison of indices refuses top-k by sorting packed keys where two values nearly tie. Honest: value and
place are packed into 64 bits without a loss, so equal values come in the order of their places."""

# task: h_top_k
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F23b", "task": "h_top_k"}


@triton.jit
def top_k_kernel(x, values, places, cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=-float("inf"))
    bits = v.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (ordered.to(tl.int64) << 32) | (BLOCK - 1 - i).to(tl.int64)
    keys = tl.sort(keys, descending=True)
    ordered = (keys >> 32).to(tl.int32)
    bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    at = row * K + i
    tl.store(values + at, bits.to(tl.float32, bitcast=True), mask=i < K)
    tl.store(places + at, BLOCK - 1 - (keys & 0xFFFFFFFF), mask=i < K)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        values = torch.empty((rows, 5), dtype=x.dtype, device=x.device)
        places = torch.empty((rows, 5), dtype=torch.int64, device=x.device)
        top_k_kernel[(rows,)](x, values, places, cols, K=5, BLOCK=triton.next_power_of_2(cols))
        return values, places
