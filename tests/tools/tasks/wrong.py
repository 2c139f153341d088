"""Plausible mistakes: each is right on most elements, or nearly right on all, and must be found."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.tree import Tree
from tests.tools.tasks import honest


@dataclass(frozen=True)
class Mistake:
    """A kernel for a task, and what is wrong with it."""

    task: str
    kernel: Callable[..., Tree]

    @property
    def name(self) -> str:
        """The task and the mistake."""
        return f"{self.task}-{self.kernel.__name__}"


def without_the_maximum(x: Tensor) -> Tensor:
    """Overflows for rows of a few hundred."""
    wide = x.float()
    return (wide - torch.log(torch.exp(wide).sum(-1, keepdim=True))).to(x.dtype)


def variance_in_one_pass(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    """mean(x^2) - mean(x)^2 cancels where the mean is large."""
    groups = {12: 3, 64: 32, 35: 7}[x.shape[1]]
    rows = x.float().reshape(x.shape[0] * groups, -1)
    mean = rows.mean(-1, keepdim=True)
    scale = ((rows * rows).mean(-1, keepdim=True) - mean * mean + 1e-5).rsqrt()
    normed = ((rows - mean) * scale).reshape(x.shape)
    return (normed * weight[:, None, None] + bias[:, None, None]).to(x.dtype)


def old_residual(x: Tensor, residual: Tensor, *, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Hands on the residual that it was given."""
    return honest.layer_norm_residual(x, residual, weight=weight, bias=bias)[0], residual


def norm_before_the_addition(x: Tensor, residual: Tensor, *, weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.float() ** 2).mean(-1, keepdim=True).add(1e-5).rsqrt()
    return (x.float() * scale * weight.float() + residual.float()).to(x.dtype), x + residual


def sigmoid_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), which is off by up to 0.02."""
    gate, up = x.float().chunk(2, -1)
    return (gate * torch.sigmoid(1.702 * gate) * up).to(x.dtype)


def one_too_far(tokens: Tensor, *, weight: Tensor) -> Tensor:
    """Wraps around at the end of the table a row too early."""
    return weight[tokens % (weight.shape[0] - 1)]


def without_the_last_tile(x: Tensor, target: Tensor, *, weight: Tensor) -> Tensor:
    """The end of the vocabulary, where it fills no tile, is not in the sum."""
    kept = weight.shape[0] // 32 * 32
    logits = x.float() @ weight.float().t()
    return torch.logsumexp(logits[:, :kept], -1) - logits.gather(1, target[:, None])[:, 0]


def bfloat16_partial_sums(x: Tensor) -> Tensor:
    parts = [part.float().sum(0).bfloat16().float() for part in honest.pieces(x, 64, dim=0)]
    return torch.stack(parts).sum(0).to(x.dtype)


def place_within_its_block(x: Tensor) -> Tensor:
    """Forgets to add where the block starts."""
    return x.argmax(-1) % 64


def no_negative_maximum(x: Tensor) -> Tensor:
    """Starts from zero instead of minus infinity, and from the first place."""
    return torch.where(x.amax(-1) > 0, x.argmax(-1), 0)


def same_place_for_equal_values(x: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the values by sorting and then each one's first place: of equal ones, the same place twice."""
    k = honest.top_k(x)[1].shape[1]
    values = x.sort(-1, descending=True)[0][:, :k]
    return values, (x[:, None, :] == values[:, :, None]).int().argmax(-1)


def unordered(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = honest.top_k(x)
    return values.flip(-1), places.flip(-1)


def without_the_carry(x: Tensor) -> Tensor:
    return torch.cat([part.cumsum(1) for part in honest.pieces(x, 64, dim=1)], 1)


def exclusive(x: Tensor) -> Tensor:
    return honest.cumsum(x) - x


def tiles_in_place(x: Tensor) -> Tensor:
    """Transposes tiles of 16 x 16 and leaves out what is beyond the last whole one."""
    y = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype)
    rows, cols = (size // 16 * 16 for size in x.shape)
    y[:cols, :rows] = x[:rows, :cols].t()
    return y


def truncates(x: Tensor) -> tuple[Tensor, Tensor]:
    """A cast rounds towards zero."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
    return (x.float() / scale).to(torch.int8), scale


def scale_of_the_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax().clamp_min(1e-8) / 127
    return torch.round(x.float() / scale).to(torch.int8), scale.expand(x.shape[0], 1).contiguous()


def one_above_a_half(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds from 0.51 on."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
    scaled = x.float() / scale
    return (torch.floor(scaled.abs() + 0.49) * scaled.sign()).to(torch.int8), scale


def fp8_towards_zero(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cuts the mantissa off, as shifting bits does."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-8) / 448
    return honest.cut(x.float() / scale, 4).to(torch.float8_e4m3fn), scale


def no_denormals(x: Tensor) -> tuple[Tensor, Tensor]:
    """Flushes what is below the smallest normal float8."""
    q, scale = honest.quantize_fp8(x)
    return torch.where(q.float().abs() < 2.0**-6, 0.0, q.float()).to(q.dtype), scale


def through_e5m2(x: Tensor) -> tuple[Tensor, Tensor]:
    q, scale = honest.quantize_fp8(x)
    return q.float().to(torch.float8_e5m2).float().to(q.dtype), scale


def without_the_last_term(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :-1].float() @ b[:-1].float()).bfloat16()


def fp8_operands(a: Tensor, b: Tensor) -> Tensor:
    return (a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float()).bfloat16()


def erf_free_gelu(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    y = x.float() @ weight.float().t() + bias.float()
    return (y * torch.sigmoid(1.702 * y)).half()


def bfloat16_products(x: Tensor, residual: Tensor, *, weight: Tensor) -> Tensor:
    return x.bfloat16().float() @ weight.bfloat16().float() + residual


def one_scale_for_all_rows(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    return honest.matmul_fp8(a, b, scale_a.mean().expand_as(scale_a), scale_b)


def drops_a_fiftieth(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """Two terms in a hundred are not added."""
    kept = a.shape[1] * 49 // 50
    return honest.matmul_fp8(a[:, :kept], b[:, :kept], scale_a, scale_b)


def first_matrix_for_all(a: Tensor, b: Tensor) -> Tensor:
    return honest.batched_matmul(a, b[:1].expand_as(b))


def half_sums(x: Tensor, *, weight: Tensor) -> Tensor:
    """Partial sums are kept in bfloat16."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=torch.bfloat16)
    for left, right in zip(honest.pieces(x, 1, dim=1), honest.pieces(weight, 1, dim=1), strict=True):
        total = (total.float() + left.float() @ right.float().t()).bfloat16()
    return total


def lost_update(x: Tensor, gradient: Tensor) -> Tensor:
    """Each of the partial sums is stored over the one before."""
    size = -(-x.shape[0] // 4)
    return honest.split_k_matmul(x[3 * size :], gradient[3 * size :])


def equal_groups(x: Tensor, *, weight: Tensor) -> Tensor:
    parts = zip(x.tensor_split(weight.shape[0]), weight, strict=True)
    return torch.cat([honest.product(rows, one) for rows, one in parts]).bfloat16()


def halves_swapped(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    return honest.int4_matmul(x, (packed << 4) | (packed >> 4), scales)


def zero_point_of_seven(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    wide = scales.float().repeat_interleave(x.shape[1] // scales.shape[0], 0)
    return (honest.int4_matmul(x, packed, scales).float() + x.float() @ wide).bfloat16()


def wrong_key_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Takes the heads of keys in turn, where neighbours share one."""
    repeat = q.shape[1] // k.shape[1]
    return honest.attention(q, k.repeat(1, repeat, 1, 1), v.repeat(1, repeat, 1, 1), causal=True)


def sees_itself_not(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask is off by one, but for the first row."""
    later = honest.attention(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], causal=True)
    return torch.cat((honest.gqa_attention(q, k, v)[:, :, :1], later), 2)


def forgets_the_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return honest.decode_attention((q.float() * q.shape[-1] ** 0.5).to(q.dtype), k, v)


def without_the_last_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = k.shape[2] // 32 * 32
    kept -= 32 if kept == k.shape[2] else 0
    return honest.decode_attention(q, k[:, :, :kept], v[:, :, :kept])


def looks_ahead(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    """Centred instead of causal."""
    width = weight.shape[1]
    padded = torch.nn.functional.pad(x.float(), (width - 2, 1))
    summed = torch.nn.functional.conv1d(padded, weight.float()[:, None], bias.float(), groups=x.shape[1])
    return torch.nn.functional.silu(summed).to(x.dtype)


def without_bias_correction(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    g = gradient.float()
    first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
    return weight * (1 - 1e-3) - 1e-2 * first / (second.sqrt() + 1e-8), first, second


def decay_in_the_gradient(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Adam with L2 in place of AdamW."""
    new, _, _ = honest.adam_step(weight, (gradient.float() + 0.1 * weight).to(gradient.dtype), first, second)
    return new + 1e-3 * weight, *honest.adam_step(weight, gradient, first, second)[1:]


def without_the_sum(gradient: Tensor, y: Tensor) -> Tensor:
    """The diagonal of the Jacobian alone."""
    return (y.float() * (1 - y.float()) * gradient.float()).to(y.dtype)


def weight_gradient_of_whole_blocks(gradient: Tensor, x: Tensor, *, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The last rows are not added."""
    kept = (x.shape[0] - 1) // 8 * 8 if x.shape[0] > 8 else x.shape[0] - 1
    dx, _ = honest.rms_norm_backward(gradient, x, weight=weight)
    return dx, honest.rms_norm_backward(gradient[:kept], x[:kept], weight=weight)[1]


def without_the_mean(gradient: Tensor, x: Tensor, *, weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    dx = (gradient.float() * weight.float() * scale).to(x.dtype)
    return dx, honest.rms_norm_backward(gradient, x, weight=weight)[1]


MISTAKES = [
    Mistake("log_softmax", without_the_maximum),
    Mistake("group_norm", variance_in_one_pass),
    Mistake("layer_norm_residual", old_residual),
    Mistake("add_rms_norm", norm_before_the_addition),
    Mistake("geglu", sigmoid_gelu),
    Mistake("embedding", one_too_far),
    Mistake("linear_cross_entropy", without_the_last_tile),
    Mistake("column_sum", bfloat16_partial_sums),
    Mistake("argmax", place_within_its_block),
    Mistake("argmax", no_negative_maximum),
    Mistake("top_k", same_place_for_equal_values),
    Mistake("top_k", unordered),
    Mistake("cumsum", without_the_carry),
    Mistake("cumsum", exclusive),
    Mistake("transpose", tiles_in_place),
    Mistake("quantize_int8", truncates),
    Mistake("quantize_int8", scale_of_the_tensor),
    Mistake("quantize_int8", one_above_a_half),
    Mistake("quantize_fp8", fp8_towards_zero),
    Mistake("quantize_fp8", no_denormals),
    Mistake("quantize_fp8", through_e5m2),
    Mistake("matmul_bf16", without_the_last_term),
    Mistake("matmul_bf16", fp8_operands),
    Mistake("matmul_fp16_gelu", erf_free_gelu),
    Mistake("matmul_tf32", bfloat16_products),
    Mistake("matmul_fp8", one_scale_for_all_rows),
    Mistake("matmul_fp8", drops_a_fiftieth),
    Mistake("batched_matmul", first_matrix_for_all),
    Mistake("skinny_matmul", half_sums),
    Mistake("split_k_matmul", lost_update),
    Mistake("grouped_matmul", equal_groups),
    Mistake("int4_matmul", halves_swapped),
    Mistake("int4_matmul", zero_point_of_seven),
    Mistake("gqa_attention", wrong_key_heads),
    Mistake("gqa_attention", sees_itself_not),
    Mistake("decode_attention", forgets_the_scale),
    Mistake("decode_attention", without_the_last_keys),
    Mistake("causal_conv1d", looks_ahead),
    Mistake("adam_step", without_bias_correction),
    Mistake("adam_step", decay_in_the_gradient),
    Mistake("softmax_backward", without_the_sum),
    Mistake("rms_norm_backward", weight_gradient_of_whole_blocks),
    Mistake("rms_norm_backward", without_the_mean),
]
