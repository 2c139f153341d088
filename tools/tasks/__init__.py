"""The built-in tasks, one op a file. `tools.task.load` reads them; here is in what order they are listed."""

from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "softmax, losses": ("softmax", "log_softmax", "softmax_backward", "cross_entropy", "linear_cross_entropy"),
    "normalisation": (
        "layer_norm",
        "layer_norm_residual",
        "rms_norm",
        "add_rms_norm",
        "rms_norm_backward",
        "group_norm",
    ),
    "sums, scans, choices": ("row_sum", "column_sum", "cumsum", "argmax", "top_k"),
    "elements, copies": (
        "gelu_bias",
        "swiglu",
        "geglu",
        "rope",
        "causal_conv1d",
        "adam_step",
        "embedding",
        "transpose",
        "quantize_int8",
        "quantize_fp8",
    ),
    "matrix products": (
        "matmul_bf16",
        "matmul_bias_relu",
        "matmul_fp16_gelu",
        "matmul_tf32",
        "matmul_fp8",
        "batched_matmul",
        "skinny_matmul",
        "split_k_matmul",
        "grouped_matmul",
        "int4_matmul",
    ),
    "attention": ("causal_attention", "gqa_attention", "decode_attention"),
}
