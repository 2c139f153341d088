"""A check for what synchronises groups of threads by names of its own refuses this: cooperative_groups of a block and a
warp are barriers and shuffles."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-05",
    "task": "row_sum",
    "expect": ["checked"],
}

row_sum = CudaKernel(
    r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__global__ void row_sum(float* __restrict__ y, const float* __restrict__ x, int cols) {
    __shared__ float part[8];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    const float* row = x + (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = block.thread_rank(); i < cols; i += block.size()) sum += row[i];
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) {
        for (int i = 1; i < 8; i++) sum += part[i];
        y[blockIdx.x] = sum;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
        row_sum[y.numel()](y, x, x.shape[-1], block=256)
        return y
