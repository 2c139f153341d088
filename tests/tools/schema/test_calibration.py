"""Measured ceilings: the file, and the speed of light that follows from them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.tools.judge.timing.build_verdict import roofline_bound
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.gpus import Ceilings, ceilings_path, load_ceilings, save_ceilings
from kerneltune.tools.schema.task import CaseSpec, TaskSpec

H200 = Ceilings(
    gpu="NVIDIA H200",
    uuid="GPU-1",
    driver="580.159.04",
    torch="2.11.0+cu130",
    date="2026-11-21T08:21:26+00:00",
    copy_gbps=4232.0,
    read_gbps=4503.0,
    write_gbps=4683.0,
    tflops={"float32": 51.1, "tf32": 362.4, "bfloat16": 795.7, "float16": 766.8, "float8": 1237.7},
    null_launch_us=0.78,
)


def task(bytes_moved: int, flops: int = 0, precision: str = "float32") -> TaskSpec:
    return TaskSpec("t", "0", precision, "", (CaseSpec("main", (), (), None, bytes_moved=bytes_moved, flops=flops),))


def test_ceilings_come_back_from_their_file(tmp_path: Path) -> None:
    path = ceilings_path(tmp_path, H200.uuid, H200.driver, H200.torch)
    save_ceilings(path, H200)
    assert load_ceilings(path) == H200
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_another_gpu_driver_or_torch_has_a_file_of_its_own(tmp_path: Path) -> None:
    paths = {
        ceilings_path(tmp_path, *names)
        for names in (("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("z", "b", "c"))
    }
    assert len(paths) == 4


def test_names_with_slashes_do_not_leave_the_folder(tmp_path: Path) -> None:
    assert ceilings_path(tmp_path, "../../x", "/etc", "..").parent == tmp_path / "ceilings"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"gpu": "x"}', "\x00"])
def test_a_file_that_makes_no_sense_is_no_calibration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    assert load_ceilings(path) is None


@pytest.mark.parametrize(("name", "value"), [("copy_gbps", 0.0), ("read_gbps", -1.0), ("write_gbps", "inf")])
def test_a_file_with_an_impossible_rate_is_no_calibration(tmp_path: Path, name: str, value: float | str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(encode(H200) | {name: value}))
    assert load_ceilings(path) is None


def test_no_file_is_no_calibration(tmp_path: Path) -> None:
    assert load_ceilings(tmp_path / "none.json") is None


def test_a_copy_is_held_to_the_copy_s_rate_and_a_reduction_to_the_read_s() -> None:
    assert H200.memory_us(1 << 30, 1 << 30) == pytest.approx((2 << 30) / 4232e3)
    assert H200.memory_us(1 << 30, 0) == pytest.approx((1 << 30) / 4503e3)
    assert H200.memory_us(0, 1 << 30) == pytest.approx((1 << 30) / 4683e3)


def test_float32_may_be_had_from_three_products_of_float16_and_tf32_from_one() -> None:
    assert H200.rate_tflops("float32") == pytest.approx(766.8 / 3)
    assert H200.rate_tflops("tf32_ok") == pytest.approx(766.8)
    assert H200.rate_tflops("bfloat16") == pytest.approx(795.7)
    assert H200.rate_tflops("float8_e4m3fn") == pytest.approx(1237.7)
    assert H200.rate_tflops("float64") is None


def test_the_light_says_whose_figures_it_uses() -> None:
    main = task(2 << 30)
    measured = roofline_bound(main, "NVIDIA H200", H200, 1 << 30, 4200.0)
    sheet = roofline_bound(main, "NVIDIA H200", None, 1 << 30, 4200.0)
    unknown = roofline_bound(main, "Some GPU", None, 1 << 30, 1000.0)
    assert [found.source for found in (measured, sheet, unknown)] == [
        "measured on this GPU",
        "data sheet",
        "measured copy",
    ]
    assert measured.us == pytest.approx((2 << 30) / 4232e3)
    assert sheet.us == pytest.approx((2 << 30) / 4800e3)
    assert unknown.us == pytest.approx((2 << 30) / 1150e3)
    assert measured.facts()["ceilings"]["uuid"] == "GPU-1"


def test_the_floor_is_below_the_light_whoever_s_figures_are_used() -> None:
    for ceilings in (H200, None):
        light = roofline_bound(task(2 << 30), "NVIDIA H200", ceilings, 1 << 30, 4200.0)
        assert 0 < light.floor_us(60 << 20, 4) < light.us


def test_a_faster_copy_than_the_calibration_s_lowers_the_floor() -> None:
    slow = roofline_bound(task(2 << 30), "NVIDIA H200", H200, 1 << 30, 4200.0)
    fast = roofline_bound(task(2 << 30), "NVIDIA H200", H200, 1 << 30, 5000.0)
    assert fast.floor_us(60 << 20, 4) < slow.floor_us(60 << 20, 4)


def test_contractions_of_an_unmeasured_precision_fall_back_to_the_data_sheet() -> None:
    few = replace(H200, tflops={"float32": 51.1})
    found = roofline_bound(task(1 << 20, flops=1 << 40, precision="bfloat16"), "NVIDIA H200", few, 0, 4200.0)
    assert found.source == "data sheet"
