"""An honest kernel for each of these tasks, in torch: float32 arithmetic in the order of a GPU kernel, one block after
another, and results rounded once. The judge must let them pass whatever it feeds them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.tree import Tree

Kernel = Callable[..., Tree]
LOG2E = 1.4426950408889634


def pieces(x: Tensor, size: int, *, dim: int) -> list[Tensor]:
    """Consecutive slices; the last may be shorter."""
    return [x.narrow(dim, at, min(size, x.shape[dim] - at)) for at in range(0, x.shape[dim], size)]


def block_sum(x: Tensor, block: int = 64, *, dim: int = -1) -> Tensor:
    """Sum over a dimension, one block after another."""
    parts = pieces(x.float(), block, dim=dim)
    total = parts[0].sum(dim)
    for part in parts[1:]:
        total = total + part.sum(dim)
    return total


def product(a: Tensor, b: Tensor, block: int = 32) -> Tensor:
    """a @ b with float32 sums over blocks of the inner dimension."""
    pairs = list(zip(pieces(a.float(), block, dim=-1), pieces(b.float(), block, dim=-2), strict=True))
    total = pairs[0][0] @ pairs[0][1]
    for left, right in pairs[1:]:
        total = total + left @ right
    return total


def log_softmax(x: Tensor) -> Tensor:
    wide = x.float()
    largest = wide.amax(-1, keepdim=True)
    total = block_sum(torch.exp2((wide - largest) * LOG2E))[:, None]
    return (wide - largest - torch.log2(total) / LOG2E).to(x.dtype)


def group_norm(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    groups = {320: 32, 12: 3, 64: 32, 35: 7}[x.shape[1]]
    rows = x.float().reshape(x.shape[0] * groups, -1)
    centred = rows - block_sum(rows)[:, None] / rows.shape[1]
    scale = (block_sum(centred * centred) / rows.shape[1] + 1e-5).rsqrt()
    normed = (centred * scale[:, None]).reshape(x.shape)
    return (normed * weight.float()[:, None, None] + bias.float()[:, None, None]).to(x.dtype)


def layer_norm_residual(x: Tensor, residual: Tensor, *, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    h = x.float() + residual.float()
    centred = h - block_sum(h)[:, None] / h.shape[1]
    scale = (block_sum(centred * centred) / h.shape[1] + 1e-6).rsqrt()
    return (centred * scale[:, None] * weight.float() + bias.float()).to(x.dtype), h.to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, *, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = (x.float() + residual.float()).to(x.dtype)  # many round the stream before they norm it, as eager PyTorch does
    scale = (block_sum(h.float() ** 2) / h.shape[1] + 1e-5).rsqrt()
    return (h.float() * scale[:, None] * weight.float()).to(x.dtype), h


def gelu_tanh(x: Tensor) -> Tensor:
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    return x / (1 + torch.exp2(-2 * inner * LOG2E))


def geglu(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (gelu_tanh(gate) * up).to(x.dtype)


def embedding(tokens: Tensor, *, weight: Tensor) -> Tensor:
    return weight[tokens]


def linear_cross_entropy(x: Tensor, target: Tensor, *, weight: Tensor) -> Tensor:
    """Online softmax over blocks of the vocabulary; logits stay in float32 and are never stored."""
    largest, total = torch.full((x.shape[0],), -math.inf), torch.zeros(x.shape[0])
    for rows in pieces(weight, 128, dim=0):
        logits = product(x, rows.t())
        new = torch.maximum(largest, logits.amax(-1))
        total = total * torch.exp(largest - new) + torch.exp(logits - new[:, None]).sum(-1)
        largest = new
    return torch.log(total) + largest - block_sum(x.float() * weight[target].float())


def column_sum(x: Tensor) -> Tensor:
    return block_sum(x, block=1, dim=0).to(x.dtype)


def argmax(x: Tensor) -> Tensor:
    """The last of equal ones, where torch takes the first."""
    return x.shape[1] - 1 - x.flip(-1).argmax(-1)


def top_k(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest k times over; which one of equals, is another choice than torch's."""
    k = {256: 8, 60: 4, 8: 2, 128: 8, 251: 7}[x.shape[1]]
    rest, values, places = x.clone(), [], []
    for _ in range(k):
        place = argmax(rest)[:, None]
        values.append(rest.gather(1, place))
        places.append(place)
        rest.scatter_(1, place, -math.inf)
    return torch.cat(values, 1), torch.cat(places, 1)


def cumsum(x: Tensor) -> Tensor:
    carry, parts = torch.zeros(x.shape[0], 1), []
    for part in pieces(x.float(), 64, dim=1):
        parts.append(carry + part.cumsum(1))
        carry = carry + part.sum(1, keepdim=True)
    return torch.cat(parts, 1).to(x.dtype)


def transpose(x: Tensor) -> Tensor:
    return x.t().contiguous()


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Multiplies by the reciprocal and rounds halves away from zero, as `llvm.round` does."""
    largest = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-8)
    scaled = x.float() * (127 / largest)
    whole = torch.where(scaled < 0, torch.ceil(scaled - 0.5), torch.floor(scaled + 0.5))
    return whole.to(torch.int8), largest / 127


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-8)
    return (x.float() * (448 / largest)).clamp(-448, 448).to(torch.float8_e4m3fn), largest / 448


def matmul_bf16(a: Tensor, b: Tensor) -> Tensor:
    return product(a, b).bfloat16()


def matmul_fp16_gelu(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    return gelu_tanh(product(x, weight.t()) + bias.float()).half()


def to_tf32(x: Tensor) -> Tensor:
    """Round to 10 bits of mantissa."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def matmul_tf32(x: Tensor, residual: Tensor, *, weight: Tensor) -> Tensor:
    return product(to_tf32(x), to_tf32(weight)) + residual


def cut(x: Tensor, bits: int) -> Tensor:
    """Towards zero, to so many bits of mantissa."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.trunc(mantissa * 2**bits), exponent - bits)


def matmul_fp8(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Sums of 14 bits that are cut after every 32 terms, as Hopper's tensor cores make them."""
    total = torch.zeros(a.shape[0], b.shape[0])
    for left, right in zip(pieces(a.float(), 32, dim=1), pieces(b.float(), 32, dim=1), strict=True):
        total = cut(total + left @ right.t(), 14)
    return (total * scale_a * scale_b).bfloat16()


def batched_matmul(a: Tensor, b: Tensor) -> Tensor:
    return product(a, b).bfloat16()


def skinny_matmul(x: Tensor, *, weight: Tensor) -> Tensor:
    return product(x, weight.t()).bfloat16()


def split_k_matmul(x: Tensor, gradient: Tensor) -> Tensor:
    """Four partial sums, added at the end."""
    size = -(-x.shape[0] // 4)
    parts = [product(a.t(), b) for a, b in zip(pieces(x, size, dim=0), pieces(gradient, size, dim=0), strict=True)]
    return torch.stack(parts).sum(0).bfloat16()


def grouped_matmul(x: Tensor, *, weight: Tensor) -> Tensor:
    rows, experts = x.shape[0], weight.shape[0]
    ends = [rows * e * (e + 1) // (experts * (experts + 1)) for e in range(experts + 1)]
    parts = [product(x[ends[e] : ends[e + 1]], weight[e]) for e in range(experts)]
    return torch.cat(parts).bfloat16()


def int4_matmul(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """A scale for each group's sum, instead of for each weight."""
    group = x.shape[1] // scales.shape[0]
    total = torch.zeros(x.shape[0], packed.shape[1])
    for rows, columns, scale in zip(pieces(packed, group // 2, dim=0), pieces(x, group, dim=1), scales, strict=True):
        low, high = (rows & 15).float() - 8, (rows >> 4).float() - 8
        part = columns[:, ::2].float() @ low + columns[:, 1::2].float() @ high
        total = total + part * scale.float()
    return total.bfloat16()


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Online softmax over blocks of keys; probabilities are rounded before the second product, as on tensor cores."""
    repeat = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
    total = torch.zeros(*q.shape[:-1], 1)
    largest, sums = torch.full_like(total, -math.inf), torch.zeros(q.shape)
    places = torch.arange(k.shape[2])
    for keys, values, at in zip(pieces(k, 32, dim=2), pieces(v, 32, dim=2), pieces(places, 32, dim=0), strict=True):
        scores = q.float() @ keys.float().mT * (q.shape[-1] ** -0.5 * LOG2E)
        if causal:
            scores = scores.masked_fill(at > torch.arange(q.shape[2])[:, None], -math.inf)
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, old = torch.exp2(scores - new), torch.exp2(largest - new)
        total = total * old + weights.sum(-1, keepdim=True)
        sums = sums * old + weights.to(v.dtype).float() @ values.float()
        largest = new
    return (sums / total).to(q.dtype)


def gqa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True)


def decode_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=False)


def causal_conv1d(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    width, length = weight.shape[1], x.shape[2]
    padded = torch.nn.functional.pad(x.float(), (width - 1, 0))
    total = bias.float()[:, None].expand(x.shape)
    for at in range(width):
        total = total + weight[:, at].float()[:, None] * padded[..., at : at + length]
    return (total / (1 + torch.exp2(-total * LOG2E))).to(x.dtype)


def adam_step(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    step = {77: 1, 16411: 1000}.get(weight.numel(), 10)
    g = gradient.float()
    first = first + 0.1 * (g - first)
    second = 0.95 * second + 0.05 * (g * g)
    update = first * (1 / (1 - 0.9**step)) / ((second * (1 / (1 - 0.95**step))).sqrt() + 1e-8)
    return weight - 1e-2 * (update + 0.1 * weight), first, second


def softmax_backward(gradient: Tensor, y: Tensor) -> Tensor:
    dot = block_sum(gradient.float() * y.float())[:, None]
    return (y.float() * (gradient.float() - dot)).to(y.dtype)


def rms_norm_backward(gradient: Tensor, x: Tensor, *, weight: Tensor) -> tuple[Tensor, Tensor]:
    dy, wide, cols = gradient.float(), x.float(), x.shape[1]
    scale = (block_sum(wide * wide) / cols + 1e-5).rsqrt()[:, None]
    weighted = dy * weight.float()
    dot = block_sum(weighted * wide)[:, None] * scale * scale / cols
    return ((weighted - wide * dot) * scale).to(x.dtype), block_sum(dy * wide * scale, dim=0).to(x.dtype)


HONEST: dict[str, Kernel] = {
    kernel.__name__: kernel
    for kernel in (
        log_softmax, group_norm, layer_norm_residual, add_rms_norm, geglu, embedding, linear_cross_entropy, column_sum,
        argmax, top_k, cumsum, transpose, quantize_int8, quantize_fp8, matmul_bf16, matmul_fp16_gelu, matmul_tf32,
        matmul_fp8, batched_matmul, skinny_matmul, split_k_matmul, grouped_matmul, int4_matmul, gqa_attention,
        decode_attention, causal_conv1d, adam_step, softmax_backward, rms_norm_backward,
    )
}  # fmt: skip
