"""What launches PTX in a packaged file, whose text has what follows the imports. Nothing here imports it."""

import ctypes
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
_LOADED: dict[Any, dict[Any, Any]] = {}


class PtxKernel:
    """PTX as a ModelNew launches it: `kernel[grid](*args, block=256)`. Triton's ptxas assembles it."""

    def __init__(self, text: str, *, entry: str | None = None, configs: Any = ()) -> None:
        self.text, self.entry, self.configs = text, entry, list(configs) or [{}]
        self.loaded = _LOADED.setdefault((text, entry, str(self.configs)), {})

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: self._launch(self._fastest(grid, args, options), grid, args, **options)

    def _fastest(self, grid: Any, args: Any, options: Any) -> Any:
        key = tuple((a.dtype, a.shape) if isinstance(a, torch.Tensor) else a for a in args)
        if len(self.configs) > 1 and key not in self.loaded and not torch.cuda.is_current_stream_capturing():
            timed = importlib.import_module("triton.testing").do_bench
            self.loaded[key] = min(self.configs, key=lambda c: timed(lambda: self._launch(c, grid, args, **options)))
        return self.loaded.get(key, self.configs[0])

    def _launch(self, config: Any, grid: Any, args: Any, *, cooperative: Any = 0, pdl: Any = 0, **options: Any) -> None:
        def sizes(name: str, usual: Any) -> tuple[int, ...]:
            value = usual if options.get(name) is None else options[name]
            value = value(config) if callable(value) else value
            return (*(value if isinstance(value, list | tuple) else (value,)), 1, 1)[:3]

        blocks, shared = sizes("", grid), sizes("shared_bytes", config.get("shared_bytes", 0))[0]
        place = (str(config), shared, torch.cuda.current_device())
        function, kinds, demanded = self.loaded[place] = self.loaded.get(place) or self._load(config, shared)
        threads = sizes("block", config.get("block", demanded.get("reqntid")))
        cluster = sizes("cluster", demanded.get("reqnctapercluster", 1))
        flags: list[Any] = [(6, (1, 0, 0))] * bool(pdl) + [(2, (1, 0, 0))] * bool(cooperative)
        flags += [(4, cluster), (5, (1, 0, 0))] * (cluster != (1, 1, 1))
        made = ctypes.create_string_buffer(b"".join(struct.pack("I4x3I52x", n, *v) for n, v in flags), 300)
        held = [ctypes.create_string_buffer(_bytes(kind, arg), 8) for kind, arg in zip(kinds, args, strict=True)]
        stream = torch.cuda.current_stream().cuda_stream
        launch = struct.pack("7I4xQQI4x", *blocks, *threads, shared, stream, ctypes.addressof(made), len(flags))
        if 0 not in blocks:
            _driver("cuLaunchKernelEx", launch, function, (ctypes.c_void_p * 64)(*map(ctypes.addressof, held)), None)

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

    def _load(self, config: Any, shared: int) -> Any:
        cubin, name, *rest = self._assembled(config, "sm_{}{}".format(*torch.cuda.get_device_capability()))
        _driver("cuModuleLoadData", ctypes.byref(module := ctypes.c_void_p()), cubin)
        _driver("cuModuleGetFunction", ctypes.byref(function := ctypes.c_void_p()), module, name.encode())
        for attribute, value in ((8, shared), (14, 1)):  # dynamic shared memory; clusters of more than 8 blocks
            _driver("cuFuncSetAttribute", function, attribute, value)
        return function, *rest


def _bytes(kind: str, value: Any) -> bytes:
    if isinstance(value, float) or kind.startswith("f"):
        return struct.pack({"64": "d", "32": "f", "16": "e"}[kind[1:]], value)
    return (int(value.data_ptr() if isinstance(value, torch.Tensor) else value) & (1 << 64) - 1).to_bytes(8, "little")


def _driver(call: str, *args: Any) -> None:
    if code := getattr(ctypes.CDLL("libcuda.so.1"), call)(*args):
        raise RuntimeError(f"{call} failed with CUDA error {code}")
