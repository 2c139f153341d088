"""The languages that kernels are written in, one folder each."""

FOLDERS = ("triton", "gluon", "ptx", "cuda")  # as --language names them
DEVICE_CODE = {"ttir": "triton", "ptx": "ptx"}  # what `Kernel.language` says -> the folder that knows it
