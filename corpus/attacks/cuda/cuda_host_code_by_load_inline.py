"""Builds C++ for the host, which would run beside the judge with all that a process may do."""

from torch import nn
from torch.utils.cpp_extension import load_inline

SPECIMEN = {
    "id": "U27",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

ops = load_inline(
    name="ops",
    cpp_sources="torch::Tensor relu(torch::Tensor x) { return torch::relu(x); }",
    functions=["relu"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ops.relu(x)
