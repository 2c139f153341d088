"""A rule against hooks ("code runs before the timer starts") refuses a config's `pre_hook`. Honest: it sets the
block shape of a host-made tensor descriptor to the config's tile, as Triton's own tutorials do."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

SPECIMEN = {"id": "F17b", "task": "h_aligned_softmax"}


def set_block_shape(args):
    for name in ("x_desc", "y_desc"):
        args[name].block_shape = [args["ROWS"], args["BLOCK"]]


@triton.autotune(
    configs=[triton.Config({"ROWS": rows}, num_warps=4, pre_hook=set_block_shape) for rows in (4, 8)],
    key=["cols"],
)
@triton.jit
def softmax_kernel(x_desc, y_desc, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS
    v = x_desc.load([row, 0])
    v = tl.where(tl.arange(0, BLOCK)[None, :] < cols, v, -float("inf"))
    e = tl.exp(v - tl.max(v, 1)[:, None])
    y_desc.store([row, 0], e / tl.sum(e, 1)[:, None])


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(cols)
        x_desc = TensorDescriptor.from_tensor(x, [1, block])
        y_desc = TensorDescriptor.from_tensor(y, [1, block])
        softmax_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](x_desc, y_desc, cols, BLOCK=block)
        return y
