"""CUDA C++ as text that NVRTC lowers to PTX."""
