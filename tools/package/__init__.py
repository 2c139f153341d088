"""Kernels as files that can be put into a model, and what stands in such a file."""
