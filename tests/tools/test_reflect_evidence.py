"""What is said of why a kernel is slow, and how much could be gained."""

import pytest

from kerneltune.tools.reflect import bottlenecks, evidence_in_words
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.verdict import KernelCounters, Probes, Status, Timing, Verdict

MIB = 1 << 20
ROWS = KernelCounters(
    "rows",
    {"time_ns": 126600.0, "dram_read_bytes": 256 * MIB, "dram_written_bytes": 256 * MIB, "dram_percent": 88},
    {"wait": 0.1, "barrier": 0.5, "long_scoreboard": 12.25},
)
WAITING = KernelCounters(
    "finish",
    {"dram_percent": 20.0, "issue_percent": 40.0, "tensor_percent": 0.0, "warps_percent": 12.5},
    {"long_scoreboard": 6.0, "barrier": 2.0},
)
IDLE = KernelCounters("tiny", {"dram_percent": 1.0})


def verdict(us: float = 100.0, **receipt: Json) -> Verdict:
    return Verdict(Status.CORRECT, "right", timing=Timing(us, us, us, 1, 1), coverage=1.0, receipt=receipt)


def counters(*kernels: KernelCounters) -> Json:
    return {"kernels": encode(kernels)}


def launches(**us: float) -> list[Json]:
    return [{"kernel": kernel, "launches": 1, "us": time} for kernel, time in us.items()]


def test_a_kernel_s_counters_are_one_line_with_the_longest_waits_first() -> None:
    assert evidence_in_words(verdict(counters=counters(ROWS)))[1:] == [
        (
            "counters",
            "rows: 126.6 µs under ncu, 4.24 TB/s of DRAM (88 % of its peak), 256.0 MiB read, 256.0 MiB written; "
            "warps waiting at an issue: 12.2 for global memory, 0.5 at a barrier",
        )
    ]


def test_words_come_only_of_counters_that_are_there() -> None:
    assert evidence_in_words(verdict()) == []
    assert evidence_in_words(verdict(counters={"kernels": [{"kernel": 7}]}, probes={"cold_us": "fast"})) == []
    said = evidence_in_words(verdict(counters={"problem": "ncu \x1b[31m is gone"}))
    assert said == [("counters", "none: ncu  is gone")]


def test_a_kernel_that_keeps_the_memory_busy_can_gain_what_is_left_of_its_rate_and_its_share_of_it_in_all() -> None:
    found = verdict(launches_us=launches(rows=60.0, finish=40.0), counters=counters(ROWS))
    (one,) = bottlenecks(found)
    assert (one.limit, one.kernel) == ("memory", "rows")
    assert one.most_gain == pytest.approx(1 / 0.88)
    assert one.most_gain_in_all == pytest.approx(100 / (40 + 60 * 0.88))
    assert ("bottleneck", "rows (60 % of the time): memory, 88 % of its peak rate: with the same bytes at most 1.14x, "
            "1.08x in all") in evidence_in_words(found)  # fmt: skip


def test_memory_is_held_against_the_copy_of_the_session_where_there_was_one() -> None:
    assert (
        "bottleneck",
        "rows: memory, 94 % of the rate of a copy: with the same bytes at most 1.06x",
    ) in evidence_in_words(verdict(counters=counters(ROWS), copy_gbps=4500.0))


def test_a_kernel_that_keeps_nothing_busy_waits_and_can_gain_until_its_busiest_unit_is_full() -> None:
    (line,) = [words for name, words in evidence_in_words(verdict(counters=counters(WAITING))) if name == "bottleneck"]
    assert line == (
        "finish: latency, no unit is busy (instruction issue 40 % of all slots), 75 % of the waiting is for global "
        "memory, 12 % of the warps are resident: at most 2.50x until instruction issue is the limit"
    )


def test_of_a_kernel_that_takes_little_of_the_time_no_bottleneck_is_named() -> None:
    times = launches(rows=30.0, finish=65.0, tiny=5.0)
    found = bottlenecks(verdict(launches_us=times, counters=counters(IDLE, ROWS, WAITING)))
    assert [one.kernel for one in found] == ["finish", "rows"]


PROBED = [
    (60.0, "memory", "memory, 80 % of the rate of a copy: with the same bytes at most 1.25x"),
    (95.0, "not memory", "not memory, which would allow 1.25x: instructions, or what they wait for"),
]


@pytest.mark.parametrize(("resident_us", "limit", "words"), PROBED)
def test_probes_tell_memory_from_waiting_where_there_are_no_counters(
    resident_us: float, limit: str, words: str
) -> None:
    probes = encode(Probes(100.0, resident_us, 80.0, 512 * MIB))
    found = verdict(counters={"problem": "no ncu"}, probes=probes)
    assert [one.limit for one in bottlenecks(found)] == [limit]
    assert evidence_in_words(found) == [
        ("bottleneck", words),
        ("counters", "none: no ncu"),
        ("probes", f"100.0 µs; {resident_us:.1f} µs with its tensors in the L2; a copy of its 512.0 MiB takes 80.0 µs"),
    ]
    assert not bottlenecks(verdict(probes=encode(Probes(100.0, None, 80.0, 512 * MIB))))


def test_empty_launches_are_named_where_they_matter_with_what_one_kernel_would_save() -> None:
    two = {"null_us": 4.0, "launch_nodes": 2}
    assert evidence_in_words(verdict(9.0, **two)) == [
        ("empty launches", "2 empty kernels take 4.0 of the 9.0 µs; as one kernel at most 1.29x")
    ]
    assert evidence_in_words(verdict(100.0, **two)) == []
    assert evidence_in_words(verdict(3.0, null_us=2.0, launch_nodes=1)) == [
        ("empty launches", "an empty kernel takes 2.0 of the 3.0 µs")
    ]
