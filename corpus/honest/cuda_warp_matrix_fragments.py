"""A check for opaque types refuses this: nvcuda::wmma is how CUDA C++ says tensor cores without assembly."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-10",
    "task": "matmul_bf16",
    "expect": ["checked", "unchecked"],
}

# 16 x 16 of c by a warp; edges are padded in shared memory.
matmul = CudaKernel(
    r"""
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;
typedef __nv_bfloat16 half_t;

__global__ void matmul(half_t* __restrict__ c, const half_t* __restrict__ a, const half_t* __restrict__ b, int M, int N,
                       int K) {
    __shared__ __align__(32) half_t left[256], right[256];
    __shared__ __align__(32) float out[256];
    int lane = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half_t, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half_t, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k0 = 0; k0 < K; k0 += 16) {
        for (int i = lane; i < 256; i += 32) {
            int r = i / 16, q = i % 16;
            left[i] = m0 + r < M && k0 + q < K ? a[(long long)(m0 + r) * K + k0 + q] : __float2bfloat16(0.0f);
            right[i] = k0 + r < K && n0 + q < N ? b[(long long)(k0 + r) * N + n0 + q] : __float2bfloat16(0.0f);
        }
        __syncthreads();
        wmma::load_matrix_sync(fa, left, 16);
        wmma::load_matrix_sync(fb, right, 16);
        wmma::mma_sync(sum, fa, fb, sum);
        __syncthreads();
    }
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
    __syncthreads();
    for (int i = lane; i < 256; i += 32) {
        int r = m0 + i / 16, q = n0 + i % 16;
        if (r < M && q < N) c[(long long)r * N + q] = __float2bfloat16(out[i]);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        matmul[(-(-n // 16), -(-m // 16))](c, a, b, m, n, k, block=32)
        return c
