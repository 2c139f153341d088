"""The author that needs no key and writes PTX: what Triton's kernels compile to, and a search over rewrites of it."""
