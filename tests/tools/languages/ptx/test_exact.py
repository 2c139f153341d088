"""Labels of the compiler's debugger: nothing branches there, and yet ptxas may heed one."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kerneltune.tools.languages.ptx.assemble import assemble, code_of, with_needed_labels
from kerneltune.tools.languages.ptx.readable import readable

STORED = Path(__file__).parent / "stored"
Code = Callable[[str], bytes]


@pytest.fixture
def code(tmp_path: Path) -> Code:
    """What a text executes once it is assembled."""
    return lambda text: code_of(assemble(text, "sm_90", tmp_path).cubin)


def test_the_one_label_that_orders_the_instructions_of_a_loop_stays(code: Code) -> None:
    text = (STORED / "clamp_mean_mul_rsub_kernel.ptx").read_text()
    assert code(readable(text)) != code(text)
    kept = with_needed_labels(text, code)
    assert len(re.findall(r"^\$L__tmp\d+:", text, re.MULTILINE)) > 40
    assert re.findall(r"^(?:\$L__tmp|block_)\d+:", kept, re.MULTILINE) == ["block_2:"]
    made = readable(kept)
    assert re.findall(r"^\w+:$", made, re.MULTILINE) == ["loop_1:", "block_2:"]
    assert code(made) == code(text)


def test_labels_that_change_nothing_go_after_one_look(code: Code) -> None:
    text = (STORED / "convolution_2_kernel.ptx").read_text()
    looked: list[str] = []

    def counted(its: str) -> bytes:
        looked.append(its)
        return code(its)

    assert "$L__tmp" not in with_needed_labels(text, counted)
    assert len(looked) == 2
