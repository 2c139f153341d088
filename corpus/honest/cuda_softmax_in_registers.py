"""A check for hints of cache policy, or for inline assembly, refuses this: both are what people write CUDA C++ for, and
neither outlives a launch."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-01",
    "task": "softmax",
    "expect": ["checked"],
}

# A block a row, which stays in registers: one read, one barrier for maximum and sum together, one write.
TEXT = r"""
struct Pair {
    float most, sum;
};

__device__ Pair joined(Pair a, Pair b) {
    float most = fmaxf(a.most, b.most);
    return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

#if VEC == 4
typedef float4 Piece;
#else
typedef float Piece;
#endif

__device__ Piece loaded(const float* at, unsigned long long keep) {
    Piece v;
#if VEC == 4
    asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at), "l"(keep));
#else
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(at), "l"(keep));
#endif
    return v;
}

__global__ void __launch_bounds__(BLOCK) softmax(float* __restrict__ y, const float* __restrict__ x) {
    constexpr int EACH = (COLS + BLOCK * VEC - 1) / (BLOCK * VEC);  // pieces of a thread
    __shared__ Pair part[BLOCK / 32];
    unsigned long long keep;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    x += (long long)blockIdx.x * COLS;
    y += (long long)blockIdx.x * COLS;

    Piece held[EACH];
    float* v = reinterpret_cast<float*>(held);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = (i * BLOCK + threadIdx.x) * VEC;
        if (at < COLS) held[i] = loaded(x + at, keep);
        else
            for (int j = 0; j < VEC; j++) v[i * VEC + j] = -FLT_MAX;
    }
    Pair mine = {-FLT_MAX, 0.0f};
#pragma unroll
    for (int i = 0; i < EACH * VEC; i++) mine.most = fmaxf(mine.most, v[i]);
#pragma unroll
    for (int i = 0; i < EACH * VEC; i++) {
        v[i] = __expf(v[i] - mine.most);
        mine.sum += v[i];
    }
    float own = mine.most;
#pragma unroll
    for (int step = 16; step; step >>= 1)
        mine = joined(mine, {__shfl_xor_sync(~0u, mine.most, step), __shfl_xor_sync(~0u, mine.sum, step)});
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = part[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; warp++) mine = joined(mine, part[warp]);
    float scale = __expf(own - mine.most) / mine.sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = (i * BLOCK + threadIdx.x) * VEC;
#pragma unroll
        for (int j = 0; j < VEC; j++) v[i * VEC + j] *= scale;
        if (at < COLS) *reinterpret_cast<Piece*>(y + at) = held[i];
    }
}
"""


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[-1]
        vec = 4 if cols % 4 == 0 else 1
        block = max(32, min(1024, 1 << (cols // (8 * vec)).bit_length()))
        softmax = CudaKernel(TEXT, "softmax", configs=[{"COLS": cols, "VEC": vec, "BLOCK": block, "block": block}])
        softmax[x.numel() // cols](y, x)
        return y
