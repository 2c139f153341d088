"""PTX as text that is read, checked, assembled and launched."""

from kerneltune.tools.languages.ptx.ir import Module, PtxError
from kerneltune.tools.languages.ptx.loader import PtxKernel, PtxLaunchError
from kerneltune.tools.languages.ptx.parser import parse

__all__ = ["Module", "PtxError", "PtxKernel", "PtxLaunchError", "parse"]
