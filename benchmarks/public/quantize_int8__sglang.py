"""SGLang's per-token quantisation to int8, with the task's least value of a row."""

from torch import nn

PUBLIC = {"sglang": {"kernels/ops/quantization/int8_kernel.py": ["per_token_quant_int8"]}}
EDITS = {"1e-10": "1e-8"}


class ModelNew(nn.Module):
    def forward(self, x):
        return per_token_quant_int8(x)
