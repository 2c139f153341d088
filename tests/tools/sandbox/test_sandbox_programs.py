"""Real programs inside the jails: torch, Triton and ptxas without a GPU, and CUDA with one.

Each script runs in a fresh interpreter that imports the libraries, forks as a fork server does, and confines the
children.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kerneltune.tools.sandbox.confine import available

ROOT = Path(__file__).resolve().parents[3]
HERE = available()
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")


KERNEL = """
import triton, triton.language as tl
@triton.jit
def double(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, i < n) * 2, i < n)
"""
IN_JAIL = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {folder!r}]
import torch, triton, kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from kerneltune.tools.sandbox.confine import Profile, ResourceLimits, enter
torch.set_num_threads(1)
target = GPUTarget("cuda", 90, 32)
source = ASTSource(kernel.double, dict(x="*fp32", n="i32", B="constexpr"), dict(B=128))
for profile, body in {bodies!r}:
    if os.fork():
        print(profile, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        continue
    scratch = Path({folder!r}) / "scratch" if profile == "compiler" else None
    try:
        limits = ResourceLimits(memory_bytes=4 << 30, file_bytes=64 << 20, cpu_s=60, open_files=256)
        assert enter(Profile(profile), scratch=scratch, limits=limits, keep_fds=[0, 1, 2]).confined
        exec(body)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""
TRACE = """
import torch.fft, torch.nn.functional as F
torch.set_num_threads(2)
x = torch.randn(256, 256)
assert torch.allclose(F.softmax(x @ x, -1).sum(-1), torch.ones(256))
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    assert torch.nn.Linear(4, 8)(torch.empty(2, 4)).shape == (2, 8)
from triton._C.libtriton import ir
backend = make_backend(target)
options, context = backend.parse_options({}), ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
module = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
assert "tt.store" in str(module)
"""
COMPILE = """
import tempfile
os.environ.update(TMPDIR=str(scratch), TRITON_CACHE_DIR=str(scratch / "triton"))
tempfile.tempdir = None  # as the fork server does: what torch imports may have asked for it already
from triton.backends.nvidia.compiler import get_ptxas
assert get_ptxas(90).version
compiled = triton.compile(source, target=target)
assert compiled.asm["cubin"][:4] == bytes([0x7F]) + b"ELF"
import subprocess
cubin = scratch / "k.cubin"
cubin.write_bytes(compiled.asm["cubin"])
dump = Path(get_ptxas(90).path).with_name("cuobjdump")
assert "REG:" in subprocess.run([dump, "--dump-resource-usage", cubin], capture_output=True, text=True).stdout
"""


def test_torch_and_triton_work_in_the_jail(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "scratch").mkdir()
    bodies = [("tracer", TRACE), ("interpreter", TRACE), ("compiler", COMPILE)]
    (tmp_path / "main.py").write_text(IN_JAIL.format(root=str(ROOT), folder=str(tmp_path), bodies=bodies))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}  # else torch._dynamo wants a temporary folder
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout.splitlines() == ["tracer 0", "interpreter 0", "compiler 0"], done.stderr


RUNNER = """
import array, ctypes, os, pickle, socket, sys, threading
sys.path.insert(0, {root!r})
import torch
from kerneltune.tools.sandbox.confine import Profile, ResourceLimits, enter

def driver():
    cu = ctypes.CDLL("libcuda.so.1")
    def call(name, *arguments):
        status = getattr(cu, name)(*arguments)
        assert status == 0, (name, status)
    return call

class Prop(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int * 2),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]

def mapped(call, handle, size):
    address = ctypes.c_uint64()
    call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0),
         ctypes.c_uint64(0))
    call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    access = (ctypes.c_int * 3)(1, 0, 3)  # device 0, read and write
    call("cuMemSetAccess", address, ctypes.c_size_t(size), access, ctypes.c_size_t(1))
    return address

def judge(sock):
    enter(Profile.TRUSTED, scratch=None, limits=limits, keep_fds=[0, 1, 2, sock.fileno()])
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    call, size, handle, fd = driver(), 2 << 20, ctypes.c_uint64(), ctypes.c_int()
    prop = Prop(1, 1, (1, 0), None)  # pinned, POSIX file descriptor, device 0
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
    call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
    address = mapped(call, handle, size)
    call("cuMemsetD32_v2", address, ctypes.c_uint(7), ctypes.c_size_t(size // 4))
    torch.cuda.synchronize()
    sock.sendall(pickle.dumps(x.untyped_storage()._share_cuda_()))
    assert sock.recv(1) == b"1"
    socket.send_fds(sock, [b"fd"], [fd.value])
    assert sock.recv(1) == b"2"
    assert x.sum().item() == 1 << 20
    value = ctypes.c_uint()
    call("cuMemcpyDtoH_v2", ctypes.byref(value), address, ctypes.c_size_t(4))
    assert value.value == 8, value.value

def runner(sock):
    print(enter(Profile.RUNNER, scratch=None, limits=limits, keep_fds=[0, 1, 2, sock.fileno()]), flush=True)
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    assert torch.isfinite(a @ a).all().item()
    pinned = torch.ones(1 << 20).pin_memory().to("cuda", non_blocking=True)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        pinned.mul_(2)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(); graph.replay(); end.record(); end.synchronize()
    assert start.elapsed_time(end) > 0
    thread = threading.Thread(target=lambda: pinned.add_(1))
    thread.start(); thread.join()
    assert pinned[0].item() == 3
    storage = torch.UntypedStorage._new_shared_cuda(*pickle.loads(sock.recv(65536)))
    torch.empty(0, device="cuda").set_(storage, 0, (1 << 20,)).add_(1)
    torch.cuda.synchronize()
    sock.sendall(b"1")
    _, fds, _, _ = socket.recv_fds(sock, 2, 1)
    call, handle = driver(), ctypes.c_uint64()
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fds[0]), 1)
    address = mapped(call, handle, 2 << 20)
    call("cuMemsetD32_v2", address, ctypes.c_uint(8), ctypes.c_size_t(1))
    torch.cuda.synchronize()
    sock.sendall(b"2")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        (a @ a).sum().item()
    print("profiled", [e.key for e in profile.key_averages()][:3], flush=True)

limits = ResourceLimits(memory_bytes=None, file_bytes=1 << 20, cpu_s=None, open_files=1024)
if {uid}:
    os.setgroups([]); os.setgid({uid}); os.setuid({uid})
pairs, pids = socket.socketpair(), []
for role, sock in zip((judge, runner), pairs):
    pids.append(os.fork())
    if pids[-1] == 0:
        try:
            role(sock)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(1)
for sock in pairs:
    sock.close()
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
"""


@pytest.mark.gpu
def test_cuda_its_graphs_and_shared_memory_work_in_the_runner_s_jail(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(RUNNER.format(root=str(ROOT), uid=0))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}  # graph capture imports torch._dynamo
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
