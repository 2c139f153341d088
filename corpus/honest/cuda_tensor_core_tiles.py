"""A rule that hand-written machine instructions are a way around the evaluator refuses matrix instructions. Honest:
ldmatrix, mma.sync and asynchronous copies, what a compiler writes for the same product."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-02",
    "task": "matmul_bf16",
    "expect": ["checked", "unchecked"],
}

# 64 x 64 of c by four warps of 32 x 32 each; a and b come in two stages of 32 of k, rows padded by 16 bytes.
TEXT = r"""
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

typedef __nv_bfloat16 half_t;
constexpr int M_TILE = 64, N_TILE = 64, K_TILE = 32, A_ROW = K_TILE + 8, B_ROW = N_TILE + 8, STAGES = 2;

struct Tiles {
    half_t a[STAGES][M_TILE * A_ROW], b[STAGES][K_TILE * B_ROW];
};

__device__ unsigned place(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Eight neighbours: at once where ALIGNED says that rows begin at 16 bytes, else one at a time; zeros past the edge.
__device__ void fetch(half_t* to, const half_t* from, int row, int rows, int column, int columns) {
    const half_t* at = from + (long long)row * columns + column;
    if (ALIGNED) {
        int missing = row < rows && column < columns ? 0 : 16;
        __pipeline_memcpy_async(to, missing ? from : at, 16, missing);
    } else {
        for (int i = 0; i < 8; i++) to[i] = row < rows && column + i < columns ? at[i] : __float2bfloat16(0.0f);
    }
}

__device__ void stage(Tiles& tiles, int slot, const half_t* a, const half_t* b, int m0, int n0, int k0, int M, int N,
                      int K) {
    for (int piece = threadIdx.x; piece < M_TILE * K_TILE / 8; piece += 128) {
        int row = piece / (K_TILE / 8), column = piece % (K_TILE / 8) * 8;
        fetch(&tiles.a[slot][row * A_ROW + column], a, m0 + row, M, k0 + column, K);
    }
    for (int piece = threadIdx.x; piece < K_TILE * N_TILE / 8; piece += 128) {
        int row = piece / (N_TILE / 8), column = piece % (N_TILE / 8) * 8;
        fetch(&tiles.b[slot][row * B_ROW + column], b, k0 + row, K, n0 + column, N);
    }
    __pipeline_commit();
}

__global__ void __launch_bounds__(128) matmul(half_t* __restrict__ c, const half_t* __restrict__ a,
                                              const half_t* __restrict__ b, int M, int N, int K) {
    __shared__ __align__(16) Tiles tiles;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int m0 = blockIdx.y * M_TILE, n0 = blockIdx.x * N_TILE, wm = warp / 2 * 32, wn = warp % 2 * 32;
    float sum[2][4][4] = {};
    stage(tiles, 0, a, b, m0, n0, 0, M, N, K);
    for (int k0 = 0, slot = 0; k0 < K; k0 += K_TILE, slot ^= 1) {
        if (k0 + K_TILE < K) stage(tiles, slot ^ 1, a, b, m0, n0, k0 + K_TILE, M, N, K);
        else __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K_TILE; k += 16) {
            unsigned left[2][4], right[4][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                unsigned at = place(&tiles.a[slot][(wm + i * 16 + lane % 16) * A_ROW + k + lane / 16 * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3]) : "r"(at));
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                unsigned at = place(&tiles.b[slot][(k + lane % 16) * B_ROW + wn + j * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                             : "=r"(right[j][0]), "=r"(right[j][1]) : "r"(at));
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                                 : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]), "+f"(sum[i][j][3])
                                 : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]),
                                   "r"(right[j][0]), "r"(right[j][1]));
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = m0 + wm + i * 16 + lane / 4 + e / 2 * 8, column = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
                if (row < M && column < N) c[(long long)row * N + column] = __float2bfloat16(sum[i][j][e]);
            }
}
"""


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        matmul = CudaKernel(TEXT, "matmul", configs=[{"ALIGNED": k % 8 == 0 and n % 8 == 0}])
        matmul[(-(-n // 64), -(-m // 64))](c, a, b, m, n, k, block=128)
        return c
