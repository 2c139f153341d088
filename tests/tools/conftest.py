"""Real worker processes for the tests, started once per session, and shortcuts for tracing a candidate in them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import TraceCase, TraceReply, TraceRequest
from kerneltune.tools.schema.task import Contract, TensorSpec
from tests import shared_fork_server

HEADER = "import torch\nimport triton\nimport triton.language as tl\nfrom torch import nn\n"

COPY_KERNEL = """
@triton.jit
def scale_kernel(x, y, n, factor, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


def scale(x, factor=2.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), factor, B=256)
    return y

"""


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The real warm workers: fork servers, sandbox and all."""
    with shared_fork_server.started() as started:
        yield started


def tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    """An input leaf of a case."""
    return {"$tensor": {"shape": list(shape), "dtype": dtype, "stride": None}}


def case(
    *inputs: Any,
    init: tuple[Any, ...] = (),
    state: dict[str, TensorSpec] | None = None,
    contracts: tuple[Contract, ...] = (),
) -> TraceCase:
    """A case with these inputs."""
    return TraceCase("main", tuple(inputs), init, state or {}, contracts)


Trace = Callable[..., TraceReply]


@pytest.fixture
def trace(machine: Machine) -> Trace:
    """Trace a source (the common header and a scale() helper are put in front) for one case."""

    def run(source: str, *inputs: Any, max_variants: int = 1, **case_fields: Any) -> TraceReply:
        request = TraceRequest(HEADER + COPY_KERNEL + source, (case(*inputs, **case_fields),), max_variants)
        with machine.tracer() as worker:
            return decode(TraceReply, worker.call(encode(request), timeout_s=60).body)

    return run
