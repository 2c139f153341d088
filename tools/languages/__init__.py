"""The languages that kernels are written in, one folder each."""

FOLDERS = {"ttir": "triton", "ptx": "ptx"}  # what `Kernel.language` says -> the folder, as --language names it
