"""The speed of light and the occupancy calculator, against figures worked out by hand."""

import pytest

from kerneltune.tools.schema.gpus import (
    GPUS,
    gpu_for_arch,
    gpu_named,
    occupancy,
    rate_tflops,
    speed_of_light,
    target_arch,
)
from kerneltune.tools.schema.task import CaseSpec


def case(shape: tuple[int, ...], *, bytes_moved: int, flops: int = 0) -> CaseSpec:
    outputs = {"$tensor": {"shape": list(shape), "dtype": "float32", "stride": None}}
    return CaseSpec("main", inputs=(), init_args=(), outputs=outputs, bytes_moved=bytes_moved, flops=flops)


H200 = gpu_named("NVIDIA H200")


def test_a_softmax_of_512_mib_takes_an_h200_112_us_at_least_and_is_bound_by_memory() -> None:
    light = speed_of_light(case((8192, 8192), bytes_moved=2 * 4 * 8192**2), H200, "float32")
    assert light.us == pytest.approx(111.8, abs=0.1)
    assert light.target_us == pytest.approx(124.9, abs=0.1)  # by the measured copy, not the data sheet
    assert light.bound == "memory"


def test_a_large_bfloat16_matmul_is_bound_by_compute() -> None:
    light = speed_of_light(case((8192, 8192), bytes_moved=3 * 2 * 8192**2, flops=2 * 8192**3), H200, "bfloat16")
    assert light.bound == "compute"
    assert light.us == pytest.approx(1112, rel=0.01)


def test_no_kernel_of_scaled_float16_is_faster_than_the_light_of_the_precision_that_it_has() -> None:
    assert rate_tflops(H200, "float32") == pytest.approx(H200.tflops["float16"] / 3)
    assert rate_tflops(H200, "tf32_ok") == H200.tflops["float16"]


@pytest.mark.parametrize(
    ("driver_name", "ours"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_gpu_is_found_by_what_the_driver_calls_it(driver_name: str, ours: str) -> None:
    assert gpu_named(driver_name).name == ours


def test_a_laptop_gpu_is_not_taken_for_its_desktop_namesake() -> None:
    with pytest.raises(KeyError, match="known: H200"):
        gpu_named("NVIDIA GeForce RTX 4090 Laptop GPU")


@pytest.mark.parametrize(
    ("arch", "spellings"),
    [
        ("sm_80", "sm_80 A100 a100 80 8.0 NVIDIA-A100-80GB-SXM"),
        ("sm_89", "sm89 L40S l4 4090 RTX4090 rtx-4090 8.9"),
        ("sm_90", "sm_90 sm_90a SM90 sm90 sm-90 90 9.0 compute_90 h100 H100 H200 h100-pcie"),
        ("sm_100", "sm_100 sm100 sm_100a 100 10.0 b200 B200"),
    ],
)
def test_a_compile_target_may_be_spelt_as_people_do(arch: str, spellings: str) -> None:
    assert {spelling: target_arch(spelling) for spelling in spellings.split()} == dict.fromkeys(spellings.split(), arch)


@pytest.mark.parametrize("text", ["sm_12", "sm_", "", "h1000", "gfx942", "RTX 4090 Laptop GPU", "9", "sxm", "9" * 5000])
def test_an_unknown_compile_target_is_refused_with_all_that_work(text: str) -> None:
    with pytest.raises(ValueError, match=r"known: sm_80 \(A100.*sm_89.*sm_90 \(H200, H100.*sm_100 \(B200\)"):
        target_arch(text)


def test_every_gpu_has_the_rates_that_tasks_may_declare() -> None:
    for gpu in GPUS:
        assert all(rate_tflops(gpu, p) > 0 for p in ("float32", "tf32_ok", "float16", "bfloat16", "float8_e4m3fn"))
        assert gpu_for_arch(f"sm_{gpu.arch}").arch == gpu.arch


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "wanted"),
    [
        (32, 0, 4, 1.0),  # 64 warps x 32 lanes x 32 registers are the whole file
        (64, 0, 4, 0.5),
        (96, 0, 8, 16 / 64),  # 20 warps fit, 2 blocks of 8
        (255, 0, 8, 8 / 64),
        (32, 100 << 10, 4, 8 / 64),  # 2 blocks of 101 KiB in 228
        (16, 0, 1, 0.5),  # 32 blocks of one warp
        (255, 0, 16, 0.0),  # cannot be launched
    ],
)
def test_occupancy_agrees_with_nvidia_s_calculator(
    registers: int, shared_bytes: int, num_warps: int, wanted: float
) -> None:
    assert occupancy("sm_90", registers, shared_bytes, num_warps) == wanted
