"""From a person's op to their model without a key or a GPU: init, run, package, patch; the kernel answers rightly."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.shell import ROOT, optimize

# with the sizes that the person has; the code that calls the op, and the name of the original in it
FUNCTIONS = {
    "fused_tail": ("x=4,64,128", "bf16", "(torch.randn(4, 64, 128, dtype=b), torch.randn(128, dtype=b))"),
    "add_norm": ("x=4,64,128", "fp32", "(torch.randn(4, 64, 128), torch.randn(4, 64, 128))"),
    "scaled_softmax": ("2,8,64,64", "fp32", "(torch.randn(2, 8, 64, 64))"),
    "stats": ("128,256", "bf16", "(torch.randn(128, 256, dtype=b))"),
    "gated": ("8,32,64", "fp32", "(torch.randn(8, 32, 64), gate=torch.randn(8, 32, 64))"),
    "label_logits": ("logits=64,1000", "fp32", "(torch.randn(64, 1000), torch.randint(0, 1000, (64,)))"),
    "masked_softmax": ("2,4,64,64", "fp32", "(torch.randn(2, 4, 64, 64), mask=None)"),
}
MODULES = {
    "Rotary": ("q=2,4,64,64", "fp32", "()", "(torch.randn(2, 4, 64, 64))"),
    "RMSNorm": ("x=4,64,256", "bf16", "(256).to(b)", "(torch.randn(4, 64, 256, dtype=b))"),
    "MLP": ("x=2,32,512", "fp32", "()", "(torch.randn(2, 32, 512))"),
    "Tail": ("4,64,128", "bf16", "(128).to(b)", "(X, residual=X)"),
    "HeadNorm": ("x=4,32,512", "fp32", "()", "(torch.randn(4, 32, 512))"),
}  # fmt: skip
USE = """
import torch
import mymodel, kernel
b = torch.bfloat16
X = torch.randn(4, 64, 128, dtype=b)
def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]
def same(found, wanted):
    assert type(found) is type(wanted)
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
with torch.no_grad():
    {body}
"""
OF_FUNCTION = """
    torch.manual_seed(0); found = kernel.{name}{call}
    torch.manual_seed(0); same(found, mymodel.{name}{call})
    print(dict(kernel._place_of_function().calls))
"""
OF_MODULE = """
    net = torch.nn.ModuleDict({{"layers": torch.nn.ModuleList([mymodel.{name}{made}, mymodel.{name}{made}])}}).eval()
    torch.manual_seed(0); wanted = net["layers"][1]{call}
    kernel.patch(net, "layers.*")
    torch.manual_seed(0); same(net["layers"][1]{call}, wanted)
    print(dict(kernel.calls(net)["layers.1"]))
"""


def body_of(name: str) -> str:
    if name in FUNCTIONS:
        return OF_FUNCTION.format(name=name, call=FUNCTIONS[name][2])
    return OF_MODULE.format(name=name, made=MODULES[name][2], call=MODULES[name][3])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULES])
def test_an_op_as_it_was_written_gets_a_kernel_that_answers_in_its_place(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "agent" / "stories" / "twelve_ops.txt", tmp_path / "mymodel.py")
    shape, dtype = (FUNCTIONS | MODULES)[name][:2]
    words = ["--task", f"mymodel.py:{name}", "--shape", shape, "--dtype", dtype]
    words += ["--no-emulation"]  # split products ask a GPU for its properties, and Triton's interpreter has none
    run = optimize(*words, "--max-attempts", "3", "--model", "offline", "--plain", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    (made,) = (path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert optimize("package", made, "-o", "kernel.py", cwd=tmp_path).returncode == 0
    for interpreted, who in (("1", "kernel"), ("0", "reference")):
        used = subprocess.run(
            [sys.executable, "-c", USE.format(body=body_of(name))],
            cwd=tmp_path,
            env={**os.environ, "TRITON_INTERPRET": interpreted, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )
        assert used.stdout == f"{{'{who}': 1}}\n", used.stderr[-2000:]
