"""PTX as text that is read, checked, assembled and launched."""

from tools.ptx.ir import Module, PtxError
from tools.ptx.loader import PtxKernel, PtxLaunchError
from tools.ptx.parser import parse

__all__ = ["Module", "PtxError", "PtxKernel", "PtxLaunchError", "parse"]
