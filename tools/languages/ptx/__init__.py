"""PTX as text that is read, checked, assembled and launched."""

from kerneltune.tools.languages.ptx.ir import Module, PtxError, parse
from kerneltune.tools.languages.ptx.loader import PtxKernel, PtxLaunchError

__all__ = ["Module", "PtxError", "PtxKernel", "PtxLaunchError", "parse"]
