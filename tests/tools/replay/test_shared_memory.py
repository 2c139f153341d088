"""Memory that judge and interpreter share: what repeats takes its part alone, and nobody changes another's."""

import os

import pytest
import torch

from kerneltune.tools.replay.shared_memory import PERIOD, SharedMemory, mapped


def test_a_tensor_that_repeats_takes_the_memory_of_a_part_and_is_the_same_for_whoever_maps_it() -> None:
    memory = SharedMemory()
    once = torch.randint(0, 256, (PERIOD,), dtype=torch.uint8)
    shape = (100, PERIOD)  # 1.7 GB
    tensor = memory.spread(once, shape)
    part, shared = memory.share("input:0", tensor)
    assert shared.data_ptr() == tensor.data_ptr()
    assert memory.nbytes < 2 * PERIOD
    found = mapped(memory.fd, part)
    assert len(found) == 100 * PERIOD
    assert torch.equal(torch.from_numpy(found[-PERIOD:].copy()), once)
    assert torch.equal(tensor[57, :1000], once[:1000])


def test_what_somebody_writes_to_a_sealed_memory_stays_its_own() -> None:
    memory = SharedMemory()
    dropped = memory.spread(torch.ones(PERIOD), (2, PERIOD))
    part, tensor = memory.share("state:w", torch.arange(1000.0).reshape(10, 100)[:, :50])
    memory.seal([part])
    assert memory.nbytes < PERIOD  # what is of no part has been given back
    assert tensor.stride() == (100, 1)
    mine, theirs = mapped(memory.fd, part), mapped(memory.fd, part)
    mine[:] = 0
    assert float(tensor[9, 49]) == 949.0
    assert bytes(theirs) == torch.arange(950.0).numpy().tobytes()
    with pytest.raises(PermissionError):
        os.pwrite(memory.fd, b"x", part.offset)
    assert float(dropped[0, 0]) == 0.0
