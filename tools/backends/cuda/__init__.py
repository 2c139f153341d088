"""NVIDIA GPUs: the driver's calls, the confined runner that replays plans, what NVML says."""
