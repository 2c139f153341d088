"""What a compiler says where it is not the kernel that is at fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kerneltune.tools.sandbox import bubblewrap
from tests.agent.shell import ROOT

KIB = (*range(4, 160, 4), 65536)  # of a disk
COMPILE = """
import json, os, sys
from pathlib import Path
from kerneltune.tools.compile.compiler import compile_kernels
from kerneltune.tools.languages import DEVICE_CODE
from kerneltune.tools.languages.base import device_code
from kerneltune.tools.schema.messages import CompileRequest

for folder in map(Path, sys.argv[1:]):
    os.environ |= {"TMPDIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    for name in DEVICE_CODE:
        for file in folder.glob("*.*"):
            file.unlink()
        reply, _ = compile_kernels(CompileRequest((device_code(name).warm_kernel,), "sm_90"), folder)
        print(json.dumps([str(reply.failure), [c.report.registers for c in reply.compiled], reply.disk_full]))
"""


def test_a_full_disk_is_never_taken_for_a_fault_of_the_kernel_nor_for_a_kernel_without_registers(
    tmp_path: Path,
) -> None:
    program = bubblewrap.find()
    if program is None or subprocess.run([program, "--dev-bind", "/", "/", "true"], check=False).returncode:
        pytest.skip("no working bubblewrap, which makes small disks")
    disks = [str(tmp_path / str(kib)) for kib in KIB]
    mounts = [
        word for kib, disk in zip(KIB, disks, strict=True) for word in ("--size", str(kib << 10), "--tmpfs", disk)
    ]
    words = [str(program), "--dev-bind", "/", "/", *mounts, sys.executable, "-c", COMPILE, *disks]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {failure for failure, _, _ in told} == {"None"}
    assert all(is_full or min(registers) > 0 for _, registers, is_full in told)
    assert told[0][2]
    assert not told[-1][2]
