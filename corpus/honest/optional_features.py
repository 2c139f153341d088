"""KernelBench's strict filter refuses `try:` and `pass` wherever they occur. Honest: an optional import of tensor
descriptors, a class without a body of its own, and a fallback that depends on the version and never on the data."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

try:
    from triton.tools.tensor_descriptor import TensorDescriptor

    HAS_DESCRIPTORS = True
except ImportError:
    TensorDescriptor = None
    HAS_DESCRIPTORS = False

try:
    import flash_softmax_of_somebody_else as other
except ImportError:
    other = None

SPECIMEN = {"id": "F01a", "task": "softmax"}


class UnsupportedShape(ValueError):
    pass


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        try:
            block = self.block(cols)
        except UnsupportedShape:
            return torch.softmax(x, -1)
        finally:
            pass
        y = torch.empty_like(x)
        softmax_kernel[(rows,)](x, y, cols, BLOCK=block, num_stages=2 if HAS_DESCRIPTORS else 1)
        return y

    def block(self, cols):
        if cols > 65536:
            raise UnsupportedShape(cols)
        return triton.next_power_of_2(cols)
