"""Self-check of graph captures on a GPU: `python -m tests.gpu.selfcheck_capture`; what does not hold is an assertion.

A reference may do what no CUDA graph can hold. That is seen beforehand, or leaves nothing behind.
"""

from collections.abc import Callable

import torch

from kerneltune.tools.backends.cuda import passes


def reads_are_seen_before_a_capture(x: torch.Tensor) -> None:
    """Operators that wait for the GPU raise, others do not."""
    ones = torch.ones(len(x), dtype=torch.int64, device="cuda")
    works: dict[str, Callable[[], object]] = {
        "item": lambda: x.sum().item(),
        "repeat_interleave": lambda: torch.repeat_interleave(x, ones, dim=0),
        "nonzero": lambda: x.nonzero(),
        "copy": lambda: x.cpu(),
    }
    for name, work in works.items():
        try:
            with passes.without_host_reads():
                work()
        except RuntimeError:
            continue
        raise AssertionError(f"{name} was not seen")
    with passes.without_host_reads():
        torch.softmax(x @ x, 1) + torch.rand_like(x)
    assert torch.cuda.get_sync_debug_mode() == 0


def a_failed_capture_leaves_nothing_behind(x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Random numbers, other captures and memory are as they were."""
    pool = torch.cuda.graph_pool_handle()

    def fails() -> None:
        torch.rand_like(x)
        torch.cuda.synchronize()

    with torch.cuda.stream(stream):
        try:
            passes.captured(fails, stream, pool)
        except RuntimeError:
            pass
        else:
            raise AssertionError("a synchronisation was captured")
    torch.manual_seed(7)
    first = torch.rand(1000, device="cuda")
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(1000, device="cuda"))
    out = torch.empty_like(x)
    with torch.cuda.stream(stream):
        graph = passes.captured(lambda: out.copy_(x * 2), stream, torch.cuda.graph_pool_handle())
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x * 2)
    del graph
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_reserved()
    del large
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() >= 1 << 30, "freed memory is kept"


def graphs_of_one_pool_share_memory(x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Two graphs whose outputs are let go of take no more than one, and each is right when it runs."""
    pool, held = torch.cuda.graph_pool_handle(), []
    out = [torch.empty_like(x) for _ in range(2)]
    with torch.cuda.stream(stream):
        for factor in (2, 3):

            def work(factor: int = factor) -> None:
                made = [x.repeat(64, 1) * factor]
                out[factor - 2].copy_(made[0][: len(x)])

            work()
            before = torch.cuda.memory_reserved()
            held.append((passes.captured(work, stream, pool), torch.cuda.memory_reserved() - before))
        for graph, _ in (held[1], held[0], held[1]):
            graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out[0], x * 2)
    assert torch.equal(out[1], x * 3)
    assert held[1][1] <= 0, f"the second graph took {held[1][1]} bytes more"


def main() -> None:
    """Run all."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    x = torch.randn(1024, 1024, device="cuda")
    reads_are_seen_before_a_capture(x)
    a_failed_capture_leaves_nothing_behind(x, stream)
    graphs_of_one_pool_share_memory(x, stream)
    print("captures: all holds")


if __name__ == "__main__":
    main()
