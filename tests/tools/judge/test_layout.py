"""How the judge lays tensors into flat buffers. On the CPU: the same code writes device memory."""

from itertools import pairwise

import pytest
import torch

from kerneltune.tools.judge.correctness.tree import extent_bytes, like, write
from kerneltune.tools.judge.execution.guard_pages import regions_of, same_bits, tree_bytes
from kerneltune.tools.schema.task import Contract

TENSORS = [
    torch.arange(12.0).reshape(3, 4),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.arange(12.0)[3:7],
    torch.arange(24, dtype=torch.int64).reshape(2, 3, 4)[:, ::2],
    torch.tensor(3.0, dtype=torch.bfloat16),
    torch.zeros(0, 4),
    torch.tensor([True, False]),
    torch.ones(1, 3).expand(5, 3),
    torch.tensor([1.0, float("nan")]).to(torch.float8_e4m3fn),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=str)
def test_a_tensor_written_to_flat_bytes_reads_back_with_its_strides(tensor: torch.Tensor) -> None:
    region = torch.zeros(1024, dtype=torch.uint8)[256:]
    write(region, tensor)
    found = like(region, tensor)
    assert found.stride() == tensor.stride()
    assert same_bits(found, tensor)


def test_places_do_not_overlap_and_are_aligned() -> None:
    regions, end = regions_of([(str(i), t) for i, t in enumerate(TENSORS)])
    assert all(r.offset % 512 == 0 for r in regions)
    assert all(a.offset + a.nbytes <= b.offset for a, b in pairwise(regions))
    assert end >= regions[-1].offset + regions[-1].nbytes


def test_what_may_be_read_behind_an_input_lies_in_its_place() -> None:
    named = [("0", torch.zeros(128)), ("1.rows", torch.zeros(4, 128)), ("2", torch.zeros(128))]
    regions, end = regions_of(named, [Contract(0, "x", slack=3), Contract(1, "y", slack=200)])
    assert [(r.offset, r.nbytes, r.behind) for r in regions] == [(0, 512, 12), (1024, 2048, 800), (4096, 512, 0)]
    assert end == 4608


def test_an_expanded_tensor_takes_the_bytes_that_it_has() -> None:
    assert extent_bytes(torch.ones(1, 3).expand(5, 3)) == 12
    assert tree_bytes({"a": (torch.ones(4), 3), "b": [torch.ones(2, dtype=torch.int8)]}) == 18


def test_nan_has_the_same_bits_as_itself() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
