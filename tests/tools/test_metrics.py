"""What holds an attempt back, by its time and its plan."""

from dataclasses import replace
from typing import Any

import pytest

from kerneltune.tools.reflect import PlanWork, Roofline, roofline
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.schema.sass import KernelFacts, Sass, SassInstruction, counted, facts_in_words, hot_loop
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import KernelReport, Status, Timing, Verdict

H200 = gpu_for_arch("sm_90")
SPILLING = KernelReport("k", 255, 64, 64, 0, 1024, 4, 1, 0.1, "c", 0.1)


def place(
    us: float | None,
    *,
    n_bytes: int = 4_800_000_000,
    flops: int = 0,
    work: PlanWork | None = None,
    receipt: dict[str, Json] | None = None,
    sol_fraction: float | None = None,
) -> Roofline:
    task = TaskSpec("t", "0" * 64, "bfloat16", "", (CaseSpec("main", (), (), None, bytes_moved=n_bytes, flops=flops),))
    timing = None if us is None else Timing(us, us, us, 1, 1)
    status = Status.CHECKED if us is None else Status.CORRECT
    verdict = Verdict(status, "right", timing=timing, receipt=receipt or {}, sol_fraction=sol_fraction)
    return roofline(task, H200, verdict, (SPILLING,), work or PlanWork())


BOUNDS = [(1_000.0, "memory", 1.0), (1_500.0, "memory", 0.67), (4_000.0, "latency", 0.25)]


@pytest.mark.parametrize(("us", "bound", "share"), BOUNDS)
def test_a_kernel_that_keeps_the_memory_busy_is_bound_by_it_and_a_slow_one_by_latency(
    us: float, bound: str, share: float
) -> None:
    found = place(us)
    assert found.bound == bound
    assert f"{share:.0%} of the bandwidth" in found.reason


def test_a_kernel_that_keeps_the_tensor_cores_busy_is_bound_by_arithmetic() -> None:
    assert place(1_000.0, n_bytes=1_000_000, flops=800_000_000_000).bound == "compute"


def test_without_a_time_nothing_is_said_of_the_attempt() -> None:
    found = place(None)
    assert (found.achieved_gbps, found.achieved_tflops) == (None, None)
    assert "nothing was timed" in found.reason


def test_hints_name_what_is_wasted_with_its_number() -> None:
    work = PlanWork(9_600_000_000, (("k", 64), ("k", 4096)), ("softmax",))
    hints = place(1_000.0, work=work, receipt={"null_us": 400.0}).hints
    assert any("2.00x the task's least bytes, 1116 us of a copy" in h for h in hints)
    assert any("2 launches a forward" in h for h in hints)
    assert any("64 programs for 132 multiprocessors" in h for h in hints)
    assert any("spills 128 bytes a thread" in h for h in hints)


def test_beyond_the_speed_of_light_a_kernel_leaves_products_out_and_nothing_is_said_of_what_is_left() -> None:
    near, beyond = (" ".join(place(1_000.0, sol_fraction=share).hints) for share in (0.95, 1.82))
    assert ("at most 1.05x is left" in near, "it does with fewer" in near) == (True, False)
    assert ("is left" in beyond, "it does with fewer" in beyond) == (False, True)


def test_bytes_that_take_little_of_the_time_of_products_are_no_hint() -> None:
    for us, hinted in ((1_000.0, True), (20_000.0, False), (None, False)):
        hints = place(us, flops=40_000_000_000_000, work=PlanWork(9_600_000_000)).hints
        assert any("least bytes" in h for h in hints) is hinted


def test_a_kernel_that_takes_little_of_the_time_gets_no_hint() -> None:
    work = PlanWork(launches=(("k", 64), ("rows", 32)))
    for kernel_us, hinted in ((9.0, False), (20.0, True)):
        launches: list[Json] = [
            {"kernel": "k", "launches": 1, "us": kernel_us},
            {"kernel": "rows", "launches": 1, "us": 91.0},
        ]
        hints = place(1_000.0, work=work, receipt={"launches_us": launches}).hints
        assert any("k spills" in h for h in hints) is hinted
        assert any("64 programs" in h for h in hints) is hinted
        assert any("32 programs" in h for h in hints)


def test_what_memory_moved_beyond_the_least_bytes_is_named_where_memory_limits_and_every_launch_was_seen() -> None:
    def hints(dram_percent: float, *more: tuple[str, int]) -> tuple[str, ...]:
        values: Json = {"dram_read_bytes": 6e9, "dram_written_bytes": 1.2e9, "dram_percent": dram_percent}
        seen: Json = {"kernels": [{"kernel": "k", "values": values}]}
        return place(1_500.0, work=PlanWork(launches=(("k", 4096), *more)), receipt={"counters": seen}).hints

    said = "memory moved 1.50x the task's least bytes: something is read again"
    assert said in hints(80.0)
    assert said not in hints(19.0)
    assert said not in hints(80.0, ("j", 4096))


def test_launches_are_no_hint_where_empty_ones_take_little_of_the_time() -> None:
    work = PlanWork(launches=(("k", 4096), ("k", 4096)))
    for null_us, hinted in ((4.0, False), (400.0, True)):
        hints = place(1_000.0, work=work, receipt={"null_us": null_us}).hints
        assert any("2 launches a forward" in h for h in hints) is hinted


def facts(**more: Any) -> KernelFacts:
    return KernelFacts(replace(SPILLING, name="mm", num_stages=3), **more)


def test_the_line_of_an_update_counts_blocks_and_waves_and_stays_short() -> None:
    said = facts_in_words(facts(blocks=2, programs=300, multiprocessors=132))
    assert said.endswith("4 warps, 3 stages; 2 blocks/SM, 300 programs: 1.14 waves (last 14 %)")
    assert facts(blocks=2, programs=264, multiprocessors=132).last_wave == 1.0
    one = KernelFacts(replace(SPILLING, num_warps=1), blocks=1, programs=1, multiprocessors=132)
    assert facts_in_words(one).endswith("1 warp, 1 stage; 1 block/SM, 1 program: 0.01 waves (last 1 %)")
    longest = replace(SPILLING, name="k" * 300, spill_load_bytes=9935, shared_bytes=232448, num_warps=8, num_stages=4)
    grid = KernelFacts(longest, 1, 65536, 132)
    assert len(facts_in_words(grid)) == 160
    assert "\n" not in facts_in_words(grid)


def sass_of(*lines: str) -> Sass:
    """Of "label: text" lines."""
    parted = [line.rpartition(": ") for line in lines]
    return counted("mm", [SassInstruction(16 * n, text, label) for n, (label, _, text) in enumerate(parted)])


LOOP = (
    "HMMA.1688.F32.TF32 R0, R4, R8, R0",
    ".L_x_1: LDGSTS.E.BYPASS.128 [R2], desc[UR4][R8.64]",
    "HMMA.16816.F32 R0, R4, R8, R0",
    "@P0 BRA `(.L_x_1)",
    "STG.E.U16 desc[UR4][R8.64], R0",
    "STG.E.128 desc[UR4][R8.64], R0",
    "EXIT",
)


def test_tensor_core_operations_are_counted_in_the_loop_and_widths_in_the_whole_kernel() -> None:
    said = facts_in_words(facts(), sass_of(*LOOP))
    assert "; 1 HMMA.16816.F32 in the loop; asynchronous copies; loads of 128 bits; stores of 16 to 128 bits" in said
    straight = facts_in_words(facts(), sass_of(*(line for line in LOOP if "BRA" not in line)))
    assert "; 1 HMMA.1688.F32.TF32, 1 HMMA.16816.F32; " in straight


def test_a_branch_back_over_the_end_is_no_loop_and_the_densest_of_several_counts() -> None:
    waits = ("@!P1 BRA `(.L_x_1)", "BRA `(.L_x_9)")
    code = sass_of(".L_x_0: NOP", *LOOP[1:3], "@P1 BRA `(.L_x_1)", "@P2 BRA `(.L_x_0)", "EXIT", *waits).instructions
    assert [i.head for i in hot_loop(code)] == ["LDGSTS", "HMMA", "BRA"]
    assert hot_loop(sass_of("NOP", ".L_x_1: HMMA.1 R0", "EXIT", "BRA `(.L_x_1)").instructions) == ()


def test_what_was_asked_for_and_not_done_is_said() -> None:
    unmet = facts_in_words(
        facts(asked_warps=4, descriptors=True), sass_of(".L_x_1: HMMA.1 R0", "BRA `(.L_x_1)", "EXIT")
    )
    assert "not specialised as asked" in unmet
    assert "tensor descriptors without TMA: emulated; 3 stages asked, no asynchronous copy" in unmet
