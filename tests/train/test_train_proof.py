"""The training proof's own parts: what counts as an answer, what is trained, and whose word its shares are."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.answers import Answer, asked, judged
from benchmarks.train_proof import IGNORED, cut, main
from kerneltune.agent.export.instructions import solve
from tests.train import parts

RIGHT = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_sum(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
        row_sum[(y.numel(),)](x, y, x.shape[-1], BLOCK=1024)
        return y
""".strip()
ANSWERS = {
    "right": f"Here it is:\n```python\n{RIGHT}\n```\nIt is fast.",
    "wrong": f"```python\n{RIGHT.replace('total, 0))', 'total, 0) * 2)')}\n```",
    "compile_failed": f"```\n{RIGHT.replace('tl.sum', 'tl.summe')}\n```",
    "rejected": "I am sorry, I cannot write that.",
}


def test_shares_are_what_the_evaluator_says() -> None:
    shares = judged([Answer("row_sum", text, whole=name != "rejected") for name, text in ANSWERS.items()])
    assert shares.statuses == {"checked": 1, "wrong": 1, "compile_failed": 1, "rejected": 1}
    assert (shares.answers, shares.whole, shares.parses, shares.defines) == (4, 3, 3, 3)
    assert (shares.traces, shares.compiles, shares.right) == (2, 2, 1)
    assert [example.partition(":")[0] for example in shares.examples] == sorted(shares.statuses)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a\n```python\nx = 1\n```\nb\n```\ny\n```", "x = 1\n"),
        ("```\nx\n```", "x\n"),
        ("```py\nx = 1\ny = ", "x = 1\ny = "),  # cut off
        ("x = 1", "x = 1"),
        ("```python\n```", ""),
        ("", ""),
    ],
)
def test_an_answer_is_its_first_block_of_code(text: str, source: str) -> None:
    assert Answer("t", text, True).source == source


def test_rows_are_cut_into_pieces_that_have_something_to_learn() -> None:
    labels = [IGNORED, IGNORED, IGNORED, 4, 5]
    assert cut([1, 2, 3, 4, 5], labels, 2) == [
        {"input_ids": [3, 4], "labels": [IGNORED, 4]},
        {"input_ids": [5], "labels": [5]},
    ]
    assert cut([], [], 2) == []


def test_a_task_is_asked_for_without_its_held_out_cases() -> None:
    for task in ("softmax", "rope"):
        [system, user] = solve(asked(task, "sm_90", None), "triton")
        assert system["role"] == "system"
        assert "class Model" in user["content"]
        assert "held_out" not in user["content"]


@pytest.mark.train
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_the_proof_runs_from_an_export_to_shares(
    export: Path, tokens: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    parts.model(len(tokens)).save_pretrained(model)
    tokens.save_pretrained(model)
    options = ("--model", str(model), "--held-out", "softmax", "--steps", "12", "--tiny", "--learning-rate", "0.01")
    main([str(export), *options])
    proof = json.loads(capsys.readouterr().out)
    assert proof["held_out"] == ["softmax"]
    assert proof["rows"] == {"sft-chat": 3, "sft-best": 1}  # those of softmax are not trained on
    training = proof["training"]
    assert len(training["loss"]) == 12
    assert 0 < training["tokens_trained"] < training["tokens"]
    assert training["loss_after"]["trained"] < training["loss_before"]["trained"]
    for when in ("before", "after"):
        for group in ("held_out", "seen"):
            assert proof[when][group]["answers"] == sum(proof[when][group]["statuses"].values()) == 1
