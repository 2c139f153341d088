"""Which variables a module keeps, from cubins that ptxas made."""

import subprocess
from pathlib import Path

import pytest
import triton

from kerneltune.tools.backends.cuda.launcher import variables

PTX = """
.version 8.0
.target sm_90
.address_size 64
%s
.visible .entry kernel(.param .u64 x)
{
    .reg .b32 %%r<4>;
    .reg .b64 %%d<3>;
    ld.param.u64 %%d1, [x];
    %s
    st.global.u32 [%%d1], %%r1;
    ret;
}
"""


def cubin(tmp_path: Path, declarations: str, body: str) -> bytes:
    source, target = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(PTX % (declarations, body))
    subprocess.run([triton.knobs.nvidia.ptxas.path, "-arch=sm_90", str(source), "-o", str(target)], check=True)
    return target.read_bytes()


@pytest.mark.parametrize(
    ("declarations", "body", "wanted"),
    [
        ("", "mov.u32 %r1, 1;", {}),
        (".global .align 4 .u32 zeroed;", "ld.global.u32 %r1, [zeroed]; st.global.u32 [zeroed], %r1;", {"zeroed": 4}),
        (".visible .global .u32 preset = 7;", "ld.global.u32 %r1, [preset];", {"preset": 4}),
        (".global .align 16 .b8 table[4096];", "ld.global.u32 %r1, [table+64];", {"table": 4096}),
        (".const .align 4 .u32 fixed = 3;", "ld.const.u32 %r1, [fixed];", {"fixed": 4}),
        (".shared .align 4 .b8 tile[1024];", "ld.shared.u32 %r1, [tile];", {}),
    ],
)
def test_variables_outside_of_shared_memory_are_found_with_their_sizes(
    tmp_path: Path, declarations: str, body: str, wanted: dict[str, int]
) -> None:
    assert variables(cubin(tmp_path, declarations, body)) == wanted


def test_what_is_no_cubin_is_refused(tmp_path: Path) -> None:
    whole = cubin(tmp_path, ".global .u32 a;", "ld.global.u32 %r1, [a];")
    for data in (b"", b"MZ", whole[:100], whole[: len(whole) // 2], whole[:40] + b"\xff" * 24):
        with pytest.raises(ValueError, match="cubin"):
            variables(data)
