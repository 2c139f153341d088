"""Kernels of a launch plan compiled to cubins in a confined process, and disassembled."""
