"""The GPU strip's text."""

from agent.view.gpu_line import line
from tools.device import GpuSample


def test_what_nvml_does_not_tell_is_left_out() -> None:
    sample = GpuSample(1980, None, 41, 612.3, 97, None, None)
    assert line("NVIDIA H200", sample) == "NVIDIA H200  97 %  1980 MHz  612 W  41 °C"
