"""Who writes kernels: language models, and a search that needs none."""
