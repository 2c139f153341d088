"""The languages that kernels are written in, one folder each."""
