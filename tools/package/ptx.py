"""What launches PTX in a packaged file, whose text has what follows the imports. Nothing here imports it."""

import ctypes
import functools
import importlib
import re
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

# loader
# a forward may make its kernel anew at each call: what was assembled and chosen is kept by what the kernel is made of
_LOADED: dict[Any, Any] = {}
_driver_of = functools.cache(lambda call: getattr(ctypes.CDLL("libcuda.so.1"), call))
_FORMS = {"64": "d", "32": "f4x", "16": "e6x"}  # of a float, in eight bytes


class PackagedPtx:
    """What a ModelNew calls PtxKernel: `kernel[grid](*args, block=256)`. Triton's ptxas assembles it."""

    def __init__(self, text: str, *, entry: str | None = None, configs: Any = ()) -> None:
        self.text, self.entry = text, entry
        self.configs, self.loaded = _LOADED.setdefault((text, entry, str(configs)), (list(configs) or [{}], {}))

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: self._launch(self._fastest(grid, args, options), grid, args, **options)

    def _fastest(self, grid: Any, args: Any, options: Any) -> Any:
        key = len(self.configs) > 1 and tuple([(a.dtype, a.shape) if hasattr(a, "dtype") else a for a in args])
        if key and key not in self.loaded and not torch.cuda.is_current_stream_capturing():
            timed, numbers = importlib.import_module("triton.testing").do_bench, range(len(self.configs))
            self.loaded[key] = min(numbers, key=lambda n: timed(lambda: self._launch(n, grid, args, **options)))
        return self.loaded.get(key, 0)

    def _launch(self, number: int, grid: Any, args: Any, **options: Any) -> None:
        config, device, given = self.configs[number], torch.cuda.current_device(), options.get
        blocks = _sizes(config, grid, 1)
        shared = _sizes(config, given("shared_bytes"), config.get("shared_bytes", 0))[0]
        function, kinds, demanded = self.loaded.get((number, shared, device)) or self._load(number, shared, device)
        threads = _sizes(config, given("block"), config.get("block", demanded.get("reqntid")))
        cluster = _sizes(config, given("cluster"), demanded.get("reqnctapercluster", 1))
        on = [(n, (1, 0, 0)) for n, name in ((6, "pdl"), (2, "cooperative")) if given(name)]
        flags: list[Any] = on + [(4, cluster), (5, (1, 0, 0))] * (cluster != (1, 1, 1))
        made = ctypes.create_string_buffer(b"".join([struct.pack("I4x3I52x", n, *v) for n, v in flags]), 300)
        pairs = [(k, a.data_ptr() if hasattr(a, "data_ptr") else a) for k, a in zip(kinds, args, strict=True)]
        forms = [_FORMS[k[1:]] if k[0] == "f" or isinstance(v, float) else "qQ"[v >= 0] for k, v in pairs]
        held = ctypes.create_string_buffer(struct.pack("=" + "".join(forms), *[v for _, v in pairs]))
        pointers = (ctypes.c_void_p * 64)(*range(start := ctypes.addressof(held), start + 8 * len(args), 8))
        stream = torch._C._cuda_getCurrentRawStream(device)
        launch = struct.pack("7I4xQQI4x", *blocks, *threads, shared, stream, ctypes.addressof(made), len(flags))
        if 0 not in blocks:
            _driver("cuLaunchKernelEx", launch, function, pointers, None)

    def _assembled(self, config: Any, arch: str) -> tuple[bytes, str, list[str], dict[str, list[int]]]:
        form = importlib.import_module("jinja2").Environment("<%", "%>", "${", "}", "<#", "#>", "//:")  # torch's
        text = form.from_string(self.text).render(config) if config else self.text
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        entries = re.findall(r"\.entry\s+([\w$%]+)\s*\((.*?)\)", text, re.S)
        name, takes = next(entry for entry in entries if self.entry in (None, entry[0]))
        target = re.search(rf"\.target\s+({arch}[af])", text)
        with tempfile.TemporaryDirectory() as folder:
            source, image = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            source.write_text(text)
            ptxas = importlib.import_module("triton.backends.nvidia.compiler").get_ptxas(int(arch[3:])).path
            subprocess.run([ptxas, f"--gpu-name={target[1] if target else arch}", source, "-o", image], check=True)
            cubin = image.read_bytes()
        demanded = re.findall(r"\.(reqntid|reqnctapercluster)\s+([\d\s,]+)", text)
        return cubin, name, re.findall(r"\.param\s+\.(\w+)", takes), {n: [*map(int, v.split(","))] for n, v in demanded}

    def _load(self, number: int, shared: int, device: int) -> Any:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        cubin, name, *rest = self._assembled(self.configs[number], arch)
        _driver("cuModuleLoadData", ctypes.byref(module := ctypes.c_void_p()), cubin)
        _driver("cuModuleGetFunction", ctypes.byref(function := ctypes.c_void_p()), module, name.encode())
        for attribute, value in ((8, shared), (14, 1)):  # dynamic shared memory; clusters of more than 8 blocks
            _driver("cuFuncSetAttribute", function, attribute, value)
        return self.loaded.setdefault((number, shared, device), (function, *rest))


def _sizes(config: Any, given: Any, usual: Any) -> tuple[int, ...]:
    value = usual if given is None else given(config) if callable(given) else given
    return (*(value if isinstance(value, list | tuple) else (value,)), 1, 1)[:3]


def _driver(call: str, *args: Any) -> None:
    if code := _driver_of(call)(*args):
        raise RuntimeError(f"{call} failed with CUDA error {code}")
