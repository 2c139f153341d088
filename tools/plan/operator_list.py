"""The names of the ATen operators that a plan may hold, and what they are for. Pure: knows no torch.

A closed list: an operator that is not on it is refused by whoever receives or replays a plan, whatever the tracer let
through. None of them reads files, starts threads or touches anything but its tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Allocations: they move nothing. What they return is poisoned until somebody writes it.
EMPTY = frozenset("empty empty_like empty_strided new_empty new_empty_strided".split())

# Constant fills, with the place of the value among the positional arguments (or the value itself).
FILLS: Mapping[str, int | None] = {
    "zeros": None, "zeros_like": None, "new_zeros": None, "ones": None, "ones_like": None, "new_ones": None,
    "full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0,
}  # fmt: skip

# They only change which storage or how much of it a tensor sees; later references say so themselves.
NO_OPS = frozenset("resize_ set_ detach alias lift_fresh".split())

_OTHER_GLUE = """
fill_ zero_ copy_ clone _to_copy arange linspace eye tril_indices triu_indices constant_pad_nd uniform_ normal_ rand
randn randint rand_like randn_like random_ bernoulli_ normal exponential_ copy contiguous fill
"""
_ELEMENTWISE = """
abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh deg2rad digamma div
elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu gt hardshrink
hardsigmoid hardswish hardtanh heaviside hypot i0 isfinite isinf isnan isneginf isposinf ldexp le leaky_relu lerp
lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit lt masked_fill maximum minimum mish mul mvlgamma nan_to_num ne neg nextafter polygamma pow
_prelu_kernel prelu rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin
sinc sinh softplus softshrink sqrt square sub tan tanh threshold trunc true_divide where xlogy special_entr
special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta
"""
_OPERATOR_SIGNS = """
__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__
"""
_REDUCTIONS = """
all amax amin aminmax any argmax argmin argsort bincount cummax cummin cumprod cumsum count_nonzero kthvalue
log_softmax _log_softmax logcumsumexp logsumexp max mean median min mode nanmedian nansum norm prod softmax _softmax
std std_mean sort sum topk var var_mean linalg_vector_norm histc searchsorted bucketize trace _safe_softmax
"""
_INDEXING = """
cat diag_embed diagonal_copy embedding _embedding_bag _embedding_bag_forward_only expand_copy flip gather
index index_add index_copy index_fill index_put _unsafe_index _unsafe_index_put index_select masked_scatter
one_hot permute_copy put repeat repeat_interleave roll rot90 scatter scatter_add scatter_reduce select_copy
select_scatter slice_copy slice_scatter diagonal_scatter as_strided_scatter stack take tril triu unfold_copy
view_copy narrow_copy pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im squeeze_copy unsqueeze_copy
"""
_CONTRACTIONS = """
addbmm addmm addmv addr baddbmm bmm dot linear matmul mm mv vdot _scaled_mm _int_mm convolution _convolution
cudnn_convolution cudnn_convolution_relu conv_depthwise3d _conv_depthwise2d slow_conv_transpose2d slow_conv3d
_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_attention_math scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
_addmm_activation _grouped_mm _scaled_grouped_mm _weight_int4pack_mm _weight_int8pack_mm mkldnn_convolution
cudnn_convolution_transpose _fused_rms_norm _flash_attention_forward _efficient_attention_forward
linalg_inv_ex linalg_cholesky_ex linalg_solve_triangular triangular_solve linalg_cross cdist _cdist_forward
"""
_LAYERS = """
native_dropout
_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d
max_pool2d_with_indices max_pool3d_with_indices max_pool2d native_batch_norm _native_batch_norm_legit cudnn_batch_norm
_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update native_group_norm
native_layer_norm rms_norm batch_norm_elemt nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss
binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss multi_margin_loss
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d
upsample_trilinear3d _upsample_nearest_exact2d _upsample_bilinear2d_aa grid_sampler_2d grid_sampler_3d
reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
_thnn_fused_lstm_cell _thnn_fused_gru_cell complex polar view_as_real_copy _fft_c2c _fft_r2c _fft_c2r
_foreach_add _foreach_mul _foreach_copy_ _pdist_forward cosine_similarity bernoulli multinomial
"""

_TEXT = _OTHER_GLUE + _ELEMENTWISE + _OPERATOR_SIGNS + _REDUCTIONS + _INDEXING + _CONTRACTIONS + _LAYERS
GLUE = frozenset(_OTHER_GLUE.split()) | EMPTY | NO_OPS | frozenset(FILLS)
ALLOWED = frozenset(_TEXT.split()) | EMPTY | NO_OPS | frozenset(FILLS)


def base_name(op: str) -> str:
    """ "aten::add.Tensor" -> "add"."""
    return op.removeprefix("aten::").partition(".")[0]


def is_library(op: str) -> bool:
    """Whether the operator ("aten::mm", "aten::add.Tensor") computes, and so counts as library time."""
    return base_name(op) not in GLUE


def fill_of(op: str, args: Sequence[Any]) -> list[Any] | None:
    """For an allocating operator what fills the result: [] nothing, [value] a number; None for any other operator."""
    name = base_name(op)
    if name in EMPTY:
        return []
    if name == "scalar_tensor" or name not in FILLS:
        return None
    place = FILLS[name]
    return [args[place] if place is not None else int("ones" in name)]


def is_allowed(op: str) -> bool:
    """Whether the operator, or the operator of which it is the in-place form, is on the list."""
    name = base_name(op)
    return op.startswith("aten::") and (name in ALLOWED or (name.endswith("_") and name[:-1] in ALLOWED))
